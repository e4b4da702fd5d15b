"""Retention: removes old trajectories with all that only they need, a few at a time, while proxies go on writing.

Each batch is one short transaction. The trajectories are looked for outside it, by their index, and looked at once more
inside it: one that has had a call since stays. A message goes when no call, no reply and no later message needs it any
more; whether it does is decided while no one else writes, so what a running call relies on cannot vanish.
Nothing is read but ids. On SQLite the freed pages are used again; the file itself shrinks by `VACUUM` only.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, bindparam, delete, func, or_, select, text, tuple_

from mosaic.records import TrajectoryState
from mosaic.store.database import Database
from mosaic.store.models import (
    AdvantageRow,
    Base,
    CallRow,
    LinkRow,
    ParamsRow,
    RewardRow,
    SessionRow,
    TaskRow,
    TokensRow,
    TrainedTokensRow,
    TrajectoryRow,
)
from mosaic.store.reading import batched
from mosaic.store.writing import count

FIRST_CALLS = 500
"""Calls that the first transaction removes; later ones remove as many as fit into `GOAL_S`."""
LEAST_CALLS = 50
"""Calls for which a transaction is worth its fixed cost, however slow the database is."""
GOAL_S = 0.2
"""Seconds that a transaction should take: for so long other writers wait."""
PAUSE_S = 0.1
"""Seconds between transactions: SQLite's writers wait by trying again, and must find the database free."""
SETTLED = tuple(state for state in TrajectoryState if state is not TrajectoryState.OPEN)
"""States that are pruned where none are named: calls may still arrive in an open trajectory."""


