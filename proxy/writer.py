"""The writer: reads the journals of a folder, places their calls and commits them, many in one transaction.

It runs in a process of its own beside each proxy worker, so that its work takes no time from the event loop. Of all
writers on a folder one works at a time, on the files of all workers; the others stand by. So calls reach the store in
the order in which they ended, whichever worker served them and however often the database refused. When its worker ends
or dies, a writer brings in what has ended, and ends too.
"""

import contextlib
import errno
import gc
import heapq
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import orjson
import structlog

from adapters.harnesses import HARNESSES
from mosaic import logs
from mosaic.capture import CapturedCall
from mosaic.errors import StoreError
from mosaic.lineage import Placement
from mosaic.nesting import is_deep, shallow
from mosaic.settings import load
from mosaic.store import Store
from proxy import owned
from proxy.progress import Progress
from proxy.reading import JournalFile, files_in
from proxy.telling import Telling
from proxy.trace import Trace, captured

LOCK = ".writer"
MAX_BATCH = 1024
"""Most calls in one transaction."""
MAX_BATCH_BYTES = 8 * 2**20
"""Bytes from which a transaction takes no further call."""
RETRY_S = 1.0
"""Seconds after a refusal before the database is asked again."""
TURN_S = 0.2
"""Seconds between looks of a writer that stands by."""
AGAIN_S = 0.01
"""Seconds between its looks once its worker has gone."""
LOOK_S = 1.0
"""Seconds after which it looks without being called: a worker may have been killed."""
COLLECT_AFTER = 50_000, 20, 50
"""Thresholds of the garbage collector: lineage and calls that wait live long, and are looked through less often."""
MAX_OPEN = 256
"""Files that are read at a time, the oldest; after a time without a database there may be more than descriptors."""
NICE = 10
"""How far the writer's process stands back behind the worker, whose clients wait."""

log = structlog.get_logger()


class _LeftError(Exception):
    """The worker has gone, and the database does not take what is left: the next writer does it."""


