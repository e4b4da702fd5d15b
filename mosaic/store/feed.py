"""What has happened in the database since: calls that ended and rewards that came, as a reader of a stream asks for it.

A `Mark` is how far somebody has read. Row numbers rise in the order of commits (`database`), so nothing that is
committed later can stand before a mark.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Connection, func, select

from mosaic.store.database import Database
from mosaic.store.models import CallRow, RewardRow, TrajectoryRow

MOST = 500
"""Events that are read at once."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The last row number that was read of each table."""

    calls: int
    rewards: int

    def __str__(self) -> str:
        return f"{self.calls}.{self.rewards}"

    @classmethod
    def read(cls, text: str) -> "Mark | None":
        """A mark that was written as text; None for anything else."""
        calls, _, rewards = text.partition(".")
        if not all(part.isascii() and part.isdigit() and len(part) < 19 for part in (calls, rewards)):
            return None
        return cls(int(calls), int(rewards))


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened."""

    mark: Mark
    """How far somebody has read who has seen it."""
    kind: str
    """`call` or `reward`."""
    trajectory_id: str
    session_id: str | None
    call_id: str | None
    """None for a reward."""
    at: float


def is_known(connection: Connection, trajectory_id: str) -> bool:
    """Whether there is such a trajectory."""
    query = select(TrajectoryRow.trajectory_id).where(TrajectoryRow.trajectory_id == trajectory_id)
    return connection.scalar(query) is not None


def newest(connection: Connection, until: float | None = None) -> Mark:
    """The mark of who has seen everything; given a time, everything until then."""
    calls, rewards = select(func.max(CallRow.seq)), select(func.max(RewardRow.reward_id))
    if until is not None:
        calls, rewards = calls.where(CallRow.ended_at <= until), rewards.where(RewardRow.created_at <= until)
    return Mark(connection.scalar(calls) or 0, connection.scalar(rewards) or 0)


def lost(connection: Connection, mark: Mark) -> bool:
    """Whether rows that were read are gone: restored, truncated or pruned, and numbers may be given again."""
    now = newest(connection)
    return now.calls < mark.calls or now.rewards < mark.rewards


def since(connection: Connection, mark: Mark, trajectory_id: str | None = None) -> list[Event]:
    """What came after a mark, of one trajectory or of all; at most `MOST` of each kind, calls first."""
    calls = select(CallRow.seq, CallRow.trajectory_id, CallRow.session_id, CallRow.call_id, CallRow.ended_at)
    rewards = select(RewardRow.reward_id, RewardRow.trajectory_id, RewardRow.session_id, RewardRow.created_at)
    calls = calls.where(CallRow.seq > mark.calls).order_by(CallRow.seq)
    rewards = rewards.where(RewardRow.reward_id > mark.rewards).order_by(RewardRow.reward_id)
    if trajectory_id is not None:
        calls = calls.where(CallRow.trajectory_id == trajectory_id)
        rewards = rewards.where(RewardRow.trajectory_id == trajectory_id)
    found = []
    for number, trajectory, session, call, at in connection.execute(calls.limit(MOST)):
        mark = Mark(number, mark.rewards)
        found.append(Event(mark, "call", trajectory, session, call, at))
    for number, trajectory, judged, at in connection.execute(rewards.limit(MOST)):
        mark = Mark(mark.calls, number)
        found.append(Event(mark, "reward", trajectory, judged, None, at))
    return found


@dataclass(frozen=True, slots=True)
class Look:
    """One look at a database that is followed."""

    connection: Connection
    mark: Mark
    """Where it began to read."""
    gone: bool
    """Whether what was followed is not there any more: replaced, restored or pruned."""
    events: list[Event]
    """What has happened since the last look."""


@dataclass(slots=True)
class Followed:
    """A database, or one trajectory of it, that is read on and on, whatever is put into its place."""

    database: Database
    trajectory_id: str | None = None
    mark: Mark | None = None
    """How far it has been read; None before the first look, which begins at the newest."""
    looked_at: float = field(default_factory=time.time)
    """Of the last look that was answered."""
    file: object = None
    """What tells the file that the mark is of from others; None for any."""

    @contextmanager
    def look(self) -> Iterator[Look]:
        """What has happened since. It counts as read when the context ends well. Raises `StoreError`."""
        now = time.time()
        self.database.renewed()
        file = self.database.identity
        with self.database.reading() as connection:
            mark, gone = self._from(connection, file)
            events = since(connection, mark, self.trajectory_id)
            yield Look(connection, mark, gone, events)
        self.mark, self.looked_at, self.file = events[-1].mark if events else mark, now, file

    def _from(self, connection: Connection, file: object) -> tuple[Mark, bool]:
        """Where to read on, and whether what came before is gone."""
        if self.mark is None:
            return newest(connection), False
        if self.file in (None, file) and not lost(connection, self.mark):
            return self.mark, False
        return newest(connection, until=self.looked_at), True
