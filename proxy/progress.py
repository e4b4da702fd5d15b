"""What the one writer of a folder has done, told to every process on that folder, and how the writer is woken.

A small file that all of them map into memory: looking costs no system call. The writer alone changes it. Times are the
system's monotonic clock, which all processes share and which no adjustment of the date moves.
"""

import contextlib
import mmap
import os
import struct
import time
from pathlib import Path

_FORM = struct.Struct("<dddqq256s")
"""Committed until, refusing since (0: it is not), last seen alive, process id, refusals so far, the last error."""
NAME = ".progress"
WAKE = ".wake"


class Progress:
    """A folder's progress. Raises `OSError` when the folder cannot be used."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            # Its blocks are there from now on: writing through a map to a full disk would end the process.
            os.posix_fallocate(descriptor, 0, _FORM.size)
            self._map = mmap.mmap(descriptor, _FORM.size)
        finally:
            os.close(descriptor)
        with contextlib.suppress(FileExistsError):
            os.mkfifo(folder / WAKE, 0o600)
        self.bell = os.open(folder / WAKE, os.O_RDWR | os.O_NONBLOCK)
        """Descriptor that can be read once somebody wants the writer."""

    def wake(self) -> None:
        """The writer is to look now."""
        with contextlib.suppress(BlockingIOError):  # it has been called often enough
            os.write(self.bell, b"!")

    def heard(self) -> None:
        """All calls until now are answered by the look that follows."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.bell, 2**16)

    def close(self) -> None:
        """Let go of it."""
        self._map.close()
        os.close(self.bell)

    @property
    def committed(self) -> float:
        """Every call that had ended by this time is in the database, or put aside."""
        (until,) = struct.unpack_from("<d", self._map, 0)
        return float(until) if until <= time.monotonic() else 0.0  # the system was started anew

    @property
    def refusing(self) -> bool:
        """Whether the database takes no calls now, or has not caught up since it did not."""
        return bool(struct.unpack_from("<d", self._map, 8)[0])

    @property
    def alive(self) -> tuple[int, float]:
        """The writer's process id, and when it last did anything."""
        return struct.unpack_from("<q", self._map, 24)[0], struct.unpack_from("<d", self._map, 16)[0]

    @property
    def refusals(self) -> int:
        """Times that the database refused."""
        return int(struct.unpack_from("<q", self._map, 32)[0])

    @property
    def error(self) -> str | None:
        """What it last said."""
        text = bytes(self._map[40 : _FORM.size]).partition(b"\0")[0]
        return text.decode("utf-8", "replace") or None

    def begin(self) -> None:
        """A writer starts its work: nothing is known to be committed."""
        _FORM.pack_into(self._map, 0, 0.0, 0.0, time.monotonic(), os.getpid(), 0, b"")

    def beat(self) -> None:
        """The writer is at work."""
        struct.pack_into("<d", self._map, 16, time.monotonic())

    def reached(self, until: float) -> None:
        """All that had ended by then is dealt with."""
        struct.pack_into("<d", self._map, 8, 0.0)
        struct.pack_into("<d", self._map, 0, until)

    def refused(self, error: str) -> None:
        """The database takes nothing for now."""
        struct.pack_into("<q", self._map, 32, self.refusals + 1)
        struct.pack_into("<256s", self._map, 40, error.encode()[:255])
        if not self.refusing:
            struct.pack_into("<d", self._map, 8, time.monotonic())
