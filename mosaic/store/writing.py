"""Writes placed calls: each message and each token once, whatever repeats them.

All functions work inside the caller's transaction.
"""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, update
from sqlalchemy.dialects import postgresql, sqlite

from mosaic.capture import CapturedCall, Choice
from mosaic.lineage.canonical import collapse, text_of
from mosaic.lineage.model import Link, Placement
from mosaic.records import Message, TrajectoryState
from mosaic.store.codec import common_prefix, digest, dump, pack
from mosaic.store.models import (
    Base,
    CallRow,
    CounterRow,
    LinkRow,
    MessageRow,
    ParamsRow,
    SessionRow,
    TaskRow,
    TokensRow,
    TrajectoryRow,
)
from mosaic.store.reading import tokens_after
from mosaic.store.versions import Timeline


def insert_new(connection: Connection, table: type[Base], rows: Iterable[Mapping[str, Any]]) -> None:
    """Insert the rows whose key is not there yet."""
    values = list(rows)
    if not values:
        return
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(table).on_conflict_do_nothing(), values)


def count(connection: Connection, name: str, reason: str, by: int = 1) -> None:
    """Add to a counter."""
    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    insert = dialect.insert(CounterRow).values(name=name, reason=reason, value=by)
    connection.execute(
        insert.on_conflict_do_update(index_elements=["name", "reason"], set_={"value": CounterRow.value + by})
    )


def write_call(connection: Connection, call: CapturedCall, placement: Placement, timeline: Timeline) -> None:
    """Write one placed call that is not there yet."""
    _write_place(connection, call, placement)
    head, depth = write_chain(connection, call.messages)
    body = dump(call.params)
    params_id = hashlib.sha256(body).hexdigest()[:32]
    insert_new(connection, ParamsRow, [{"params_id": params_id, "body": body.decode("utf-8", "surrogatepass")}])
    spans = [timeline.spans(choice.arrivals, len(choice.ids_T), call) for choice in call.choices]
    versions = [version for spans_of in spans for version, _, _ in spans_of] or [timeline.at(call.ended_at)]
    connection.execute(
        CallRow.__table__.insert(),  # type: ignore[attr-defined]
        {
            "call_id": call.call_id,
            "trajectory_id": placement.trajectory_id,
            "session_id": placement.session_id,
            "parent_call_id": placement.parent_call_id,
            "auxiliary": placement.auxiliary,
            "wire": call.wire,
            "attribution": call.attribution,
            "client": plain(call.client),
            "headers": dump(call.headers).decode(),
            "retry_count": call.retry_count,
            "streamed": call.streamed,
            "status": call.status.value,
            "http_status": call.http_status,
            "error": None if call.error is None else plain(call.error),
            "message_id": head,
            "params_id": params_id,
            "exact": call.exact,
            "inexact_reason": call.inexact_reason,
            "prompt_tokens": len(call.prompt_ids_P),
            "sampled_tokens": sum(len(c.ids_T) for c in call.choices),
            "policy_version": versions[0],
            "policy_version_end": versions[-1],
            "started_at": call.started_at,
            "first_byte_at": call.first_byte_at,
            "ended_at": call.ended_at,
        },
    )
    _write_tokens(connection, call, placement, spans, (head, depth))
    _count_call(connection, call, placement)


def _write_place(connection: Connection, call: CapturedCall, placement: Placement) -> None:
    """The trajectory, session and links that the call's placement needs or changes."""
    insert_new(
        connection,
        TrajectoryRow,
        [
            {
                "trajectory_id": placement.trajectory_id,
                "task_key": None,
                "state": TrajectoryState.OPEN.value,
                "attribution": call.attribution,
                "created_at": call.started_at,
                "updated_at": call.ended_at,
            }
        ],
    )
    if placement.opened is not None:
        _write_session(connection, call, placement, placement.opened)
    for link in placement.relinked:
        _update_link(connection, link)
    if placement.confirmed_summary is not None:
        served = update(CallRow).where(CallRow.call_id == placement.confirmed_summary)
        connection.execute(served.values(auxiliary=None))
    connection.execute(
        update(TrajectoryRow)
        .where(TrajectoryRow.trajectory_id == placement.trajectory_id)
        .values(updated_at=call.ended_at)
    )


