"""Every call on disk as it happens, before the database has it: one worker's side, which writes.

A call's request is written when it begins, every piece of its answer as it comes, and how it ended; then one fsync for
all calls that end together makes them durable, and their last bytes may leave. The folder's writer
(`proxy.writer`) reads the files as they grow and brings what has ended into the database, in the order in which it
ended; it removes a file once its owner has let go of it. While the disk refuses, calls are held in memory, up to a
bound, and written once it takes them again.
"""

import asyncio
import errno
import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import structlog

from proxy import frames, owned
from proxy.trace import Origin, Trace

PREFIX = "calls-"
GATHER_S = 0.002
"""Seconds that an fsync waits for more calls to end, where many are open: it costs the same for one as for ten."""
MANY = 8
"""Calls in flight from which on it waits."""
FILE_BYTES = 16 * 2**20
"""Size from which a new file is begun; the old one is let go when the last of its calls has ended."""
FILES_BEHIND = 4
"""Files that the writer may be behind."""
MAX_HELD_BYTES = 64 * 2**20
"""Bytes of calls that are held in memory while the disk refuses."""

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class File:
    """One file of the journal."""

    path: Path
    descriptor: int
    size: int = 0
    calls: int = 0
    """Calls that have begun in it since it was made."""
    open: int = 0
    """Of these, those in flight."""
    syncing: int = 0
    """Fsyncs of it that are under way or asked for."""
    torn: bool = False
    """True once it could not be written or synced: nothing more goes there."""


@dataclass(slots=True, eq=False)
class Entry:
    """A call's place in the journal."""

    file: File
    number: int
    whole: bool = True
    """False once a piece of it could not be written."""


