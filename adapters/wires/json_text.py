"""JSON of requests that are written anew: integers of any size, and what is nested deeply, stay what they are.

orjson reads an integer over 64 bits as a float, and writes neither such an integer nor what is nested over 254 deep.
"""

import json
from typing import Any

import orjson

_DIGITS = bytes(ord("0") if chr(byte).isascii() and chr(byte).isdigit() else ord(" ") for byte in range(256))
_LONG = b"0" * 19
"""So many digits in a row may be an integer over 64 bits."""


def loads(text: bytes) -> Any:
    """The value. Raises `orjson.JSONDecodeError`."""
    value = orjson.loads(text)
    if _LONG in text.translate(_DIGITS):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):  # its limits of digits and of nesting are lower
            return value
    return value


def dumps(value: Any) -> bytes:
    """The text, compact. Raises `RecursionError` or `TypeError` for what is no JSON or nested too deeply."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
