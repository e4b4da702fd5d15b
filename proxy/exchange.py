"""One request and its answer on the model path, with everything that has to be remembered of it."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from adapters.wires.chat import Shown, Untouched, upstream_body
from mosaic.capture import CallStatus
from mosaic.errors import RequestError
from proxy.access import client_of, is_secret
from proxy.journal import Entry
from proxy.trace import Origin, Trace

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
    "user-agent",
)
"""Headers in which frameworks send their ids; nothing else of a client's headers is kept."""


@dataclass(slots=True)
class Exchange:
    """A chat completion on its way through the proxy."""

    origin: Origin
    headers: Mapping[str, str]
    """The request's headers; of these only what `origin` holds is kept."""
    raw: bytes
    """The request's body as it came."""
    sent: bytes
    """The body that goes upstream."""
    shown: Shown | Untouched
    """What the client gets of the answer."""
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    """(Unix seconds, bytes) of the engine's answer as they came."""
    event_stream: bool = False
    """True once the answer turned out to be a stream whose start has gone to the client."""
    http_status: int = 499
    status: CallStatus = CallStatus.ABORTED
    error: str | None = "the client left before the answer ended"
    entry: Entry | None = None
    """Its place in the journal of calls in flight."""

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
            body=self.raw,
            pieces=tuple(self.pieces),
            event_stream=self.event_stream,
            status=self.status,
            http_status=self.http_status,
            error=self.error,
            ended_at=time.time(),
        )


def open_exchange(raw: bytes, origin: Origin, headers: Mapping[str, str], record: bool = True) -> Exchange:
    """Read a request. Raises `RequestError` (400) when it is not a chat completion.

    Unless it is to be recorded, it goes to the engine as it came, and so does the answer to the client.
    """
    body = _read(raw)
    if not record:
        return Exchange(origin, headers, raw, raw, Untouched())
    try:
        sent, wanted = upstream_body(raw, body)
    except TypeError as error:
        raise RequestError(f"the body cannot be passed on: {error}.", "Nest it less deeply.") from error
    return Exchange(origin, headers, raw, sent, Shown(wanted))


def _read(raw: bytes) -> dict[str, Any]:
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the body is not valid JSON: {error}.", "Send a JSON object.") from error
    if not isinstance(body, dict):
        raise RequestError("the body is not a JSON object.", 'Send {"model": ..., "messages": [...]}.')
    messages = body.get("messages")
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise RequestError("`messages` must be a list of objects.", 'For example [{"role": "user", "content": "Hi"}].')
    if not isinstance(body.get("stream_options") or {}, dict):
        raise RequestError("`stream_options` is not an object.", 'For example {"include_usage": true}.')
    return body


def origin_of(headers: Mapping[str, str], trajectory_id: str | None, attribution: str) -> Origin:
    """The origin of a request that has just arrived, under a new call id."""
    now = time.time()
    return Origin(
        # Ids that rise with time keep the database's indexes together.
        call_id=f"call-{int(now * 1e6):014x}{secrets.token_hex(8)}",
        trajectory_id=trajectory_id,
        attribution=attribution,
        client=client_of(headers),
        task_key=headers.get("x-mosaic-task"),
        retry_count=_integer(headers.get("x-stainless-retry-count")),
        headers={k: v for k, v in headers.items() if _kept(k)},
        started_at=now,
    )


def _kept(name: str) -> bool:
    return name.startswith(_ID_HEADERS) and not is_secret(name)


def _integer(text: str | None) -> int:
    return int(text) if text is not None and len(text) < 7 and text.isascii() and text.isdecimal() else 0
