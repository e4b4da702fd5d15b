"""Lists of trajectories: what a table, the API and a training job look at before they read any trajectory in full."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVarTuple

from sqlalchemy import Connection, Select, func, select

from mosaic.records import TrajectoryState
from mosaic.store.models import CallRow, SessionRow, TaskRow, TrajectoryRow

Columns = TypeVarTuple("Columns")
TASK_CHARACTERS = 300
"""Of a task's text, in a line of a listing."""


@dataclass(frozen=True, slots=True)
class TrajectorySummary:
    """One line of a listing."""

    trajectory_id: str
    task_key: str | None
    state: str
    reward: float | None
    sessions: int
    compactions: int
    spawns: int
    calls: int
    inexact_calls: int
    sampled_tokens: int
    policy_version: int
    """Newest version among its calls."""
    created_at: float
    fidelity: Mapping[str, int]
    """What exact prefix mode made of its calls: `exact`, `spliced` or `fell_back: <reason>` -> how many."""
    task: str | None = None
    """The first characters of what was attempted."""
    updated_at: float | None = None
    """When its newest call ended."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Scored trajectories that no job has trained, as far as one job may take them."""

    groups: Mapping[str, Sequence[str]]
    """Task key -> trajectory ids, oldest first."""
    left_out: Mapping[str, int]
    """Why others wait in vain: `trajectory_stale`, `trajectory_over_limit` -> how many."""


def newest(connection: Connection, limit: int, like: str | None) -> list[TrajectorySummary]:
    """The newest trajectories, optionally those whose id matches an SQL LIKE pattern."""
    query = _named(select(TrajectoryRow.__table__), like).order_by(TrajectoryRow.created_at.desc()).limit(limit)
    return summarised(connection, connection.execute(query).mappings().all())


def summarised(connection: Connection, rows: Sequence[Mapping[Any, Any]]) -> list[TrajectorySummary]:
    """Rows of `trajectories` with what their calls, sessions and tasks add."""
    ids = [r["trajectory_id"] for r in rows]
    tasks = _tasks(connection, {r["task_key"] for r in rows if r["task_key"] is not None})
    calls, kinds = _call_totals(connection, ids), _session_kinds(connection, ids)
    made = fidelity(connection, ids)
    summaries = [
        _summary(r, calls.get(r["trajectory_id"]), kinds.get(r["trajectory_id"], {}), made.get(r["trajectory_id"], {}))
        for r in rows
    ]
    return [replace(one, task=tasks.get(one.task_key or "")) for one in summaries]


def _tasks(connection: Connection, keys: Set[str]) -> dict[str, str]:
    """Task key -> the beginning of its text."""
    query = select(TaskRow.task_key, func.substr(TaskRow.text, 1, TASK_CHARACTERS)).where(TaskRow.task_key.in_(keys))
    return dict(connection.execute(query).all())


def fidelity(connection: Connection, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    """Trajectory -> what exact prefix mode made of its calls."""
    query = (
        select(CallRow.trajectory_id, CallRow.fidelity, CallRow.fidelity_reason, func.count())
        .where(CallRow.trajectory_id.in_(ids), CallRow.fidelity.is_not(None))
        .group_by(CallRow.trajectory_id, CallRow.fidelity, CallRow.fidelity_reason)
        .order_by(CallRow.fidelity, CallRow.fidelity_reason)
    )
    found: dict[str, dict[str, int]] = {}
    for trajectory_id, kind, reason, number in connection.execute(query):
        found.setdefault(trajectory_id, {})[str(kind) if reason is None else f"{kind}: {reason}"] = number
    return found


def attempts_beside(connection: Connection, trajectory_id: str) -> list[str]:
    """The trajectory and all others of its task and policy version, oldest first."""
    mine = select(TrajectoryRow.task_key, TrajectoryRow.policy_version)
    task_key, version = connection.execute(mine.where(TrajectoryRow.trajectory_id == trajectory_id)).one()
    query = select(TrajectoryRow.trajectory_id).order_by(TrajectoryRow.created_at)
    if task_key is None:
        return [trajectory_id]
    query = query.where(TrajectoryRow.task_key == task_key, TrajectoryRow.policy_version == version)
    return list(connection.scalars(query))


def waiting(connection: Connection, like: str | None, oldest_version: int, limit: int) -> Waiting:
    """Scored trajectories of `oldest_version` or newer: whole groups, newest first, at most `limit` trajectories
    unless a single group has more."""
    scored = TrajectoryRow.state == TrajectoryState.SCORED.value
    stale = select(func.count()).where(scored, TrajectoryRow.policy_version < oldest_version)
    query = select(TrajectoryRow.trajectory_id, TrajectoryRow.task_key)
    query = query.where(scored, TrajectoryRow.policy_version >= oldest_version)
    groups: dict[str, list[str]] = {}
    for trajectory_id, task_key in connection.execute(_named(query, like).order_by(TrajectoryRow.created_at.desc())):
        groups.setdefault(task_key or trajectory_id, []).append(trajectory_id)
    taken: dict[str, list[str]] = {}
    room = limit
    for task_key, ids in groups.items():
        if len(ids) <= room or not taken:
            taken[task_key] = ids[::-1]
            room -= len(ids)
    left_out = {
        "trajectory_stale": connection.scalar(_named(stale, like)) or 0,
        "trajectory_over_limit": sum(map(len, groups.values())) - sum(map(len, taken.values())),
    }
    oldest_first = dict(reversed(taken.items()))
    return Waiting(oldest_first, {reason: number for reason, number in left_out.items() if number})


def _named(query: Select[*Columns], like: str | None) -> Select[*Columns]:
    return query if like is None else query.where(TrajectoryRow.trajectory_id.like(like))


def _call_totals(connection: Connection, ids: Sequence[str]) -> dict[str, Any]:
    query = (
        select(
            CallRow.trajectory_id,
            func.count().label("calls"),
            func.sum(CallRow.sampled_tokens).label("sampled"),
            func.count(CallRow.inexact_reason).label("inexact"),
            func.max(CallRow.policy_version_end).label("version"),
        )
        .where(CallRow.trajectory_id.in_(ids))
        .group_by(CallRow.trajectory_id)
    )
    return {r["trajectory_id"]: r for r in connection.execute(query).mappings()}


def _session_kinds(connection: Connection, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    query = (
        select(SessionRow.trajectory_id, SessionRow.kind, func.count())
        .where(SessionRow.trajectory_id.in_(ids))
        .group_by(SessionRow.trajectory_id, SessionRow.kind)
    )
    kinds: dict[str, dict[str, int]] = {}
    for trajectory_id, kind, number in connection.execute(query):
        kinds.setdefault(trajectory_id, {})[kind] = number
    return kinds


def _summary(
    row: Mapping[Any, Any], calls: Mapping[str, Any] | None, kinds: Mapping[str, int], made: Mapping[str, int]
) -> TrajectorySummary:
    return TrajectorySummary(
        trajectory_id=row["trajectory_id"],
        task_key=row["task_key"],
        state=row["state"],
        reward=row["reward"],
        sessions=sum(kinds.values()),
        compactions=kinds.get("compaction", 0),
        spawns=kinds.get("spawn", 0),
        calls=calls["calls"] if calls else 0,
        inexact_calls=calls["inexact"] if calls else 0,
        sampled_tokens=int(calls["sampled"] or 0) if calls else 0,
        policy_version=calls["version"] if calls else 0,
        created_at=row["created_at"],
        fidelity=made,
        updated_at=row["updated_at"],
    )
