"""Items of the Responses API as chat messages: a conversation told in items, and texts that items carry.

A reply is many items and one chat message. Items of one reply are known by their ids, which hold the call's id; items
without such ids belong together while they come in the order in which a reply has them: reasoning, text, calls.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from typing import Any

from adapters.wires.responses_tools import arguments_of, chat_name
from mosaic.errors import RequestError

_ID = re.compile(r"(?:rs|msg|fc|ctc)_(.+)_\d+")
_OURS = "mosaic1."
"""Begins the `encrypted_content` of reasoning that we sent: the text itself follows, in base64."""

REASONING, TEXT, CALLS = range(3)


def item_id(prefix: str, call_id: str, at: int) -> str:
    """Id of the item at place `at` of a reply."""
    return f"{prefix}_{call_id}_{at}"


def sealed(reasoning: str) -> str:
    """`encrypted_content` for clients that send reasoning back only so. It is no secret: only an envelope."""
    return _OURS + base64.urlsafe_b64encode(reasoning.encode()).decode()


def reasoning_text(item: Mapping[str, Any]) -> str:
    """The text of a reasoning item; empty when it carries none that can be read."""
    sealed_text = item.get("encrypted_content")
    if isinstance(sealed_text, str) and sealed_text.startswith(_OURS):
        try:
            return base64.urlsafe_b64decode(sealed_text.removeprefix(_OURS)).decode()
        except (binascii.Error, ValueError):
            pass  # Somebody else's: the open texts follow.
    return "\n\n".join(_texts(item.get("content"))) or "\n\n".join(_texts(item.get("summary")))


def _texts(parts: object) -> list[str]:
    if isinstance(parts, str):
        return [parts]
    found = (part.get("text") for part in parts if isinstance(part, dict)) if isinstance(parts, list) else ()
    return [text for text in found if isinstance(text, str)]


def told(message: Mapping[str, Any]) -> dict[str, Any]:
    """A reply of the engine in the form that it has when it comes back as items."""
    calls = message.get("tool_calls") or ()
    content = message.get("content")
    kept: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else "")}
    if reasoning := message.get("reasoning") or message.get("reasoning_content"):
        kept["reasoning_content"] = reasoning
    if calls:
        kept["tool_calls"] = [_call(c.get("id"), **_function_of(c)) for c in calls]
    return kept


def _function_of(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call.get("function") or {}
    return {"name": function.get("name"), "arguments": function.get("arguments")}


def _call(call_id: object, name: object, arguments: object) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


class Conversation:
    """Turns items into chat messages, one after the other."""

    def __init__(self, messages: Iterable[Mapping[str, Any]]) -> None:
        self._messages = [dict(m) for m in messages]
        self.left_out: list[str] = []
        """Types of the items that have no place in a chat."""
        self._reply: dict[str, Any] | None = None
        self._reply_id: str | None = None
        self._stage = REASONING
        self._answered = False

    def messages(self) -> list[dict[str, Any]]:
        """The chat messages so far."""
        return [{**m, "content": ""} if _is_bare(m) else m for m in self._messages]

    def add(self, item: object, field: str) -> None:
        """Add an item. Raises `RequestError` that names `field`."""
        if not isinstance(item, dict):
            raise RequestError(f"`{field}` must be an object.", 'For example {"role": "user", "content": "Hi"}.')
        kind = item.get("type")
        if kind == "message" or (kind is None and "role" in item):
            self._add_message(item, field)
        elif kind == "reasoning":
            self._add_reasoning(item)
        elif kind in ("function_call", "custom_tool_call"):
            self._add_call(item, field)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._add_result(item, field)
        elif kind == "item_reference":
            raise RequestError(f"`{field}` is an item_reference.", "Send the items themselves: `store`: false.")
        else:
            self.left_out.append(str(kind))

    def _add_message(self, item: Mapping[str, Any], field: str) -> None:
        role, content = item.get("role"), item.get("content")
        if not isinstance(role, str):
            raise RequestError(f"`{field}.role` must be a text.", "For example user.")
        if not isinstance(content, str | list) and not (content is None and role == "assistant"):
            raise RequestError(f"`{field}.content` must be a text or a list of parts.")
        if role != "assistant":
            self._messages.append({"role": role, "content": _content(content, f"{field}.content")})
            self._reply = None
            return
        text = content if isinstance(content, str) else "".join(_spoken(content))
        reply = self._said(item, TEXT)
        reply["content"] = (reply["content"] or "") + text or None

    def _add_reasoning(self, item: Mapping[str, Any]) -> None:
        if text := reasoning_text(item):
            reply = self._said(item, REASONING)
            before = reply.get("reasoning_content")
            between = "" if before is None or self._reply_id else "\n\n"
            reply["reasoning_content"] = (before or "") + between + text

    def _add_call(self, item: Mapping[str, Any], field: str) -> None:
        custom = item["type"] == "custom_tool_call"
        key = "input" if custom else "arguments"
        for name in ("call_id", "name", key):
            if not isinstance(item.get(name), str):
                raise RequestError(f"`{field}.{name}` must be a text.", "Send the item back as it was.")
        arguments = arguments_of(item[key]) if custom else item[key]
        call = _call(item["call_id"], chat_name(item["name"], item.get("namespace")), arguments)
        self._said(item, CALLS).setdefault("tool_calls", []).append(call)

    def _add_result(self, item: Mapping[str, Any], field: str) -> None:
        if not isinstance(item.get("call_id"), str):
            raise RequestError(f"`{field}.call_id` must be a text.", "Name the call that this is the result of.")
        content = _content(item.get("output"), f"{field}.output")
        self._messages.append({"role": "tool", "tool_call_id": item["call_id"], "content": content})
        self._answered = True

    def _said(self, item: Mapping[str, Any], stage: int) -> dict[str, Any]:
        """The chat message that an item of the assistant belongs to."""
        found = _ID.fullmatch(str(item.get("id")))
        reply_id = found[1] if found else None
        if self._reply is None or not self._continues(reply_id, stage):
            self._reply, self._reply_id = {"role": "assistant", "content": None}, reply_id
            self._answered = False
            self._messages.append(self._reply)
        self._reply_id = self._reply_id or reply_id
        self._stage = stage
        return self._reply

    def _continues(self, reply_id: str | None, stage: int) -> bool:
        if reply_id is not None and self._reply_id is not None:
            return reply_id == self._reply_id
        return not self._answered and stage >= self._stage and (stage, self._stage) != (TEXT, TEXT)


def _is_bare(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and message.get("content") is None and not message.get("tool_calls")


def _spoken(parts: object) -> list[str]:
    """The texts of an assistant's parts, refusals included."""
    found = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    return [str(part.get("text") or part.get("refusal") or "") for part in found]


def _content(content: object, field: str) -> object:
    """Parts in chat form; a single text as a plain string."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not all(isinstance(part, dict) for part in content):
        raise RequestError(f"`{field}` must be a text or a list of parts.")
    parts = [_part(part, f"{field}[{at}]") for at, part in enumerate(content)]
    return parts[0]["text"] if len(parts) == 1 and parts[0].get("type") == "text" else parts


def _part(part: dict[str, Any], field: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind == "input_image":
        return _image(part, field)
    if kind == "input_file":
        names = ("file_data", "file_id", "filename")
        return {"type": "file", "file": {name: part[name] for name in names if name in part}}
    text = part.get("text", part.get("refusal"))
    return {"type": "text", "text": text} if isinstance(text, str) else part


def _image(part: Mapping[str, Any], field: str) -> dict[str, Any]:
    url = part.get("image_url")
    if not isinstance(url, str):
        raise RequestError(f"`{field}.image_url` must be a text: there are no files here.", "Send a data: URL.")
    image = {"url": url} if part.get("detail") is None else {"url": url, "detail": part["detail"]}
    return {"type": "image_url", "image_url": image}
