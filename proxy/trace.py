"""A call as bytes: who asked, the request's body, and the answer's pieces as they came, each with its time.

This is what goes bit by bit into the journal; what it means is worked out once, by `captured`, off the path of the
bytes. It never holds a credential.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import orjson

from adapters.wires import chat, completions, messages, responses
from adapters.wires.sse import EventSplitter
from mosaic.capture import CallStatus, CapturedCall, Fidelity


@dataclass
class Origin:
    """Where a call comes from: all that is kept of a request besides its body. Nothing of it changes.

    Every call makes one and writes it as JSON; frozen and with slots, that takes three times as long.
    """

    call_id: str
    wire: str
    """Name of the client's wire."""
    trajectory_id: str | None
    attribution: str
    client: str
    task_key: str | None
    retry_count: int
    trained: bool
    """False for a call to an engine that does not serve the policy."""
    headers: Mapping[str, str]
    started_at: float


@dataclass(slots=True)
class Trace:
    """One call, not yet read. Nothing of it changes; frozen, it takes three times as long to make."""

    origin: Origin
    body: bytes
    """The request as it is recorded: as the client sent it, or its chat form (`adapters.wires.wire`)."""
    pieces: tuple[tuple[float, bytes], ...]
    """(Unix seconds, bytes) of the engine's answer as it came."""
    event_stream: bool
    """Whether the answer is a stream of events; else it is one JSON body, or an error."""
    status: CallStatus
    http_status: int
    error: str | None
    ended_at: float
    fidelity: Fidelity | None = None
    """What exact prefix mode made of it."""
    weights: str | None = None
    """`other_weights` or `weights_unknown`: the engine was found not to serve the weights that the database says are
    live, or could not be asked after a restart."""


_ORIGIN = frozenset(field.name for field in fields(Origin))


def fidelity_from(values: Mapping[str, Any] | None) -> Fidelity | None:
    """What was written as JSON."""
    if values is None:
        return None
    versions = tuple((choice, tuple(map(tuple, spans))) for choice, spans in values["versions"])
    return Fidelity(values["kind"], values["reason"], versions)


def origin_from(values: Mapping[str, Any]) -> Origin:
    """An origin that was written as JSON. Raises `TypeError` when something is missing."""
    return Origin(**{name: value for name, value in values.items() if name in _ORIGIN})


def _inexact(trace: Trace, reason: str | None) -> str | None:
    if trace.status is not CallStatus.OK:
        return f"call_{trace.status.value}"
    if not trace.origin.trained:
        return "other_model"
    return trace.weights or reason


def captured(trace: Trace) -> CapturedCall:
    """What the store is to keep. Raises `ValueError` for a body that is no request."""
    body, origin = orjson.loads(trace.body), trace.origin
    legacy = origin.wire == "completions"
    translated = origin.wire in (messages.NAME, responses.NAME)
    answer = completions.Answer(body) if legacy else chat.Answer(origin.call_id, translated=translated)
    if trace.event_stream:
        splitter = EventSplitter()
        for when, piece in trace.pieces:
            for event in splitter.feed(piece):
                answer.event(event, when)
        if last := splitter.last():
            answer.event(last, trace.ended_at)
    elif trace.status is CallStatus.OK:
        answer.whole(b"".join(piece for _, piece in trace.pieces))
    kept = answer.captured()
    return CapturedCall(
        call_id=origin.call_id,
        wire=origin.wire,
        status=trace.status,
        http_status=trace.http_status,
        messages=tuple(completions.to_messages(body) if legacy else body.get("messages") or ()),
        params={k: v for k, v in body.items() if k != "messages"},
        choices=kept.choices,
        prompt_ids_P=kept.prompt_ids_P,
        usage=kept.usage,
        inexact_reason=_inexact(trace, kept.inexact_reason),
        started_at=origin.started_at,
        first_byte_at=trace.pieces[0][0] if trace.pieces else None,
        ended_at=trace.ended_at,
        trajectory_id=origin.trajectory_id,
        attribution=origin.attribution,
        task_key=origin.task_key,
        client=origin.client,
        retry_count=origin.retry_count,
        error=trace.error,
        streamed=bool(body.get("stream")),
        headers=origin.headers,
        fidelity=trace.fidelity,
    )
