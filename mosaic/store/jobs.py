"""Training jobs: what each has chosen, how far it has come, and what it has done.

A job is written down before it does anything, and after every step, so that the next one can take it up.
"""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, func, insert, select, update

from mosaic.records import UNSETTLED, JobState, TrajectoryState
from mosaic.store.models import (
    AdvantageRow,
    JobMetricRow,
    JobRow,
    PolicyVersionRow,
    SessionRow,
    TrajectoryRow,
)
from mosaic.store.reading import batched
from mosaic.store.writing import count, insert_new


@dataclass(frozen=True, slots=True)
class Job:
    """One training job."""

    job_id: str
    state: JobState
    settings: Mapping[str, Any]
    """What it was told (`[train]`)."""
    selection: Mapping[str, Any]
    """What is needed to take it up again; empty once it is published."""
    checkpoint: str | None
    """Folder of what it trained."""
    attempts: int
    """How often it was begun or taken up again."""
    policy_from: int
    """The version that was live when it began."""
    policy_to: int | None
    """Number of its checkpoint, from the moment when it is to be put live."""
    error: str | None
    created_at: float
    ended_at: float | None


def start(connection: Connection, settings: Mapping[str, Any], selection: Mapping[str, Any]) -> str:
    """A new job, in state `selected`, on the live policy version; returns its id."""
    job_id = f"job-{uuid.uuid4().hex[:12]}"
    live = select(func.max(PolicyVersionRow.version)).where(PolicyVersionRow.state == "live")
    row = {
        "job_id": job_id,
        "state": JobState.SELECTED.value,
        "settings": orjson.dumps(settings, default=str).decode(),
        "selection": orjson.dumps(selection).decode(),
        "attempts": 1,
        "policy_from": connection.scalar(live) or 0,
        "created_at": time.time(),
    }
    connection.execute(insert(JobRow), row)
    return job_id


def unsettled(connection: Connection) -> Job | None:
    """The oldest job that has not come to its end."""
    states = [state.value for state in UNSETTLED]
    query = select(JobRow.__table__).where(JobRow.state.in_(states)).order_by(JobRow.created_at).limit(1)
    row = connection.execute(query).mappings().first()
    return None if row is None else _job(row)


def read(connection: Connection, job_id: str) -> Job | None:
    """One job, or None when there is none of that id."""
    row = connection.execute(select(JobRow.__table__).where(JobRow.job_id == job_id)).mappings().first()
    return None if row is None else _job(row)


def newest(connection: Connection, limit: int) -> list[Job]:
    """The newest jobs."""
    query = select(JobRow.__table__).order_by(JobRow.created_at.desc()).limit(limit)
    return [_job(row) for row in connection.execute(query).mappings()]


def _job(row: RowMapping) -> Job:
    columns = {name: row[name] for name in Job.__dataclass_fields__}
    columns["state"] = JobState(row["state"])
    columns["settings"] = orjson.loads(row["settings"])
    columns["selection"] = orjson.loads(row["selection"] or "{}")
    return Job(**columns)


def change(connection: Connection, job_id: str, **values: Any) -> None:
    """Set columns of a job."""
    connection.execute(update(JobRow).where(JobRow.job_id == job_id).values(**values))


def taken_up(connection: Connection, job_id: str) -> None:
    """One more attempt at a job."""
    change(connection, job_id, attempts=JobRow.attempts + 1)


def end(
    connection: Connection, job_id: str, error: str | None, metrics: Mapping[str, float], failed: str = "job.failed"
) -> None:
    """Close a job as `published`, or as `failed` with the reason; `failed` is what the webhook then calls it."""
    values: dict[str, Any] = {"state": JobState.FAILED.value, "error": error, "announce": failed}
    if error is None:
        values = {"state": JobState.PUBLISHED.value, "error": None, "selection": None, "announce": "job.finished"}
    change(connection, job_id, ended_at=time.time(), **values)
    keep_metrics(connection, job_id, metrics)


def skip(connection: Connection, job_id: str, why: str) -> None:
    """Close a job that found nothing to learn from: no failure, and nothing that the webhook is told."""
    change(connection, job_id, state=JobState.SKIPPED.value, error=why, ended_at=time.time())


def unannounced(connection: Connection) -> list[tuple[str, Job]]:
    """Jobs of whose end the webhook is still to be told, oldest first, with what to say."""
    query = select(JobRow.__table__).where(JobRow.announce.is_not(None)).order_by(JobRow.ended_at)
    return [(str(row["announce"]), _job(row)) for row in connection.execute(query).mappings()]


def keep_metrics(connection: Connection, job_id: str, metrics: Mapping[str, float], step: int = 0) -> None:
    """Numbers of a job that are not there yet; step 0 is the job as a whole."""
    rows = [{"job_id": job_id, "step": step, "name": name, "value": float(value)} for name, value in metrics.items()]
    insert_new(connection, JobMetricRow, rows)


def metrics(connection: Connection, job_id: str) -> dict[str, float]:
    """The numbers of a job as a whole."""
    query = select(JobMetricRow.name, JobMetricRow.value).where(JobMetricRow.job_id == job_id, JobMetricRow.step == 0)
    return {row.name: row.value for row in connection.execute(query)}


def metric_total(connection: Connection, name: str) -> float:
    """The sum of a number over all jobs, each as a whole."""
    query = select(func.sum(JobMetricRow.value)).where(JobMetricRow.name == name, JobMetricRow.step == 0)
    return connection.scalar(query) or 0.0


def trained(
    connection: Connection,
    job_id: str,
    version: int,
    rewards: Mapping[str, float | None],
    advantages: Mapping[str, float],
) -> None:
    """The trajectories are trained, each with the reward given here, and the job points at its version.

    A trajectory that was rewarded otherwise while the job ran stays scored: it was trained with a reward that is no
    longer in force.
    """
    now = time.time()
    for trajectory_id, reward in rewards.items():
        there = TrajectoryRow.trajectory_id == trajectory_id
        same = TrajectoryRow.reward.is_(None) if reward is None else TrajectoryRow.reward == reward
        rows = update(TrajectoryRow).where(there, same)
        values = {"state": TrajectoryState.TRAINED.value, "trained_version": version, "trained_job_id": job_id}
        if not connection.execute(rows.values(**values, state_at=now)).rowcount:
            known = connection.scalar(select(TrajectoryRow.state).where(there)) is not None
            count(connection, *(("late_rewards", "while_training") if known else ("pruned", "while_training")))
    _keep_advantages(connection, job_id, advantages)
    change(connection, job_id, policy_to=version)


def _keep_advantages(connection: Connection, job_id: str, advantages: Mapping[str, float]) -> None:
    """What each session was trained with; some may have been pruned since the job read them."""
    for some in batched(list(advantages)):
        there = connection.scalars(select(SessionRow.session_id).where(SessionRow.session_id.in_(some)))
        rows = [{"job_id": job_id, "session_id": session, "value": advantages[session]} for session in there]
        insert_new(connection, AdvantageRow, rows)
