"""JSON of requests that are written anew: integers of any size, and what is nested deeply, stay what they are.

orjson reads an integer over 64 bits as a float, and writes neither such an integer nor what is nested over 254 deep.
"""

import json
from typing import Any

import orjson
from pydantic_core import from_json


def loads(text: bytes) -> Any:
    """The value. Raises `orjson.JSONDecodeError`."""
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:  # its limit of nesting is lower, and its errors are other words
        return orjson.loads(text)


def dumps(value: Any) -> bytes:
    """The text, compact. Raises `RecursionError` or `TypeError` for what is no JSON or nested too deeply."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
