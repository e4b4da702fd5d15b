"""How much a trajectory of 200 calls grows the file, against storing each call whole."""

import random
import statistics
import tempfile
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.results import Bar
from mosaic.capture import CallStatus, CapturedCall, Choice
from mosaic.store import Store

CALLS = 200
HISTORY = 100_000
"""Tokens of the longest history, about four characters each."""
FIRST_PROMPT = 1_000
REPLY = 96
VOCABULARY = 150_000

Figures = tuple[dict[str, Bar], dict[str, Any]]


def growth() -> Figures:
    """The file's size while one trajectory grows to a history of 100,000 tokens."""
    sizes: list[int] = []
    took_s: list[float] = []
    raw = packed = 0
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mosaic.db"
        store = Store(f"sqlite:///{file}")
        empty = _size(store, file)
        for number, call in enumerate(trajectory(), 1):
            begin = time.perf_counter()
            store.record([call])
            took_s.append(time.perf_counter() - begin)
            blobs = _whole(call)
            raw += sum(len(b) for b in blobs)
            packed += sum(len(zlib.compress(b, 1)) for b in blobs)
            if number % (CALLS // 4) == 0:
                sizes.append(_size(store, file) - empty)
        store.close()
    tokens = len(call.prompt_ids_P) + len(call.choices[0].ids_T)
    quarters = [after - before for before, after in zip([0, *sizes], sizes, strict=False)]
    bars = {
        "bytes_per_new_token": Bar("bytes", "<= 20", "text, ids, logprobs, rows and indexes", [sizes[-1] / tokens]),
        "growth_last_to_first_quarter": Bar(
            "ratio", "<= 1.2", "growth in proportion to calls", [quarters[-1] / quarters[0]]
        ),
        "smaller_than_whole_calls": Bar("times", ">= 50", "each call stored whole, uncompressed", [raw / sizes[-1]]),
        "smaller_than_packed_calls": Bar(
            "times", ">= 10", "each call stored whole, zlib level 1", [packed / sizes[-1]]
        ),
    }
    record_ms = [1000 * statistics.median(took_s[at : at + 10]) for at in range(CALLS // 4 - 10, CALLS, CALLS // 4)]
    quarter_calls = [CALLS * (at + 1) // 4 for at in range(4)]
    details = {"calls": quarter_calls, "file_bytes": sizes, "whole_bytes": raw, "whole_zlib_bytes": packed}
    return bars, {**details, "new_tokens": tokens, "empty_file_bytes": empty, "record_ms": record_ms}


def trajectory() -> Iterator[CapturedCall]:
    """An agent's calls, each extending the one before by its reply and a tool result."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(4096)]

    def text(tokens: int) -> str:
        return " ".join(draw.choices(words, k=tokens))[: 4 * tokens]

    tools = [{"type": "function", "function": {"name": f"tool_{n}", "description": text(100)}} for n in range(4)]
    messages: list[dict[str, Any]] = [{"role": "system", "content": text(FIRST_PROMPT)}]
    ids = _ids(messages[0])
    result = (HISTORY - FIRST_PROMPT) // CALLS - REPLY
    for number in range(CALLS):
        reply = {"role": "assistant", "content": text(REPLY // 2), "tool_calls": [_tool_call(number, text(REPLY // 3))]}
        yield _call(number, tuple(messages), {"model": "policy", "temperature": 1.0, "tools": tools}, ids, reply)
        answer = {"role": "tool", "tool_call_id": f"call-{number}", "content": text(result)}
        messages += [reply, answer]
        ids += _ids(reply) + _ids(answer)


def _tool_call(number: int, argument: str) -> dict[str, Any]:
    arguments = orjson.dumps({"query": argument}).decode()
    return {"id": f"call-{number}", "type": "function", "function": {"name": "tool_1", "arguments": arguments}}


def _ids(message: dict[str, Any]) -> list[int]:
    """A token id for each four characters of what the model sees of a message."""
    calls = "".join(call["function"]["arguments"] for call in message.get("tool_calls", ()))
    text = f"{message['role']}\n{message['content']}{calls}"
    return [zlib.crc32(text[at : at + 4].encode()) % VOCABULARY for at in range(0, len(text), 4)]


def _call(
    number: int, messages: tuple[dict[str, Any], ...], params: dict[str, Any], ids: list[int], reply: dict[str, Any]
) -> CapturedCall:
    sampled = np.asarray(_ids(reply), np.int32)
    logprobs = -np.random.default_rng(number).exponential(0.5, len(sampled)).astype(np.float32)
    return CapturedCall(
        call_id=f"call-{number:032x}",
        wire="chat",
        status=CallStatus.OK,
        http_status=200,
        messages=messages,
        params=params,
        choices=(Choice(0, reply, "tool_calls", sampled, logprobs),),
        prompt_ids_P=np.asarray(ids, np.int32),
        usage={"prompt_tokens": len(ids), "completion_tokens": len(sampled)},
        inexact_reason=None,
        started_at=number,
        first_byte_at=number + 0.2,
        ended_at=number + 0.8,
        trajectory_id="growing",
        attribution="path",
    )


def _whole(call: CapturedCall) -> tuple[bytes, bytes, bytes]:
    """A call as one row would hold it: request and reply as JSON, int32 ids, float32 logprobs."""
    (choice,) = call.choices
    body = orjson.dumps({**call.params, "messages": [*call.messages, choice.message]})
    return body, np.concatenate([call.prompt_ids_P, choice.ids_T]).tobytes(), choice.logprobs_T.tobytes()


def _size(store: Store, file: Path) -> int:
    with store.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    return file.stat().st_size
