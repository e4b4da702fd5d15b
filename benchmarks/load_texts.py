"""What the calls of `benchmarks.load` say, and the ids of it."""

import random
from typing import Any

import orjson

TURNS = 4
"""Calls of a trajectory."""
SAMPLED = 32
"""Tokens of a reply."""
NEW = 28
"""Tokens of a user message after the first."""
FIRST = 210
"""Tokens of the first prompt; with the other turns' the mean is 300."""
PIECE = 4
"""Tokens of a streamed chunk."""
NAME = b"@" * 24
"""Stands in prebuilt requests for a trajectory's name, which is as long."""


_WORDS = (
    "the",
    "agent",
    "reads",
    "file",
    "then",
    "looks",
    "for",
    "error",
    "and",
    "runs",
    "tests",
    "until",
    "it",
    "ends",
)


def text_of(tokens: int, seed: int) -> str:
    """About four characters for each token."""
    return " ".join(random.Random(seed).choices(_WORDS, k=tokens * 4 // 5))


def ids_of(tokens: int, seed: int) -> list[int]:
    """Any ids."""
    return random.Random(seed).choices(range(150_000), k=tokens)


REPLY = text_of(SAMPLED, 1)
REPLY_IDS = ids_of(SAMPLED, 1)


def prompt_ids(turn: int) -> list[int]:
    """Prompt ids of a trajectory's call: the one before, its reply and what is new."""
    ids = ids_of(FIRST, 2)
    for at in range(turn):
        ids += [*REPLY_IDS, *ids_of(NEW, 3 + at)]
    return ids


def base_of(kind: str) -> dict[str, Any]:
    """What every answer of the engine has."""
    return {"id": "chatcmpl-" + "0" * 32, "object": kind, "created": 1_700_000_000, "model": "policy"}


def json_answer(status: bytes, answer: Any) -> bytes:
    """A whole HTTP answer."""
    body = orjson.dumps(answer)
    head = b"HTTP/1.1 %s\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body
