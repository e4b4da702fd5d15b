"""What is in flight, on disk as it happens, so that a proxy that is killed leaves behind what it had seen.

A call's request is written when it begins and every piece of its answer as it comes; once the call is recorded, its
entry is void. Written, not fsynced: this is for processes that die, not for machines. What the next process finds of a
dead one, it records as `interrupted`. A journal that cannot be written is gone without: it never delays an answer.
"""

import errno
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import structlog

from mosaic.capture import CallStatus
from proxy import owned
from proxy.trace import Origin, Trace, origin_from

PREFIX = "inflight-"
SEGMENT_BYTES = 16 * 2**20
"""Size from which a new file is begun; an old one goes when the last of its calls has ended."""

_FRAME = struct.Struct("<cIId")
"""Kind, number of the call in its file, bytes that follow, Unix seconds."""

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Segment:
    path: Path
    descriptor: int
    size: int = 0
    open: set[int] = field(default_factory=set)
    ends: bytearray = field(default_factory=bytearray)
    """Ends of calls, to go with the next write: a call whose end is missing is there already when it is found again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A call's place in the journal."""

    segment: _Segment
    number: int


class Journal:
    """The calls that this process has in flight. Used by the event loop alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segments: list[_Segment] = []
        """Those with calls in flight, and last the one that is written to."""
        self._next = 0
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
            _append(entry, b"B", opening, origin.started_at)
        except OSError as error:
            self._failed(error)
            return None
        entry.segment.open.add(entry.number)
        return entry

    def piece(self, entry: Entry | None, piece: bytes, now: float) -> None:
        """A piece of the call's answer has come."""
        if entry is not None and entry.segment in self._segments:
            try:
                _append(entry, b"P", piece, now)
            except OSError as error:
                self._failed(error)

    def end(self, entry: Entry | None) -> None:
        """The call is recorded: nothing of it need be kept."""
        if entry is None or entry.number not in entry.segment.open or entry.segment not in self._segments:
            return
        segment = entry.segment
        segment.open.discard(entry.number)
        try:
            segment.ends += _FRAME.pack(b"D", entry.number, 0, 0.0)
            if not segment.open and segment is not self._segments[-1]:
                self._remove(segment)
        except OSError as error:
            self._failed(error)

    def close(self) -> None:
        """Let go of the files; one with no call in flight is removed."""
        for segment in self._segments:
            if segment.open:
                os.close(segment.descriptor)
            else:
                owned.remove(segment.path, segment.descriptor)
        self._segments = []

    def _renew(self) -> None:
        self._segments.append(_Segment(*owned.create(self._folder, PREFIX)))
        for segment in self._segments[:-1]:
            if not segment.open:
                self._remove(segment)

    def _remove(self, segment: _Segment) -> None:
        self._segments.remove(segment)
        owned.remove(segment.path, segment.descriptor)

    def _failed(self, error: OSError) -> None:
        self.failures += 1
        log.warning("in-flight journal not written", error=str(error))


def _append(entry: Entry, kind: bytes, body: bytes, now: float) -> None:
    segment = entry.segment
    frames = b"".join([segment.ends, _FRAME.pack(kind, entry.number, len(body), now), body])
    written = os.write(segment.descriptor, frames)
    if written < len(frames):  # a full disk: what cannot be whole must not be there at all
        os.ftruncate(segment.descriptor, segment.size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    segment.size += written
    segment.ends.clear()


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


def _unfinished(data: bytes) -> Iterator[Trace | None]:
    """The calls without an end, None for one that cannot be read. Reading stops at a frame that was cut short."""
    calls: dict[int, tuple[bytes, list[tuple[float, bytes]]]] = {}
    at = 0
    while at + _FRAME.size <= len(data):
        kind, number, length, now = _FRAME.unpack_from(data, at)
        body = data[at + _FRAME.size : at + _FRAME.size + length]
        at += _FRAME.size + length
        if len(body) < length:
            break
        if kind == b"B":
            calls[number] = body, []
        elif kind == b"P" and number in calls:
            calls[number][1].append((now, body))
        elif kind == b"D":
            calls.pop(number, None)
    for opening, pieces in calls.values():
        origin, _, body = opening.partition(b"\n")
        try:
            yield _interrupted(origin_from(orjson.loads(origin)), body, tuple(pieces))
        except (ValueError, TypeError, AttributeError) as error:
            log.error("a call in flight cannot be read", error=str(error))
            yield None


def _interrupted(origin: Origin, body: bytes, pieces: tuple[tuple[float, bytes], ...]) -> Trace:
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
