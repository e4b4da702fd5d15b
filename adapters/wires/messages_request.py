"""A Messages request as the chat completions body that asks vLLM for the same.

Translation is append-only over turns: the chat messages of a conversation's next request begin with those of this one
plus the reply, so that a continued session extends its tokens. To that end user messages are kept apart, a run of
assistant messages becomes one, system text stays where it stands, and tool arguments are written as a policy samples
them: compact, keys in their order, no ASCII escapes. What only Anthropic could serve (its own tools, caching, thinking
budgets) is left out; a field that nobody here knows goes to vLLM as it came.

Source: the `anthropic` package's types (2.14) and vLLM's `entrypoints/openai/chat_completion/protocol.py` (0.32).
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from mosaic.errors import RequestError

_OURS = frozenset({"messages", "system", "tools", "tool_choice", "stop_sequences"})
"""Fields that have another name or shape in chat completions."""

# fmt: off
_ANTHROPIC = frozenset({
    "betas", "billing_policy", "cache_control", "compaction", "container", "context_management", "diagnostics",
    "fallback_credit_token", "fallbacks", "inference_geo", "mcp_servers", "metadata", "output_config",
    "output_format", "service_tier", "speed", "thinking", "thread", "user_profile_id", "workspace_id",
})
# fmt: on
"""Fields that only Anthropic's own service can act on."""

_BILLING = "x-anthropic-billing-header"
"""Claude Code's first system block: it speaks to Anthropic's billing, not to the model, and changes over a session."""

Block = Mapping[str, Any]
Part = dict[str, Any]


def to_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat completions body for a Messages request.

    Equality of a tool call's arguments with what the policy sampled holds when those were a JSON object written as
    `arguments_of` writes it. It cannot hold for other whitespace, for needless escapes (`\\/`, `\\u00e9`), for numbers
    that JSON libraries write anew (`1e5`, `1.10`, integers over 2^53 in JavaScript), for a key given twice, or for
    arguments that are no object: clients echo the parsed value, not the text. The same goes for whitespace that a
    client trims and for empty texts that it leaves out.

    Raises `RequestError` (400), naming the field, for what cannot be served.
    """
    if body.get("n") not in (None, 1):
        raise RequestError("n: a Messages request has one answer.", "Send as many requests as you want answers.")
    chat = {k: v for k, v in body.items() if k not in _OURS and k not in _ANTHROPIC}
    chat["messages"] = _messages(body)
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    if tools := _tools(body):
        chat["tools"] = tools
        chat.update(_tool_choice(body, tools))
    chat.update(_output_format(body))
    chat.update(_prefill(chat["messages"]))
    return chat


def count_tokens_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body for vLLM's `/tokenize` that counts what `to_chat` would send."""
    chat = to_chat(body)
    kept: dict[str, Any] = {k: v for k, v in chat.items() if k in ("messages", "tools", "chat_template_kwargs")}
    return {**kept, "add_generation_prompt": True, **_prefill(chat["messages"])}


def arguments_of(value: object) -> str:
    """The input of a tool_use block as a policy samples it: compact JSON, keys in their order, no ASCII escapes."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    given = body.get("messages")
    if not isinstance(given, list) or not given:
        raise RequestError("messages: a list of at least one message is required.")
    found = _system(body.get("system"), "system")
    run: list[Block] = []
    for at, message in enumerate(given):
        where = f"messages.{at}"
        if not isinstance(message, Mapping):
            raise RequestError(f"{where}: a message is an object with role and content.")
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            # One reply may come back as several messages.
            run += _blocks(content, f"{where}.content")
            continue
        found += _assistant(run)
        run = []
        if role == "user":
            found += _user(_blocks(content, f"{where}.content"), f"{where}.content")
        elif role == "system":
            found += _system(content, f"{where}.content")
        else:
            raise RequestError(f"{where}.role: {role!r} is not user, assistant or system.")
    return found + _assistant(run)


def _blocks(content: object, where: str) -> list[Block]:
    """Content as a list of blocks; a string is one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise RequestError(f"{where}: content is a string or a list of blocks.")
    for at, block in enumerate(content):
        if not isinstance(block, Mapping) or not isinstance(block.get("type"), str):
            raise RequestError(f"{where}.{at}.type: a block is an object with a type.")
        if block["type"] == "text" and not isinstance(block.get("text"), str):
            raise RequestError(f"{where}.{at}.text: a text block has a text.")
    return content


