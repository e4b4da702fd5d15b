"""What is nested deeply: calls with values deeper than JSON can be written, and texts that hold deep JSON.

orjson reads 1,024 levels and writes 254. Where a call has more, what is too deep stands in it as its JSON text; its
tokens and all else are kept as they are.
"""

import json
from dataclasses import replace
from typing import Any

import orjson

from mosaic.capture import CapturedCall

WRITTEN = 254
"""Levels that orjson writes."""
KEPT = 100
"""Levels that stay of a value that is too deep, below which it becomes text; a text that holds more stays a text."""


def parsed(text: str) -> Any:
    """The JSON value of a text. Raises `ValueError` for what is no JSON or nested deeper than `KEPT`."""
    value = orjson.loads(text)
    if text.count("[") + text.count("{") > KEPT and deeper(value, KEPT):
        raise ValueError("nested too deeply")
    return value


def deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested in each other more than so many levels deep."""
    found = [value] if isinstance(value, dict | list) else []
    for _ in range(levels):
        if not found:
            return False
        inner = (one for outer in found for one in (outer.values() if isinstance(outer, dict) else outer))
        found = [one for one in inner if isinstance(one, dict | list)]
    return bool(found)


def is_deep(call: CapturedCall) -> bool:
    """Whether it has a message, or parameters, that cannot be written."""
    return not all(map(_writable, [*call.messages, call.params, *(choice.message for choice in call.choices)]))


def shallow(call: CapturedCall) -> CapturedCall:
    """The same call without one. A value that can be written stays what it is."""
    return replace(
        call,
        messages=tuple(map(_shallow, call.messages)),
        params={name: value if _writable({name: value}) else _cut(value, KEPT) for name, value in call.params.items()},
        choices=tuple(replace(choice, message=_shallow(choice.message)) for choice in call.choices),
    )


def _shallow(value: Any) -> Any:
    return value if _writable(value) else _cut(value, KEPT)


def _writable(value: Any) -> bool:
    return not deeper(value, WRITTEN)


def _cut(value: Any, room: int) -> Any:
    if room == 0 and isinstance(value, dict | list):
        return _text(value)
    if isinstance(value, dict):
        return {name: _cut(inner, room - 1) for name, inner in value.items()}
    return [_cut(inner, room - 1) for inner in value] if isinstance(value, list) else value


def _text(value: Any) -> str:
    """The JSON of a value of any depth."""
    parts: list[str] = []
    waiting: list[tuple[bool, Any]] = [(False, value)]
    while waiting:
        written, one = waiting.pop()
        if written or not isinstance(one, dict | list):
            parts.append(one if written else json.dumps(one, ensure_ascii=False))
            continue
        named = one.items() if isinstance(one, dict) else ((None, inner) for inner in one)
        marks: list[tuple[bool, Any]] = []
        for name, inner in named:
            before = "," if marks else ""
            marks += [(True, before if name is None else f"{before}{json.dumps(name, ensure_ascii=False)}:")]
            marks += [(False, inner)]
        start, end = "{}" if isinstance(one, dict) else "[]"
        waiting += [(True, end), *reversed(marks), (True, start)]
    return "".join(parts)
