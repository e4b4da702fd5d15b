"""Every call on disk as it happens, before the database has it: one worker's side, which writes.

A call's request is written when it begins, every piece of its answer as it comes, and how it ended; then one fsync for
all calls that end together makes them durable, and their last bytes may leave. The folder's writer
(`proxy.writer`) reads the files as they grow and brings what has ended into the database, in the order in which it
ended; it removes a file once its owner has let go of it. While the disk refuses, calls are held in memory, up to a
bound, and written once it takes them again.
"""

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import caio
import structlog
from caio.asyncio_base import AsyncioContextBase

from proxy import frames, owned
from proxy.trace import Origin, Trace

GATHER_S = 0.004
"""Seconds that a write or an fsync waits for more, where many calls are open: it costs the same for one as for ten."""
MANY = 8
"""Calls in flight from which on it waits."""
IDLE_SHARE = 3
"""An fsync waits for no more once one call waits for every so many in flight: too few would be left to work on."""
FILE_BYTES = 16 * 2**20
"""Size from which a new file is begun; the old one is let go when the last of its calls has ended."""
FILES_BEHIND = 4
"""Files that the writer may be behind."""
TOLD_S = 1.0
"""Seconds between lines in the log about a disk that refuses."""
FSYNCS = 8
"""More than are ever under way at once."""
MAX_HELD_BYTES = 64 * 2**20
"""Bytes of calls that are held in memory while the disk refuses."""
MAX_TORN = 16
"""Files that could not be written to their end and are kept open, for calls in memory stand in them in part: a disk
that takes and refuses in turn must not use up all descriptors."""

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
    """Of these, those that need it still."""
    syncing: int = 0
    """Fsyncs of it that are under way or asked for."""
    unwritten: list[bytes] = field(default_factory=list)
    """Frames that wait to be written together."""
    torn: bool = False
    """True once it could not be written or synced: nothing more goes there."""
    touched: bool = False
    """True once the disk took anything, be it taken back again: the writer may have read it."""


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A call's place in the journal."""

    file: File
    number: int


Waiting = tuple[File, "asyncio.Future[bool]"]
"""A call that has ended: where it stands, and what becomes true once it is on disk."""


