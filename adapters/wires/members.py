"""Sets members of a JSON object in its bytes, so that all else stays as its sender wrote it.

A parser and a writer between would turn integers above 64 bits into floats, write numbers anew and drop repeated names.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

_SPACE = re.compile(r"[ \t\n\r]*")
_decode = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


def with_members(raw: bytes, body: Mapping[str, Any], members: Mapping[str, Any]) -> bytes:
    """`raw`, which says `body`, with `members` in the place of its own of those names, or behind all others.

    Raises `RecursionError` when it is nested too deeply.
    """
    here = members.keys() & body.keys()
    if here:
        raw = _replaced(raw, {name: members[name] for name in here})
    if new := {name: value for name, value in members.items() if name not in here} if here else members:
        head = raw.rstrip()[:-1]
        raw = head + (b"" if head.rstrip().endswith(b"{") else b",") + orjson.dumps(new)[1:]
    return raw


def _replaced(raw: bytes, members: Mapping[str, Any]) -> bytes:
    text, parts, at = raw.decode(), list[str](), 0
    # Once all members of these names were found, the rest may be anything: no name occurs more often than its text,
    # unless an escape can write it.
    plain = b"\\u00" not in raw and all(name.isascii() and name.isidentifier() for name in members)
    left = sum(raw.count(b'"%b"' % name.encode()) for name in members) if plain else len(raw)
    for name, start, end in _spans(text):
        if name in members:
            parts += [text[at:start], orjson.dumps(members[name]).decode()]
            at = end
            left -= 1
            if not left:
                break
    return "".join([*parts, text[at:]]).encode()


def _spans(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, start, end) of the values of a JSON object that is known to be one."""
    at = _next(text, 0) + 1
    while text[at := _next(text, at)] != "}":
        name, at = _decode(text, at)
        start = _next(text, _next(text, at) + 1)
        _, end = _decode(text, start)
        yield name, start, end
        at = _next(text, end)
        at += text[at] == ","


def _next(text: str, at: int) -> int:
    """The next place that is not white."""
    found = _SPACE.match(text, at)
    assert found is not None
    return found.end()
