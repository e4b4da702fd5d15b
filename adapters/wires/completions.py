"""OpenAI's older completions, as vLLM serves them: passed on untranslated, with what we need added and stripped again.

The record is that of a chat of one user message, the prompt, and one reply, the text. A request with `echo` goes on
as it came and is never trained: asked for token ids, vLLM leaves the prompt out of the text that the client wants.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import orjson

from adapters.wires import chat
from adapters.wires.chat import Captured, Wanted
from adapters.wires.members import with_members
from mosaic.capture import Choice
from mosaic.records import Message

__all__ = ["NAME", "Answer", "Captured", "Shown", "Wanted", "to_messages", "upstream_body"]

NAME = "completions"


def upstream_body(raw: bytes, body: Mapping[str, Any]) -> tuple[bytes, Wanted]:
    """The request's bytes with our own fields added, and what the client had asked for by itself.

    `body` is what `raw` says. All but these fields goes on in the client's own bytes.
    """
    options = body.get("stream_options") or {}
    echo = bool(body.get("echo"))
    wanted = Wanted(
        logprobs=echo or body.get("logprobs") is not None,
        token_ids=echo or bool(body.get("return_token_ids")),
        stream=bool(body.get("stream")),
        stream_usage=bool(options.get("include_usage")),
    )
    ours: dict[str, Any] = {}
    if not wanted.logprobs:
        ours["logprobs"] = 0  # the sampled token's own, and no alternatives
    if not wanted.token_ids:
        ours["return_token_ids"] = True
    if wanted.stream and not wanted.stream_usage:
        ours["stream_options"] = {**options, "include_usage": True}
    return with_members(raw, body, ours), wanted


def to_messages(body: Mapping[str, Any]) -> list[Message]:
    """The prompt as one user message; a prompt of ids, or more than one, stays a list."""
    prompt = _only(body.get("prompt"))
    return [{"role": "user", "content": "" if prompt is None else prompt}]


def _only(prompt: object) -> object:
    """The prompt out of a list of one."""
    alone = isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list)
    return prompt[0] if alone and isinstance(prompt, list) else prompt


def _unusable(body: Mapping[str, Any]) -> str | None:
    """Why an answer to this request can never be trained."""
    prompt = _only(body.get("prompt"))
    if isinstance(prompt, list) and any(not isinstance(token, int) for token in prompt):
        return "many_prompts"
    if body.get("prompt_embeds") is not None:
        return "prompt_embeds"
    return "echo" if body.get("echo") else None


class Shown(chat.Shown):
    """What the client gets of an answer: what it did not ask for is taken out again."""

    def _read(self, data: bytes) -> Any:
        return orjson.loads(data)  # the prompt's ids stand in the choices

    def _strip(self, parsed: dict[str, Any], *, usage: bool) -> None:
        super()._strip(parsed, usage=usage)
        for choice in parsed.get("choices") or ():
            if not self._wanted.token_ids and "prompt_token_ids" in choice:
                choice["prompt_token_ids"] = None


class Answer(chat.Answer):
    """What the record keeps of an answer, whole or streamed."""

    def __init__(self, body: Mapping[str, Any] = MappingProxyType({})) -> None:
        """`body`: the client's request."""
        super().__init__("")  # there are no tool calls
        self._unusable = _unusable(body)

    def _keep_whole(self, parsed: dict[str, Any]) -> None:
        super()._keep_whole(_as_chat(parsed, "message"))

    def _keep_chunk(self, parsed: dict[str, Any], now: float) -> None:
        super()._keep_chunk(_as_chat(parsed, "delta"), now)

    def _inexact(self, choices: tuple[Choice, ...]) -> str | None:
        reason = super()._inexact(choices)
        return reason if reason in ("engine_error", "cut") else self._unusable or reason


def _as_chat(parsed: Mapping[str, Any], part: str) -> dict[str, Any]:
    """A completion, or a chunk of one, as chat completions would say it."""
    choices = parsed.get("choices") or ()
    said = {**parsed, "choices": [_choice_as_chat(choice, part) for choice in choices]}
    for choice in choices:
        if choice.get("prompt_token_ids") is not None:
            said["prompt_token_ids"] = choice["prompt_token_ids"]
    return said


def _choice_as_chat(choice: Mapping[str, Any], part: str) -> dict[str, Any]:
    logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or ()
    return {
        "index": choice.get("index", 0),
        part: {"role": "assistant", "content": choice.get("text") or ""},
        "finish_reason": choice.get("finish_reason"),
        "token_ids": choice.get("token_ids"),
        "logprobs": {"content": [{"logprob": logprob} for logprob in logprobs]},
    }
