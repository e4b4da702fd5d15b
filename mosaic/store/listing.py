"""Lists of trajectories: what a table, the API and a training job look at before they read any trajectory in full."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeVarTuple

from sqlalchemy import Connection, Select, func, select

from mosaic.records import TrajectoryState
from mosaic.store.models import CallRow, SessionRow, TaskRow, TrajectoryRow
from mosaic.store.reading import batched

Columns = TypeVarTuple("Columns")
HELD_OUT = "held-out-"
"""How the ids of trajectories begin that are never trained: attempts that judge a policy."""
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
    """Why others wait in vain: `trajectory_stale`, `trajectory_over_limit`, `held_out` -> how many."""


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


def inexact(connection: Connection, ids: Sequence[str]) -> Counter[str]:
    """Why calls of the task in these trajectories cannot be trained -> how many."""
    found: Counter[str] = Counter()
    for some in batched(ids):
        query = select(CallRow.inexact_reason, func.count()).where(
            CallRow.trajectory_id.in_(some), CallRow.auxiliary.is_(None), ~CallRow.exact
        )
        for reason, number in connection.execute(
            query.group_by(CallRow.inexact_reason).order_by(CallRow.inexact_reason)
        ):
            found[reason or "unknown"] += number
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


@dataclass(frozen=True, slots=True)
class Filter:
    """Which scored trajectories a job may take."""

    like: str | None = None
    """SQL LIKE pattern of trajectory ids."""
    task: str | None = None
    """SQL LIKE pattern of task keys."""
    oldest_version: int = 0
    """Oldest policy version that may have sampled in it."""
    since: float | None = None
    """Its newest call ended then (Unix seconds) or later."""


def waiting(connection: Connection, wanted: Filter, limit: int) -> Waiting:
    """Scored trajectories that fit: whole groups, newest first, at most `limit` trajectories unless a single group has
    more."""
    fresh = TrajectoryRow.policy_version >= wanted.oldest_version
    young = TrajectoryRow.updated_at >= (wanted.since or 0.0)
    query = _scored(select(TrajectoryRow.trajectory_id, TrajectoryRow.task_key), wanted).where(fresh)
    query = query if wanted.since is None else query.where(young)
    groups: dict[str, list[str]] = {}
    for trajectory_id, task_key in connection.execute(query.order_by(TrajectoryRow.created_at.desc())):
        groups.setdefault(task_key or trajectory_id, []).append(trajectory_id)
    taken: dict[str, list[str]] = {}
    room = limit
    for task_key, ids in groups.items():
        if len(ids) <= room or not taken:
            taken[task_key] = ids[::-1]
            room -= len(ids)
    left_out = {
        "trajectory_stale": connection.scalar(_scored(select(func.count()), wanted).where(~fresh)) or 0,
        "trajectory_over_limit": sum(map(len, groups.values())) - sum(map(len, taken.values())),
    }
    held_out = _rewarded(select(func.count()), wanted).where(_HELD_OUT)
    left_out["held_out"] = connection.scalar(held_out) or 0
    if wanted.since is not None:
        old = _scored(select(func.count()), wanted).where(fresh, ~young)
        left_out["trajectory_too_old"] = connection.scalar(old) or 0
    oldest_first = dict(reversed(taken.items()))
    return Waiting(oldest_first, {reason: number for reason, number in left_out.items() if number})


@dataclass(frozen=True, slots=True)
class ScoredTrajectory:
    """One that has a reward in force and is not trained."""

    trajectory_id: str
    task_key: str
    reward: float | None
    policy_version: int
    """The oldest version that sampled in it."""
    updated_at: float


def scored(connection: Connection) -> list[ScoredTrajectory]:
    """All that is scored and that no job has trained, newest first."""
    columns = (TrajectoryRow.task_key, TrajectoryRow.reward, TrajectoryRow.policy_version, TrajectoryRow.updated_at)
    query = _rewarded(select(TrajectoryRow.trajectory_id, *columns), Filter()).order_by(TrajectoryRow.created_at.desc())
    return [
        ScoredTrajectory(trajectory_id, task_key or trajectory_id, reward, version, updated_at)
        for trajectory_id, task_key, reward, version, updated_at in connection.execute(query)
    ]


def unscored(connection: Connection, wanted: Filter, limit: int | None) -> list[str]:
    """Closed trajectories that nobody has scored, the oldest first."""
    query = _named(select(TrajectoryRow.trajectory_id), wanted.like)
    query = query.where(TrajectoryRow.state == TrajectoryState.CLOSED.value)
    if wanted.task is not None:
        query = query.where(TrajectoryRow.task_key.like(wanted.task))
    return list(connection.scalars(query.order_by(TrajectoryRow.created_at).limit(limit)))


def scored_since(connection: Connection, when: float) -> int:
    """How many trajectories were scored (or scored again) after `when`, and are not trained."""
    query = _scored(select(func.count()), Filter()).where(TrajectoryRow.state_at > when)
    return connection.scalar(query) or 0


def newest_call(connection: Connection) -> float:
    """When the newest call ended; 0 when there is none."""
    return connection.scalar(select(func.max(CallRow.ended_at))) or 0.0


def states(connection: Connection) -> dict[str, int]:
    """State -> number of trajectories."""
    query = select(TrajectoryRow.state, func.count()).group_by(TrajectoryRow.state).order_by(TrajectoryRow.state)
    return {str(row[0]): row[1] for row in connection.execute(query)}


_HELD_OUT = TrajectoryRow.trajectory_id.startswith(HELD_OUT)


def _scored(query: Select[*Columns], wanted: Filter) -> Select[*Columns]:
    """Those that a job may train."""
    return _rewarded(query, wanted).where(~_HELD_OUT)


def _rewarded(query: Select[*Columns], wanted: Filter) -> Select[*Columns]:
    query = _named(query, wanted.like).where(TrajectoryRow.state == TrajectoryState.SCORED.value)
    return query if wanted.task is None else query.where(TrajectoryRow.task_key.like(wanted.task))


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
