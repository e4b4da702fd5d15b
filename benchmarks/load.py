"""A mock engine and a load generator that cost far less than what stands between them; each is a process of its own.

`python -m benchmarks.load engine` answers chat completions as vLLM does, from answers that were built beforehand, and
prints its port. `python -m benchmarks.load clients` sends calls back to back over parallel connections and prints a
line of JSON. Every client is an agent: four calls per trajectory, each extending the one before. A trajectory's first
user message holds its name, so that only the system message is ever repeated. All calls that were begun are ended,
unless a client is to hang up.
"""

import argparse
import asyncio
import math
import sys
import time
from array import array
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
from uvicorn.loops.uvloop import uvloop_loop_factory

from benchmarks.load_engine import FAIL, LENGTH, pace, serve
from benchmarks.load_texts import FIRST, NAME, NEW, REPLY, TURNS, text_of


def request_templates(port: int, stream: bool, more: dict[str, Any] | None = None) -> list[list[bytes]]:
    """The four requests of a trajectory, each cut where its name belongs."""
    messages: list[dict[str, str]] = [
        {"role": "system", "content": text_of(FIRST * 2 // 3, 20)},
        {"role": "user", "content": f"Task {NAME.decode()}: {text_of(FIRST // 3 - 8, 21)}"},
    ]
    templates = []
    for turn in range(TURNS):
        body: dict[str, Any] = {"model": "policy", "messages": messages, "temperature": 1.0, "max_tokens": 512}
        if stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        raw = orjson.dumps(body | (more or {}))
        head = (
            b"POST /t/%s/v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\naccept: application/json\r\n"
            b"content-type: application/json\r\nuser-agent: mosaic-benchmark\r\nauthorization: Bearer none\r\n"
            b"content-length: %d\r\n\r\n"
        )
        templates.append((head % (NAME, port, len(raw)) + raw).split(NAME))
        news = {"role": "user", "content": text_of(NEW, 22 + turn)}
        messages = [*messages, {"role": "assistant", "content": REPLY}, news]
    return templates


@dataclass(frozen=True, slots=True)
class Kind:
    """A way of calling."""

    templates: list[list[bytes]]
    status: bytes = b"200"
    """What must be answered."""
    leaves: bool = False
    """Whether the client hangs up after the answer's first bytes."""
    gaps: bool = False
    """Whether the time from chunk to chunk is taken."""


def mixed(port: int) -> list[Kind]:
    """Of fifty calls: one whose client hangs up mid-stream, one that fails, twelve streams, the others whole."""
    whole, stream = Kind(request_templates(port, False)), Kind(request_templates(port, True))
    cut = Kind(request_templates(port, True, pace(40, 20)), leaves=True)
    failed = Kind(request_templates(port, False, FAIL), b"500")
    return [cut if n == 0 else failed if n == 25 else stream if n % 4 == 1 else whole for n in range(50)]


@dataclass(slots=True)
class Tally:
    """What all clients of a run share."""

    kinds: list[Kind]
    """Those of the calls in turn."""
    run: str
    """Eight characters that no other run against the same store has."""
    measure_from: float
    stop_at: float
    most: float
    """Calls that are begun at most."""
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds of each call that began and ended while it was measured."""
    firsts: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds to the first byte of each one's body."""
    gaps: "array[float]" = field(default_factory=lambda: array("d"))
    """Seconds between a stream's chunks; 0 between those that came together."""
    slowest: float = 0.0
    """Seconds of the slowest good answer, measured or not."""
    begun: int = 0
    answers: int = 0
    """Good answers, the warm-up's included."""
    refused: int = 0
    """Errors that had been asked for."""
    left: int = 0
    """Calls whose client hung up."""
    errors: int = 0


class Client(asyncio.Protocol):
    """An agent on a connection of its own."""

    def __init__(self, tally: Tally, number: int, port: int) -> None:
        self._tally, self._number, self._port = tally, number, port
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        """Done once it has ended."""
        self._calls = 0
        self._name = b""
        self._left: int | None = None
        """Bytes of the body that are still to come; None before the head has come, -1 for a chunked body."""
        self._head = b""
        self._first: float | None = None
        self._waiting = self._leaving = False
        self._again: asyncio.Future[None] | None = None

    async def connect(self) -> None:
        """Begin."""
        await self._loop.create_connection(lambda: self, "127.0.0.1", self._port)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Call."""
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio passes it
        """After the last answer this is as it should be, before it an error."""
        if self._leaving:
            self._again = asyncio.ensure_future(self.connect())
            return
        self._tally.errors += self._waiting
        if not self.gone.done():
            self.gone.set_result(None)

    def _next(self) -> None:
        tally, turn, now = self._tally, self._calls % TURNS, time.perf_counter()
        self._head, self._left, self._first, self._leaving, self._waiting = b"", None, None, False, False
        if tally.begun >= tally.most or now >= tally.stop_at:
            self._transport.close()
            return
        if turn == 0:
            self._name = b"%s-%06d-%08d" % (tally.run.encode(), self._number, self._calls)
        self._kind = tally.kinds[tally.begun % len(tally.kinds)]
        self._calls += 1
        tally.begun += 1
        self._waiting = True
        self._sent_at = time.perf_counter()
        self._transport.write(self._name.join(self._kind.templates[turn]))

    def data_received(self, data: bytes) -> None:
        """Count bytes until the answer is complete."""
        if self._leaving:
            return
        if self._left is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            length = LENGTH.search(self._head, 0, end + 2)
            self._left = -1 if length is None else int(length[1])
            self._status, data, self._head = self._head[9:12], self._head[end + 4 :], b""
            if not data:
                return
        if self._first is None and self._leaves():
            return
        if self._kind.gaps:
            self._take_gaps(self._head[-1:] + data)
        if self._left < 0:
            self._head = (self._head + data)[-5:]
            if self._head == b"0\r\n\r\n":
                self._ended()
            return
        self._left -= len(data)
        if self._left == 0:
            self._ended()

    def _leaves(self) -> bool:
        """The answer's body begins; whether it is not wanted after all."""
        self._first = self._chunk_at = time.perf_counter()
        if self._kind.leaves:
            self._leaving = True
            self._tally.left += 1
            self._transport.close()
        return self._leaving

    def _take_gaps(self, data: bytes) -> None:
        if chunks := data.count(b"\n\n"):
            now = time.perf_counter()
            self._tally.gaps.append(now - self._chunk_at)
            self._tally.gaps.extend([0.0] * (chunks - 1))
            self._chunk_at = now

    def _ended(self) -> None:
        now, tally = time.perf_counter(), self._tally
        assert self._first is not None
        if self._status != self._kind.status:
            tally.errors += 1
        elif self._status != b"200":
            tally.refused += 1
        else:
            tally.answers += 1
            tally.slowest = max(tally.slowest, now - self._sent_at)
            if tally.measure_from <= now < tally.stop_at:
                tally.latencies.append(now - self._sent_at)
                tally.firsts.append(self._first - self._sent_at)
        self._next()


def _quantile_ms(values: "array[float]", percent: int) -> float:
    ordered = sorted(values) or [0.0]
    return 1000 * ordered[len(ordered) * percent // 100]


def _kinds(arguments: argparse.Namespace) -> list[Kind]:
    if arguments.mixed:
        return mixed(arguments.port)
    if arguments.paced is not None:
        return [Kind(request_templates(arguments.port, True, pace(*arguments.paced)), gaps=True)]
    return [Kind(request_templates(arguments.port, arguments.stream))]


async def drive(arguments: argparse.Namespace) -> dict[str, float]:
    """Run the clients to their end; figures of the measured time, which is all where calls are counted."""
    counted = arguments.calls is not None
    begin = time.perf_counter() + (0 if counted else arguments.warmup)
    end = math.inf if counted else begin + arguments.seconds
    tally = Tally(_kinds(arguments), arguments.run, begin, end, arguments.calls if counted else math.inf)
    cpu_s = time.process_time()
    clients = [Client(tally, number, arguments.port) for number in range(arguments.clients)]
    for client in clients:
        await client.connect()
    await asyncio.gather(*(client.gone for client in clients))
    took = time.perf_counter() - begin if counted else arguments.seconds
    figures = {
        "calls_per_s": len(tally.latencies) / took,
        "p50_ms": _quantile_ms(tally.latencies, 50),
        "p99_ms": _quantile_ms(tally.latencies, 99),
        "slowest_ms": 1000 * tally.slowest,
        "first_byte_p50_ms": _quantile_ms(tally.firsts, 50),
        "first_byte_p99_ms": _quantile_ms(tally.firsts, 99),
        "begun": tally.begun,
        "answers": tally.answers,
        "refused": tally.refused,
        "left": tally.left,
        "errors": tally.errors,
        "cpu_us_per_call": 1e6 * (time.process_time() - cpu_s) / max(1, tally.answers),
    }
    if tally.gaps:
        figures |= {f"gap_p{percent}_ms": _quantile_ms(tally.gaps, percent) for percent in (50, 99)}
        figures |= {"gap_longest_ms": 1000 * max(tally.gaps), "chunks": len(tally.gaps)}
    return figures


def _pair(text: str) -> tuple[int, int]:
    chunks, per_s = text.split(",")
    return int(chunks), int(per_s)


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
    clients.add_argument("--calls", type=int, help="so many calls in all, however long they take")
    clients.add_argument("--stream", action="store_true")
    clients.add_argument(
        "--paced", type=_pair, metavar="CHUNKS,PER_S", help="streams of so many chunks, so many a second"
    )
    clients.add_argument(
        "--mixed", action="store_true", help="whole and streamed calls, some that fail or are cut short"
    )
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