@dataclass(frozen=True, slots=True)
class PruneRule:
    """Which trajectories are no longer needed: those to which all of this applies."""

    older_than_s: float
    """Seconds since the trajectory's newest call ended."""
    states: tuple[TrajectoryState, ...] | None = None
    """States in which a trajectory may go; None for all but open. Scored ones go even if no job has trained them."""
    keep_trained_since: int | None = None
    """Keep what this policy version or a later one was trained on; 0 keeps whatever was trained on, None keeps none."""
    batch: int = 100
    """Most trajectories that one transaction removes."""
    dry_run: bool = False
    """Remove nothing, only count."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed; on a dry run, what would be."""

    trajectories: int = 0
    sessions: int = 0
    calls: int = 0
    messages: int = 0
    """Always 0 on a dry run: whether a message is shared is known once the calls are gone. So are the next two."""
    params: int = 0
    tasks: int = 0

    def __add__(self, other: "Pruned") -> "Pruned":
        return Pruned(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


Progress = Callable[[int, int], None]
"""Called after every batch: how many trajectories were dealt with, and how many there were at the start."""


def prune(
    database: Database, rule: PruneRule, on_progress: Progress | None = None, *, now: float | None = None
) -> Pruned:
    """Remove the trajectories that the rule names. Raises `StoreError`; what was removed by then stays removed.

    Memory is bounded by one batch. A trajectory is removed whole, in one transaction, however many calls it has.
    """
    fits = _fitting(rule, (time.time() if now is None else now) - rule.older_than_s)
    with database.reading() as connection:
        total = connection.scalar(select(func.count()).select_from(TrajectoryRow).where(*fits)) or 0
        if rule.dry_run:
            return _would_go(connection, fits, total)
    removed, room = Pruned(), FIRST_CALLS
    after: tuple[float, str] | None = None
    while True:
        with database.reading() as connection:
            ids, after = _next(connection, fits, after, rule.batch, room)
        if after is None:
            return removed
        if removed.trajectories:
            time.sleep(PAUSE_S)
        began = time.monotonic()
        gone = _remove(database, fits, ids)
        room = _room(gone.calls, room, time.monotonic() - began)
        removed += gone
        if on_progress is not None:
            on_progress(removed.trajectories, max(total, removed.trajectories))


def _fitting(rule: PruneRule, before: float) -> list[ColumnElement[bool]]:
    """The rule as conditions. `created_at` is never later than `updated_at`, and has the index."""
    states = [state.value for state in (SETTLED if rule.states is None else rule.states)]
    where = [
        TrajectoryRow.created_at < before,
        TrajectoryRow.updated_at < before,
        TrajectoryRow.state.in_(states),
    ]
    if rule.keep_trained_since is not None:
        trained = TrajectoryRow.trained_version
        where.append(or_(trained.is_(None), trained < rule.keep_trained_since))
    return where


def _next(
    connection: Connection,
    fits: Sequence[ColumnElement[bool]],
    after: tuple[float, str] | None,
    most: int,
    room: int,
) -> tuple[list[str], tuple[float, str] | None]:
    """The next trajectories, oldest first, with at most `room` calls unless it is a single one; where they ended."""
    place = (TrajectoryRow.created_at, TrajectoryRow.trajectory_id)
    calls = select(func.count()).where(CallRow.trajectory_id == TrajectoryRow.trajectory_id).scalar_subquery()
    query = select(*place, calls).where(*fits).order_by(*place).limit(most)
    if after is not None:
        # The first of the two lets a database use the index that does not understand pairs.
        query = query.where(TrajectoryRow.created_at >= after[0], tuple_(*place) > tuple_(*after))
    ids: list[str] = []
    last = None
    for created_at, trajectory_id, number in connection.execute(query):
        room -= number
        if ids and room < 0:
            break
        ids.append(trajectory_id)
        last = (created_at, trajectory_id)
    return ids, last


def _room(calls: int, room: int, took: float) -> int:
    """How many calls the next transaction may remove: half as many again, or what would have fitted into the goal."""
    if took <= GOAL_S:
        return room * 3 // 2
    return max(LEAST_CALLS, round(calls * GOAL_S / took))


def _remove(database: Database, fits: Sequence[ColumnElement[bool]], ids: Sequence[str]) -> Pruned:
    """One transaction: those of the trajectories that still fit, and what nothing else needs."""
    with database.writing() as connection:
        query = select(TrajectoryRow.trajectory_id, TrajectoryRow.task_key)
        found = connection.execute(query.where(TrajectoryRow.trajectory_id.in_(ids), *fits)).all()
        if not found:
            return Pruned()
        gone = _remove_rows(connection, [row[0] for row in found], {row[1] for row in found if row[1] is not None})
        # Running proxies see by this that rows which they remember may be gone.
        count(connection, "pruned", "runs")
        count(connection, "pruned", "trajectories", gone.trajectories)
        return gone


def _remove_rows(connection: Connection, ids: Sequence[str], tasks: set[str]) -> Pruned:
    """Rows that refer to others before those that they refer to."""
    calls = select(CallRow.call_id).where(CallRow.trajectory_id.in_(ids))
    sessions = select(SessionRow.session_id).where(SessionRow.trajectory_id.in_(ids))
    asked = select(CallRow.message_id).where(CallRow.trajectory_id.in_(ids))
    replies = select(TokensRow.message_id).where(TokensRow.call_id.in_(calls))
    heads = list(dict.fromkeys([*_values(connection, asked), *_values(connection, replies)]))
    params = _values(connection, select(CallRow.params_id).where(CallRow.trajectory_id.in_(ids)).distinct())

    def gone(table: type[Base], where: ColumnElement[bool]) -> int:
        return connection.execute(delete(table).where(where)).rowcount

    gone(TokensRow, TokensRow.call_id.in_(calls))
    gone(TrainedTokensRow, TrainedTokensRow.call_id.in_(calls))
    gone(LinkRow, LinkRow.trajectory_id.in_(ids))
    gone(RewardRow, RewardRow.trajectory_id.in_(ids))
    gone(AdvantageRow, AdvantageRow.session_id.in_(sessions))
    return Pruned(
        calls=gone(CallRow, CallRow.trajectory_id.in_(ids)),
        sessions=gone(SessionRow, SessionRow.trajectory_id.in_(ids)),
        trajectories=gone(TrajectoryRow, TrajectoryRow.trajectory_id.in_(ids)),
        messages=sum(connection.execute(_UNNEEDED_MESSAGES, {"heads": list(some)}).rowcount for some in batched(heads)),
        params=sum(
            gone(ParamsRow, ParamsRow.params_id.in_(some) & ~_used(CallRow.params_id == ParamsRow.params_id))
            for some in batched(params)
        ),
        tasks=sum(
            gone(TaskRow, TaskRow.task_key.in_(some) & ~_used(TrajectoryRow.task_key == TaskRow.task_key))
            for some in batched(sorted(tasks))
        ),
    )


_UNNEEDED_MESSAGES = text("""
delete from messages where message_id in (
  with recursive
  chain(message_id, parent_id) as (
    select message_id, parent_id from messages where message_id in :heads
    union
    select parent_id, (select m.parent_id from messages m where m.message_id = chain.parent_id)
    from chain where parent_id is not null
  ),
  needed(message_id, parent_id) as (
    select message_id, parent_id from chain
    where (select 1 from calls where calls.message_id = chain.message_id limit 1) = 1
      or (select 1 from tokens where tokens.message_id = chain.message_id limit 1) = 1
      or (
        select 1 from messages later
        where later.parent_id = chain.message_id and later.message_id not in (select message_id from chain) limit 1
      ) = 1
    union
    select parent_id, (select m.parent_id from messages m where m.message_id = needed.parent_id)
    from needed where parent_id is not null
  )
  select message_id from chain except select message_id from needed
)
""").bindparams(bindparam("heads", expanding=True))
"""Of the chains that end in `heads`, what neither a call nor a reply nor a message outside them stands on.

Rows are looked up one by one, by subqueries: PostgreSQL takes a recursive query for far larger than it is, and would
rather join it with whole tables.
"""


def _used(where: ColumnElement[bool]) -> ColumnElement[bool]:
    return select(1).where(where).exists()


def _values(connection: Connection, query: Select[Any]) -> list[str]:
    return [value for value in connection.scalars(query) if value is not None]


def _would_go(connection: Connection, fits: Sequence[ColumnElement[bool]], trajectories: int) -> Pruned:
    ids = select(TrajectoryRow.trajectory_id).where(*fits)
    sessions = select(func.count()).select_from(SessionRow).where(SessionRow.trajectory_id.in_(ids))
    calls = select(func.count()).select_from(CallRow).where(CallRow.trajectory_id.in_(ids))
    return Pruned(trajectories, connection.scalar(sessions) or 0, connection.scalar(calls) or 0)