def _system(content: object, where: str) -> list[dict[str, Any]]:
    """The system message, unless nothing is left to say. It stays in place: moved to the front, it would change it."""
    if content is None:
        return []
    texts = [b["text"] for b in _blocks(content, where) if b["type"] == "text"]
    text = "\n".join(t for t in texts if t and not t.startswith(_BILLING))
    return [{"role": "system", "content": text}] if text else []


def _assistant(blocks: list[Block]) -> list[dict[str, Any]]:
    """The chat message of a run of assistant blocks: texts and thoughts are joined as they were before we cut them.

    Redacted thinking is opaque, and what Anthropic's own tools left behind is nothing that the policy could say.
    Reasoning gets the name that vLLM answers with and that its /tokenize reads.
    """
    if not blocks:
        return []
    texts = [b["text"] for b in blocks if b["type"] == "text"]
    thoughts = [str(b.get("thinking") or "") for b in blocks if b["type"] == "thinking"]
    calls = [_tool_call(b) for b in blocks if b["type"] == "tool_use"]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts else None}
    if reasoning := "".join(thoughts):
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return [message]


def _tool_call(block: Block) -> dict[str, Any]:
    for name in ("id", "name"):
        if not isinstance(block.get(name), str):
            raise RequestError(f"tool_use.{name}: a tool_use block has an id and a name.")
    function = {"name": block["name"], "arguments": arguments_of(block.get("input") or {})}
    return {"id": block["id"], "type": "function", "function": function}


def _user(blocks: list[Block], where: str) -> list[dict[str, Any]]:
    """Tool messages in their order, then one user message with the pictures of the results and all other content."""
    messages: list[dict[str, Any]] = []
    parts: list[Part] = []
    for block in blocks:
        if block["type"] == "tool_result":
            message, pictures = _tool_result(block, where)
            messages.append(message)
            parts += pictures
    parts += [p for b in blocks if b["type"] != "tool_result" for p in _parts(b, where)]
    if parts or not messages:
        messages.append({"role": "user", "content": _shortest(parts)})
    return messages


def _shortest(parts: list[Part]) -> str | list[Part]:
    """A string for at most one text: so a block list that turns into a string over turns changes nothing."""
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _tool_result(block: Block, where: str) -> tuple[dict[str, Any], list[Part]]:
    """The tool message, whose content is a string for every template, and the result's pictures."""
    if not isinstance(block.get("tool_use_id"), str):
        raise RequestError(f"{where}.tool_use_id: a tool_result block names the tool_use that it answers.")
    content = block.get("content")
    inner = [] if content is None else _blocks(content, f"{where}.content")
    parts = [p for b in inner for p in _parts(b, where)]
    pictures = [p for p in parts if p["type"] == "image_url"]
    text = "\n".join(p["text"] if p["type"] == "text" else "[image]" for p in parts)
    if block.get("is_error") and not text.lstrip("<").lower().startswith(("error", "tool_use_error")):
        text = f"Error: {text}"
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": text}, pictures


