"""What the processes on a folder have counted, where each of them can read all: any worker says the same.

Each process counts in a small file of its own, mapped into memory: counting costs no system call, and survives the
process. A file whose owner has died is gone on with by the next process, so sums never fall. Gauges are the owner's
alone: they begin at 0, and nobody's are not counted.
"""

import bisect
import contextlib
import fcntl
import mmap
import os
import zlib
from itertools import count
from pathlib import Path

import structlog

from adapters.wires.wire import WIRES
from mosaic.capture import CallStatus

COUNTERS = ("recorded", "lost", "waits_given_up", "disk_refusals")
"""Of workers."""
GAUGES = ("held", "open")
STORED = ("exact_calls", "prompt_tokens", "sampled_tokens")
"""Of the writer, of the calls that it stored."""
BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Upper bounds of a histogram's buckets; the last one has none."""
HISTOGRAMS = ("call_seconds", "first_byte_seconds")
WIRE_NAMES = tuple(dict.fromkeys(wire.name for wire in WIRES.values()))

log = structlog.get_logger()


def calls_name(wire: str, status: str) -> str:
    """The counter of stored calls of a wire that ended in a way."""
    return f"calls {wire} {status}"


def bucket_name(histogram: str, at: int) -> str:
    """The counter of a histogram's bucket; not cumulative."""
    return f"{histogram} {at}"


def sum_name(histogram: str) -> str:
    """The counter of a histogram's sum, in microseconds."""
    return f"{histogram} sum"


NAMES = (
    *COUNTERS,
    *GAUGES,
    *STORED,
    *(calls_name(wire, status) for wire in WIRE_NAMES for status in CallStatus),
    *(bucket_name(name, at) for name in HISTOGRAMS for at in range(len(BUCKETS_S) + 1)),
    *(sum_name(name) for name in HISTOGRAMS),
)
_AT = {name: at for at, name in enumerate(NAMES)}
_BYTES = 8 * len(NAMES)
PREFIX = f".figures-{zlib.crc32('|'.join(NAMES).encode()):08x}-"
"""Of the files' names; another release that counts other things has files of its own."""


class Figures:
    """One process's counts. Used by one thread."""

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        try:
            self._descriptor = _free(folder)
            self._map = mmap.mmap(self._descriptor, _BYTES)
        except OSError as error:  # figures are no reason not to serve
            log.warning("figures are this process's alone", error=str(error))
            self._map = mmap.mmap(-1, _BYTES)
        self._values = memoryview(self._map).cast("q")
        for name in GAUGES:
            self.set(name, 0)

    def add(self, name: str, by: int = 1) -> None:
        """Count."""
        self._values[_AT[name]] += by

    def set(self, gauge: str, value: int) -> None:
        """What it is now."""
        self._values[_AT[gauge]] = value

    def observe(self, histogram: str, seconds: float) -> None:
        """Count one duration."""
        self.add(bucket_name(histogram, bisect.bisect_left(BUCKETS_S, seconds)))
        self.add(sum_name(histogram), round(max(0.0, seconds) * 1e6))

    def close(self) -> None:
        """Let the next process go on with the file. What is counted after this counts for nobody."""
        self._values.release()
        self._map.close()
        self._values = memoryview(bytearray(_BYTES)).cast("q")
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def total(folder: Path) -> dict[str, int]:
    """The sums over all processes, dead ones too."""
    sums = [0] * len(NAMES)
    for path in _files(folder):
        with contextlib.suppress(OSError):
            values, owned = _read(path)
            for name, value in zip(NAMES, values, strict=False):
                if owned or name not in GAUGES:
                    sums[_AT[name]] += value
    return dict(zip(NAMES, sums, strict=True))


def _files(folder: Path) -> list[Path]:
    try:
        return [folder / name for name in os.listdir(folder) if name.startswith(PREFIX)]
    except OSError:
        return []


def _read(path: Path) -> tuple[memoryview, bool]:
    """The values, and whether a process counts in the file now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        data = os.pread(descriptor, _BYTES, 0)
        return memoryview(data[: len(data) // 8 * 8]).cast("q"), not _locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _free(folder: Path) -> int:
    """A file that is nobody's, or a new one, locked. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in count():
        descriptor = os.open(folder / f"{PREFIX}{number:03}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if _locked(descriptor, fcntl.LOCK_EX):
                # Its blocks are there from now on: writing through a map to a full disk would end the process.
                os.posix_fallocate(descriptor, 0, _BYTES)
                return descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
    raise AssertionError("count() does not end")


def _locked(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