class Journal:
    """The calls of this worker. Used by one event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[File] = []
        """Those that are ours; only the last one takes calls that begin."""
        self._let_go: list[Path] = []
        """Those that only the writer needs now."""
        self._disk = _Disk()
        self._waiting: list[tuple[File, asyncio.Future[bool]]] = []
        """Calls that have ended since the fsync that is under way began."""
        self._syncing = False
        self._in_flight = 0
        self._held: list[tuple[Entry | None, Trace]] = []
        self._held_bytes = 0
        self.failures = 0
        """Writes that the disk refused."""

    @property
    def held(self) -> int:
        """Calls that only memory has, because the disk refuses."""
        return len(self._held)

    def behind(self) -> bool:
        """Whether the writer is far behind this worker."""
        if len(self._let_go) < FILES_BEHIND:
            return False
        self._let_go = [path for path in self._let_go if path.exists()]
        return len(self._let_go) >= FILES_BEHIND

    def begin(self, origin: Origin, body: bytes) -> Entry | None:
        """A call begins; None when the disk refuses, and then nothing of it is kept yet."""
        self._in_flight += 1
        try:
            file = self._current()
            entry = Entry(file, file.calls + 1)
            _write(file, frames.opening(entry.number, origin, body))
        except OSError as error:
            self._failed(error)
            return None
        file.calls += 1
        file.open += 1
        return entry

    def piece(self, entry: Entry | None, piece: bytes, when: float) -> None:
        """A piece of a stream has come."""
        if entry is not None and entry.whole:
            try:
                _write(entry.file, frames.frame(b"P", entry.number, piece, when))
            except OSError as error:
                entry.whole = False
                self._failed(error)

    def end(self, entry: Entry | None, trace: Trace, at: float) -> File | None:
        """A call has ended at `at` (monotonic seconds): write the rest of it. None when the disk refuses; then `hold`
        it."""
        self._in_flight -= 1
        file = self._end_in_place(entry, trace, at) or self.write(trace, at)
        if file is not None:
            self._over(entry)
        return file

    def _end_in_place(self, entry: Entry | None, trace: Trace, at: float) -> File | None:
        if entry is None or not entry.whole:
            return None
        # What came in one piece has not been written yet.
        rest = () if trace.event_stream else trace.pieces
        written = [frames.frame(b"P", entry.number, piece, when) for when, piece in rest]
        try:
            _write(entry.file, b"".join([*written, frames.ending(entry.number, trace, at)]))
        except OSError as error:
            self._failed(error)
            return None
        return entry.file

    def write(self, trace: Trace, at: float) -> File | None:
        """Write all of a call that has ended. None when the disk refuses."""
        try:
            file = self._current()
            _write(file, frames.whole(file.calls + 1, trace, at))
        except OSError as error:
            self._failed(error)
            return None
        file.calls += 1
        return file

    def hold(self, entry: Entry | None, trace: Trace) -> bool:
        """Keep a call in memory that the disk refuses; false when that would be too much, and then it is lost."""
        size = len(trace.body) + sum(len(piece) for _, piece in trace.pieces)
        if self._held_bytes + size > MAX_HELD_BYTES:
            self._over(entry)
            return False
        self._held_bytes += size
        self._held.append((entry, trace))
        return True

    def retry(self) -> None:
        """Write what is held, as far as the disk takes it."""
        while self._held:
            entry, trace = self._held[0]
            if self.write(trace, time.monotonic()) is None:
                return
            del self._held[0]
            self._over(entry)
        self._held_bytes = 0

    def sync(self, file: File) -> "asyncio.Future[bool]":
        """Becomes true once all that was written to the file until now is on disk, false if it cannot be."""
        loop = asyncio.get_running_loop()
        durable: asyncio.Future[bool] = loop.create_future()
        file.syncing += 1
        self._waiting.append((file, durable))
        if not self._syncing:
            self._syncing = True
            if self._in_flight < MANY:
                self._sync()
            else:
                loop.call_later(GATHER_S, self._sync)
        return durable

    def close(self) -> None:
        """Let go of all files: the writer ends them."""
        self.retry()
        self._disk.close()
        for file in self._files:
            os.close(file.descriptor)
        self._files = []

    def _sync(self) -> None:
        """One fsync for all that wait; those that come meanwhile wait for the next."""
        waiting, self._waiting = self._waiting, []
        files = {file.descriptor: file for file, _ in waiting}
        loop = asyncio.get_running_loop()
        self._disk.sync(list(files), lambda error: loop.call_soon_threadsafe(self._synced, waiting, error))

    def _synced(self, waiting: "list[tuple[File, asyncio.Future[bool]]]", error: OSError | None) -> None:
        if error is not None:
            self._failed(error)
        for file, durable in waiting:
            file.syncing -= 1
            if not durable.done():
                durable.set_result(error is None)
            file.torn = file.torn or error is not None
            self._let_go_if_over(file)
        self._syncing = bool(self._waiting)
        if self._waiting:
            self._sync()

    def _current(self) -> File:
        """The file that takes calls that begin. Raises `OSError`."""
        if not self._files or self._files[-1].torn or self._files[-1].size > FILE_BYTES:
            self._files.append(File(*owned.create(self._folder, PREFIX)))
            for file in self._files[:-1]:
                self._let_go_if_over(file)
        return self._files[-1]

    def _over(self, entry: Entry | None) -> None:
        """Nothing more comes to a call's place. Not before the call stands elsewhere in full: a file that is let go
        gives what is open in it as interrupted."""
        if entry is not None:
            entry.file.open -= 1
            self._let_go_if_over(entry.file)

    def _let_go_if_over(self, file: File) -> None:
        if not file.open and not file.syncing and file in self._files[:-1]:
            self._files.remove(file)
            self._let_go.append(file.path)
            os.close(file.descriptor)

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        log.warning("journal not written", error=str(error))


def _write(file: File, data: bytes) -> None:
    if file.torn:
        raise OSError(errno.EIO, "the file could not be written before")
    written = os.write(file.descriptor, data)
    if written < len(data):  # a full disk; what may have been read of it already has no end, and stands elsewhere later
        file.torn = True
        os.ftruncate(file.descriptor, file.size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    file.size += written


class _Disk:
    """One thread that waits for the disk: an executor would cost more than the fsync."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[list[int], Callable[[OSError | None], object]] | None]
        self._jobs = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def sync(self, descriptors: list[int], then: Callable[[OSError | None], object]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
            self._thread.start()
        self._jobs.put((descriptors, then))

    def close(self) -> None:
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            descriptors, then = job
            error = None
            try:
                for descriptor in descriptors:
                    os.fdatasync(descriptor)
                    if os.fstat(descriptor).st_nlink == 0:
                        raise OSError(errno.ENOENT, "somebody has removed the journal's file")
            except OSError as failure:
                error = failure
            then(error)