class Writer:
    """One worker's writer."""

    def __init__(self, connection: socket.socket, database: str, folder: Path, otel: bool = False) -> None:
        """It works until the other side of `connection` closes. `otel`: whether it sends spans."""
        self._connection = connection
        self._database = database
        self._folder = folder
        self._otel = otel
        self._telling: Telling
        self._progress: Progress
        self._store: Store | None = None
        self._files: dict[Path, JournalFile] = {}
        self._unopened: set[Path] = set()
        """Those that cannot be opened, and were told of."""
        self._said_ready = False

    def run(self) -> None:
        """Stand by, write, end."""
        with contextlib.closing(Progress(self._folder)) as self._progress, self._turn() as ours:
            if not ours:
                return
            self._telling = Telling.on(self._folder, self._otel)
            try:
                self._progress.begin()
                self._work()
            except _LeftError:
                log.error("the database does not take what is left: the next start stores it")
            finally:
                for file in self._files.values():
                    file.close()
                if self._store is not None:
                    self._store.close()
                self._telling.close()

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Wait until no other writer works on the folder; false when the worker has gone and its calls are stored."""
        descriptor = os.open(self._folder / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        gone_at: float | None = None
        try:
            while not owned.take(descriptor):
                self._ready()
                if gone_at is None and self._left(TURN_S):
                    gone_at = time.monotonic()
                if gone_at is not None and self._progress.committed > gone_at:
                    yield False
                    return
                if gone_at is not None:
                    time.sleep(AGAIN_S)
            yield True
        finally:
            os.close(descriptor)

    def _work(self) -> None:
        poll = select.poll()  # `select` knows no descriptor from 1024 on
        poll.register(self._connection, select.POLLIN)
        poll.register(self._progress.bell, select.POLLIN)
        while True:
            last = self._left(0.0)
            more = self._look()
            self._ready()
            if more:
                continue
            if last:
                return
            poll.poll(LOOK_S * 1000)
            self._progress.heard()

    def _look(self) -> bool:
        """Bring in all that has ended until now; true when there are files that can be read only after these."""
        self._progress.beat()
        self._find_files()
        for file in self._files.values():
            file.look_for_owner()
        # Once more, and later than all: what stands elsewhere, of a file that was let go, is read now.
        all_found = self._find_files()
        until = time.monotonic()
        files = list(self._files.values())
        for batch in _batches(heapq.merge(*(file.ended(until) for file in files), key=_ended_at)):
            self._commit(batch)
            for file in files:
                if file.done and file.path in self._files:
                    self._finish(file)  # workers that are far ahead wait for this
        self._finish_all(file for file in files if all_found or file.done)
        if all_found:
            self._progress.reached(until)
            return False
        if len(self._files) == len(files):
            self._finish_all(files)
        # What is open in the others may stand elsewhere, in files that are not read yet.
        return len(self._files) < len(files)

    def _finish_all(self, files: Iterable[JournalFile]) -> None:
        for file in files:
            if file.owner_gone and file.path in self._files:
                self._finish(file)

    def _find_files(self) -> bool:
        """Open what is new; false when there are more files than are read at a time."""
        for path in files_in(self._folder):
            if path in self._files:
                continue
            if len(self._files) >= MAX_OPEN:
                return False
            try:
                self._files[path] = JournalFile(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE) and self._files:
                    return False
                self._not_opened(path, error)
        return True

    def _not_opened(self, path: Path, error: OSError) -> None:
        """Somebody else's file, or none at all: all others are read."""
        if path not in self._unopened:
            self._unopened.add(path)
            log.error("a file of the journal cannot be read", path=str(path), error=str(error))
            self._count("journal_files_unreadable", errno.errorcode.get(error.errno or 0, "unknown"), 1)

    def _finish(self, file: JournalFile) -> None:
        """What a worker that died had in flight, and then the file is needed no more."""
        interrupted = file.interrupted()
        for batch in _batches(interrupted):
            self._commit(batch)
        del self._files[file.path]
        file.remove()
        if interrupted:
            self._count("interrupted_calls", "killed", len(interrupted))
        if file.unreadable:
            self._count("journal_calls_unreadable", "damaged", file.unreadable)

    def _commit(self, traces: Sequence[Trace]) -> None:
        """Returns once the calls are dealt with, however long the database refuses."""
        self._progress.beat()
        while not self._write(traces):
            self._ready()
            if self._left(RETRY_S):
                raise _LeftError
            self._progress.beat()

    def _write(self, traces: Sequence[Trace]) -> bool:
        """True when the calls are dealt with: stored, or put aside because they never can be. False when the database
        refuses for now."""
        try:
            calls, placements = self._record([captured(trace) for trace in traces])
        except Exception as error:  # noqa: BLE001 - what is not the database's fault lies in a call
            said = f"{type(error).__name__}: {error}"
            log.error("calls not stored", calls=len(traces), error=said)
            if isinstance(error, StoreError) and not error.permanent:
                self._progress.refused(said)
                return False
            if len(traces) == 1:
                return self._reject(traces[0], str(error))
            # One call that cannot be written must not take the others with it.
            half = len(traces) // 2
            return self._write(traces[:half]) and self._write(traces[half:])
        self._tell(calls, placements)
        return True

    def _record(self, calls: Sequence[CapturedCall]) -> tuple[Sequence[CapturedCall], Sequence[Placement]]:
        """Store the calls, with what is nested too deeply in them as text."""
        try:
            return calls, self._opened().record(calls)
        except RecursionError:
            if not (deep := sum(map(is_deep, calls))):
                raise
            flat = [shallow(call) for call in calls]
            found = flat, self._opened().record(flat)
            self._count("flattened_calls", "nested_too_deep", deep)
            return found

    def _tell(self, calls: Sequence[CapturedCall], placements: Sequence[Placement]) -> None:
        try:
            self._telling.stored(calls, placements)
        except Exception as error:  # noqa: BLE001 - the calls are stored, and that is what counts
            log.error("stored calls not told of", calls=len(calls), error=repr(error))
            self._count("untold_calls", "broken", len(calls))

    def _reject(self, trace: Trace, why: str) -> bool:
        try:
            _put_aside(self._folder, trace, why)
        except (OSError, TypeError) as error:
            log.error("call neither stored nor put aside", call=trace.origin.call_id, error=str(error))
            self._progress.refused(str(error))
            return False
        self._count("rejected_calls", "unwritable", 1)
        return True

    def _count(self, name: str, reason: str, number: int) -> None:
        try:
            self._opened().count(name, reason, number)
        except StoreError as error:
            log.error("not counted", counter=name, reason=reason, number=number, error=str(error))

    def _opened(self) -> Store:
        """The store, opened when it is first needed: a database that is down at the start may come up."""
        if self._store is None:
            self._store = Store(self._database, harnesses=HARNESSES)
        return self._store

    def _ready(self) -> None:
        """Tell our worker, once, that it may serve."""
        if not self._said_ready:
            self._said_ready = True
            with contextlib.suppress(OSError):
                self._connection.sendall(b"!")

    def _left(self, seconds: float) -> bool:
        """Whether the worker goes within that time."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(seconds * 1000))


def _ended_at(trace: Trace) -> float:
    return trace.ended_at


def _batches(traces: Iterable[Trace]) -> Iterator[list[Trace]]:
    """As many calls as one transaction may hold, each time."""
    batch: list[Trace] = []
    size = 0
    for trace in traces:
        batch.append(trace)
        size += len(trace.body) + sum(len(piece) for _, piece in trace.pieces)
        if len(batch) >= MAX_BATCH or size >= MAX_BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _put_aside(folder: Path, trace: Trace, why: str) -> None:
    """A call that the store can never take: a line of `rejected.jsonl`, for people to look at."""
    texts = {"body": trace.body, "answer": b"".join(piece for _, piece in trace.pieces)}
    line = {"why": why, "origin": trace.origin, "status": trace.status.value, "error": trace.error}
    line |= {name: text.decode("utf-8", "backslashreplace") for name, text in texts.items()}
    with (folder / "rejected.jsonl").open("ab") as file:
        file.write(orjson.dumps(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())


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
        Writer(connection, settings.database, settings.spool, settings.otel).run()


if __name__ == "__main__":
    main()