class Journal:
    """The calls of this worker. Used by one event loop.

    Frames are written at the end of the loop's turn, or after `GATHER_S` where many calls are open: one system call for
    all.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[File] = []
        """Those that are ours; only the last one takes calls that begin."""
        self._let_go: list[Path] = []
        """Those that only the writer needs now."""
        self._disk = _Disk()
        self._flushing = False
        """True while a flush is to come."""
        self._waiting: list[Waiting] = []
        """Calls that have ended since the fsync that is under way began."""
        self._under_way: list[Waiting] = []
        """Those that it is for."""
        self._syncing: asyncio.Future[None] | None = None
        """Fsyncs as long as any call waits."""
        self._enough: asyncio.Future[None] | None = None
        """While the next fsync waits for more calls: set once they are enough."""
        self._closed = False
        """True once nobody waits for the disk any more: what still ends is written and synced in place."""
        self._in_flight = 0
        self._held: list[tuple[Entry | None, Trace]] = []
        self._held_bytes = 0
        self._told_at = float("-inf")
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
        """A call begins; None when the disk refuses a file, and then nothing of it is kept yet."""
        self._in_flight += 1
        if (file := self._current()) is None:
            return None
        file.calls += 1
        file.open += 1
        self._put(file, frames.opening(file.calls, origin, body))
        return Entry(file, file.calls)

    def piece(self, entry: Entry | None, piece: bytes, when: float) -> None:
        """A piece of a stream has come."""
        if entry is not None:
            self._put(entry.file, frames.frame(b"P", entry.number, piece, when))

    def end(self, entry: Entry | None, trace: Trace) -> File | None:
        """A call has ended: write the rest of it. `sync` the file, or `flush`, to know that it stands there; then the
        entry is `over`. None when the disk refuses."""
        self._in_flight -= 1
        if entry is None or entry.file.torn or self._closed:
            return self.write(trace)
        # What came in one piece has not been written yet.
        for when, piece in () if trace.event_stream else trace.pieces:
            self._put(entry.file, frames.frame(b"P", entry.number, piece, when))
        self._put(entry.file, frames.ending(entry.number, trace, time.monotonic()))
        return entry.file

    def write(self, trace: Trace, *, again: bool = False) -> File | None:
        """Write all of a call that has ended. None when the disk refuses a file; with `again` it is tried even where it
        has refused often."""
        if (file := self._current(again=again)) is None:
            return None
        file.calls += 1
        self._put(file, frames.whole(file.calls, trace, time.monotonic()))
        return file

    def over(self, entry: Entry | None) -> None:
        """Nothing more comes to a call's place. Not before the call stands there or elsewhere in full: a file that is
        let go gives what is open in it as interrupted."""
        if entry is not None:
            entry.file.open -= 1
            self._let_go_if_over(entry.file)

    def hold(self, entry: Entry | None, trace: Trace) -> bool:
        """Keep a call in memory that the disk refuses; false when that would be too much, and then it is lost."""
        size = _size(trace)
        if self._held_bytes + size > MAX_HELD_BYTES:
            self.over(entry)
            return False
        self._held_bytes += size
        self._held.append((entry, trace))
        return True

    def retry(self) -> None:
        """Write what is held, as far as the disk takes it."""
        while self._held:
            entry, trace = self._held[0]
            file = self.write(trace, again=True)
            self.flush()
            if file is None or file.torn:
                return
            del self._held[0]
            self._held_bytes -= _size(trace)
            self.over(entry)

    def flush(self) -> None:
        """Write all that waits. A file that the disk refuses is torn."""
        self._flushing = False
        for file in [file for file in self._files if file.unwritten]:
            data = b"".join(file.unwritten)
            file.unwritten.clear()
            try:
                _write(file, data)
            except OSError as error:
                file.torn = True
                self._failed(error)
            self._let_go_if_over(file)

    def sync(self, file: File) -> "asyncio.Future[bool]":
        """Becomes true once all that was put into the file until now is on disk, false if it cannot be."""
        loop = asyncio.get_running_loop()
        durable: asyncio.Future[bool] = loop.create_future()
        if self._closed or file not in self._files:  # let go of meanwhile: its descriptor may be another file's
            self.flush()
            durable.set_result(file in self._files and self._sync_here([file]))
            return durable
        file.syncing += 1
        self._waiting.append((file, durable))
        if self._syncing is None or self._syncing.done():
            self._syncing = asyncio.ensure_future(self._keep_syncing())
        elif self._enough is not None and not self._enough.done() and self._are_enough():
            self._enough.set_result(None)
        return durable

    def close(self) -> None:
        """Let go of all files: the writer ends them. A call that ends later goes into one of its own."""
        self.retry()
        self._sync_waiting_here()
        if self._syncing is not None:
            self._syncing.cancel()
        self._disk.close()
        for file in self._files:
            os.close(file.descriptor)
        self._files, self._closed = [], True

    def _put(self, file: File, data: bytes) -> None:
        if file.torn:
            return
        file.unwritten.append(data)
        if not self._flushing:
            self._flushing = True
            loop = asyncio.get_running_loop()
            if self._in_flight < MANY:
                loop.call_soon(self.flush)
            else:
                loop.call_later(GATHER_S, self.flush)

    async def _keep_syncing(self) -> None:
        """One fsync for all that wait; those that come meanwhile wait for the next."""
        try:
            while self._waiting:
                if not self._are_enough():
                    await self._gather()
                self.flush()
                self._under_way, self._waiting = self._waiting, []
                descriptors = {file.descriptor for file, _ in self._under_way if not file.torn}
                error = await self._disk.sync(descriptors)
                if error is not None:
                    self._failed(error)
                self._answer(synced=error is None)
        except asyncio.CancelledError:  # a second Ctrl-C cancels every task of the loop, and calls still wait for this
            self._sync_waiting_here()
            raise

    def _answer(self, *, synced: bool) -> None:
        """Tell the calls that the fsync was for."""
        for file, durable in self._under_way:
            file.syncing -= 1
            file.torn = file.torn or not synced
            if not durable.done():
                durable.set_result(not file.torn)
            self._let_go_if_over(file)
        self._under_way = []

    def _sync_waiting_here(self) -> None:
        """Bring all that wait to disk now, and tell them."""
        self.flush()
        self._under_way, self._waiting = self._under_way + self._waiting, []
        self._answer(synced=self._sync_here({file for file, _ in self._under_way}))

    def _are_enough(self) -> bool:
        """Whether an fsync is worth its time now."""
        return self._in_flight < MANY or len(self._waiting) * IDLE_SHARE >= self._in_flight

    async def _gather(self) -> None:
        self._enough = enough = asyncio.get_running_loop().create_future()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(enough, GATHER_S)
        self._enough = None

    def _sync_here(self, files: Collection[File]) -> bool:
        """Whether all of them are on disk now."""
        try:
            for file in files:
                if not file.torn:
                    os.fdatasync(file.descriptor)
                    _check_there(file.descriptor)
        except OSError as error:
            self._failed(error)
            return False
        return not any(file.torn for file in files)

    def _current(self, *, again: bool = False) -> File | None:
        """The file that takes calls that begin; None when the disk refuses one."""
        newest = self._files[-1] if self._files else None
        if newest is not None and newest.torn and not newest.touched:
            # The same file once more, as a new one: what was to begin in it stands nowhere.
            self._files[-1] = newest = File(newest.path, newest.descriptor)
        elif newest is None or newest.torn or newest.size > FILE_BYTES:
            if not again and sum(file.torn for file in self._files) >= MAX_TORN:
                return None
            try:
                newest = File(*owned.create(self._folder, frames.PREFIX))
            except OSError as error:
                self._failed(error)
                return None
            self._files.append(newest)
            for file in self._files[:-1]:
                self._let_go_if_over(file)
        return newest

    def _let_go_if_over(self, file: File) -> None:
        if not file.open and not file.syncing and not file.unwritten and file in self._files[:-1]:
            self._files.remove(file)
            self._let_go.append(file.path)
            os.close(file.descriptor)

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        if (now := time.monotonic()) >= self._told_at + TOLD_S:
            self._told_at = now
            log.warning("journal not written", error=str(error), refusals=self.failures)


def _size(trace: Trace) -> int:
    return len(trace.body) + sum(len(piece) for _, piece in trace.pieces)


def _write(file: File, data: bytes) -> None:
    written = os.write(file.descriptor, data)
    file.touched = True
    if written < len(data):  # a full disk; what may have been read of it already has no end, and stands elsewhere later
        os.ftruncate(file.descriptor, file.size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    file.size += written


def _check_there(descriptor: int) -> None:
    """Raises `OSError` when a file has no name any more: nobody would find it."""
    if os.fstat(descriptor).st_nlink == 0:
        raise OSError(errno.ENOENT, "somebody has removed the journal's file")


class _Disk:
    """Has the kernel wait for the disk and wake the loop.

    A thread of ours, once it has waited, asks for the interpreter's lock, and while it does, every system call of the
    loop wakes it in vain.
    """

    def __init__(self) -> None:
        self._context: AsyncioContextBase | None = None

    async def sync(self, descriptors: Iterable[int]) -> Exception | None:
        """Returns once all that was written to these files is on disk; what hinders it."""
        try:
            if self._context is None:
                self._context = _context()
            for descriptor in descriptors:
                await self._context.fdsync(descriptor)
                _check_there(descriptor)
        except Exception as error:  # noqa: BLE001 - calls wait: whatever it is, it is not on disk
            return error
        return None

    def close(self) -> None:
        if self._context is not None:
            self._context.close()  # type: ignore[no-untyped-call]


def _context() -> AsyncioContextBase:
    """By io_uring where the kernel allows it, without its thread that polls; else by Linux's older interface, or by
    threads that need no interpreter."""
    refused: Exception | None = None
    for way in (caio.AsyncioContext, *(module.AsyncioContext for module in caio.variants_asyncio)):
        polls = {"sqpoll": False} if way.__module__ == "caio.linux_uring_asyncio" else {}
        try:
            context: AsyncioContextBase = way(FSYNCS, **polls)
        except (OSError, SystemError, MemoryError) as error:  # too few locked pages, contexts or descriptors
            refused = error
        else:
            if refused is not None:
                log.info("the disk is waited for in another way", way=way.__module__, refused=str(refused))
            return context
    raise OSError(f"no way to wait for the disk: {refused}")
