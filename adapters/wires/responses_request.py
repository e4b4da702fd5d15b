"""A request of the OpenAI Responses API as the chat completion that vLLM is asked for.

The messages of a conversation's next request begin with those of this one and its reply, in the very form in which
the reply was sampled: nothing is re-serialised, and what only the client needs to know stays behind.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from adapters.wires.responses_items import Conversation, told
from adapters.wires.responses_tools import Tool, chat_name, offered
from mosaic.errors import RequestError

_EFFORTS = frozenset({"none", "minimal", "low", "medium", "high", "xhigh", "max"})
"""Values of `reasoning_effort` that vLLM takes."""

_KEPT_BACK = frozenset(
    {
        *("input", "instructions", "previous_response_id", "tools", "tool_choice", "parallel_tool_calls", "text"),
        *("max_output_tokens", "reasoning", "top_logprobs", "include", "stream_options", "store", "metadata"),
        *("background", "background_options", "client_metadata", "context_management", "max_tool_calls"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "safety_identifier", "service_tier"),
        *("truncation", "user", "moderation", "image", "access_programs", "conversation", "prompt", "n"),
    }
)
"""Fields of the Responses API: translated here, or of no meaning to vLLM. All others go on as they are."""


def to_chat(body: Mapping[str, Any], previous: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The chat completions body.

    `previous`: chat messages of the conversation that `previous_response_id` names (its request and reply), without
    its instructions. Raises `RequestError` (400) naming the field.
    """
    _refuse(body)
    chat = {key: value for key, value in body.items() if key not in _KEPT_BACK}
    chat["messages"] = _conversation(body, previous).messages()
    tools = offered(body.get("tools"))
    if tools:
        chat |= _tools(body, tools)
    if body.get("max_output_tokens") is not None:
        chat["max_completion_tokens"] = body["max_output_tokens"]
    if wants_logprobs(body):
        chat["logprobs"] = True
        if body.get("top_logprobs"):
            chat["top_logprobs"] = body["top_logprobs"]
    if body.get("stream"):
        chat["stream_options"] = {"include_usage": True}
    return chat | _form(body) | _effort(body)


def left_out(body: Mapping[str, Any]) -> tuple[str, ...]:
    """What of a request the engine does not get: `tool:<type>` and `item:<type>`, once each, for a counter."""
    kinds = [str(t.get("type")) for t in body.get("tools") or () if isinstance(t, dict) and not offered([t])]
    found = [f"tool:{kind}" for kind in kinds] + [f"item:{kind}" for kind in _conversation(body, ()).left_out]
    return tuple(dict.fromkeys(found))


def wants_logprobs(body: Mapping[str, Any]) -> bool:
    """True when the client asked for the logprobs of the text."""
    return "message.output_text.logprobs" in (body.get("include") or ())


def _refuse(body: Mapping[str, Any]) -> None:
    """What would change the answer's meaning if it were ignored."""
    for field, instead in (("conversation", "previous_response_id"), ("prompt", "instructions and input")):
        if body.get(field) is not None:
            raise RequestError(f"`{field}` names something that is not stored here.", f"Use {instead}.")
    if body.get("n") not in (None, 1):
        raise RequestError("`n` must be 1: a response holds one reply.", "Send as many requests.")
    objects = [name for name in ("reasoning", "text") if not isinstance(body.get(name) or {}, dict)]
    lists = [name for name in ("include",) if not isinstance(body.get(name) or [], list)]
    for field in objects + lists:
        raise RequestError(f"`{field}` must be {'an object' if field in objects else 'a list'}.")


def _conversation(body: Mapping[str, Any], previous: Sequence[Mapping[str, Any]]) -> Conversation:
    instructions, given = body.get("instructions"), body.get("input")
    if instructions is not None and not isinstance(instructions, str):
        raise RequestError("`instructions` must be a text.")
    first = [{"role": "system", "content": instructions}] if instructions else []
    told_before = [told(m) if m.get("role") == "assistant" else m for m in previous]
    conversation = Conversation([*first, *told_before])
    if isinstance(given, str):
        given = [{"role": "user", "content": given}]
    if not isinstance(given, list) and not (given is None and previous):
        raise RequestError("`input` must be a text or a list of items.", 'For example "Hi".')
    for at, item in enumerate(given or ()):
        conversation.add(item, f"input[{at}]")
    if not conversation.messages():
        raise RequestError("`input` is empty.", "Send at least one message.")
    return conversation


def _tools(body: Mapping[str, Any], tools: Mapping[str, Tool]) -> dict[str, Any]:
    choice = body.get("tool_choice")
    functions = {name: {"type": "function", "function": tool.function} for name, tool in tools.items()}
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        allowed = {_named(t) for t in choice.get("tools") or () if isinstance(t, dict)}
        functions = {name: function for name, function in functions.items() if name in allowed}
        choice = choice.get("mode")
    if not functions:
        return {}
    found: dict[str, Any] = {"tools": list(functions.values())}
    if isinstance(choice, dict):
        # A tool that the engine would have to run was left out: nothing can be forced.
        name = _named(choice)
        choice = {"type": "function", "function": {"name": name}} if name is not None else "auto"
    if choice is not None:
        found["tool_choice"] = choice
    if body.get("parallel_tool_calls") is not None:
        found["parallel_tool_calls"] = body["parallel_tool_calls"]
    return found


def _named(choice: Mapping[str, Any]) -> str | None:
    name = choice.get("name")
    known = choice.get("type") in ("function", "custom") and isinstance(name, str)
    return chat_name(str(name), choice.get("namespace")) if known else None


def _form(body: Mapping[str, Any]) -> dict[str, Any]:
    form = (body.get("text") or {}).get("format")
    if form is None or (isinstance(form, dict) and form.get("type") == "text"):
        return {}
    if not isinstance(form, dict):
        raise RequestError("`text.format` must be an object.", 'For example {"type": "json_object"}.')
    if form.get("type") != "json_schema":
        return {"response_format": form}
    if not isinstance(form.get("schema"), dict):
        raise RequestError("`text.format.schema` must be an object.", "Send a JSON schema.")
    schema = {key: value for key, value in form.items() if key != "type" and value is not None}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", **schema}}}


def _effort(body: Mapping[str, Any]) -> dict[str, Any]:
    effort = (body.get("reasoning") or {}).get("effort")
    return {"reasoning_effort": effort} if isinstance(effort, str) and effort in _EFFORTS else {}
