"""A form of messages in which the harmless rewrites of agent frameworks disappear and nothing that matters does.

Absorbed: string against block list, moved `cache_control`, whitespace, null against empty content, re-serialised tool
arguments, `name` fields, dropped reasoning, `<system-reminder>` blocks, the order of the results of one batch, and
system messages anywhere (hashed apart). Kept: who said it, its text, its calls and its results.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from mosaic.records import Message

_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Item:
    """One thing that was said: a text, a tool call or a tool result."""

    role: str
    """`user`, `assistant`, `call` or `result`."""
    text: str
    """Collapsed text; for a call its name and sorted compact arguments."""
    tool_call_id: str | None = None
    arguments: tuple[str, ...] = ()
    """For a call: the string values of its arguments, collapsed."""

    @property
    def sampled(self) -> bool:
        """True for what a model said, false for what it was told."""
        return self.role in ("assistant", "call")


def items(messages: Iterable[Message]) -> list[Item]:
    """The canonical items of a conversation, system texts left out."""
    found: list[Item] = []
    for message in messages:
        if str(message.get("role")) not in _SYSTEM_ROLES:
            found.extend(_items_of(message))
    return _sorted_batches(found)


def system_text(messages: Iterable[Message]) -> str:
    """All system and developer text, collapsed."""
    return collapse(" ".join(text_of(m.get("content")) for m in messages if str(m.get("role")) in _SYSTEM_ROLES))


def chain(found: Iterable[Item]) -> list[bytes]:
    """Hash of every prefix: element k covers the first k + 1 items."""
    hashes: list[bytes] = []
    state = hashlib.blake2b(digest_size=16)
    for item in found:
        state.update(f"{item.role}\0{item.text}\1".encode("utf-8", "surrogatepass"))
        hashes.append(state.digest())
    return hashes


def collapse(text: str) -> str:
    """The text without reminder blocks and with every run of whitespace as one space."""
    if "<system-reminder>" in text:
        text = _REMINDER.sub(" ", text)
    return " ".join(text.split())


def text_of(content: object) -> str:
    """The plain text of a message's content, whichever form it has."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_part_text(part) for part in content)
    return str(content)


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        text = part.get("text")
        if isinstance(text, str):
            return text
        rest = {k: v for k, v in part.items() if k != "cache_control"}
        return orjson.dumps(rest, option=orjson.OPT_SORT_KEYS).decode()
    return str(part)


def _items_of(message: Message) -> Iterator[Item]:
    role = message.get("role")
    text = collapse(text_of(message.get("content")))
    if role in ("tool", "function"):
        yield Item("result", text, _id(message.get("tool_call_id")))
        return
    kind = "assistant" if role == "assistant" else "user"
    if text:
        yield Item(kind, text)
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        if isinstance(call, Mapping):
            yield _call_item(call)


def _call_item(call: Mapping[str, Any]) -> Item:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    try:
        parsed = orjson.loads(arguments) if isinstance(arguments, str) else arguments
        compact = orjson.dumps(parsed, option=orjson.OPT_SORT_KEYS).decode()
    except (orjson.JSONDecodeError, TypeError):
        parsed, compact = arguments, collapse(str(arguments))
    strings = tuple(collapse(s) for s in _strings(parsed))
    return Item("call", f"{function.get('name')} {compact}", _id(call.get("id")), strings)


def _id(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _sorted_batches(found: list[Item]) -> list[Item]:
    """The results of one batch of calls arrive in any order: sort each run of results."""
    ordered: list[Item] = []
    batch: list[Item] = []
    for item in found:
        if item.role == "result":
            batch.append(item)
            continue
        ordered += sorted(batch, key=lambda i: i.text)
        batch = []
        ordered.append(item)
    return ordered + sorted(batch, key=lambda i: i.text)
