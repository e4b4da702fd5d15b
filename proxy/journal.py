"""Calls on disk as they happen: what is in flight, and what has ended and is not in the database yet.

A call's request is written when it begins, every piece of its answer as it comes, and how it ended; then one fsync
for all calls that end together makes them durable, and their last bytes may leave. Once a call is in the database, its
entry is void. What the next process finds of a dead one, it records: calls that had ended as they ended, others as
`interrupted`. A journal that cannot be written is gone without.
"""

import asyncio
import errno
import os
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import structlog

from mosaic.capture import CallStatus
from proxy import owned
from proxy.trace import Origin, Trace, fidelity_from, origin_from

PREFIX = "inflight-"
GATHER_S = 0.002
"""Seconds that an fsync waits for more calls to end, where many are open: it costs the same for one as for ten."""
MANY = 8
"""Calls in flight from which on it waits."""
SEGMENT_BYTES = 16 * 2**20
"""Size from which a new file is begun; an old one goes when the last of its calls has ended."""

_FRAME = struct.Struct("<cIId")
"""Kind (`B` begins, `P` piece of the answer, `E` ended, `D` done with), number of the call in its file, bytes that
follow, Unix seconds."""

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Segment:
    path: Path
    descriptor: int
    size: int = 0
    open: set[int] = field(default_factory=set)
    done: bytearray = field(default_factory=bytearray)
    """`D` frames, to go with the next write: a call that lacks its own is in the database already when it is found."""
    syncing: bool = False
    """While another thread uses the descriptor."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A call's place in the journal."""

    segment: _Segment
    number: int


class Journal:
    """The calls that this process has in flight. Used by the event loop alone."""

    def __init__(self, folder: Path, *, syncs: bool = True) -> None:
        """`syncs`: whether calls become durable here; else what has ended is written alone."""
        self._folder = folder
        self._syncs = syncs
        self._segments: list[_Segment] = []
        """Those with calls in flight, and last the one that is written to."""
        self._next = 0
        self._disk = ThreadPoolExecutor(1, "journal")
        self._waiting: list[tuple[_Segment, asyncio.Future[bool]]] = []
        """Calls that have ended since the fsync that is under way began."""
        self._syncing = False
        self._in_flight = 0
        self.failures = 0
        """Writes that the disk refused."""

    def begin(self, origin: Origin, body: bytes) -> Entry | None:
        """A call begins; None when the disk refuses, and then nothing of it is kept."""
        opening = orjson.dumps(origin) + b"\n" + body
        try:
            if not self._segments or self._segments[-1].size > SEGMENT_BYTES:
                self._renew()
            self._next += 1
            entry = Entry(self._segments[-1], self._next)
            _write(entry.segment, _frame(b"B", entry.number, opening, origin.started_at))
        except OSError as error:
            self._failed(error)
            return None
        entry.segment.open.add(entry.number)
        self._in_flight += 1
        return entry

    def piece(self, entry: Entry | None, piece: bytes, now: float) -> None:
        """A piece of the call's answer has come."""
        if entry is not None and entry.segment in self._segments:
            try:
                _write(entry.segment, _frame(b"P", entry.number, piece, now))
            except OSError as error:
                self._failed(error)

    def ended(self, entry: Entry | None, trace: Trace) -> "asyncio.Future[bool]":
        """A call has ended; its whole record is now here. Becomes true once it is durable, false if it cannot be."""
        durable: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if entry is None or entry.segment not in self._segments:
            durable.set_result(False)
            return durable
        self._in_flight -= 1
        # What came in one piece has not been written yet.
        whole = () if trace.event_stream else trace.pieces
        frames = [_frame(b"P", entry.number, piece, when) for when, piece in whole]
        try:
            _write(entry.segment, b"".join([*frames, _frame(b"E", entry.number, _ending(trace), trace.ended_at)]))
        except OSError as error:
            self._failed(error)
            durable.set_result(False)
            return durable
        if not self._syncs:
            durable.set_result(False)
            return durable
        self._waiting.append((entry.segment, durable))
        if not self._syncing:
            self._syncing = True
            if self._in_flight < MANY:
                self._sync()
            else:
                asyncio.get_running_loop().call_later(GATHER_S, self._sync)
        return durable

    def _sync(self) -> None:
        """One fsync for all that wait; those that come meanwhile wait for the next."""
        if not self._waiting:
            return  # closed meanwhile
        waiting, self._waiting = self._waiting, []
        segments = list({id(segment): segment for segment, _ in waiting}.values())
        for segment in segments:
            segment.syncing = True
        work = asyncio.get_running_loop().run_in_executor(self._disk, _fdatasync, [s.descriptor for s in segments])
        work.add_done_callback(lambda work: self._synced(segments, [durable for _, durable in waiting], work))

    def _synced(
        self, segments: list[_Segment], waiting: "list[asyncio.Future[bool]]", work: "asyncio.Future[None]"
    ) -> None:
        failure = work.exception()
        if isinstance(failure, OSError):
            self._failed(failure)
        for durable in waiting:
            if not durable.done():
                durable.set_result(failure is None)
        for segment in segments:
            segment.syncing = False
            self._remove_if_over(segment)
        self._syncing = bool(self._waiting)
        if self._waiting:
            self._sync()

    def done(self, entry: Entry | None) -> None:
        """The call is in the database or the spool: nothing of it need be kept."""
        if entry is None or entry.number not in entry.segment.open or entry.segment not in self._segments:
            return
        segment = entry.segment
        segment.open.discard(entry.number)
        segment.done += _FRAME.pack(b"D", entry.number, 0, 0.0)
        self._remove_if_over(segment)

    def close(self) -> None:
        """Let go of the files; one with no call in flight is removed."""
        self._disk.shutdown()
        self._waiting.clear()
        for segment in self._segments:
            if segment.open:
                os.close(segment.descriptor)
            else:
                owned.remove(segment.path, segment.descriptor)
        self._segments = []

    def _renew(self) -> None:
        self._segments.append(_Segment(*owned.create(self._folder, PREFIX)))
        for segment in self._segments[:-1]:
            self._remove_if_over(segment)

    def _remove_if_over(self, segment: _Segment) -> None:
        """Remove a file that no call needs and that is not written to any more."""
        if segment.open or segment.syncing or segment not in self._segments[:-1]:
            return
        self._segments.remove(segment)
        try:
            owned.remove(segment.path, segment.descriptor)
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        log.warning("in-flight journal not written", error=str(error))


