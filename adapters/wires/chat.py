"""OpenAI chat completions, as vLLM serves them: what we add to a request, take back out of an answer, and keep.

We ask the engine for token ids, logprobs and usage, and strip from the answer what the client did not ask for; all
else passes through unchanged, unknown fields included. Nothing is ever re-tokenised: what the engine does not send is
missing, with its reason.
"""

import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from adapters.wires.members import with_members
from adapters.wires.sse import data_of, without_data
from adapters.wires.tool_ids import index_of, mark_ids
from mosaic.capture import Choice
from mosaic.records import IdArray, LogprobArray

T = TypeVar("T", bound=np.generic)

DONE = b"[DONE]"
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


@dataclass(slots=True)
class Captured:
    """What an answer holds once it has ended."""

    choices: tuple[Choice, ...]
    prompt_ids_P: IdArray
    usage: Mapping[str, Any] | None
    inexact_reason: str | None


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


@dataclass(slots=True)
class _ChoiceSoFar:
    message: dict[str, Any] = field(default_factory=lambda: {"role": "assistant", "content": None})
    finish_reason: str | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    arrivals: list[tuple[int, float]] = field(default_factory=list)
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)


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
                self.error = _error_text(parsed["error"])
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


class Answer:
    """What the record keeps of an answer, whole or streamed."""

    def __init__(self, call_id: str, *, translated: bool = False) -> None:
        """`translated`: the client speaks another wire, where every tool call has an id."""
        self._call_id = call_id
        self._translated = translated
        self._choices: dict[int, _ChoiceSoFar] = {}
        self._prompt_ids: list[int] | None = None
        self._usage: Mapping[str, Any] | None = None
        self._noted: str | None = None
        self._done = False
        self._error: str | None = None

    def whole(self, body: bytes) -> None:
        """Keep a whole answer."""
        try:
            self._keep_whole(orjson.loads(body))
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, OverflowError):
            self._noted = "unreadable_answer"
        self._done = True

    def _keep_whole(self, parsed: dict[str, Any]) -> None:
        self._prompt_ids = parsed.get("prompt_token_ids")
        self._usage = parsed.get("usage")
        for raw in parsed["choices"]:
            index = int(raw.get("index", 0))
            choice = self._choices.setdefault(index, _ChoiceSoFar())
            choice.message = dict(raw["message"])
            mark_ids(choice.message.get("tool_calls"), self._call_id, index, make=self._translated)
            choice.finish_reason = None if raw.get("finish_reason") is None else str(raw["finish_reason"])
            self._keep_tokens(choice, raw)

    def event(self, event: bytes, now: float) -> None:
        """Keep one event of a stream. What is not understood marks the call inexact."""
        data = data_of(event)
        if data is None:
            return
        if data.strip() == DONE:
            self._done = True
            return
        try:
            self._keep_chunk(orjson.loads(data), now)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError, OverflowError):
            self._noted = "unreadable_chunk"

    def _keep_chunk(self, parsed: dict[str, Any], now: float) -> None:
        if parsed.get("error") is not None:
            self._error = _error_text(parsed["error"])
            return
        if parsed.get("prompt_token_ids") is not None:
            self._prompt_ids = parsed["prompt_token_ids"]
        if parsed.get("usage") is not None:
            self._usage = parsed["usage"]
        for raw in parsed.get("choices") or ():
            index = int(raw.get("index", 0))
            choice = self._choices.setdefault(index, _ChoiceSoFar())
            if raw.get("finish_reason") is not None:
                choice.finish_reason = str(raw["finish_reason"])
            delta = raw.get("delta") or {}
            mark_ids(delta.get("tool_calls"), self._call_id, index, make=self._translated)
            _merge_delta(choice, delta)
            before = len(choice.ids)
            self._keep_tokens(choice, raw)
            if len(choice.ids) > before:
                choice.arrivals.append((len(choice.ids), now))

    def _keep_tokens(self, choice: _ChoiceSoFar, raw: Mapping[str, Any]) -> None:
        choice.ids += raw.get("token_ids") or ()
        content = (raw.get("logprobs") or {}).get("content") or ()
        choice.logprobs += [entry["logprob"] for entry in content]

    def captured(self) -> Captured:
        """What was kept, and whether it is exact."""
        try:
            choices = tuple([_choice(index, self._choices[index]) for index in sorted(self._choices)])
            prompt = _ids(self._prompt_ids or ())
            return Captured(choices, prompt, self._usage, self._inexact(choices))
        except (TypeError, ValueError, OverflowError, AttributeError):
            # The engine sent something that is no answer; the client has it, and training must not.
            return Captured((), np.zeros(0, np.int32), None, "unreadable_answer")

    def _inexact(self, choices: tuple[Choice, ...]) -> str | None:
        if self._error is not None:
            return "engine_error"
        if not self._done:
            return "cut"
        if self._noted is not None:
            return self._noted
        return inexact_reason(choices, self._prompt_ids, self._usage)


