"""Whether what is in the database is sound: `mosaic db check`.

It changes nothing, holds no more in memory than one trajectory, and reads while proxies write.
"""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, func, select, text
from sqlalchemy.orm import aliased

from mosaic.errors import StoreError
from mosaic.store.codec import digest
from mosaic.store.database import Database
from mosaic.store.models import CallRow, MessageRow, TrajectoryRow
from mosaic.store.reading import read_trajectory

PAGE = 500
"""Trajectories whose ids are read at once."""
RESTORE = "Restore a backup, or prune what is damaged; a fault of Mosaic's own belongs into an issue."

Progress = Callable[[int, int], None]
"""Called as a deep check goes on: trajectories checked, and how many there are."""


class Severity(StrEnum):
    """How bad a finding is."""

    BROKEN = "broken"
    """Something that was stored cannot be read back as it was."""
    WASTE = "waste"
    """Everything can be read back, but there are rows that nothing needs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with the database."""

    severity: Severity
    what: str
    how_many: int
    """Rows (or trajectories) that it concerns."""
    next_step: str


def check(database: Database, deep: bool = False, on_progress: Progress | None = None) -> list[Finding]:
    """Everything that is wrong; an empty list means sound. Raises `StoreError` when it cannot be read at all.

    Each question reads its tables (SQLite: the file) from end to end. `deep` also reads every trajectory back, rebuilds
    every prompt and computes every message's digest again.
    """
    found = _check_file(database) if database.engine.dialect.name == "sqlite" else []
    if found:
        return found  # Any other question could stumble over the damage.
    with database.reading() as connection:
        found += _dangling(connection)
        for severity, what, next_step, query in QUESTIONS:
            number = connection.scalar(text(query), {"raw": b"r"} if ":raw" in query else {})
            found.append(Finding(severity, what, number or 0, next_step))
    if deep:
        found += _check_trajectories(database, on_progress)
        found.append(Finding(Severity.BROKEN, "messages are not what their digest says", _altered(database), RESTORE))
    return [finding for finding in found if finding.how_many]


def _check_file(database: Database) -> list[Finding]:
    """SQLite's own check of the file. It may hold millions of faults: the first hundred say enough."""
    try:
        with database.reading() as connection:
            faults = [row[0] for row in connection.execute(text("pragma integrity_check(100)"))]
    except StoreError as error:  # So damaged that the check stumbles.
        faults = [error.message]
    if faults == ["ok"]:
        return []
    next_step = "Restore a backup, or save what can be read with `sqlite3 .recover`."
    return [Finding(Severity.BROKEN, f"faults are in the file, the first: {faults[0]}", len(faults), next_step)]


def _dangling(connection: Connection) -> list[Finding]:
    """References that lead nowhere. PostgreSQL lets none come about."""
    if connection.dialect.name != "sqlite":
        return []
    dangling = sum(1 for _ in connection.execute(text("pragma foreign_key_check")))
    return [Finding(Severity.BROKEN, "references lead nowhere", dangling, RESTORE)]


