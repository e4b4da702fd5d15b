"""Where a call goes when the database cannot take it: one fsynced line per call, replayed later, in order.

Replaying a line twice is harmless: the store leaves alone what it has.
"""

import os
from collections.abc import Iterator
from pathlib import Path

from mosaic.capture import CapturedCall, from_json, to_json


class Spool:
    """An append-only file of calls. One process writes it; its name carries the process id."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / f"calls-{os.getpid()}.jsonl"

    def append(self, call: CapturedCall) -> None:
        """Durable when this returns. Raises `OSError` when the disk refuses."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            start = file.tell()
            try:
                file.write(to_json(call) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                os.truncate(self._path, start)
                raise

    def files(self) -> list[Path]:
        """Our own file and those of processes that have died, oldest first."""
        ours = [p for p in self._folder.glob("calls-*.jsonl") if p == self._path or not _alive(p)]
        return sorted(ours, key=lambda p: p.stat().st_mtime)

    def empty(self) -> bool:
        """True when nothing waits."""
        return not self.files()


def read(path: Path) -> Iterator[CapturedCall | None]:
    """The calls of a spool file; None for a line that a crash cut short."""
    for line in path.read_bytes().splitlines():
        try:
            yield from_json(line)
        except (ValueError, KeyError, TypeError):
            yield None


def _alive(path: Path) -> bool:
    """Whether the process that a spool file is named after still runs."""
    try:
        os.kill(int(path.stem.partition("-")[2]), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