def _frame(kind: bytes, number: int, body: bytes, now: float) -> bytes:
    return _FRAME.pack(kind, number, len(body), now) + body


def _write(segment: _Segment, frames: bytes) -> None:
    data = bytes(segment.done) + frames if segment.done else frames
    written = os.write(segment.descriptor, data)
    if written < len(data):  # a full disk: what cannot be whole must not be there at all
        os.ftruncate(segment.descriptor, segment.size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    segment.size += written
    segment.done.clear()


def _fdatasync(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.fdatasync(descriptor)


def _ending(trace: Trace) -> bytes:
    return orjson.dumps(
        {
            "event_stream": trace.event_stream,
            "status": trace.status.value,
            "http_status": trace.http_status,
            "error": trace.error,
            "fidelity": trace.fidelity,
        }
    )


@dataclass(frozen=True, slots=True)
class Left:
    """The journal of a dead process, now ours."""

    calls: tuple[Trace, ...]
    """Its calls in flight, in the order in which they ended."""
    unreadable: int
    """Further calls that cannot be read; for their sake the file is kept."""
    file: tuple[Path, int]


def left_behind(folder: Path) -> list[Left]:
    """The journals of dead processes."""
    found = []
    for path, descriptor in owned.abandoned(folder, PREFIX):
        calls = list(_unfinished(path.read_bytes()))
        known = sorted((call for call in calls if call is not None), key=lambda call: call.ended_at)
        found.append(Left(tuple(known), len(calls) - len(known), (path, descriptor)))
    return found


@dataclass(slots=True)
class _Found:
    """A call as it is read back."""

    opening: bytes
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    ending: bytes | None = None
    ended_at: float = 0.0


def _unfinished(data: bytes) -> Iterator[Trace | None]:
    """The calls that nobody is done with, None for one that cannot be read. Reading stops at a frame that was cut."""
    calls: dict[int, _Found] = {}
    at = 0
    while at + _FRAME.size <= len(data):
        kind, number, length, now = _FRAME.unpack_from(data, at)
        body = data[at + _FRAME.size : at + _FRAME.size + length]
        at += _FRAME.size + length
        if len(body) < length:
            break
        if kind == b"B":
            calls[number] = _Found(body)
        elif kind == b"P" and number in calls:
            calls[number].pieces.append((now, body))
        elif kind == b"E" and number in calls:
            calls[number].ending, calls[number].ended_at = body, now
        elif kind == b"D":
            calls.pop(number, None)
    for found in calls.values():
        try:
            yield _trace(found)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            log.error("a call of a dead process cannot be read", error=str(error))
            yield None


def _trace(found: _Found) -> Trace:
    """The call as it ended, or as interrupted where it had not."""
    head, _, body = found.opening.partition(b"\n")
    origin, pieces = origin_from(orjson.loads(head)), tuple(found.pieces)
    if found.ending is not None:
        ending = orjson.loads(found.ending)
        status, fidelity = CallStatus(ending.pop("status")), fidelity_from(ending.pop("fidelity"))
        return Trace(origin, body, pieces, status=status, ended_at=found.ended_at, fidelity=fidelity, **ending)
    return Trace(
        origin=origin,
        body=body,
        pieces=pieces,
        event_stream=bool(pieces),
        status=CallStatus.INTERRUPTED,
        http_status=200 if pieces else 499,
        error="the proxy was killed before the answer ended",
        ended_at=pieces[-1][0] if pieces else origin.started_at,
    )