_CALL_GONE = "not exists (select 1 from calls c where c.call_id = t.call_id)"
QUESTIONS = (
    (
        Severity.BROKEN,
        "calls have lost their session",
        RESTORE,
        """select count(*) from calls c left join sessions s on s.session_id = c.session_id
        where s.session_id is null or s.trajectory_id <> c.trajectory_id""",
    ),
    (
        Severity.BROKEN,
        "calls have lost their messages",
        RESTORE,
        """select count(*) from calls c left join messages m on m.message_id = c.message_id
        where c.message_id is not null and m.message_id is null""",
    ),
    (
        Severity.BROKEN,
        "calls have lost their tokens",
        RESTORE,
        """select count(*) from calls c where (c.exact or c.sampled_tokens > 0)
        and not exists (select 1 from tokens t where t.call_id = c.call_id)""",
    ),
    (
        Severity.BROKEN,
        "exact calls have other numbers of tokens and logprobs",
        RESTORE,
        # Logprobs are 4 bytes each after the codec's byte. Where the first release compressed them, a deep check looks.
        """select count(*) from (
          select c.seq from calls c join tokens t on t.call_id = c.call_id where c.exact
          group by c.seq, c.sampled_tokens
          having sum(case when substr(t.logprobs, 1, 1) = :raw then 0 else 1 end) = 0
            and sum(length(t.logprobs) - 1) <> 4 * c.sampled_tokens
        ) differing""",
    ),
    (
        Severity.BROKEN,
        "replies have lost their message",
        RESTORE,
        """select count(*) from tokens t left join messages m on m.message_id = t.message_id
        where t.message_id is not null and m.message_id is null""",
    ),
    (
        Severity.BROKEN,
        "prompts have lost the call that they continue",
        RESTORE,
        """select count(*) from tokens t
        left join tokens b on b.call_id = t.base_call_id and b.choice = t.base_choice
        where t.base_call_id is not null and b.call_id is null""",
    ),
    (
        Severity.BROKEN,
        "messages have lost the one before",
        RESTORE,
        """select count(*) from messages m left join messages b on b.message_id = m.parent_id
        where m.parent_id is not null and (b.message_id is null or b.depth <> m.depth - 1)""",
    ),
    (
        Severity.WASTE,
        "tokens belong to no call",
        "They harm nothing but take room: `delete from tokens where call_id not in (select call_id from calls)`.",
        f"select count(*) from tokens t where {_CALL_GONE}",
    ),
    (
        Severity.WASTE,
        "message chains belong to no call",
        "They harm nothing but take room; please report it.",
        """select count(*) from messages m
        where not exists (select 1 from messages later where later.parent_id = m.message_id)
        and not exists (select 1 from calls c where c.message_id = m.message_id)
        and not exists (select 1 from tokens t where t.message_id = m.message_id)""",
    ),
    (
        Severity.WASTE,
        "parameters belong to no call",
        "They harm nothing but take room; please report it.",
        """select count(*) from params p where not exists (select 1 from calls c where c.params_id = p.params_id)""",
    ),
)


def _check_trajectories(database: Database, on_progress: Progress | None) -> list[Finding]:
    """Read every trajectory back, each in a transaction of its own: a long one would keep SQLite's log growing."""
    unreadable = different = 0
    with database.reading() as connection:
        total = connection.scalar(select(func.count()).select_from(TrajectoryRow)) or 0
    for done, trajectory_id in enumerate(_trajectory_ids(database), 1):
        with database.reading() as connection:
            try:
                different += _differing(connection, trajectory_id)
            except (LookupError, ValueError, TypeError, AttributeError, StopIteration, zlib.error):
                # Whatever damaged rows make the reader stumble over is the finding itself.
                unreadable += 1
        if on_progress is not None:
            on_progress(done, max(total, done))
    return [
        Finding(Severity.BROKEN, "trajectories cannot be read back", unreadable, RESTORE),
        Finding(Severity.BROKEN, "calls have prompts or samples of another length than recorded", different, RESTORE),
    ]


def _trajectory_ids(database: Database) -> Iterator[str]:
    after = ""
    while True:
        query = select(TrajectoryRow.trajectory_id).where(TrajectoryRow.trajectory_id > after)
        with database.reading() as connection:
            ids = connection.scalars(query.order_by(TrajectoryRow.trajectory_id).limit(PAGE)).all()
        if not ids:
            return
        yield from ids
        after = ids[-1]


def _differing(connection: Connection, trajectory_id: str) -> int:
    """Calls whose rebuilt prompt or samples have not the recorded number of tokens."""
    trajectory = read_trajectory(connection, trajectory_id)
    query = select(CallRow.call_id, CallRow.prompt_tokens, CallRow.sampled_tokens)
    recorded = {row[0]: row for row in connection.execute(query.where(CallRow.trajectory_id == trajectory_id))}
    found = 0
    for call in [call for session in trajectory.sessions for call in session.calls] if trajectory else []:
        _, prompt, sampled = recorded[call.call_id]
        # A prompt is kept with its call's first choice; one that got no answer has none.
        same = len(call.prompt_ids_P) == prompt or not call.samples
        same &= sum(len(s.ids_T) for s in call.samples) == sampled
        same &= not call.exact or all(len(s.ids_T) == len(s.logprobs_T) for s in call.samples)
        found += not same
    return found


def _altered(database: Database) -> int:
    """Messages that are not what their digest says; a few at a time in memory, for one may be large."""
    before = aliased(MessageRow)
    query = select(MessageRow.digest, before.digest, MessageRow.body)
    query = query.outerjoin(before, before.message_id == MessageRow.parent_id)
    with database.reading() as connection:
        rows = connection.execute(query, execution_options={"yield_per": 10})
        return sum(digest(body.encode(), parent) != recorded for recorded, parent, body in rows)
