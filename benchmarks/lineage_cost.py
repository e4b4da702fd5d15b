"""What placing a call costs: with ever more live sessions, with ever longer histories, and the memory of a session.

Times are of the CPU, so that a busy machine does not count.

All sessions are in one pool, as in passive use with one client, and nothing but their content tells them apart. Eight
at a time have the same task.
"""

import gc
import os
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from adapters.harnesses import HARNESSES
from benchmarks.results import Bar
from mosaic.capture import CallStatus, CapturedCall, Choice
from mosaic.lineage import Lineage

LIVE = (100, 10_000, 100_000)
"""Live sessions at which calls are timed."""
HISTORIES = (10, 1_000)
"""Messages of the histories that are timed."""
TIMED = 400
"""Calls that are timed at each size."""
WORDS = 40
"""Words of a message."""

Figures = tuple[dict[str, Bar], dict[str, Any]]
Message = dict[str, Any]

_NO_IDS, _NO_LOGPROBS = np.zeros(0, np.int32), np.zeros(0, np.float32)
_TOOLS = [{"type": "function", "function": {"name": n}} for n in ("search", "read", "task")]


class Talk:
    """One session: its history, and the call that comes next."""

    def __init__(self, number: int, words: list[str]) -> None:
        self._draw, self._words, self._number = random.Random(number), words, number
        self._calls = 0
        task = " ".join(random.Random(number // 8).choices(words, k=WORDS))
        self.messages: list[Message] = [{"role": "system", "content": "You look things up."}, _user(task)]

    def next(self) -> CapturedCall:
        """The next call; the history then holds its reply and a result."""
        self._calls += 1
        tool_call_id = f"chatcmpl-tool-{self._number:x}-{self._calls}"
        arguments = orjson.dumps({"query": self._text(8)}).decode()
        function = {"name": "search", "arguments": arguments}
        calls = [{"id": tool_call_id, "type": "function", "function": function}]
        reply = {"role": "assistant", "content": self._text(WORDS // 2), "tool_calls": calls}
        call = _call(f"{self._number}-{self._calls}", tuple(self.messages), reply)
        self.messages += [reply, {"role": "tool", "tool_call_id": tool_call_id, "content": self._text(WORDS)}]
        return call

    def _text(self, words: int) -> str:
        return " ".join(self._draw.choices(self._words, k=words))


def cost() -> Figures:
    """Time and memory of placing."""
    draw = random.Random(0)
    words = ["".join(draw.choices("etaoinshrdlu", k=draw.randint(2, 9))) for _ in range(4096)]
    extending, opening, memory = _by_live_sessions(words)
    placing, reading = _by_history(words)
    bars = {
        **{
            f"extending_at_{n}": _us(t, 500, "a call that extends one of as many sessions")
            for n, t in extending.items()
        },
        **{f"opening_at_{n}": _us(t, 500, "a call that opens one beside so many") for n, t in opening.items()},
        "extending_growth": Bar("times", "<= 1.5", "100,000 against 100 live sessions", [_growth(extending)]),
        "opening_growth": Bar("times", "<= 1.5", "100,000 against 100 live sessions", [_growth(opening)]),
        **{f"history_of_{n}": _us(t, 50 * n, "a call with a history of as many messages") for n, t in placing.items()},
        "history_growth": Bar("times", "<= 100", "1,000 against 10 messages", [placing[1_000] / placing[10]]),
        "history_to_reading": Bar(
            "times", "<= 10", "parsing the JSON of a request of 1,000 messages", [placing[1_000] / reading[1_000]]
        ),
        "memory_per_session": Bar("kB", "<= 50", "a session of two calls among 100,000", [memory[LIVE[-1]] / 1000]),
    }
    details = {
        "microseconds_of_parsing_json": {str(size): value for size, value in reading.items()},
        "bytes_per_session": {str(size): value for size, value in memory.items()},
        "words_per_message": WORDS,
        "timed_calls": TIMED,
    }
    return bars, details


def _us(value: float, goal: int, baseline: str) -> Bar:
    return Bar("us", f"<= {goal}", baseline, [value])


def _growth(by_size: dict[int, float]) -> float:
    return by_size[LIVE[-1]] / by_size[LIVE[0]]


def _by_live_sessions(words: list[str]) -> tuple[dict[int, float], dict[int, float], dict[int, float]]:
    """Live sessions -> microseconds to extend one, to open one, and bytes for each."""
    lineage = Lineage(HARNESSES, max_sessions=2 * LIVE[-1])
    extending, opening, memory = {}, {}, {}
    numbers = iter(range(10**9))
    live: list[int] = []
    gc.collect()
    empty = _resident()
    for size in LIVE:
        while len(live) < size:
            live.append(number := next(numbers))
            talk = Talk(number, words)
            for _ in range(2):
                lineage.place(talk.next())
        gc.collect()
        memory[size] = (_resident() - empty) / size
        drawn = random.Random(size).sample(live, min(TIMED, size))
        extending[size] = statistics.median(_timed(lineage, _thirds(drawn, words)))
        opening[size] = statistics.median(_timed(lineage, (Talk(next(numbers), words).next() for _ in range(TIMED))))
    return extending, opening, memory


def _thirds(numbers: list[int], words: list[str]) -> Iterator[CapturedCall]:
    """The third call of some sessions."""
    for number in numbers:
        talk = Talk(number, words)
        talk.next(), talk.next()
        yield talk.next()


def _timed(lineage: Lineage, calls: Iterator[CapturedCall]) -> list[float]:
    taken = []
    for call in calls:
        begin = time.thread_time()
        lineage.place(call)
        taken.append(1e6 * (time.thread_time() - begin))
    return taken


def _by_history(words: list[str]) -> tuple[dict[int, float], dict[int, float]]:
    """Messages -> microseconds to place the call with such a history, and to parse its JSON."""
    lineage = Lineage(HARNESSES)
    placing, reading = {}, {}
    for size in HISTORIES:
        placed, parsed = [], []
        for number in range(5):
            talk = Talk(10**9 + number, words)
            while len(talk.messages) < size:
                talk.next()
            for _ in range(12):
                call = talk.next()
                body = orjson.dumps(call.messages)
                begin = time.thread_time()
                orjson.loads(body)
                parsed.append(1e6 * (time.thread_time() - begin))
                placed += _timed(lineage, iter([call]))[:1]
        placing[size], reading[size] = statistics.median(placed), statistics.median(parsed)
    return placing, reading


def _call(call_id: str, messages: tuple[Message, ...], reply: Message) -> CapturedCall:
    return CapturedCall(
        call_id=call_id,
        wire="chat",
        status=CallStatus.OK,
        http_status=200,
        messages=messages,
        params={"model": "policy", "tools": _TOOLS},
        choices=(Choice(0, reply, "tool_calls", _NO_IDS, _NO_LOGPROBS),),
        prompt_ids_P=_NO_IDS,
        usage=None,
        inexact_reason=None,
        started_at=0.0,
        first_byte_at=0.0,
        ended_at=0.0,
        client="agent",
    )


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
