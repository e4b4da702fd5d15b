"""vLLM's token-in, token-out endpoints (`--enable-scale-out`): what they are sent, and chat answers made of theirs.

`/v1/chat/completions/render` turns a chat request into a request for `/inference/v1/generate`;
`/v1/chat/completions/derender` parses what that sampled, tool calls and reasoning included. The answers made here are
those of `/v1/chat/completions`, with ids, logprobs and usage as the engine gave them, so that all that reads an answer
reads these. Source: vLLM 0.32, entrypoints/scale_out.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from adapters.wires.chat import DONE
from adapters.wires.json_text import dumps
from adapters.wires.sse import data_of
from mosaic.capture import Fidelity, Spans
from mosaic.records import IdArray

RENDER = "chat/completions/render"
GENERATE = "/inference/v1/generate"
DERENDER = "chat/completions/derender"
DETOKENIZE = "/detokenize"

SHARE = 16
"""A part of a stream is parsed when it is a 16th of all before it: the parser reads all of it anew each time."""

_UNSUPPORTED = {
    "stop": "stop_strings",
    "echo": "echo",
    "continue_final_message": "continue_final_message",
    "use_beam_search": "beam_search",
    "prompt_logprobs": "prompt_logprobs",
    "truncate_prompt_tokens": "truncate_prompt_tokens",
    "return_tokens_as_token_ids": "return_tokens_as_token_ids",
    "ignore_eos": "special_tokens",
    "include_stop_str_in_output": "special_tokens",
}
"""Parameters that these endpoints do not honour as chat completions does -> why a call falls back."""


def unsupported(body: Mapping[str, Any]) -> str | None:
    """Why a chat request cannot go this way, or None."""
    if body.get("add_generation_prompt") is False:
        return "no_generation_prompt"
    if (body.get("stream_options") or {}).get("continuous_usage_stats"):
        return "continuous_usage"
    return next((reason for name, reason in _UNSUPPORTED.items() if body.get(name)), None)


def render_body(body: Mapping[str, Any], *, offsets: bool) -> bytes:
    """What is rendered: the chat request, and whether to say where each token stands in the text."""
    return dumps({**body, "return_token_offsets": True} if offsets else body)


def generate_body(rendered: Mapping[str, Any], body: Mapping[str, Any], prompt_ids_P: IdArray) -> bytes:
    """The rendered request with another prompt. Where the client set no limit, there is as much less room."""
    sampling = dict(rendered["sampling_params"])
    if body.get("max_tokens") is None and body.get("max_completion_tokens") is None:
        longer = len(prompt_ids_P) - len(rendered["token_ids"])
        sampling["max_tokens"] = max(1, sampling["max_tokens"] - longer)
    stream = bool(body.get("stream"))
    asked = {
        **rendered,
        "token_ids": prompt_ids_P,
        "token_offsets": None,
        "sampling_params": sampling,
        "return_token_ids": True,
        "stream": stream,
        "stream_options": {"include_usage": True} if stream else None,
    }
    return orjson.dumps(asked, option=orjson.OPT_SERIALIZE_NUMPY)


class Parsing:
    """What the engine's parsers are told with every part of an answer.

    They look in the prompt for whether it has ended its reasoning. So they get the template's rendering: earlier
    reasoning that the sampled ids brought back in would say so.
    """

    def __init__(self, body: Mapping[str, Any], rendered_ids: Sequence[int]) -> None:
        # Parsers look at tools and tool_choice; the conversation would be sent again with every part.
        self._request = orjson.Fragment(dumps({**body, "messages": body["messages"][-1:]}))
        self._prompt = orjson.Fragment(orjson.dumps(rendered_ids))
        self._prompt_tokens = len(rendered_ids)
        self._model = body.get("model")

    def whole(self, generated: Mapping[str, Any]) -> bytes | None:
        """The request that parses a whole answer; None when there is nothing to parse in it."""
        spoken = [self._spoken(choice) for choice in generated["choices"]]
        spoken = [choice for choice in spoken if choice["token_ids"]]
        told = {**generated, "prompt_token_ids": self._prompt, "choices": spoken}
        return self._asked({"generate_response": told}) if spoken else None

    def part(self, chunk: Mapping[str, Any], state: Mapping[str, Any] | None) -> bytes:
        """The request that parses the next part of a choice, after the parts that led to `state`."""
        spoken = {**chunk, "choices": [self._spoken(choice) for choice in chunk["choices"]]}
        return self._asked({"stream": True, "generate_chunk": spoken, "stream_state": state})

    def _spoken(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """The choice without the token that ended it: chat completions does not show that, parsers would."""
        ids, entries = choice["token_ids"], (choice.get("logprobs") or {}).get("content")
        if choice.get("finish_reason") != "stop":
            return dict(choice)
        return {**choice, "token_ids": ids[:-1], "logprobs": {"content": entries[:-1]} if entries else None}

    def _asked(self, what: Mapping[str, Any]) -> bytes:
        asked = {
            **what,
            "model": self._model,
            "prompt_tokens": self._prompt_tokens,
            "prompt_token_ids": self._prompt,
            "chat_request": self._request,
        }
        return orjson.dumps(asked)


def whole_answer(generated: Mapping[str, Any], parsed: Mapping[str, Any] | None, body: Mapping[str, Any]) -> bytes:
    """The chat answer: messages as they were parsed (None: there was nothing to parse); ids, logprobs and usage as they
    were generated."""
    by_index = {} if parsed is None else {choice["index"]: choice for choice in parsed["choices"]}
    choices = [
        _whole_choice(choice, by_index.get(choice["index"]) or _silent(choice), body.get("tool_choice"))
        for choice in generated["choices"]
    ]
    answer = {
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model"),
        **(parsed or {}),
        "id": generated["request_id"],
        "choices": choices,
        "usage": generated["usage"],
        "prompt_token_ids": generated.get("prompt_token_ids"),
        "prompt_text": None,
    }
    return orjson.dumps(answer)


def _whole_choice(choice: Mapping[str, Any], parsed: Mapping[str, Any], tool_choice: Any) -> dict[str, Any]:
    logprobs = _logprobs(choice.get("logprobs"), parsed.get("logprobs"))
    finish = parsed.get("finish_reason")
    # As in chat completions, where a reply that has to call a named tool ends as any other does.
    if tool_choice == "required":
        finish = "tool_calls" if finish == "stop" else finish
    elif parsed["message"].get("tool_calls") and not isinstance(tool_choice, dict):
        finish = "tool_calls"
    return {**parsed, "finish_reason": finish, "logprobs": logprobs, "token_ids": choice["token_ids"]}


def _silent(choice: Mapping[str, Any]) -> dict[str, Any]:
    """A choice that ended at once."""
    said = {"role": "assistant", "content": "", "tool_calls": []}
    return {"index": choice["index"], "message": said, "finish_reason": choice["finish_reason"]}


def _logprobs(given: Mapping[str, Any] | None, named: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
    """Logprobs in chat's shape: those that have the texts of their tokens, then those of which these are not known."""
    if given is None:
        return None
    content = list((named or {}).get("content") or ())
    for entry in (given.get("content") or ())[len(content) :]:
        token = f"token_id:{entry['token_id']}"
        content.append({"token": token, "logprob": entry["logprob"], "bytes": None, "top_logprobs": []})
    return {"content": content}


