"""The writer: reads calls that were recorded, places them and commits them, many in one transaction.

It runs in a process of its own beside each proxy worker, so that its work takes no time from the event loop. They talk
in frames over a socket, in order: `C` call, `R` replay of spool files, `F` replay of other workers' files one way; `D`
done, `N` not done (numbers) the other way. Once a call was refused, all later ones are, until a replay has brought in
what was spooled before them: calls reach the store in the order in which they ended. When the proxy dies, the writer
commits what it was given, and ends.
"""

import contextlib
import gc
import heapq
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import orjson
import structlog

from adapters.harnesses import HARNESSES
from mosaic import logs
from mosaic.errors import StoreError
from mosaic.settings import load
from mosaic.store import Store
from proxy import frames, spool
from proxy.trace import Trace, captured, decode

MAX_BATCH = 256
"""Most calls in one transaction."""
MAX_BATCH_BYTES = 16 * 2**20
"""Bytes from which a transaction takes no further call of a spool file."""
RECEIVE_BYTES = 2**20
COLLECT_AFTER = 50_000, 20, 50
"""Thresholds of the garbage collector: lineage and calls that wait live long, and are looked through less often."""
NICE = 10
"""How far the writer's process stands back behind the worker, whose clients wait."""

log = structlog.get_logger()
Frame = tuple[bytes, int, bytes]


class Writer:
    """One connection's worth of writing."""

    def __init__(self, connection: socket.socket, database: str, folder: Path) -> None:
        self._connection = connection
        self._database = database
        self._folder = folder
        self._store: Store | None = None
        self._behind = False
        """True while calls that ended earlier wait in the spool."""

    def _opened(self) -> Store:
        """The store, opened when it is first needed: a database that is down at the start may come up."""
        if self._store is None:
            self._store = Store(self._database, harnesses=HARNESSES)
        return self._store

    def run(self) -> None:
        """Write until the other side closes."""
        try:
            self._run()
        finally:
            if self._store is not None:
                self._store.close()

    def _run(self) -> None:
        self._answer([], True)  # we are there
        for batch in _batches(self._connection):
            for kind, group in groupby(batch, key=lambda frame: frame[0]):
                if kind == b"C":
                    calls = list(group)
                    self._answer([number for _, number, _ in calls], self._take([body for _, _, body in calls]))
                    continue
                for _, number, body in group:
                    done = self._replay([Path(path) for path in orjson.loads(body)], own=kind == b"R")
                    if kind == b"R":
                        self._answer([number], done)

    def _take(self, encoded: Sequence[bytes]) -> bool:
        self._behind = self._behind or not self._write([decode(one) for one in encoded])
        return not self._behind

    def _answer(self, numbers: list[int], done: bool) -> None:
        with contextlib.suppress(OSError):  # the proxy has died: nobody waits
            self._connection.sendall(frames.pack(b"D" if done else b"N", 0, orjson.dumps(numbers)))

    def _replay(self, paths: Sequence[Path], *, own: bool) -> bool:
        """Bring spooled calls into the store, in the order in which they ended; False when the database still refuses.

        Other workers' files are read as they are: they bring in their calls themselves, which changes nothing then.
        """
        damaged, replayed = 0, 0
        found = heapq.merge(*(spool.read(path) for path in paths), key=_ended_at)
        while some := _some(found):
            traces = [trace for trace in some if trace is not None]
            if not self._write(traces):
                self._behind = True
                return False
            damaged += len(some) - len(traces)
            replayed += len(traces)
        if own:
            self._behind = not self._note(replayed, damaged)
        log.info("spool replayed", files=len(paths), calls=replayed, own=own)
        return not self._behind

    def _note(self, replayed: int, damaged: int) -> bool:
        try:
            if replayed:
                self._opened().count("replayed_calls", "spool", replayed)
            if damaged:
                self._opened().count("spool_calls_unreadable", "cut", damaged)
        except StoreError:
            return False
        return True

    def _write(self, traces: Sequence[Trace]) -> bool:
        """True when the calls are dealt with: stored, or put aside because they never can be. False when the database
        refuses for now."""
        if not traces:
            return True
        try:
            self._opened().record([captured(trace) for trace in traces])
        except Exception as error:  # noqa: BLE001 - what is not the database's fault lies in a call
            log.error("calls not stored", calls=len(traces), error=f"{type(error).__name__}: {error}")
            if isinstance(error, StoreError) and not error.permanent:
                return False
            if len(traces) == 1:
                return self._reject(traces[0], str(error))
            # One call that cannot be written must not take the others with it.
            return all(self._write([trace]) for trace in traces)
        return True

    def _reject(self, trace: Trace, why: str) -> bool:
        try:
            spool.reject(self._folder, trace, why)
        except (OSError, TypeError) as error:
            log.error("call neither stored nor put aside", call=trace.origin.call_id, error=str(error))
            return False
        with contextlib.suppress(StoreError):
            self._opened().count("rejected_calls", "unwritable")
        return True


def _ended_at(trace: Trace | None) -> float:
    return 0.0 if trace is None else trace.ended_at


def _some(found: Iterator[Trace | None]) -> list[Trace | None]:
    """The next calls, as many as one transaction may hold."""
    some: list[Trace | None] = []
    size = 0
    while len(some) < MAX_BATCH and size < MAX_BATCH_BYTES:
        try:
            trace = next(found)
        except StopIteration:
            break
        some.append(trace)
        size += 0 if trace is None else len(trace.body) + sum(len(piece) for _, piece in trace.pieces)
    return some


def _batches(connection: socket.socket) -> Iterator[list[Frame]]:
    """All frames that have come, at least one; waits only when there is none."""
    more = select.poll()
    more.register(connection, select.POLLIN)
    unpacker = frames.Unpacker()
    waiting: list[Frame] = []
    while data := _receive(connection):
        waiting += unpacker.feed(data)
        # `poll`, for `select` knows no descriptor from 1024 on.
        if waiting and (len(waiting) >= MAX_BATCH or not more.poll(0)):
            yield waiting
            waiting = []
    if waiting:
        yield waiting


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(RECEIVE_BYTES)
    except OSError:  # the proxy was killed
        return b""


def main() -> None:
    """`python -m proxy.writer FD`: settings come as `mosaic serve` got them, its flags as variables."""
    logs.configure()
    # Ctrl-C and a supervisor's SIGTERM reach the whole group; we end when the proxy closes, and not before.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    settings = load()
    os.nice(NICE)
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        Writer(connection, settings.database, settings.spool).run()


if __name__ == "__main__":
    main()
