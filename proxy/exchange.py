"""One request and its answer on the model path, with everything that has to be remembered of it."""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from adapters.wires.chat import Answer, Wanted, upstream_body
from mosaic.capture import CallStatus, CapturedCall
from mosaic.errors import RequestError
from proxy.access import client_of, is_secret

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

    body: dict[str, Any]
    headers: Mapping[str, str]
    trajectory_id: str | None
    attribution: str
    answer: Answer
    wanted: Wanted
    sent: bytes
    """The body that goes upstream."""
    call_id: str = field(default_factory=lambda: f"call-{uuid.uuid4().hex}")
    started_at: float = field(default_factory=time.time)
    first_byte_at: float | None = None
    http_status: int = 499
    status: CallStatus = CallStatus.ABORTED
    error: str | None = "the client left before the answer ended"
    answer_started: bool = False
    """True once the status line has gone to the client."""

    def ended(self, status: CallStatus, error: str | None = None) -> None:
        """Say how the exchange ended; until this is called it counts as aborted."""
        self.status, self.error = status, error

    def captured(self) -> CapturedCall:
        """What the store is to keep."""
        kept = self.answer.captured()
        ok = self.status is CallStatus.OK
        return CapturedCall(
            call_id=self.call_id,
            wire="chat",
            status=self.status,
            http_status=self.http_status,
            messages=tuple(self.body.get("messages") or ()),
            params={k: v for k, v in self.body.items() if k != "messages"},
            choices=kept.choices,
            prompt_ids_P=kept.prompt_ids_P,
            usage=kept.usage,
            inexact_reason=kept.inexact_reason if ok else f"call_{self.status.value}",
            started_at=self.started_at,
            first_byte_at=self.first_byte_at,
            ended_at=time.time(),
            trajectory_id=self.trajectory_id,
            attribution=self.attribution,
            task_key=self.headers.get("x-mosaic-task"),
            client=client_of(self.headers),
            retry_count=_integer(self.headers.get("x-stainless-retry-count")),
            error=self.error,
            streamed=self.wanted.stream,
            headers={k: v for k, v in self.headers.items() if _kept(k)},
        )


def open_exchange(raw: bytes, headers: Mapping[str, str], trajectory_id: str | None, attribution: str) -> Exchange:
    """Read a request. Raises `RequestError` (400) when it is not a chat completion."""
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
    ours, wanted = upstream_body(body)
    try:
        sent = orjson.dumps(ours)
    except TypeError as error:
        raise RequestError(f"the body cannot be passed on: {error}.", "Nest it less deeply.") from error
    return Exchange(body, headers, trajectory_id, attribution, Answer(wanted), wanted, sent)


def _kept(name: str) -> bool:
    return name.startswith(_ID_HEADERS) and not is_secret(name)


def _integer(text: str | None) -> int:
    return int(text) if text is not None and len(text) < 7 and text.isascii() and text.isdecimal() else 0
