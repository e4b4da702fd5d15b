"""The journal's files as the folder's writer reads them: while they grow, and when their owner is gone."""

import os
from collections.abc import Iterator
from pathlib import Path

import structlog

from proxy import frames, owned
from proxy.progress import Progress
from proxy.trace import Trace

READ_BYTES = 2**17
"""Bytes that are read at once: so few that the same memory is used again."""
UNREADABLE = (ValueError, TypeError, KeyError, AttributeError)

log = structlog.get_logger()
Frame = tuple[bytes, int, bytes, float]
"""Kind, number, body, Unix seconds."""


class JournalFile:
    """One file, read once from its beginning to its end."""

    def __init__(self, path: Path) -> None:
        """Raises `OSError` when it is not there (any more)."""
        self.path = path
        self.owner_gone = False
        """True once nobody writes to it any more, and it is ours."""
        self._descriptor = os.open(path, os.O_RDWR)
        self._at = 0
        self._calls: dict[int, frames.Found] = {}
        """Those that have not ended."""
        self.unreadable = 0
        """Calls and frames that cannot be read."""
        self._nonsense = False
        self._through = False

    @property
    def done(self) -> bool:
        """Whether nobody writes to it any more, and all that began in it has ended and was given."""
        return self._through and not self._calls

    def look_for_owner(self) -> None:
        """Find out whether anybody still writes to it."""
        self.owner_gone = self.owner_gone or owned.take(self._descriptor)

    def ended(self, until: float) -> Iterator[Trace]:
        """Calls that have ended by then (monotonic seconds) and were not given yet, in their order. Use it up."""
        for kind, number, body, when in self._frames(float("inf") if self.owner_gone else until):
            if kind == b"B":
                self._calls[number] = frames.Found(body)
            elif kind == b"P" and number in self._calls:
                self._calls[number].pieces.append((when, body))
            elif kind == b"E":
                try:
                    yield self._calls.pop(number).ended(body, when)
                except UNREADABLE as error:
                    self._unreadable(repr(error))
        self._through = self.owner_gone

    def interrupted(self) -> list[Trace]:
        """What had not ended when the owner went."""
        if os.fstat(self._descriptor).st_size > self._at and not self._nonsense:
            self._unreadable("the last frame is cut")
        found = []
        for call in self._calls.values():
            try:
                found.append(call.interrupted())
            except UNREADABLE as error:
                self._unreadable(repr(error))
        self._calls.clear()
        return found

    def remove(self) -> None:
        """All that it held is dealt with. It is kept for people to look at when something cannot be read."""
        if self.unreadable:
            owned.set_aside(self.path, self._descriptor)
        else:
            owned.remove(self.path, self._descriptor)

    def close(self) -> None:
        """Let go of it; whoever writes next begins again, and finds most calls stored."""
        os.close(self._descriptor)

    def _frames(self, until: float) -> Iterator[Frame]:
        """The frames from where we stopped to the first call that ends later."""
        while not self._nonsense and len(data := os.pread(self._descriptor, READ_BYTES, self._at)) >= frames.HEAD.size:
            begun = self._at
            for kind, number, body, check, when in self._cut(data):
                if kind == b"E" and len(body) >= frames.AT.size and frames.AT.unpack_from(body)[0] > until:
                    return
                self._at += frames.HEAD.size + len(body)
                if frames.check_of(number, body) == check:
                    yield kind, number, body, when
                else:
                    self._calls.pop(number, None)
                    self._unreadable("a frame is damaged")
            if self._at == begun:
                return  # the rest is not there yet, or never will be

    def _cut(self, data: bytes) -> Iterator[tuple[bytes, int, bytes, int, float]]:
        """The whole frames that begin in `data`, which begins where we are."""
        start, at = self._at, 0
        while at + frames.HEAD.size <= len(data):
            kind, number, length, check, when = frames.HEAD.unpack_from(data, at)
            if kind not in (b"B", b"P", b"E"):
                self._nonsense = True
                self._unreadable("from here on it is no journal")
                return
            begin, end = at + frames.HEAD.size, at + frames.HEAD.size + length
            body = data[begin:end] if end <= len(data) else os.pread(self._descriptor, length, start + begin)
            if len(body) < length:
                return
            yield kind, number, body, check, when
            at = end

    def _unreadable(self, why: str) -> None:
        self.unreadable += 1
        log.error("a call in the journal cannot be read", file=self.path.name, at=self._at, error=why)


def files_in(folder: Path) -> list[Path]:
    """The journal's files, oldest first; none when the folder cannot be read."""
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.startswith(frames.PREFIX))
    except OSError:
        return []


def waiting_calls(folder: Path) -> int:
    """Calls that have ended and are not in the database yet, whichever process wrote them."""
    if not (files := files_in(folder)):
        return 0
    progress = Progress(folder)
    committed = progress.committed
    progress.close()
    return sum(_ends_after(path, committed) for path in files)


def _ends_after(path: Path, committed: float) -> int:
    found, at = 0, 0
    try:
        with path.open("rb") as file:
            while len(head := os.pread(file.fileno(), frames.HEAD.size, at)) == frames.HEAD.size:
                kind, _, length, _, _ = frames.HEAD.unpack(head)
                at += frames.HEAD.size
                if kind == b"E":
                    end = os.pread(file.fileno(), frames.AT.size, at)
                    found += len(end) < frames.AT.size or frames.AT.unpack(end)[0] > committed
                at += length
    except OSError:  # stored meanwhile, or nothing that the writer could read
        pass
    return found
