"""Places calls and writes them, in step with every other process that does so on the same database.

Writers are alone while they write (`Database.writing`). Each first catches up with what others have committed since: it
takes their calls into its own lineage, as they were placed, and so comes to the same answer as one process alone would.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, func, literal_column, select

from mosaic.capture import CapturedCall
from mosaic.lineage import Harness, Lineage, Placement
from mosaic.lineage.lineage import pool_key
from mosaic.store.models import CallRow, CounterRow, PolicyVersionRow, SessionRow
from mosaic.store.reading import batched, read_placed
from mosaic.store.rows import indexed
from mosaic.store.statements import Statement, among, listed
from mosaic.store.versions import Timeline, read_timeline
from mosaic.store.writing import Writer, count

RESTORE_CALLS = 5_000
"""Most calls of a client without trajectory ids that are read when its lineage is restored."""
MAX_POOLS = 2_000
"""Pools of lineage that are kept in memory; others are restored from the database when a call needs them."""


class Recording:
    """What one process knows of the lineage and content of the database. Used by one thread at a time."""

    def __init__(self, harnesses: Sequence[Harness] = ()) -> None:
        self._lineage = Lineage(harnesses)
        self._writer = Writer()
        self._timeline = Timeline((), ())
        self._live = 0
        self._prunes = 0
        self._relinks = 0
        self._seen: int | None = None
        """Newest row of `calls` that was looked at; None before the first transaction."""
        self._written: tuple[int, list[str]] = 0, []
        """Newest row and pools of the transaction that is not committed yet."""
        self._placed_to: dict[str, int] = {}
        """Pool -> the newest row of `calls` at the time when the pool was last up to date."""
        self._stale: set[str] = set()
        """Pools in which other processes have written since."""

    def record(self, connection: Connection, calls: Sequence[CapturedCall]) -> list[Placement]:
        """Place and write the calls that are not there yet. The caller commits, then calls `committed`."""
        self._look_around(connection)
        new = _unknown(connection, calls)
        keys = dict.fromkeys(pool_key(call) for call in new)
        sessions_of = _sessions_of(connection, {call.trajectory_id for call in new if call.trajectory_id is not None})
        for key in keys:
            if key.startswith("c:") or key[2:] in sessions_of:
                self._catch_up(connection, key)
        placed = [(call, self._lineage.place(call)) for call in new]
        found = {placement.trajectory_id for call, placement in placed if call.trajectory_id is None}
        sessions_of.update(_sessions_of(connection, found))
        if placed:
            self._writer.write(connection, placed, self._timeline, sessions_of)
        self._written = _NEWEST.run(connection).scalar() or 0, list(keys)
        return [placement for _, placement in placed]

    def committed(self) -> None:
        """The transaction is in the database."""
        self._writer.committed()
        # Not before: of a transaction that failed to commit, another process may get the row numbers.
        self._seen, keys = self._written
        self._placed_to.update(dict.fromkeys(keys, self._seen))
        for key in self._lineage.forget_oldest(MAX_POOLS):
            self._placed_to.pop(key, None)

    def failed(self, calls: Iterable[CapturedCall]) -> None:
        """The transaction was rolled back: what it placed is forgotten, and read again when it is needed."""
        for call in calls:
            self._forget(pool_key(call))

    def forget(self) -> None:
        """Forget all that was known of the database."""
        self._writer.forget()
        for key in list(self._placed_to):
            self._forget(key)
        self._seen, self._live = None, -1
        self._stale.clear()

    def _forget(self, key: str) -> None:
        self._lineage.forget(key)
        self._placed_to.pop(key, None)

    def _forget_pruned(self, connection: Connection) -> None:
        """Forget the pools in which a trajectory is no longer there."""
        pools = {key: self._lineage.trajectories(key) for key in self._placed_to}
        there = _sessions_of(connection, set().union(*pools.values()))
        for key, trajectory_ids in pools.items():
            if not trajectory_ids <= there.keys():
                self._forget(key)

    def _look_around(self, connection: Connection) -> None:
        """Notice new policy versions, removed rows and the pools in which others have written."""
        top, prunes, relinks, live = _SITUATION.run(connection).one()
        if relinks != self._relinks:
            for key in list(self._placed_to):
                self._forget(key)
            self._relinks = relinks
        if self._seen is not None and (top or 0) < self._seen and prunes == self._prunes:
            self.forget()  # the database went back in time: it was restored
            count(connection, "database_replaced", "restored")
        if live != self._live:
            self._timeline, self._live = read_timeline(connection), live
        if prunes != self._prunes:
            self._writer.forget()
            self._forget_pruned(connection)
            self._prunes, self._seen = prunes, None if self._seen is None else min(self._seen, top or 0)
        if self._seen is not None and (top or 0) > self._seen:
            written = select(CallRow.trajectory_id, CallRow.attribution, CallRow.client)
            for trajectory_id, attribution, client in connection.execute(
                written.where(CallRow.seq > self._seen).distinct()
            ):
                self._stale.add(f"c:{client}" if attribution == "lineage" else f"t:{trajectory_id}")
            self._stale &= self._placed_to.keys()

    def _catch_up(self, connection: Connection, key: str) -> None:
        """Place what the database holds of a pool and this process has not placed."""
        after = self._placed_to.get(key)
        if after is not None and key not in self._stale:
            return
        where = [*in_pool(key), CallRow.seq > (after or 0)]
        for call, placement in read_placed(connection, *where, newest=RESTORE_CALLS):
            self._lineage.restore(call, placement)
        self._stale.discard(key)


_RUNS = CounterRow.reason == literal_column("'runs'")
_PRUNES = select(CounterRow.value).where(CounterRow.name == literal_column("'pruned'"), _RUNS)
_RELINKS = select(CounterRow.value).where(CounterRow.name == literal_column("'relinked'"), _RUNS)
_SITUATION = Statement(
    lambda _: select(
        select(func.max(CallRow.seq)).scalar_subquery(),
        func.coalesce(_PRUNES.scalar_subquery(), literal_column("0")),
        func.coalesce(_RELINKS.scalar_subquery(), literal_column("0")),
        select(func.count()).where(PolicyVersionRow.live_at.is_not(None)).scalar_subquery(),
    )
)
_NEWEST = Statement(lambda _: select(func.max(CallRow.seq)))
_KNOWN = Statement(lambda dialect: select(CallRow.call_id).where(among(CallRow.call_id, dialect)))
_SESSIONS = Statement(
    lambda dialect: (
        select(SessionRow.trajectory_id, func.max(SessionRow.position) + literal_column("1"))
        .where(among(SessionRow.trajectory_id, dialect))
        .group_by(SessionRow.trajectory_id)
    )
)


def in_pool(key: str) -> tuple[ColumnElement[bool], ...]:
    """The rows of a pool: an operator's trajectory (`t:`) or a client without trajectory ids (`c:`)."""
    if key.startswith("t:"):
        return CallRow.trajectory_id == key[2:], CallRow.attribution != "lineage"
    return CallRow.client == indexed(key[2:]), CallRow.attribution == "lineage"


def _unknown(connection: Connection, calls: Sequence[CapturedCall]) -> list[CapturedCall]:
    """The calls that are not in the database, each once."""
    ids = list({call.call_id: call for call in calls})
    known: set[str] = set()
    for some in batched(ids):
        known.update(_KNOWN.run(connection, ids=listed(connection, some)).scalars())
    unique = {call.call_id: call for call in reversed(calls)}
    return [unique[call_id] for call_id in ids if call_id not in known]


def _sessions_of(connection: Connection, trajectory_ids: Iterable[str]) -> dict[str, int]:
    """Number of sessions that each trajectory has."""
    found: dict[str, Any] = {}
    for some in batched(sorted(trajectory_ids)):
        found.update({row[0]: row[1] for row in _SESSIONS.run(connection, ids=listed(connection, some))})
    return found
