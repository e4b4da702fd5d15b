"""OpenAI chat completions, as vLLM serves them: what we add to a request and take back out of an answer.

We ask the engine for token ids, logprobs and usage, and strip from the answer what the client did not ask for; all
else passes through unchanged, unknown fields included.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from adapters.wires.chat_answer import DONE, Answer, Captured, error_text
from adapters.wires.members import with_members
from adapters.wires.sse import data_of, without_data
from adapters.wires.tool_ids import mark_ids

__all__ = ["DONE", "Answer", "Captured", "Shown", "Untouched", "Wanted", "error_event", "upstream_body"]

_PROMPT_IDS = b'"prompt_token_ids":'
# Quotes that nothing escapes are no part of a text: in valid JSON, these bytes are what they look like.
_LOGPROBS = b'"logprobs":{"content":[{'
_LOGPROBS_END = b'"top_logprobs":[]}]}'
_OBJECT_IN_OBJECT = b'":{"'
_CUT = secrets.token_hex(8)
"""Stands where logprobs stood: what no engine says by itself."""
_CUT_LOGPROBS = f'"logprobs":"{_CUT}"'.encode()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the client itself asked for, and so gets to see."""

    logprobs: bool
    token_ids: bool
    stream: bool
    stream_usage: bool


def upstream_body(raw: bytes, body: Mapping[str, Any]) -> tuple[bytes, Wanted]:
    """The request's bytes with our own fields added, and what the client had asked for by itself.

    `body` is what `raw` says. All but these fields goes on in the client's own bytes.
    """
    options = body.get("stream_options") or {}
    wanted = Wanted(
        logprobs=bool(body.get("logprobs")),
        token_ids=bool(body.get("return_token_ids")),
        stream=bool(body.get("stream")),
        stream_usage=bool(options.get("include_usage")),
    )
    ours: dict[str, Any] = {}
    if not wanted.logprobs:
        ours["logprobs"] = True
    if not wanted.token_ids:
        ours["return_token_ids"] = True
    if wanted.stream and not wanted.stream_usage:
        ours["stream_options"] = {**options, "include_usage": True}
    return with_members(raw, body, ours), wanted


def error_event(message: str, code: str | None = None) -> bytes:
    """The error event of an OpenAI stream."""
    error = {"message": message, "type": "upstream_error", "param": None, "code": code}
    return b"data: " + orjson.dumps({"error": error}) + b"\n\n"


class Untouched:
    """Shows an answer as it is."""

    def __init__(self) -> None:
        self.done = False
        self.error: str | None = None

    def opening(self) -> bytes:
        """Nothing."""
        return b""

    def failed(self, message: str, code: str | None = None) -> bytes:
        """How a stream ends that failed."""
        return error_event(message, code)

    def whole(self, body: bytes) -> bytes:
        """The body."""
        return body

    def event(self, event: bytes) -> bytes:
        """The event."""
        self.done = self.done or data_of(event) == DONE
        return event


class Shown:
    """What the client gets of an answer: what it did not ask for is taken out again."""

    def __init__(self, wanted: Wanted, call_id: str) -> None:
        self._wanted = wanted
        self._call_id = call_id
        self.done = False
        """True once a stream ended as its wire says it must."""
        self.error: str | None = None
        """The engine's in-band error, when it sent one."""

    def opening(self) -> bytes:
        """Nothing: a stream begins with the engine's first event."""
        return b""

    def failed(self, message: str, code: str | None = None) -> bytes:
        """How a stream ends that failed."""
        return error_event(message, code)

    def whole(self, body: bytes) -> bytes:
        """A whole answer. One that is not understood passes unchanged."""
        try:
            parsed = self._read(body)
            self._strip(parsed, usage=False)
            return orjson.dumps(parsed)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return body

    def event(self, event: bytes) -> bytes:
        """An event of a stream; empty when the client gets nothing. What is not understood passes unchanged."""
        data = data_of(event)
        if data is None:
            return event
        if data.strip() == DONE:
            self.done = True
            return event
        try:
            parsed = self._read(data)
            if parsed.get("error") is not None:
                self.error = error_text(parsed["error"])
            if not self._shown(parsed):
                return b""
            self._strip(parsed, usage=not self._wanted.stream_usage)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, OverflowError):
            return event
        return without_data(event) + b"data: " + orjson.dumps(parsed) + b"\n\n"

    def _read(self, data: bytes) -> Any:
        """What the engine says; of what goes no further, most is not even read."""
        plain, cut = (data, 0) if self._wanted.logprobs else _without_logprobs(data)
        short = plain if self._wanted.token_ids else _without_prompt_ids(plain)
        try:
            parsed = orjson.loads(short)
        except orjson.JSONDecodeError:  # or it was no JSON before
            return orjson.loads(data)
        ids_cut = short is not plain
        if (ids_cut and parsed.get("prompt_token_ids", "not here") is not None) or (cut and cut != _count_cut(parsed)):
            return orjson.loads(data)  # what was cut stood in something else
        return parsed

    def _shown(self, parsed: Mapping[str, Any]) -> bool:
        """False for the chunk that exists only because we asked for usage."""
        only_usage = not parsed.get("choices") and parsed.get("usage") is not None
        return self._wanted.stream_usage or not only_usage

    def _strip(self, parsed: dict[str, Any], *, usage: bool) -> None:
        """Give back what vLLM sends unasked: null in place of ids and logprobs, no usage in a stream."""
        wanted = self._wanted
        if usage:
            parsed.pop("usage", None)
        if not wanted.token_ids and "prompt_token_ids" in parsed:
            parsed["prompt_token_ids"] = None
        for choice in parsed.get("choices") or ():
            if not wanted.token_ids and "token_ids" in choice:
                choice["token_ids"] = None
            if not wanted.logprobs and choice.get("logprobs") is not None:
                choice["logprobs"] = None
            said = choice.get("delta") or choice.get("message")
            if isinstance(said, dict) and said.get("tool_calls"):
                mark_ids(said["tool_calls"], self._call_id, int(choice.get("index", 0)))


# Both look from the right: what stands there is plainer than what the letters of these names occur in, and CPython
# skips it several times as fast.
def _without_prompt_ids(data: bytes) -> bytes:
    """The same JSON with null in the place of the one plain list that is called so; unchanged where it is not that."""
    name = data.rfind(_PROMPT_IDS)
    begin = name + len(_PROMPT_IDS)
    end = data.find(b"]", begin)
    if name < 0 or end < 0 or not data.startswith(b"[", begin) or data.rfind(_PROMPT_IDS, 0, name) >= 0:
        return data
    if data.find(b"[", begin + 1, end) >= 0 or data.find(b'"', begin, end) >= 0:
        return data
    return data[:begin] + b"null" + data[end + 1 :]


def _without_logprobs(data: bytes) -> tuple[bytes, int]:
    """The same JSON with `_CUT` in the places of logprobs of the usual shape, and how many; unchanged where one has
    another."""
    before, *found = data.rsplit(_LOGPROBS)
    behind = []
    for part in found:
        end = part.rfind(_LOGPROBS_END)
        if end < 0 or part.rfind(_OBJECT_IN_OBJECT, 0, end) >= 0:
            return data, 0
        behind.append(part[end + len(_LOGPROBS_END) :])
    return _CUT_LOGPROBS.join([before, *behind]), len(found)


def _count_cut(parsed: Mapping[str, Any]) -> int:
    return [choice.get("logprobs") for choice in parsed.get("choices") or ()].count(_CUT)
