"""A mock engine and a load generator that cost far less than what stands between them; each is a process of its own.

`python -m benchmarks.load engine` answers chat completions as vLLM does, from answers that were built beforehand, and
prints its port. `python -m benchmarks.load clients` sends calls back to back over parallel connections and prints a
line of JSON. Every client is an agent: four calls per trajectory, each extending the one before. A trajectory's first
user message holds its name, so that only the system message is ever repeated. All calls that were begun are ended.
"""

import argparse
import asyncio
import random
import re
import sys
import time
from array import array
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import orjson
from uvicorn.loops.uvloop import uvloop_loop_factory

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

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
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


def _text(tokens: int, seed: int) -> str:
    """About four characters for each token."""
    return " ".join(random.Random(seed).choices(_WORDS, k=tokens * 4 // 5))


def _ids(tokens: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(150_000), k=tokens)


REPLY = _text(SAMPLED, 1)
REPLY_IDS = _ids(SAMPLED, 1)


def prompt_ids(turn: int) -> list[int]:
    """Prompt ids of a trajectory's call: the one before, its reply and what is new."""
    ids = _ids(FIRST, 2)
    for at in range(turn):
        ids += [*REPLY_IDS, *_ids(NEW, 3 + at)]
    return ids


# the engine


def _logprobs(start: int, end: int) -> dict[str, Any]:
    draw = random.Random(9)
    values = [-draw.expovariate(2) for _ in range(SAMPLED)]
    step = len(REPLY) // SAMPLED
    pieces = [REPLY[at * step : (at + 1) * step] for at in range(SAMPLED)]
    entries = zip(pieces[start:end], values[start:end], strict=True)
    return {"content": [{"token": t, "logprob": p, "bytes": [*t.encode()], "top_logprobs": []} for t, p in entries]}


def _base(kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-" + "0" * 32, "object": kind, "created": 1_700_000_000, "model": "policy"}


def _usage(turn: int) -> dict[str, Any]:
    prompt = len(prompt_ids(turn))
    return {
        "prompt_tokens": prompt,
        "completion_tokens": SAMPLED,
        "total_tokens": prompt + SAMPLED,
        "prompt_tokens_details": None,
    }


def whole_answer(turn: int, ids: bool) -> bytes:
    """The HTTP answer to a call that does not stream."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": REPLY, "refusal": None, "tool_calls": []},
        "logprobs": _logprobs(0, SAMPLED) if ids else None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": REPLY_IDS if ids else None,
    }
    answer = {**_base("chat.completion"), "choices": [choice], "usage": _usage(turn), "prompt_logprobs": None}
    body = orjson.dumps({**answer, "prompt_token_ids": prompt_ids(turn) if ids else None})
    head = b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


def stream_answer(turn: int, ids: bool, usage: bool) -> list[bytes]:
    """The HTTP answer to a streamed call, in the pieces in which it leaves."""

    def event(choice: dict[str, Any] | None, **more: Any) -> bytes:
        choices = [] if choice is None else [{"index": 0, "logprobs": None, "finish_reason": None, **choice}]
        return orjson.dumps({**_base("chat.completion.chunk"), "choices": choices, **more})

    role = {"delta": {"role": "assistant", "content": ""}}
    events = [event(role, prompt_token_ids=prompt_ids(turn) if ids else None)]
    step = len(REPLY) * PIECE // SAMPLED
    for at, start in enumerate(range(0, SAMPLED, PIECE)):
        last = start + PIECE == SAMPLED
        piece: dict[str, Any] = {"delta": {"content": REPLY[at * step : None if last else (at + 1) * step]}}
        if ids:
            piece["logprobs"] = _logprobs(start, start + PIECE)
            piece["token_ids"] = REPLY_IDS[start : start + PIECE]
        events.append(event(piece))
    events.append(event({"delta": {"content": ""}, "finish_reason": "stop", "stop_reason": None}))
    if usage:
        events.append(event(None, usage=_usage(turn)))
    chunks = [b"data: " + e + b"\n\n" for e in [*events, b"[DONE]"]]
    parts = [b"%x\r\n%s\r\n" % (len(c), c) for c in chunks]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
    return [head + parts[0], *parts[1:-1], parts[-1] + b"0\r\n\r\n"]


class Answers:
    """All answers, built once: a whole one is a single piece."""

    def __init__(self) -> None:
        both = (False, True)
        self._whole = {(turn, ids): [whole_answer(turn, ids)] for turn in range(TURNS) for ids in both}
        self._stream = {
            (turn, ids, usage): stream_answer(turn, ids, usage)
            for turn in range(TURNS)
            for ids in both
            for usage in both
        }

    def to(self, body: bytes) -> list[bytes]:
        """The pieces that answer a request; its turn is told by the replies in its history."""
        turn = body.count(b'"role":"assistant"')
        ids = b'"return_token_ids":true' in body
        if b'"stream":true' not in body:
            return self._whole[turn, ids]
        return self._stream[turn, ids, b'"include_usage":true' in body]


class EngineConnection(asyncio.Protocol):
    """Answers one call after the other; each piece leaves in a turn of the loop of its own."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._pending = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()

    def data_received(self, data: bytes) -> None:
        """Answer once the request is complete; peers send the next one after the answer."""
        self._pending += data
        head = self._pending.find(b"\r\n\r\n")
        length = _LENGTH.search(self._pending, 0, head) if head >= 0 else None
        if length is None or len(self._pending) < head + 4 + int(length[1]):
            return
        pieces = self._answers.to(self._pending)
        self._pending = b""
        self._send(pieces, 0)

    def _send(self, pieces: list[bytes], at: int) -> None:
        self._transport.write(pieces[at])
        if at + 1 < len(pieces):
            self._loop.call_soon(self._send, pieces, at + 1)


async def serve() -> None:
    """Serve on a free loopback port, printed first, until killed."""
    answers = Answers()
    server = await asyncio.get_running_loop().create_server(
        lambda: EngineConnection(answers), "127.0.0.1", 0, backlog=1024
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


# the clients


def request_templates(port: int, stream: bool) -> list[list[bytes]]:
    """The four requests of a trajectory, each cut where its name belongs."""
    messages: list[dict[str, str]] = [
        {"role": "system", "content": _text(FIRST * 2 // 3, 20)},
        {"role": "user", "content": f"Task {NAME.decode()}: {_text(FIRST // 3 - 8, 21)}"},
    ]
    templates = []
    for turn in range(TURNS):
        body: dict[str, Any] = {"model": "policy", "messages": messages, "temperature": 1.0, "max_tokens": 512}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        raw = orjson.dumps(body)
        head = (
            b"POST /t/%s/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: application/json\r\n"
            b"content-type: application/json\r\nuser-agent: mosaic-benchmark\r\nauthorization: Bearer none\r\n"
            b"content-length: %d\r\n\r\n"
        )
        templates.append((head % (NAME, port, len(raw)) + raw).split(NAME))
        news = {"role": "user", "content": _text(NEW, 22 + turn)}
        messages = [*messages, {"role": "assistant", "content": REPLY}, news]
    return templates


@dataclass(slots=True)
class Tally:
    """What all clients of a run share."""

    templates: list[list[bytes]]
    run: str
    """Eight characters that no other run against the same store has."""
    measure_from: float
    stop_at: float
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds of each call that began and ended while it was measured."""
    answers: int = 0
    """Good answers, the warm-up's included."""
    errors: int = 0
    counted: int = 0
    """Good answers that came while it was measured."""


class Client(asyncio.Protocol):
    """An agent on a connection of its own."""

    def __init__(self, tally: Tally, number: int, gone: "asyncio.Future[None]") -> None:
        self._tally, self._number, self._gone = tally, number, gone
        self._calls = 0
        self._requests: list[bytes] = []
        self._left: int | None = None
        """Bytes of the body that are still to come; None before the head has come, -1 for a chunked body."""
        self._head = b""
        self._waiting = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio passes it
        """After the last answer this is as it should be, before it an error."""
        self._tally.errors += self._waiting
        if not self._gone.done():
            self._gone.set_result(None)

    def _next(self) -> None:
        turn = self._calls % TURNS
        if turn == 0:
            name = b"%s-%06d-%08d" % (self._tally.run.encode(), self._number, self._calls)
            self._requests = [name.join(parts) for parts in self._tally.templates]
        self._calls += 1
        self._head, self._left, self._waiting = b"", None, True
        self._sent_at = time.perf_counter()
        self._transport.write(self._requests[turn])

    def data_received(self, data: bytes) -> None:
        """Count bytes until the answer is complete."""
        if self._left is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            length = _LENGTH.search(self._head, 0, end + 2)
            self._left = -1 if length is None else int(length[1])
            self._status, data, self._head = self._head[9:12], self._head[end + 4 :], b""
        if self._left < 0:
            self._head = (self._head + data)[-5:]
            if self._head == b"0\r\n\r\n":
                self._ended()
            return
        self._left -= len(data)
        if self._left == 0:
            self._ended()

    def _ended(self) -> None:
        now, tally, self._waiting = time.perf_counter(), self._tally, False
        if self._status == b"200":
            tally.answers += 1
            if tally.measure_from <= now < tally.stop_at:
                tally.counted += 1
                tally.latencies.append(now - self._sent_at)
        else:
            tally.errors += 1
        if now < tally.stop_at:
            self._next()
        else:
            self._transport.close()


async def drive(arguments: argparse.Namespace) -> dict[str, float]:
    """Run the clients to their end; figures of the measured time."""
    loop = asyncio.get_running_loop()
    cpu_s, begin = time.process_time(), time.perf_counter() + arguments.warmup
    templates = request_templates(arguments.port, arguments.stream)
    tally = Tally(templates, arguments.run, begin, begin + arguments.seconds)
    gone = [loop.create_future() for _ in range(arguments.clients)]
    for number, future in enumerate(gone):
        await loop.create_connection(partial(Client, tally, number, future), "127.0.0.1", arguments.port)
    await asyncio.gather(*gone)
    ordered = sorted(tally.latencies) or [0.0]
    return {
        "calls_per_s": tally.counted / arguments.seconds,
        "p50_ms": 1000 * ordered[len(ordered) // 2],
        "p99_ms": 1000 * ordered[len(ordered) * 99 // 100],
        "answers": tally.answers,
        "errors": tally.errors,
        "cpu_us_per_call": 1e6 * (time.process_time() - cpu_s) / max(1, tally.answers),
    }


def main() -> None:
    """Be the engine, or the clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    roles = parser.add_subparsers(dest="role", required=True)
    roles.add_parser("engine")
    clients = roles.add_parser("clients")
    clients.add_argument("--port", type=int, required=True)
    clients.add_argument("--clients", type=int, default=32)
    clients.add_argument("--seconds", type=float, default=5)
    clients.add_argument("--warmup", type=float, default=1)
    clients.add_argument("--stream", action="store_true")
    clients.add_argument("--run", default="run00000", help="eight characters that begin every trajectory's name")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop_loop_factory()) as runner:
        if arguments.role == "engine":
            runner.run(serve())
        elif len(arguments.run) != 8:
            parser.error("--run must have eight characters")
        else:
            print(orjson.dumps(runner.run(drive(arguments))).decode())
    sys.exit(0)


if __name__ == "__main__":
    main()