def _write_session(connection: Connection, call: CapturedCall, placement: Placement, link: Link) -> None:
    if placement.position == 0:
        _write_task(connection, call, placement.trajectory_id)
    insert_new(
        connection,
        SessionRow,
        [
            {
                "session_id": link.session_id,
                "trajectory_id": placement.trajectory_id,
                "kind": link.kind.value,
                "parent_session_id": link.parent_session_id,
                "opened_by_call_id": link.parent_call_id,
                "position": placement.position,
                "created_at": call.started_at,
            }
        ],
    )
    insert_new(connection, LinkRow, [{"trajectory_id": placement.trajectory_id, **_link_values(link)}])


def _link_values(link: Link) -> dict[str, Any]:
    return {
        "session_id": link.session_id,
        "kind": link.kind.value,
        "parent_session_id": link.parent_session_id,
        "parent_call_id": link.parent_call_id,
        "rung": link.rung.value,
        "score": link.score,
        "evidence": dump(link.evidence).decode(),
        "rivals": dump(link.rivals).decode(),
    }


def _update_link(connection: Connection, link: Link) -> None:
    connection.execute(update(LinkRow).where(LinkRow.session_id == link.session_id).values(**_link_values(link)))
    opened_by = update(SessionRow).where(SessionRow.session_id == link.session_id)
    connection.execute(opened_by.values(opened_by_call_id=link.parent_call_id))


def plain(text: str) -> str:
    """Text that any database takes: lone surrogates and NUL, which some refuse, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _write_task(connection: Connection, call: CapturedCall, trajectory_id: str) -> None:
    """The task of a trajectory's root: the operator's key, or a digest of the first user text."""
    text = next((text_of(m.get("content")) for m in call.messages if m.get("role") == "user"), "")
    key = call.task_key or hashlib.sha256(collapse(text).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    insert_new(connection, TaskRow, [{"task_key": key, "text": plain(text), "created_at": call.started_at}])
    unset = update(TrajectoryRow).where(TrajectoryRow.trajectory_id == trajectory_id, TrajectoryRow.task_key.is_(None))
    connection.execute(unset.values(task_key=key))


def write_chain(
    connection: Connection, messages: Iterable[Message], parent: str | None = None, depth: int = 0
) -> tuple[str | None, int]:
    """Store each message once after its prefix; returns the digest of the whole and its length."""
    rows = []
    for message in messages:
        message_id = digest(message, parent)
        rows.append(
            {
                "message_id": message_id,
                "parent_id": parent,
                "depth": depth,
                "role": str(message.get("role", "")),
                "body": dump(message).decode("utf-8", "surrogatepass"),
            }
        )
        parent, depth = message_id, depth + 1
    insert_new(connection, MessageRow, rows)
    return parent, depth


def _write_tokens(
    connection: Connection,
    call: CapturedCall,
    placement: Placement,
    spans: list[list[tuple[int, int, int]]],
    head: tuple[str | None, int],
) -> None:
    """`head` is the digest and length of the request's message chain; each reply is stored after it."""
    rows: list[dict[str, Any]] = []
    for choice, spans_of in zip(call.choices, spans, strict=True):
        message_id, _ = write_chain(connection, [choice.message], *head)
        prompt = _prompt_delta(connection, call, placement) if not rows else {"prompt_kept": 0}
        versions = orjson.dumps(spans_of).decode() if len(spans_of) > 1 else None
        rows.append({**_choice_values(call, choice), **prompt, "versions": versions, "message_id": message_id})
    for row in rows:
        connection.execute(TokensRow.__table__.insert(), row)  # type: ignore[attr-defined]


def _choice_values(call: CapturedCall, choice: Choice) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "choice": choice.index,
        "sampled": pack(choice.ids_T),
        "logprobs": pack(choice.logprobs_T),
        "finish_reason": choice.finish_reason,
    }


def _prompt_delta(connection: Connection, call: CapturedCall, placement: Placement) -> dict[str, Any]:
    """The prompt against the longest choice prefix of the call that this one extends."""
    best: tuple[int, int | None] = (0, None)
    if placement.parent_call_id is not None:
        for index, ids in tokens_after(connection, placement.parent_call_id).items():
            best = max(best, (common_prefix(ids, call.prompt_ids_P), index), key=lambda b: b[0])
    kept, base_choice = best
    return {
        "base_call_id": placement.parent_call_id if base_choice is not None else None,
        "base_choice": base_choice,
        "prompt_kept": kept,
        "prompt_new": pack(call.prompt_ids_P[kept:]),
    }


def _count_call(connection: Connection, call: CapturedCall, placement: Placement) -> None:
    if call.inexact_reason is not None:
        count(connection, "inexact_calls", call.inexact_reason)
    if placement.opened is not None and placement.opened.kind.value == "root" and placement.position > 0:
        count(connection, "unlinked_sessions", placement.opened.rung.value)
