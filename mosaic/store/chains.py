"""Message chains on their way into the database: each message is stored once after what stands before it.

A digest names a message with all before it; in the database it goes by a number. Both are remembered, so that a call's
cost does not grow with its history.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
from sqlalchemy import Connection, Text, and_, bindparam, func, literal_column, select
from sqlalchemy.dialects import postgresql
from sqlalchemy.sql import ClauseElement, ColumnElement

from mosaic.records import Message
from mosaic.store.codec import digest, dump
from mosaic.store.models import MessageRow, RowId
from mosaic.store.reading import batched
from mosaic.store.recent import Recent
from mosaic.store.rows import plain
from mosaic.store.statements import Dialect, Statement, among, listed

RECENT_MESSAGES = 100_000
"""Messages whose numbers are remembered."""
MAX_KEPT = 4 * 2**20
"""Characters of texts whose digests are remembered: requests repeat their history."""

Numbers = dict[str | None, int | None]
"""Digest -> number; of what stands before the first message, None."""
NONE_YET: Mapping[str | None, int | None] = {None: None}


class Chains:
    """The messages of one process's transactions, one transaction at a time."""

    def __init__(self) -> None:
        self._known: Recent[str, int] = Recent(RECENT_MESSAGES)
        """Digest -> number, of what is in the database."""
        self._new: dict[str, dict[str, Any]] = {}
        """Digest -> what the transaction may have to add, those that others stand on first."""
        self._numbers: Numbers = {}
        """Of what the transaction refers to."""
        self._digests: dict[tuple[str | None, str, str], str] = {}
        """(Digest before it, role, text) -> digest, of messages that are a text."""
        self._kept = 0

    def begin(self) -> None:
        """Forget what a transaction that failed was to add."""
        self._new, self._numbers = {}, dict(NONE_YET)

    def add(self, messages: Iterable[Message], parent: str | None, depth: int) -> tuple[str | None, int]:
        """Messages that stand after `parent`, the `depth`-th; returns the digest of the whole and its length."""
        rows = []
        for message in messages:
            name, body = self._named(message, parent)
            rows.append((name, parent, depth, message, body))
            parent, depth = name, depth + 1
        unknown = len(rows)
        while unknown and not self._is_known(rows[unknown - 1][0]):
            unknown -= 1  # once one is known, so is everything before it
        for name, before, at, message, body in rows[unknown:]:
            role = plain(str(message.get("role", "")))
            self._new[name] = {
                "digest": name,
                "before": before,
                "depth": at,
                "role": role,
                "body": (body or dump(message)).decode(),
            }
        return parent, depth

    def _named(self, message: Message, parent: str | None) -> tuple[str, bytes | None]:
        """A message's digest, and its body where that had to be made for it."""
        role, content = message.get("role"), message.get("content")
        if len(message) != 2 or type(role) is not str or type(content) is not str:
            body = dump(message)
            return digest(body, parent), body
        if (known := self._digests.get((parent, role, content))) is not None:
            return known, None
        if self._kept > MAX_KEPT:
            self._digests, self._kept = {}, 0
        body = dump(message)
        name = self._digests[parent, role, content] = digest(body, parent)
        self._kept += len(content) + 500
        return name, body

    def _is_known(self, name: str) -> bool:
        if name in self._new or name in self._numbers:
            return True
        if (number := self._known.get(name)) is None:
            return False
        self._numbers[name] = number
        return True

    def insert(self, connection: Connection) -> Numbers:
        """Store what is not there yet; returns the number of each message that the transaction refers to."""
        self._numbers = insert_messages(connection, self._new, self._numbers)
        return self._numbers

    def committed(self) -> None:
        """The transaction is in the database."""
        self._known.update({name: number for name in self._new if (number := self._numbers[name])})
        self.begin()

    def forget(self) -> None:
        """Something else has removed rows: what was remembered of them may be wrong."""
        self._known.clear()


def insert_messages(
    connection: Connection, messages: Mapping[str, dict[str, Any]], known: Mapping[str | None, int | None] = NONE_YET
) -> Numbers:
    """Store the messages that are not there yet; returns the numbers of all.

    `messages`: digest -> its row, with the digest of the message `before` it, which stands before it among them or is
    `known`; the rows get their numbers. The transaction must be alone in writing: numbers go on from the highest.
    """
    numbers = _numbered(connection, messages, known)
    new = [row for name, row in messages.items() if name not in numbers]
    highest = _HIGHEST.run(connection).scalar() or 0
    numbers.update({row["digest"]: number for number, row in enumerate(new, highest + 1)})
    for row in new:
        row["message_id"], row["parent_id"] = numbers[row["digest"]], numbers[row.pop("before")]
    _INSERT.many(connection, new)
    return numbers


def _numbered(
    connection: Connection, messages: Mapping[str, dict[str, Any]], known: Mapping[str | None, int | None]
) -> Numbers:
    """What is known, and the numbers of the messages that are there: they are looked for behind what is there only, for
    nothing stands behind what is not."""
    numbers = dict(known)
    after: dict[str | None, list[str]] = {}
    for name, row in messages.items():
        after.setdefault(row["before"], []).append(name)
    there = [before for before in after if before in numbers]
    while there:
        found: Numbers = {}
        for some in batched([(numbers[before] or 0, name) for before in there for name in after[before]]):
            for name, number in _found(connection, some):
                found[name] = number
        numbers.update(found)
        there = [name for name in found if name in after]
    return numbers


def _found(connection: Connection, pairs: Sequence[tuple[int, str]]) -> Iterator[tuple[str, int]]:
    """Digests and numbers of those that are there of (number of the message before it, or 0; digest)."""
    if first := [name for before, name in pairs if not before]:
        yield from _FIRST.run(connection, ids=listed(connection, first))
    if later := [(before, name) for before, name in pairs if before]:
        yield from _LATER.run(connection, **_asked(connection, later))


def _asked(connection: Connection, pairs: Sequence[tuple[int, str]]) -> dict[str, object]:
    """The parameters of `_LATER`."""
    if connection.dialect.name == "postgresql":
        return {"before": [before for before, _ in pairs], "names": [name for _, name in pairs]}
    return {"pairs": orjson.dumps(pairs).decode()}


def _later(dialect: Dialect) -> ClauseElement:
    if dialect is postgresql:
        lists = bindparam("before", type_=postgresql.ARRAY(RowId)), bindparam("names", type_=postgresql.ARRAY(Text))
        asked = func.unnest(*lists).table_valued("before", "name").render_derived()
        before: ColumnElement[Any] = asked.c.before
        name: ColumnElement[Any] = asked.c.name
    else:
        asked = func.json_each(bindparam("pairs")).table_valued("value")
        before, name = (func.json_extract(asked.c.value, literal_column(f"'$[{at}]'")) for at in (0, 1))
    there = and_(MessageRow.parent_id == before, MessageRow.digest == name)
    return select(MessageRow.digest, MessageRow.message_id).join_from(asked, MessageRow, there)


_FIRST = Statement(
    lambda dialect: select(MessageRow.digest, MessageRow.message_id).where(
        MessageRow.parent_id.is_(None), among(MessageRow.digest, dialect)
    )
)
_LATER = Statement(_later)
_HIGHEST = Statement(lambda _: select(func.max(MessageRow.message_id)))
_INSERT = Statement(
    lambda dialect: (
        dialect.insert(MessageRow).values({c.name: bindparam(c.name) for c in MessageRow.__table__.columns}).inline()
    )
)