def inexact_reason(  # noqa: PLR0911 - a ladder
    choices: tuple[Choice, ...], prompt_ids: list[int] | None, usage: Mapping[str, Any] | None
) -> str | None:
    """Why an ended answer cannot be trained, or None: ids, logprobs and usage must all be there and agree."""
    if not choices:
        return "no_choices"
    if not prompt_ids:
        return "no_prompt_ids"
    sampled = [len(c.ids_T) for c in choices]
    if 0 in sampled:
        return "no_token_ids"
    if [len(c.logprobs_T) for c in choices] != sampled:
        return "logprobs_differ"
    if [np.count_nonzero(np.isfinite(c.logprobs_T)) for c in choices] != sampled:
        return "logprobs_not_finite"
    if not usage:
        return "no_usage"
    if usage.get("completion_tokens") != sum(sampled):
        return "completion_tokens_differ"
    return None if usage.get("prompt_tokens") == len(prompt_ids) else "prompt_tokens_differ"


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


def _error_text(error: object) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)


def _choice(index: int, kept: _ChoiceSoFar) -> Choice:
    if not 0 <= index < 2**31:
        raise ValueError("a choice has an index that cannot be one")
    message = kept.message
    if kept.tool_calls:
        message = {**message, "tool_calls": [kept.tool_calls[i] for i in sorted(kept.tool_calls)]}
    return Choice(
        index=index,
        message=message,
        finish_reason=kept.finish_reason,
        ids_T=_ids(kept.ids),
        logprobs_T=_logprobs(kept.logprobs),
        arrivals=tuple(kept.arrivals),
    )


def _ids(said: Sequence[Any]) -> IdArray:
    try:
        return np.frombuffer(struct.pack(f"{len(said)}i", *said), np.int32)  # half the time that numpy needs
    except struct.error:
        return _row(np.asarray(said, np.int32))


def _logprobs(said: Sequence[Any]) -> LogprobArray:
    try:
        return np.frombuffer(struct.pack(f"{len(said)}f", *said), np.float32)
    except (struct.error, OverflowError):
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and so not exact
            return _row(np.asarray(said, np.float32))


def _row(array: NDArray[T]) -> NDArray[T]:
    if array.ndim != 1:
        raise ValueError("ids or logprobs are no list of numbers")
    return array


def _merge_delta(choice: _ChoiceSoFar, delta: Mapping[str, Any]) -> None:
    """Add a delta to the message: texts are appended, tool calls by their index, anything else is replaced."""
    for key, value in delta.items():
        if key == "tool_calls":
            for at, call in enumerate(value or ()):
                _merge_tool_call(choice.tool_calls.setdefault(index_of(call, at), {}), call)
        elif isinstance(value, str) and key != "role" and isinstance(choice.message.get(key), str):
            choice.message[key] += value
        elif value is not None or key not in choice.message:
            choice.message[key] = value


def _merge_tool_call(kept: dict[str, Any], delta: Mapping[str, Any]) -> None:
    for key, value in delta.items():
        if key == "function":
            function = kept.setdefault("function", {"name": "", "arguments": ""})
            for part in ("name", "arguments"):
                function[part] += (value or {}).get(part) or ""
        elif key == "id" and value:
            kept.setdefault(key, value)
        elif key != "index" and value is not None:
            kept[key] = value
