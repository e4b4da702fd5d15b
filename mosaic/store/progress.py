"""How training goes: the newest trajectories as figures, the jobs with what they measured, the policy versions.

Every list is bounded, and read in an index's order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from mosaic.store.models import JobMetricRow, JobRow, PolicyVersionRow, SessionRow, TaskRow, TrajectoryRow
from mosaic.store.reading import load

RECENT = 2000
"""Trajectories that are looked at, newest first."""
ATTEMPTS = 32
"""Attempts of one task that are shown side by side, newest first."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trajectory as figures."""

    trajectory_id: str
    task_key: str | None
    created_at: float
    state: str
    reward: float | None
    policy_version: int
    """The oldest version that sampled in it."""
    trained_version: int | None
    sessions: int


@dataclass(frozen=True, slots=True)
class Job:
    """A training job."""

    job_id: str
    state: str
    policy_from: int
    policy_to: int | None
    error: str | None
    created_at: float
    ended_at: float | None
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Version:
    """One set of weights."""

    version: int
    state: str
    job_id: str | None
    path: str
    created_at: float
    live_at: float | None
    verification: Mapping[str, Any]
    """What was checked before it counted as live; empty when nothing was."""
    restores: int | None = None
    """The version whose weights were put back under this number; None for new ones."""
    pinned: bool = False


def recent(connection: Connection, limit: int = RECENT) -> list[Attempt]:
    """The newest trajectories, oldest first."""
    sessions = (
        select(func.max(SessionRow.position) + 1)
        .where(SessionRow.trajectory_id == TrajectoryRow.trajectory_id)
        .correlate(TrajectoryRow)
        .scalar_subquery()
    )
    names = [name for name in Attempt.__dataclass_fields__ if name != "sessions"]
    query = select(*(getattr(TrajectoryRow, name) for name in names), func.coalesce(sessions, 0).label("sessions"))
    rows = connection.execute(query.order_by(TrajectoryRow.created_at.desc()).limit(limit)).mappings().all()
    return [Attempt(**row) for row in reversed(rows)]


def task_texts(connection: Connection, keys: Sequence[str], characters: int = 300) -> dict[str, str]:
    """Task key -> the beginning of its text."""
    query = select(TaskRow.task_key, func.substr(TaskRow.text, 1, characters)).where(TaskRow.task_key.in_(keys))
    return dict(connection.execute(query).all())


def versions_of(connection: Connection, task_key: str) -> list[int]:
    """The policy versions under which a task was attempted."""
    query = select(TrajectoryRow.policy_version).where(TrajectoryRow.task_key == task_key).distinct()
    return sorted(connection.scalars(query))


def attempts(connection: Connection, task_key: str, version: int | None = None, limit: int = ATTEMPTS) -> list[str]:
    """Ids of the newest attempts at a task, of one policy version or of all, oldest first."""
    query = select(TrajectoryRow.trajectory_id).where(TrajectoryRow.task_key == task_key)
    if version is not None:
        query = query.where(TrajectoryRow.policy_version == version)
    ids = connection.scalars(query.order_by(TrajectoryRow.created_at.desc()).limit(limit)).all()
    return list(reversed(ids))


def jobs(connection: Connection, limit: int = 200) -> list[Job]:
    """The newest jobs, newest first, with the last value of each figure that they reported."""
    rows = connection.execute(select(JobRow.__table__).order_by(JobRow.created_at.desc()).limit(limit)).mappings().all()
    figures: dict[str, dict[str, float]] = {}
    query = select(JobMetricRow.job_id, JobMetricRow.name, JobMetricRow.value)
    query = query.where(JobMetricRow.job_id.in_([row["job_id"] for row in rows])).order_by(JobMetricRow.step)
    for job_id, name, value in connection.execute(query):
        figures.setdefault(job_id, {})[name] = value
    names = [name for name in Job.__dataclass_fields__ if name != "metrics"]
    return [Job(**{name: row[name] for name in names}, metrics=figures.get(row["job_id"], {})) for row in rows]


def versions(connection: Connection, limit: int = 200) -> list[Version]:
    """The newest policy versions, newest first."""
    query = select(PolicyVersionRow.__table__).order_by(PolicyVersionRow.version.desc()).limit(limit)
    found = []
    for row in connection.execute(query).mappings():
        checked = load(row["verification"]) if row["verification"] else {}
        found.append(Version(**{**row, "verification": checked if isinstance(checked, dict) else {}}))
    return found
