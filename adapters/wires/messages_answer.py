"""The engine's chat answer as an Anthropic Message, whole or streamed.

Nothing is held back but the blocks that a Messages stream cannot show yet and its last two events, which wait for
`[DONE]`: only then is the usage known. What is not understood is left out; it never ends the client's stream.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from adapters.wires.chat import DONE
from adapters.wires.messages_blocks import ArgumentsObject, Blocks, sse, tool_input
from adapters.wires.messages_errors import error_body, error_event
from adapters.wires.sse import data_of
from adapters.wires.tool_ids import mark_ids

_UNREADABLE = (orjson.JSONDecodeError, AttributeError, KeyError, IndexError, TypeError, ValueError)


class Shown:
    """What the client gets of the engine's chat answer."""

    def __init__(self, body: Mapping[str, Any], call_id: str) -> None:
        """`body` is the client's request; `call_id` names the message."""
        self._model = body.get("model")
        self._call_id = call_id
        self._blocks = Blocks()
        self._started = False
        self._finish: object = None
        self._stop: object = None
        self._usage: Mapping[str, Any] = {}
        self.done = False
        """True once a stream ended as chat's wire says it must."""
        self.error: str | None = None
        """The engine's error: in-band, or an answer that is none."""

    def opening(self) -> bytes:
        """Nothing: `message_start` waits for the first chunk, which tells the number of prompt tokens."""
        return b""

    def failed(self, message: str, code: str | None = None) -> bytes:  # noqa: ARG002 - Anthropic's errors have no code
        """How a stream ends that failed."""
        return error_event(message)

    def event(self, event: bytes) -> bytes:
        """The client's events for one event of the engine's stream. Comments pass; nothing follows an error."""
        data = data_of(event)
        if data is None:
            return event if event.startswith(b":") else b""
        if self.done:
            return b""
        self.done = data.strip() == DONE
        if self.error is not None:
            return b""
        return self._end() if self.done else self._chunk(data)

    def whole(self, body: bytes) -> bytes:
        """The Message for a whole answer; Anthropic's error, and `error` set, for one that is none."""
        try:
            parsed = orjson.loads(body)
            self.error = _error_in(parsed)
            if self.error is None:
                return orjson.dumps(self._message(parsed))
        except _UNREADABLE:
            self.error = "the engine's answer is no chat completion."
        return error_body(500, self.error)

    def _message(self, parsed: Mapping[str, Any]) -> dict[str, Any]:
        choice = parsed["choices"][0]
        calls = choice["message"].get("tool_calls") or []
        mark_ids(calls, self._call_id, 0, make=True)
        content = _said(choice["message"]) + [_tool_use(call) for call in calls]
        cut = any(_cut(call) for call in calls)
        return {
            **self._head(parsed),
            "content": content or [{"type": "text", "text": ""}],
            **_stop(choice.get("finish_reason"), choice.get("stop_reason"), called=bool(calls), cut=cut),
            "usage": _usage(_counted(parsed)),
        }

    def _head(self, parsed: Mapping[str, Any]) -> dict[str, Any]:
        """The client knows the model by the name that it asked for."""
        model = self._model or parsed.get("model") or ""
        return {"id": f"msg_{self._call_id}", "type": "message", "role": "assistant", "model": model}

    def _chunk(self, data: bytes) -> bytes:
        out = b""
        try:
            parsed = orjson.loads(data)
            self.error = _error_in(parsed)
            if self.error is not None:
                return error_event(self.error)
            if not self._started and isinstance(parsed["choices"], list):
                out = self._start(parsed)
            self._usage = parsed.get("usage") or self._usage
            for choice in parsed.get("choices") or ():
                self._keep(choice)
        except _UNREADABLE:
            # Half of it may have been kept: that half is shown, and the stream goes on.
            pass
        return out + self._blocks.ready() if self._started else b""

    def _start(self, parsed: Mapping[str, Any]) -> bytes:
        self._usage = _counted(parsed)
        nothing: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
        message = {**self._head(parsed), **nothing, "usage": _usage(self._usage)}
        self._started = True
        return sse("message_start", {"message": message})

    def _keep(self, choice: Mapping[str, Any]) -> None:
        if choice.get("index"):
            return
        if choice.get("finish_reason") is not None:
            self._finish, self._stop = choice["finish_reason"], choice.get("stop_reason")
        delta = choice.get("delta") or {}
        for kind, piece in (("thinking", reasoning_of(delta)), ("text", delta.get("content"))):
            if isinstance(piece, str) and piece:
                self._blocks.say(kind, piece)
        calls = delta.get("tool_calls") or ()
        mark_ids(calls, self._call_id, 0, make=True)
        for at, call in enumerate(calls):
            self._blocks.call(call, at)

    def _end(self) -> bytes:
        if not self._started:
            self.error = "the engine's stream ended without an answer."
            return error_event(self.error)
        if self._blocks.empty:
            self._blocks.say("text", "")
        left = self._blocks.ready(ended=True)
        stop = _stop(self._finish, self._stop, called=self._blocks.called, cut=self._blocks.cut)
        return left + sse("message_delta", {"delta": stop, "usage": _usage(self._usage)}) + sse("message_stop", {})


def reasoning_of(message: Mapping[str, Any]) -> object:
    """What the model thought, under either of the names that engines give it."""
    return message.get("reasoning") or message.get("reasoning_content")


def _said(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    if isinstance(thought := reasoning_of(message), str):
        content.append({"type": "thinking", "thinking": thought, "signature": ""})
    if isinstance(text := message.get("content"), str) and text:
        content.append({"type": "text", "text": text})
    return content


def _tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    given = tool_input(function.get("arguments") or "")
    return {"type": "tool_use", "id": call["id"], "name": function.get("name") or "", "input": given}


def _cut(call: Mapping[str, Any]) -> bool:
    scan = ArgumentsObject()
    scan.feed((call.get("function") or {}).get("arguments") or "")
    return scan.cut


def _stop(finish: object, stop: object, *, called: bool, cut: bool) -> dict[str, Any]:
    """Why it ended. A stop string that cut a call short must not look as if the call could be run."""
    reason, sequence = "end_turn", None
    if finish == "length":
        reason = "max_tokens"
    elif finish == "content_filter":
        reason = "refusal"
    elif isinstance(stop, str) and (cut or not called):
        reason, sequence = "stop_sequence", stop
    elif called:
        reason = "tool_use"
    return {"stop_reason": reason, "stop_sequence": sequence}


def _counted(parsed: Mapping[str, Any]) -> Mapping[str, Any]:
    """The engine's usage; where it sent none, the number of prompt ids."""
    return parsed.get("usage") or {"prompt_tokens": len(parsed.get("prompt_token_ids") or ())}


def _usage(given: Mapping[str, Any]) -> dict[str, int]:
    """Anthropic counts what was read from the cache beside `input_tokens`, OpenAI within `prompt_tokens`."""
    given = given if isinstance(given, Mapping) else {}
    details = given.get("prompt_tokens_details")
    cached = _number(details.get("cached_tokens")) if isinstance(details, Mapping) else 0
    return {
        "input_tokens": max(0, _number(given.get("prompt_tokens")) - cached),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": _number(given.get("completion_tokens")),
    }


def _number(value: object) -> int:
    return value if isinstance(value, int) else 0


def _error_in(parsed: Mapping[str, Any]) -> str | None:
    """The message of an error that came in the place of an answer."""
    error = parsed.get("error")
    if error is None and parsed.get("object") != "error":
        return None
    if not isinstance(error, Mapping):
        error = {"message": error or parsed.get("message")}
    return str(error.get("message") or error)