def _parts(block: Block, where: str) -> Iterator[Part]:
    """The chat content parts of a block; what vLLM cannot show becomes a note, so that the conversation can go on."""
    kind = block["type"]
    if kind == "text":
        yield _text(block["text"])
    elif kind == "image":
        yield _image(block.get("source"), where)
    elif kind == "document":
        yield from _document(block, where)
    elif kind == "search_result":
        yield _text(f"{block.get('title', '')}\n{block.get('source', '')}")
        for inner in _blocks(block.get("content") or [], where):
            yield from _parts(inner, where)
    elif kind == "tool_reference":
        yield _text(f"Tool: {block.get('tool_name', '')}")
    else:
        yield _text(block["text"] if isinstance(block.get("text"), str) else f"[{kind} cannot be shown here]")


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _image(source: object, where: str) -> Part:
    given = source if isinstance(source, Mapping) else {}
    if given.get("type") == "url" and isinstance(given.get("url"), str):
        url = given["url"]
    elif given.get("type") == "base64" and isinstance(given.get("data"), str):
        url = f"data:{given.get('media_type', 'image/jpeg')};base64,{given['data']}"
    elif given.get("type") == "file":
        return _text("[image of an uploaded file cannot be shown here]")
    else:
        raise RequestError(f"{where}.source: an image has a base64 or url source.")
    return {"type": "image_url", "image_url": {"url": url}}


def _document(block: Block, where: str) -> Iterator[Part]:
    source = block.get("source")
    if not isinstance(source, Mapping):
        raise RequestError(f"{where}.source: a document has a source.")
    for name in ("title", "context"):
        if isinstance(block.get(name), str):
            yield _text(block[name])
    if source.get("type") == "text":
        yield _text(str(source.get("data", "")))
    elif source.get("type") == "content":
        for inner in _blocks(source.get("content"), f"{where}.source.content"):
            yield from _parts(inner, where)
    else:
        yield _text(f"[document ({source.get('media_type') or source.get('type')}) cannot be shown here]")


def _tools(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The tools that have a schema. Anthropic's own (web search, bash, computer) have none and are left out."""
    given = body.get("tools") or []
    if not isinstance(given, list):
        raise RequestError("tools: a list of tools is expected.")
    return [_tool(t, at) for at, t in enumerate(given) if not isinstance(t, Mapping) or _has_schema(t)]


def _has_schema(tool: Mapping[str, Any]) -> bool:
    return tool.get("type") in (None, "custom") or isinstance(tool.get("input_schema"), Mapping)


def _tool(tool: object, at: int) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or not isinstance(tool.get("name"), str):
        raise RequestError(f"tools.{at}.name: a tool has a name.")
    function = {"name": tool["name"]}
    if tool.get("description") is not None:
        function["description"] = tool["description"]
    function["parameters"] = tool.get("input_schema") or {"type": "object", "properties": {}}
    return {"type": "function", "function": function | {k: tool[k] for k in ("strict", "defer_loading") if k in tool}}


def _tool_choice(body: Mapping[str, Any], tools: list[dict[str, Any]]) -> dict[str, Any]:
    choice = body.get("tool_choice")
    if choice is None:
        return {}
    kind = choice.get("type") if isinstance(choice, Mapping) else None
    simple = {"auto": "auto", "any": "required", "none": "none"}
    chosen: dict[str, Any] = {}
    if isinstance(kind, str) and kind in simple:
        chosen["tool_choice"] = simple[kind]
    elif kind == "tool":
        name = choice.get("name")
        if name not in [t["function"]["name"] for t in tools]:
            raise RequestError(f"tool_choice.name: {name!r} is none of the tools that can be served.")
        chosen["tool_choice"] = {"type": "function", "function": {"name": name}}
    else:
        raise RequestError(f"tool_choice.type: {kind!r} is not auto, any, tool or none.")
    if choice.get("disable_parallel_tool_use"):
        chosen["parallel_tool_calls"] = False
    return chosen


def _output_format(body: Mapping[str, Any]) -> dict[str, Any]:
    """Structured output: the one part of `output_config` that vLLM can serve."""
    config = body.get("output_config")
    wanted = (config.get("format") if isinstance(config, Mapping) else None) or body.get("output_format")
    if not isinstance(wanted, Mapping) or not isinstance(wanted.get("schema"), Mapping):
        return {}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": wanted["schema"]}}}


def _prefill(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """A conversation that ends with assistant text is continued within that text."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or not last.get("content") or "tool_calls" in last:
        return {}
    return {"add_generation_prompt": False, "continue_final_message": True}
