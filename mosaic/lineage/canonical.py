"""A form of messages in which the harmless rewrites of agent frameworks disappear and nothing that matters does.

Absorbed: string against block list, one message against several of the same role, moved `cache_control`, whitespace,
null against empty content, re-serialised tool arguments, `name` fields, dropped reasoning (also inline `<think>`),
`<system-reminder>` blocks, the order of the results of one batch, and system messages anywhere (hashed apart, without
the billing line of Claude Code). Kept: who said it, its text, its calls and its results.

Hashes are Python's own, seeded by each process: they live in memory only and are never stored.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import orjson

from mosaic.nesting import parsed
from mosaic.records import Message

_REMINDER = re.compile(r"<system-reminder>(.*?)(?:</system-reminder>|$)", re.DOTALL)
_THOUGHT = re.compile(r"^\s*(?:<think(?:ing)?>)?.*?</think(?:ing)?>", re.DOTALL)
_BILLING = re.compile(r"x-anthropic-billing-header:[^\n]*")
_WORD = re.compile(r"\w+")
_WORDS_OF_ASCII = "".join(char if _WORD.match(char) else " " for char in map(chr, range(128)))
"""ASCII, with a space for what stands in no word: to cut at spaces takes a quarter of the pattern's time."""
_ESCAPE = re.compile(r"(?<!\\)\\+[nrt]")  # a run of backslashes is tried from its begin alone
# Tuples: a role may be anything, also what has no hash.
_SYSTEM_ROLES = "system", "developer"
_RESULT_ROLES = "tool", "function"
_SPEAKERS = "user", "assistant"
_TWICE = frozenset((speaker, speaker) for speaker in _SPEAKERS)
SAMPLED = frozenset({"assistant", "call"})
"""Roles of what a model said."""


@dataclass(slots=True)  # not frozen: made for every call, in a third of the time
class Item:
    """One thing that was said: a text, a tool call or a tool result."""

    role: str
    """`user`, `assistant`, `call` or `result`."""
    text: str
    """Collapsed text; for a call its name and sorted compact arguments."""
    tool_call_id: str | None = None
    name: str = ""
    """For a call: the tool."""
    arguments: Any = None
    """For a call: its arguments, parsed where they are JSON that is not nested too deeply."""

    @property
    def sampled(self) -> bool:
        """True for what a model said, false for what it was told."""
        return self.role in SAMPLED

    @property
    def strings(self) -> Iterator[tuple[str, str]]:
        """For a call: (argument's name, collapsed text) of every string in its arguments."""
        return ((name, collapse(text)) for name, text in _strings("", self.arguments))


MAX_KEPT = 4 * 2**20
"""Characters of texts and arguments whose items are remembered. Arguments are kept parsed: some bytes a character."""


class _Texts:
    """The items of texts and of calls' arguments that were read lately, for requests repeat their history; all are
    forgotten when they are too many."""

    def __init__(self) -> None:
        self._items: dict[tuple[str | None, ...], Item] = {}
        self._kept = 0

    def item(self, role: str, text: str, tool_call_id: str | None = None) -> Item:
        """What a text says, without what frameworks put around it."""
        key = role, text, tool_call_id
        item = self._items.get(key)
        if item is None:
            said = collapse(text)
            if role == "assistant" and "</think" in said:
                said = _THOUGHT.sub("", said).strip()
            item = self._keep(key, text, Item(role, said, tool_call_id))
        return item

    def call(self, name: str, arguments: str, tool_call_id: str | None) -> Item:
        """A call of a tool, whose arguments are a text."""
        key = "call", name, arguments, tool_call_id
        return self._items.get(key) or self._keep(key, arguments, _call_item(name, arguments, tool_call_id))

    def _keep(self, key: tuple[str | None, ...], read: str, item: Item) -> Item:
        if self._kept > MAX_KEPT:
            self._items, self._kept = {}, 0
        self._items[key] = item
        self._kept += len(read) + len(item.text) + 500
        return item


_TEXTS = _Texts()