@dataclass(slots=True)
class Part:
    """What came of one choice since it was last parsed."""

    index: int
    ids: list[int] = field(default_factory=list)
    logprobs: list[Mapping[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    parsed: int = 0
    """Tokens that were parsed before."""
    state: Mapping[str, Any] | None = None
    """The engine's parser, as it was left."""

    @property
    def due(self) -> bool:
        """Whether it is worth its parsing, which is cheap where the engine has no parser."""
        replayed = self.parsed if self.state is None or self.state.get("output_token_ids") else 0
        return self.finish_reason is not None or len(self.ids) > replayed // SHARE

    def split(self) -> "tuple[Part, Part]":
        """The first token, and the others."""
        first = Part(self.index, self.ids[:1], self.logprobs[:1])
        return first, replace(self, ids=self.ids[1:], logprobs=self.logprobs[1:])


class Stream:
    """A generated stream on its way to chat chunks. Feed events; parse what is `due`; `close` when it has ended."""

    def __init__(self, request_id: str, parsing: Parsing) -> None:
        self._request_id = request_id
        self._parsing = parsing
        self._parts: dict[int, Part] = {}
        self._head: dict[str, Any] = {}
        self._prompt_ids: Any = None
        self._usage: Any = None
        self.versions: dict[int, Spans] = {}
        """Choice -> its versions, where the engine named them."""
        self.failed: bytes | None = None
        """The engine's in-band error, as an event."""
        self.ended = False

    def feed(self, event: bytes) -> None:
        """One event of the engine's. Raises `ValueError`, `KeyError` or `TypeError` for what is none."""
        data = data_of(event)
        if data is None:
            return
        if data.strip() == DONE:
            self.ended = True
            return
        given = orjson.loads(data)
        if given.get("error") is not None:
            self.failed = event
            return
        self._prompt_ids = given.get("prompt_token_ids") or self._prompt_ids
        self._usage = given.get("usage") or self._usage
        for choice in given["choices"]:
            self._take(choice)

    def _take(self, choice: Mapping[str, Any]) -> None:
        part = self._parts.setdefault(choice["index"], Part(choice["index"]))
        part.ids += choice.get("token_ids") or ()
        part.logprobs += (choice.get("logprobs") or {}).get("content") or ()
        part.finish_reason = choice.get("finish_reason") or part.finish_reason
        part.stop_reason = choice.get("stop_reason")
        if (spans := spans_of(choice)) is not None:
            self.versions[part.index] = spans

    def due(self) -> Iterator[Part]:
        """What is to be parsed now; a part must have become a `chunk` before the next one is asked for.

        The first token goes alone. What opens reasoning is mostly that, and vLLM's parsers (`deepseek_r1` and its like)
        take it off when it comes by itself, and show it as reasoning when more comes with it.
        """
        for part in list(self._parts.values()):
            later = part
            if part.parsed == 0 and len(part.ids) > 1:
                first, later = part.split()
                self._parts[part.index] = later
                yield first
            if later.due:
                yield later

    def asked(self, part: Part) -> bytes:
        """The request that parses it."""
        choice = {
            "index": part.index,
            "token_ids": part.ids,
            "logprobs": {"content": part.logprobs} if part.logprobs else None,
            "finish_reason": part.finish_reason,
            "stop_reason": part.stop_reason,
        }
        return self._parsing.part({"request_id": self._request_id, "choices": [choice]}, part.state)

    def chunk(self, part: Part, answer: Mapping[str, Any]) -> bytes:
        """The event for a part that was parsed; the next one begins."""
        said = answer["chunk"]["choices"][0]
        choice = {
            "index": part.index,
            "delta": _without_nothing(said["delta"]),
            "logprobs": _logprobs({"content": part.logprobs}, said.get("logprobs")) if part.logprobs else None,
            # The parser says that tools were called of a call that is cut short, too; chat completions does not.
            "finish_reason": said.get("finish_reason") if part.finish_reason == "stop" else part.finish_reason,
            "stop_reason": said.get("stop_reason"),
            "token_ids": part.ids,
        }
        if not self._head:
            names = ("object", "created", "model")
            self._head = {"id": self._request_id, **{name: answer["chunk"][name] for name in names}}
        chunk = {**self._head, "choices": [choice]}
        if self._prompt_ids is not None:
            chunk["prompt_token_ids"], self._prompt_ids = self._prompt_ids, None
            chunk["prompt_text"] = None
        later = self._parts[part.index]
        if later is part:
            later = self._parts[part.index] = Part(part.index)
        later.parsed, later.state = part.parsed + len(part.ids), answer["stream_state"]
        if part.finish_reason is not None:
            del self._parts[part.index]
        return _event(chunk)

    def close(self) -> bytes:
        """The last events."""
        usage = _event({**self._head, "choices": [], "usage": self._usage}) if self._usage else b""
        return usage + b"data: " + DONE + b"\n\n"


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"


def _without_nothing(value: Any) -> Any:
    """What vLLM writes of a delta when it streams: no nulls, no empty lists."""
    if isinstance(value, dict):
        cleaned = {name: _without_nothing(inner) for name, inner in value.items()}
        return {name: inner for name, inner in cleaned.items() if inner is not None and inner != []}
    return [_without_nothing(inner) for inner in value] if isinstance(value, list) else value


def spans_of(choice: Mapping[str, Any]) -> Spans | None:
    """(version, first token, end) of a choice's tokens; None when the engine names none, or others than ours."""
    given: Sequence[Mapping[str, Any]] = choice.get("weight_versions") or ()
    try:
        spans = tuple((int(span["version"]), int(span["start"]), int(span["end"])) for span in given)
    except (ValueError, KeyError, TypeError):
        return None
    return spans or None


def fidelity_with(fidelity: Fidelity, versions: Mapping[int, Spans]) -> Fidelity:
    """The same, with the versions that the engine named."""
    return Fidelity(fidelity.kind, fidelity.reason, tuple(versions.items()))
