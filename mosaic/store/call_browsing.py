"""Calls as a person looks at them: lines of a listing, one call with its messages, its choices as tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, and_, func, literal, select
from sqlalchemy.orm import aliased

from mosaic.records import IdArray, LogprobArray
from mosaic.store import trained_tokens
from mosaic.store.browsing import Page, missing, no_cursor
from mosaic.store.codec import unpack_ids, unpack_logprobs
from mosaic.store.models import CallRow, MessageRow, ParamsRow, RowId, TokensRow
from mosaic.store.reading import batched, load, prompt_of

HEAD_CHARACTERS = 400
"""Characters of a reply's body that a line of a listing reads."""


@dataclass(frozen=True, slots=True)
class CallLine:
    """One line of a trajectory's calls."""

    seq: int
    call_id: str
    session_id: str
    parent_call_id: str | None
    auxiliary: str | None
    wire: str
    status: str
    http_status: int
    exact: bool
    inexact_reason: str | None
    prompt_tokens: int
    sampled_tokens: int
    policy_version: int
    policy_version_end: int
    started_at: float
    first_byte_at: float | None
    ended_at: float
    finish_reason: str | None
    head: str | None
    """The first characters of the reply's body, JSON that may be cut."""


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a chain."""

    message_id: int
    depth: int
    role: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ChoiceTokens:
    """One choice of a call as tokens."""

    prompt_P: IdArray
    ids_T: IdArray
    logprobs_T: LogprobArray
    versions: Sequence[Sequence[int]]
    """[version, first token, end): one span unless a swap fell inside the call."""
    training_logprobs_T: LogprobArray | None = None
    """What the trainer said before it first trained them, NaN for tokens that it did not; None when no job has said."""


def call_lines(
    connection: Connection, trajectory_id: str, cursor: str | None, limit: int, session_id: str | None = None
) -> Page[CallLine]:
    """The calls of a trajectory, or of one of its sessions, in the order in which they ended."""
    rows = list(connection.execute(_lines(trajectory_id, session_id, cursor).limit(limit + 1)).mappings())
    after = str(rows[limit - 1]["seq"]) if len(rows) > limit else None
    return Page([CallLine(**row) for row in rows[:limit]], after)


def _lines(trajectory_id: str, session_id: str | None, cursor: str | None) -> Select[Any]:
    reply = aliased(MessageRow)
    own = [c for c in CallLine.__dataclass_fields__ if c not in ("finish_reason", "head")]
    query = (
        select(
            *(getattr(CallRow, name) for name in own),
            TokensRow.finish_reason,
            func.substr(reply.body, 1, HEAD_CHARACTERS).label("head"),
        )
        .outerjoin(TokensRow, and_(TokensRow.call_id == CallRow.call_id, TokensRow.choice == 0))
        .outerjoin(reply, reply.message_id == TokensRow.message_id)
        .where(CallRow.trajectory_id == trajectory_id)
        .order_by(CallRow.seq)
    )
    if session_id is not None:
        query = query.where(CallRow.session_id == session_id)
    if cursor is not None:
        query = query.where(CallRow.seq > _number(cursor))
    return query


def call_row(connection: Connection, call_id: str) -> RowMapping:
    """A call's row. Raises `RequestError` (404)."""
    row = connection.execute(select(CallRow.__table__).where(CallRow.call_id == call_id)).mappings().first()
    if row is None:
        raise missing("call", call_id)
    return row


def head_of(connection: Connection, call_id: str | None) -> int | None:
    """The last message of a call's request; None where there is no such call."""
    if call_id is None:
        return None
    return connection.scalar(select(CallRow.message_id).where(CallRow.call_id == call_id))


def neighbours(connection: Connection, row: RowMapping) -> tuple[str | None, str | None]:
    """The calls of the same session that ended just before and just after."""
    same = select(CallRow.call_id).where(CallRow.session_id == row["session_id"]).limit(1)
    return (
        connection.scalar(same.where(CallRow.seq < row["seq"]).order_by(CallRow.seq.desc())),
        connection.scalar(same.where(CallRow.seq > row["seq"]).order_by(CallRow.seq)),
    )


def params(connection: Connection, row: RowMapping) -> dict[str, Any]:
    """The request's parameters, large ones included."""
    small: dict[str, Any] = load(row["params"])
    if row["params_id"] is None:
        return small
    large = connection.scalar(select(ParamsRow.body).where(ParamsRow.params_id == row["params_id"]))
    return {**(load(large) if large else {}), **small}


def replies(connection: Connection, call_id: str) -> list[dict[str, Any]]:
    """The choices of a call: index, finish reason, message, number of tokens."""
    query = (
        select(TokensRow.choice, TokensRow.finish_reason, TokensRow.versions, MessageRow.body)
        .outerjoin(MessageRow, MessageRow.message_id == TokensRow.message_id)
        .where(TokensRow.call_id == call_id)
        .order_by(TokensRow.choice)
    )
    return [
        {**row, "body": load(row["body"]) if row["body"] else {}, "versions": load(row["versions"] or "null")}
        for row in connection.execute(query).mappings()
    ]


def chain(connection: Connection, head: int | None, limit: int, until: int | None = None) -> Page[StoredMessage]:
    """The last `limit` messages up to `head`, oldest first, but not `until` nor what stands before it.

    The cursor is the head with which to ask for what stands before them.
    """
    if head is None:
        return Page((), None)
    walked = select(literal(head, RowId).label("id"), literal(1).label("number")).cte("chain", recursive=True)
    # Looked up row by row: PostgreSQL would join the whole table with a chain whose length it cannot guess.
    before = select(func.max(MessageRow.parent_id)).where(MessageRow.message_id == walked.c.id)
    step = select(before.correlate(walked).scalar_subquery(), walked.c.number + 1)
    going_on = [walked.c.id.is_not(None), walked.c.number <= limit]
    if until is not None:
        going_on.append(walked.c.id != until)
    walked = walked.union_all(step.where(*going_on))
    ids = [row[0] for row in connection.execute(select(walked.c.id).order_by(walked.c.number))]
    kept = [one for one in ids[:limit] if one is not None and one != until]
    rows: list[RowMapping] = []
    for some in batched(kept):
        rows += connection.execute(select(MessageRow.__table__).where(MessageRow.message_id.in_(some))).mappings()
    rows.sort(key=lambda row: int(row["depth"]))
    items = [StoredMessage(r["message_id"], r["depth"], r["role"], load(r["body"])) for r in rows]
    before_them = ids[len(kept)] if len(ids) > len(kept) else None
    return Page(items, None if before_them is None else str(before_them))


def choice_tokens(connection: Connection, call_id: str, choice: int) -> ChoiceTokens:
    """A choice's tokens with the prompt that they were sampled after. Raises `RequestError` (404)."""
    row = (
        connection.execute(
            select(TokensRow.__table__, CallRow.policy_version)
            .join(CallRow, CallRow.call_id == TokensRow.call_id)
            .where(TokensRow.call_id == call_id, TokensRow.choice == choice)
        )
        .mappings()
        .first()
    )
    if row is None:
        raise missing("choice", f"{call_id}/{choice}")
    ids = unpack_ids(row["sampled"])
    versions = load(row["versions"]) if row["versions"] else [[row["policy_version"], 0, len(ids)]]
    later = trained_tokens.of(connection, call_id, choice)
    return ChoiceTokens(prompt_of(connection, call_id), ids, unpack_logprobs(row["logprobs"]), versions, later)


def _number(cursor: str) -> int:
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 19):
        raise no_cursor(cursor)
    return int(cursor)
