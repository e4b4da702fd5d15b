"""One call as it is shown: messages in parts, the request as it can be sent again, tokens as figures. Pure."""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from mosaic.nesting import parsed
from mosaic.records import LogprobArray
from mosaic.store.call_browsing import ChoiceTokens, StoredMessage
from proxy.ui.trajectory_view import text_of

CONTEXT = 96
"""Prompt tokens that stand before the sampled ones in the strip."""
_KNOWN = {"role", "content", "tool_calls", "tool_call_id", "name", "reasoning", "reasoning_content", "refusal"}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call inside a message."""

    call_id: str
    name: str
    arguments: str
    """Indented where they are JSON that is not nested too deeply, else as they came."""


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message."""

    role: str
    depth: int | None
    text: str
    reasoning: str
    tool_calls: Sequence[ToolCall]
    answers: str | None
    """Id of the tool call that this is the result of."""
    name: str | None
    rest: str
    """Members that have no place of their own, as JSON; empty when there are none."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool that the request offered."""

    name: str
    description: str
    schema: str


def message_view(body: Mapping[str, Any], depth: int | None = None) -> MessageView:
    """A message in parts; what has no part of its own is kept as JSON, so that nothing is hidden."""
    calls = body.get("tool_calls")
    rest = {name: value for name, value in body.items() if name not in _KNOWN and value is not None}
    if calls is not None and not isinstance(calls, list):
        rest["tool_calls"] = calls
    answers, name = body.get("tool_call_id"), body.get("name")
    return MessageView(
        role=str(body.get("role", "")),
        depth=depth,
        text=text_of(body.get("content")) or str(body.get("refusal") or ""),
        reasoning=text_of(body.get("reasoning_content") or body.get("reasoning")),
        tool_calls=[_tool_call(call) for call in calls if isinstance(call, Mapping)] if isinstance(calls, list) else [],
        answers=None if answers is None else str(answers),
        name=None if name is None else str(name),
        rest=pretty(rest) if rest else "",
    )


def message_views(messages: Sequence[StoredMessage]) -> list[MessageView]:
    """Stored messages in parts."""
    return [message_view(message.body, message.depth) for message in messages]


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    given = function if isinstance(function, Mapping) else call.get("custom") or {}
    arguments = given.get("arguments", given.get("input", "")) if isinstance(given, Mapping) else ""
    name = given.get("name", "") if isinstance(given, Mapping) else ""
    return ToolCall(str(call.get("id", "")), str(name), _indented(arguments))


def _indented(arguments: object) -> str:
    if not isinstance(arguments, str):
        return pretty(arguments)
    try:
        found = parsed(arguments)
    except ValueError:
        return arguments
    return pretty(found) if isinstance(found, dict | list) else arguments


def tools_of(params: Mapping[str, Any]) -> list[Tool]:
    """The tools that a request offered."""
    found = []
    for tool in params.get("tools") or ():
        if isinstance(tool, Mapping):
            function = tool.get("function") if isinstance(tool.get("function"), Mapping) else tool
            assert isinstance(function, Mapping)
            schema = function.get("parameters")
            found.append(
                Tool(
                    str(function.get("name") or tool.get("type") or "?"),
                    str(function.get("description") or ""),
                    pretty(schema) if schema else "",
                )
            )
    return found


def request_body(params: Mapping[str, Any], messages: Sequence[StoredMessage]) -> dict[str, Any]:
    """The request in its chat form, as it was recorded."""
    asked = {name: value for name, value in params.items() if name != "client_request"}
    return {**asked, "messages": [message.body for message in messages]}


def curl(base: str, body: Mapping[str, Any]) -> str:
    """A command that sends the request again. Whatever the messages hold, the shell reads them as one word."""
    said = dumps(body).decode("utf-8", "replace")
    return (
        f"curl {shlex.quote(base + '/v1/chat/completions')} \\\n"
        "  -H 'content-type: application/json' \\\n"
        '  -H "authorization: Bearer $OPENAI_API_KEY" \\\n'
        f"  --data-binary {shlex.quote(said)}\n"
    )


def pretty(value: object) -> str:
    """JSON, indented."""
    return dumps(value, orjson.OPT_INDENT_2).decode("utf-8", "replace")


def dumps(value: object, option: int = 0) -> bytes:
    """JSON; lone surrogates survive as escapes, which orjson refuses to write."""
    try:
        return orjson.dumps(value, option=option, default=str)
    except TypeError:
        import json

        return json.dumps(value, indent=2 if option else None, default=str).encode()


def strip(tokens: ChoiceTokens, trained: bool, advantage: float | None) -> dict[str, Any]:
    """What the token strip draws: the end of the prompt, then every sampled token with its figures.

    `texts` is filled in by who can ask the engine.
    """
    prompt = tokens.prompt_P[-CONTEXT:].tolist()
    ids = tokens.ids_T.tolist()
    logprobs = finite(tokens.logprobs_T)
    later = tokens.training_logprobs_T
    version: list[int | None] = [None] * len(ids)
    for number, start, end in tokens.versions:
        for at in range(start, min(end, len(ids))):
            version[at] = number
    return {
        "prompt_tokens": len(tokens.prompt_P),
        "prompt": prompt,
        "ids": ids,
        "logprobs": logprobs,
        "training_logprobs": None if later is None else finite(later),
        "versions": version,
        "trained": trained,
        "advantage": advantage,
        "perplexity": _perplexity(logprobs),
    }


def finite(logprobs_T: LogprobArray) -> list[float | None]:
    """Logprobs as JSON can hold them."""
    return [value if math.isfinite(value) else None for value in logprobs_T.tolist()]


def _perplexity(logprobs: Sequence[float | None]) -> float | None:
    known = [value for value in logprobs if value is not None]
    return math.exp(-sum(known) / len(known)) if known else None