def items(messages: Iterable[Message]) -> list[Item]:
    """The canonical items of a conversation, system texts left out, neighbouring texts of one role joined."""
    found: list[Item] = []
    for message in messages:
        role = message.get("role")
        if role in _SPEAKERS:
            content = message.get("content")
            item = _TEXTS.item(role, content if isinstance(content, str) else text_of(content))
            if item.text:
                found.append(item)
            calls = message.get("tool_calls")
            if calls and isinstance(calls, list):
                found += [_called(call) for call in calls if isinstance(call, Mapping)]
        elif role in _RESULT_ROLES:
            told = text_of(message.get("content"))
            found.append(_TEXTS.item("result", told, _id(message.get("tool_call_id"))))
        elif role not in _SYSTEM_ROLES:
            item = _TEXTS.item("user", text_of(message.get("content")))
            if item.text:
                found.append(item)
    return joined(found)


def joined(found: list[Item]) -> list[Item]:
    """The same with neighbouring texts of one role as one."""
    if _TWICE.isdisjoint(pairwise([item.role for item in found])):
        return found
    whole: list[Item] = []
    for role, alike in groupby(found, lambda item: item.role):
        same = list(alike)
        whole += [Item(role, " ".join(item.text for item in same))] if role in _SPEAKERS and len(same) > 1 else same
    return whole


def blocks(messages: Iterable[Message]) -> Iterator[str]:
    """The collapsed texts of what the user said, block by block."""
    for message in messages:
        if message.get("role") == "user":
            content = message.get("content")
            for part in content if isinstance(content, list) else [content]:
                if text := collapse(text_of(part if isinstance(part, str) else [part]) if part is not None else ""):
                    yield text


def system_text(messages: Iterable[Message]) -> str:
    """The system and developer texts that the conversation opens with, collapsed."""
    texts = []
    for message in messages:
        role = message.get("role")
        if role not in _SYSTEM_ROLES:
            break
        texts.append(text_of(message.get("content")))
    text = "\n".join(texts)
    text = _BILLING.sub(" ", text) if "x-anthropic-billing-header" in text else text
    return _TEXTS.item("system", text).text


def reminders(messages: Iterable[Message]) -> Iterator[str]:
    """The texts of reminder blocks, which are no part of the conversation but may carry a child's report."""
    for message in messages:
        text = text_of(message.get("content"))
        if "<system-reminder>" in text:
            yield from _REMINDER.findall(text)


def chain(found: Sequence[Item], state: int = 0) -> list[int]:
    """Hash of every prefix: element k covers the first k + 1 items; the results of one batch come in any order.

    `state`: hash of what comes before and ends with no result.
    """
    hashes: list[int] = []
    batch = 0
    for item in found:
        if item.role == "result":
            batch += hash(item.text)
            hashes.append(hash((state, batch)))
        else:
            state = hash((state, batch, item.role, item.text))
            batch = 0
            hashes.append(state)
    return hashes


def collapse(text: str) -> str:
    """The text without reminder blocks and with every run of whitespace as one space."""
    if "<system-reminder>" in text:
        text = _REMINDER.sub(" ", text)
    return " ".join(text.split())


def words(text: str) -> list[str]:
    """The words of a text, whatever stands between them: framing, indentation and JSON escapes disappear."""
    text = _ESCAPE.sub(" ", text) if "\\" in text else text
    return text.translate(_WORDS_OF_ASCII).split() if text.isascii() else _WORD.findall(text)


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
        return _json({k: v for k, v in part.items() if k != "cache_control"})
    return _json(part)


def _json(value: object) -> str:
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # lone surrogates, or deeper than orjson writes what it reads
        try:
            return json.dumps(value, sort_keys=True, separators=(",", ":"))
        except RecursionError:
            return "(nested too deeply)"


def _called(call: Mapping[str, Any]) -> Item:
    function = call.get("function")
    function = function if isinstance(function, Mapping) else {}
    arguments = function.get("arguments")
    name, tool_call_id = str(function.get("name")), _id(call.get("id"))
    if isinstance(arguments, str):
        return _TEXTS.call(name, arguments, tool_call_id)
    return _call_item(name, arguments, tool_call_id)


def _call_item(name: str, arguments: Any, tool_call_id: str | None) -> Item:
    try:
        given = parsed(arguments) if isinstance(arguments, str) and arguments.strip() else arguments
        compact = _json(given or {})
    except ValueError:
        given, compact = arguments, collapse(str(arguments))
    return Item("call", f"{name} {compact}", tool_call_id, name, given)


def _id(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _strings(name: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _strings(str(key), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(name, inner)
