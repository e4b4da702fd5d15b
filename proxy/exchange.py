"""One request and its answer on the model path, with everything that has to be remembered of it."""

import asyncio
import secrets
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from adapters.wires import json_text
from adapters.wires.wire import Context, Opened, Wire
from mosaic.capture import CallStatus, Fidelity
from mosaic.errors import RequestError
from proxy.access import client_of, is_secret
from proxy.journal import Entry
from proxy.trace import Origin, Trace
from proxy.upstream import Target

_ID_HEADERS = (
    "x-stainless-",
    "x-mosaic-",
    "x-session",
    "x-parent-session",
    "x-client-request-id",
    "x-codex-",
    "x-openai-subagent",
    "x-claude-code-",
    "x-opencode-",
    "x-litellm-session-id",
    "x-kilocode-taskid",
    "x-roo-task-id",
    "session-id",
    "session_id",
    "thread-id",
    "agent-session-id",
    "traceparent",
    "tracestate",
    "user-agent",
)
"""Headers in which frameworks send their ids and those of their spans; nothing else of a client's headers is kept."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a request says besides its body."""

    headers: dict[str, str]
    query: str
    """What of its query string goes on to the engine, with its question mark."""
    trajectory_id: str | None
    attribution: str
    """What named the trajectory."""


@dataclass(slots=True)
class Exchange:
    """A call on its way through the proxy."""

    wire: Wire
    origin: Origin
    headers: Mapping[str, str]
    """The request's headers; of these only what `origin` holds is kept."""
    opened: Opened
    target: Target
    query: str
    """What goes on of the request's query string, with its question mark."""
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    """(Unix seconds, bytes) of the engine's answer as they came."""
    event_stream: bool = False
    """True once the engine answers with a stream."""
    http_status: int = 499
    status: CallStatus = CallStatus.ABORTED
    error: str | None = "the client left before the answer ended"
    entry: Entry | None = None
    """Its place in the journal of calls in flight."""
    fidelity: Fidelity | None = None
    """What exact prefix mode made of it."""
    asked: "asyncio.Future[str | None] | str | None" = None
    """What is known of the weights that answer, or will be."""
    weights: str | None = None
    """Why the call is not the live policy's, where it is not."""

    @property
    def call_id(self) -> str:
        """Id of the call."""
        return self.origin.call_id

    def ended(self, status: CallStatus, error: str | None = None) -> None:
        """Say how the exchange ended; until this is called it counts as aborted."""
        self.status, self.error = status, error

    def trace(self) -> Trace:
        """What is to be recorded."""
        return Trace(
            origin=self.origin,
            body=self.opened.recorded,
            pieces=tuple(self.pieces),
            event_stream=self.event_stream,
            status=self.status,
            http_status=self.http_status,
            error=self.error,
            ended_at=time.time(),
            fidelity=self.fidelity,
            weights=self.weights,
        )


def headers_of(lines: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """A request's headers; the values of one that is repeated are joined (RFC 9110, section 5.3)."""
    headers: dict[str, str] = {}
    for raw, value in lines:
        name = raw.decode("latin-1").lower()
        headers[name] = f"{headers[name]}, {_text(value)}" if name in headers else _text(value)
    return headers


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def query_of(raw: bytes, wire: Wire) -> str:
    """What goes on of a request's query string, with its question mark: no credential, and not Anthropic's `beta` where
    the engine's wire is another."""
    kept = [
        part
        for part in raw.decode("latin-1").split("&")
        if (name := urllib.parse.unquote(part.partition("=")[0]).lower())
        and not is_secret(name)
        and not (wire.translated and name == "beta")
    ]
    return "?" + "&".join(kept) if kept else ""


def read_body(raw: bytes, *, rewritten: bool = False) -> dict[str, Any]:
    """A request's JSON object, to be looked at or to be written anew. Raises `RequestError` (400)."""
    try:
        body = json_text.loads(raw) if rewritten else orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}.", "Send a JSON object.") from error
    if not isinstance(body, dict):
        raise RequestError("the body is not a JSON object.", 'Send {"model": ..., "messages": [...]}.')
    return body


def open_request(wire: Wire, raw: bytes, body: Mapping[str, Any], context: Context) -> Opened:
    """Read a request in its wire. Raises `RequestError` (400)."""
    if not isinstance(body.get("stream_options") or {}, dict):
        raise RequestError("`stream_options` is not an object.", 'For example {"include_usage": true}.')
    try:
        return wire.open(raw, body, context)
    except (TypeError, RecursionError) as error:
        raise RequestError(f"the body cannot be passed on: {error}.", "Nest it less deeply.") from error


def affinity_of(body: Mapping[str, Any], trajectory_id: str | None, headers: Mapping[str, str]) -> str:
    """What the calls of one conversation have in common: its trajectory, else who asks and how it began."""
    if trajectory_id is not None:
        return trajectory_id
    turns = body.get("messages") or body.get("input") or body.get("prompt")
    first = next((m for m in turns if isinstance(m, dict) and m.get("role") == "user"), "") if turns else ""
    try:
        return f"{client_of(headers)}|{first if isinstance(turns, list) else turns}"
    except RecursionError:  # it may go to any replica
        return client_of(headers)


def origin_of(
    headers: Mapping[str, str], wire: Wire, target: Target, trajectory_id: str | None, attribution: str
) -> Origin:
    """The origin of a request that has just arrived, under a new call id."""
    now = time.time()
    return Origin(
        # Ids that rise with time keep the database's indexes together.
        call_id=f"call-{int(now * 1e6):014x}{secrets.token_hex(8)}",
        wire=wire.name,
        trajectory_id=trajectory_id,
        attribution=attribution,
        client=client_of(headers),
        task_key=_task_key(headers.get("x-mosaic-task")),
        retry_count=_integer(headers.get("x-stainless-retry-count")),
        trained=target.trained,
        headers={k: v for k, v in headers.items() if _kept(k)},
        started_at=now,
    )


def _task_key(given: str | None) -> str | None:
    """A task's key from its header, which may hold more than ASCII as UTF-8 or percent-encoded (RFC 8187 or plain)."""
    if given is None:
        return None
    charset, quotes, encoded = given.partition("''")
    try:
        key = urllib.parse.unquote(encoded if quotes and charset.lower() == "utf-8" else given, errors="strict")
    except UnicodeDecodeError:
        return given
    return key if key.isprintable() else given


def _kept(name: str) -> bool:
    return name.startswith(_ID_HEADERS) and not is_secret(name)


def _integer(text: str | None) -> int:
    return int(text) if text is not None and len(text) < 7 and text.isascii() and text.isdecimal() else 0
