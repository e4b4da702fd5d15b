"""What is kept of an answer to a chat completion, whole or streamed, and whether it is exact.

Nothing is ever re-tokenised: what the engine does not send is missing, with its reason.
"""

import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from adapters.wires.sse import data_of
from adapters.wires.tool_ids import index_of, mark_ids
from mosaic.capture import Choice
from mosaic.records import IdArray, LogprobArray

T = TypeVar("T", bound=np.generic)

DONE = b"[DONE]"
_HIGHEST_BYTE = 3 if sys.byteorder == "little" else 0
"""Of an id's four, the one that holds the sign."""


@dataclass(slots=True)
class Captured:
    """What an answer holds once it has ended."""

    choices: tuple[Choice, ...]
    prompt_ids_P: IdArray
    usage: Mapping[str, Any] | None
    inexact_reason: str | None


@dataclass(slots=True)
class _ChoiceSoFar:
    message: dict[str, Any] = field(default_factory=lambda: {"role": "assistant", "content": None})
    finish_reason: str | None = None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    arrivals: list[tuple[int, float]] = field(default_factory=list)
    tool_calls: dict[int, dict[str, Any]] = field(default_factory=dict)


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
            self._error = error_text(parsed["error"])
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


def error_text(error: object) -> str:
    """What an engine's error says."""
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
        packed = struct.pack(f"{len(said)}i", *said)  # half the time that numpy needs
    except struct.error:
        packed = _row(np.asarray(said, np.int32)).tobytes()
    if not packed[_HIGHEST_BYTE::4].isascii():
        raise ValueError("a token has a negative id")
    return np.frombuffer(packed, np.int32)


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
