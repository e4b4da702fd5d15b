"""How trajectories end and what they were worth: states and append-only rewards.

`open` (calls arrive) and `closed` (said to be over, or silent for long) have no outcome. The others are settled:
`scored`, `unscorable`, `failed` (its infrastructure), `truncated` (cut short), `trained`. A reward always counts in an
open, closed or scored trajectory. Any other is re-opened by a reward within the window; after it, the reward is only
kept.
"""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, exists, insert, or_, select, update

from mosaic.errors import RequestError
from mosaic.records import MAX_REWARD, TrajectoryState
from mosaic.store.models import RewardRow, SessionRow, TaskRow, TrajectoryRow
from mosaic.store.rows import given_key, plain
from mosaic.store.writing import count, insert_new

_ALWAYS = (TrajectoryState.OPEN, TrajectoryState.CLOSED, TrajectoryState.SCORED)
"""States in which a reward counts however late it is."""
ENDINGS = (TrajectoryState.CLOSED, TrajectoryState.FAILED, TrajectoryState.TRUNCATED)
"""States that can be said of a trajectory from outside; the others follow from rewards and training."""


@dataclass(frozen=True, slots=True)
class Reward:
    """One statement about how a trajectory went."""

    value: float | None
    """None when it cannot be scored."""
    source: str
    """Who says so."""
    note: str | None = None
    session_id: str | None = None
    """The session that is judged; None for the trajectory as a whole."""


@dataclass(frozen=True, slots=True)
class RewardOutcome:
    """What became of a reward."""

    trajectory_id: str
    state: TrajectoryState
    """The trajectory's state now."""
    in_force: bool
    """False when it came too late: it is kept, and not used."""
    reopened: bool
    """True when the trajectory was settled before and can now be trained (again)."""


def append(connection: Connection, trajectory_id: str, reward: Reward, now: float, window_s: float) -> RewardOutcome:
    """Append a reward. Raises `RequestError`: 404 for an unknown trajectory or session, 400 for no reward."""
    if reward.value is not None and not abs(reward.value) <= MAX_REWARD:
        raise RequestError(
            f"a reward of {reward.value} cannot be used.",
            f"Give a finite number from -{MAX_REWARD:,.0f} to {MAX_REWARD:,.0f}; "
            "null (`none` on the command line) means unscorable.",
        )
    state, state_at = _state(connection, trajectory_id)
    if reward.session_id is not None:
        _check_session(connection, trajectory_id, reward.session_id)
    in_force = state in _ALWAYS or now - state_at <= window_s
    connection.execute(insert(RewardRow), _row(trajectory_id, reward, now, in_force))
    if not in_force:
        count(connection, "late_rewards", f"after_window_{state.value}")
        return RewardOutcome(trajectory_id, state, in_force=False, reopened=False)
    if reward.session_id is not None:
        return RewardOutcome(trajectory_id, state, in_force=True, reopened=False)
    new = TrajectoryState.UNSCORABLE if reward.value is None else TrajectoryState.SCORED
    reopened = state not in _ALWAYS and new is TrajectoryState.SCORED
    if reopened:
        count(connection, "late_rewards", f"reopened_{state.value}")
    values: dict[str, Any] = {"reward": reward.value, "state": new.value}
    if new is not state:
        values["state_at"] = now
    connection.execute(update(TrajectoryRow).where(TrajectoryRow.trajectory_id == trajectory_id).values(values))
    return RewardOutcome(trajectory_id, new, in_force=True, reopened=reopened)


def append_closed(connection: Connection, trajectory_id: str, reward: Reward, now: float) -> bool:
    """Append a scorer's reward to a closed trajectory; False where it is open again, or somebody was faster."""
    state, _ = _state(connection, trajectory_id)
    if state is not TrajectoryState.CLOSED:
        count(connection, "scores_not_used", state.value)
        return False
    append(connection, trajectory_id, reward, now, 0.0)
    return True


def end(connection: Connection, trajectory_id: str, state: TrajectoryState, reason: str, now: float) -> TrajectoryState:
    """Say that a trajectory is over; returns its state now. What was scored or trained is not closed again.

    Raises `RequestError`: 404 for an unknown trajectory, 400 for a state that nobody can say.
    """
    if state not in ENDINGS:
        names = ", ".join(ending.value for ending in ENDINGS)
        raise RequestError(f"a trajectory cannot be said to be {state.value}.", f"Use one of {names}.")
    current, _ = _state(connection, trajectory_id)
    settled = current is TrajectoryState.TRAINED or (
        state is TrajectoryState.CLOSED and current is not TrajectoryState.OPEN
    )
    if settled or state is current:
        return current
    changed = update(TrajectoryRow).where(TrajectoryRow.trajectory_id == trajectory_id)
    connection.execute(changed.values(state=state.value, state_at=now))
    if state is not TrajectoryState.CLOSED:
        count(connection, f"{state.value}_trajectories", reason)
    return state


def name_task(connection: Connection, trajectory_id: str, key: str, text: str, now: float) -> str:
    """Say what was attempted, whatever was derived from the calls; returns the key as it is stored.

    `text` describes the task where its key is new. Raises `RequestError` (404) for an unknown trajectory.
    """
    _state(connection, trajectory_id)
    stored = given_key(key)
    insert_new(connection, TaskRow, [{"task_key": stored, "text": plain(text), "created_at": now}])
    named = update(TrajectoryRow).where(TrajectoryRow.trajectory_id == trajectory_id)
    connection.execute(named.values(task_key=stored))
    return stored


def close_silent(connection: Connection, before: float, answered_before: float, now: float) -> int:
    """Close open trajectories whose newest call ended before `before` (Unix seconds); returns how many.

    Those that lineage found, and whose sessions have all ended, are closed when it ended before `answered_before`.
    """
    open_session = exists().where(SessionRow.trajectory_id == TrajectoryRow.trajectory_id, SessionRow.ended.is_(None))
    answered = and_(TrajectoryRow.attribution == "lineage", TrajectoryRow.updated_at < answered_before, ~open_session)
    silent = update(TrajectoryRow).where(
        TrajectoryRow.state == TrajectoryState.OPEN.value, or_(TrajectoryRow.updated_at < before, answered)
    )
    return connection.execute(silent.values(state=TrajectoryState.CLOSED.value, state_at=now)).rowcount


def _state(connection: Connection, trajectory_id: str) -> tuple[TrajectoryState, float]:
    query = select(TrajectoryRow.state, TrajectoryRow.state_at).where(TrajectoryRow.trajectory_id == trajectory_id)
    row = connection.execute(query).first()
    if row is None:
        raise RequestError(
            f"there is no trajectory {trajectory_id!r}.",
            "List them with `mosaic trajectories`; a trajectory exists once its first call has ended.",
            status=404,
        )
    return TrajectoryState(row[0]), row[1]


def _check_session(connection: Connection, trajectory_id: str, session_id: str) -> None:
    query = select(SessionRow.trajectory_id).where(SessionRow.session_id == session_id)
    if connection.scalar(query) != trajectory_id:
        raise RequestError(
            f"trajectory {trajectory_id!r} has no session {session_id!r}.",
            f"See `mosaic show {trajectory_id}`.",
            status=404,
        )


def _row(trajectory_id: str, reward: Reward, now: float, in_force: bool) -> dict[str, Any]:
    return {
        "trajectory_id": trajectory_id,
        "session_id": reward.session_id,
        "value": reward.value,
        "in_force": in_force,
        "source": plain(reward.source),
        "note": None if reward.note is None else plain(reward.note),
        "created_at": now,
    }
