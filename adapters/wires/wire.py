"""The wires that clients may speak, behind one interface: how a request is read, and how its answer is shown.

Whatever a client speaks, the engine is asked in chat completions (or in completions, for those): only there it returns
ids. What is recorded of a translated request is its chat form, and beside it those of the client's own fields that
translation leaves out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from adapters.wires import chat, completions, messages, responses
from adapters.wires.json_text import dumps
from adapters.wires.members import with_members
from adapters.wires.tool_ids import unmarked
from mosaic.errors import RequestError
from mosaic.records import Message

Body = Mapping[str, Any]

CLIENT_REQUEST = "client_request"
"""Parameter of a recorded call that holds what only the client's own wire knows."""
_TRANSLATED_AWAY = frozenset({"input", "messages", "system", "instructions", "tools", "stream"})


class Shown(Protocol):
    """What the client gets of an answer."""

    done: bool
    """True once a stream ended as the engine's wire says it must."""
    error: str | None
    """The engine's in-band error, when it sent one."""

    def opening(self) -> bytes:
        """What a stream begins with, before the engine has said anything."""
        ...

    def event(self, event: bytes) -> bytes:
        """What the client gets for one of the engine's events; may be empty."""
        ...

    def failed(self, message: str, code: str | None = None) -> bytes:
        """How a stream ends that failed."""
        ...

    def whole(self, body: bytes) -> bytes:
        """What the client gets for a whole answer."""
        ...


@dataclass(frozen=True, slots=True)
class Context:
    """What a request is read with besides itself."""

    call_id: str
    now: float
    """Unix seconds."""
    model: str | None = None
    """The name under which the engine serves what was asked for; None keeps the client's."""
    record: bool = True
    previous: Sequence[Message] = ()
    """Chat messages of the conversation that the request continues by its id, without instructions."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A request that was read."""

    sent: bytes
    """The body that goes to the engine."""
    recorded: bytes
    """The body that is recorded, in the form that `captured` reads."""
    shown: Shown
    stream: bool


@dataclass(frozen=True, slots=True)
class Wire:
    """One protocol."""

    name: str
    upstream: str
    """Path of the engine, after /v1/."""
    open: Callable[[bytes, Body, Context], Opened]
    """Raises `RequestError` (400) for what is no request of this wire."""
    error_body: Callable[[int, str, str | None], bytes]
    """(HTTP status, message, code) in the wire's own shape."""
    translated: bool
    """Whether the client speaks another wire than the engine."""
    ping: bytes
    """A keep-alive that clients ignore."""


def _open_chat(raw: bytes, body: Body, context: Context) -> Opened:
    sent_messages = body.get("messages")
    if not isinstance(sent_messages, list) or not all(isinstance(m, dict) for m in sent_messages):
        raise RequestError("`messages` must be a list of objects.", 'For example [{"role": "user", "content": "Hi"}].')
    return _open_as_it_is(raw, body, context, chat.upstream_body, chat.Shown)


def _open_completions(raw: bytes, body: Body, context: Context) -> Opened:
    return _open_as_it_is(raw, body, context, completions.upstream_body, completions.Shown)


def _open_as_it_is(
    raw: bytes,
    body: Body,
    context: Context,
    upstream_body: Callable[[bytes, Body], tuple[bytes, chat.Wanted]],
    shown: Callable[[chat.Wanted, str], Shown],
) -> Opened:
    """The engine's own wire: it goes on as it came, with our own fields added."""
    named = named_body(raw, body, context.model)
    stream = bool(body.get("stream"))
    if not context.record:
        return Opened(unmarked(named), raw, chat.Untouched(), stream)
    sent, wanted = upstream_body(named, body)
    return Opened(unmarked(sent), raw, shown(wanted, context.call_id), stream)


def _open_responses(_raw: bytes, body: Body, context: Context) -> Opened:
    made = responses.to_chat(body, context.previous)
    return _open_translated(body, made, responses.Shown(body, context.call_id, context.now), context)


def _open_messages(_raw: bytes, body: Body, context: Context) -> Opened:
    return _open_translated(body, messages.to_chat(body), messages.Shown(body, context.call_id), context)


def _open_translated(body: Body, made: dict[str, Any], shown: Shown, context: Context) -> Opened:
    kept = {name: value for name, value in body.items() if name not in _TRANSLATED_AWAY and name not in made}
    if "instructions" in body:
        kept["instructions"] = True
    recorded = dumps({**made, CLIENT_REQUEST: kept})
    if context.model is not None:
        made = {**made, "model": context.model}
    sent = dumps(made)
    if context.record:
        sent, _ = chat.upstream_body(sent, made)
    return Opened(unmarked(sent), recorded, shown, bool(made.get("stream")))


def named_body(raw: bytes, body: Body, model: str | None) -> bytes:
    """A request under the name that the engine knows; None keeps the client's."""
    return raw if model is None or body.get("model") == model else with_members(raw, body, {"model": model})


PING = b": ping\n\n"
CHAT = Wire("chat", "chat/completions", _open_chat, responses.error_body, translated=False, ping=PING)
COMPLETIONS = Wire("completions", "completions", _open_completions, responses.error_body, translated=False, ping=PING)
RESPONSES = Wire(
    responses.NAME,
    "chat/completions",
    _open_responses,
    responses.error_body,
    translated=True,
    ping=responses.PING,
)
MESSAGES = Wire(
    messages.NAME, "chat/completions", _open_messages, messages.error_body, translated=True, ping=messages.PING
)
WIRES = {"chat/completions": CHAT, "completions": COMPLETIONS, "responses": RESPONSES, "messages": MESSAGES}
"""Path after /v1/ -> the wire that is spoken there."""
