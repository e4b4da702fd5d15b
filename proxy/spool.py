"""Where a call goes when the database cannot take it: one fsynced line per call, replayed later, in order.

Replaying a line twice is harmless: the store leaves alone what it has. A replay works on files that nobody writes to
any more, so that spooling never waits for the database.
"""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

from mosaic.capture import CapturedCall, from_json, to_json


class Spool:
    """Append-only files of calls. Their names carry the id of the process that wrote them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._generation = 0
        self._used = False

    @property
    def _active(self) -> Path:
        return self._folder / f"calls-{os.getpid()}-{self._generation:06}.jsonl"

    def append(self, call: CapturedCall) -> None:
        """Durable when this returns. Raises `OSError` when the disk refuses, `TypeError` for what is no JSON."""
        line = to_json(call) + b"\n"
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            with self._active.open("ab") as file:
                start = file.tell()
                try:
                    # A line that an earlier process of this id was writing when it died must not take ours with it.
                    file.write(line if self._used or start == 0 else b"\n" + line)
                    file.flush()
                    os.fsync(file.fileno())
                except OSError:
                    os.truncate(self._active, start)
                    raise
            self._used = True

    def take(self) -> list[Path]:
        """Files to replay, oldest first: our own, closed to further writing, and those of processes that have died."""
        with self._lock:
            self._generation += 1
            self._used = False
            return self.waiting()

    def waiting(self) -> list[Path]:
        """Every file that this process has to replay."""
        found = {path: _changed(path) for path in self._folder.glob("calls-*.jsonl") if not _foreign(path)}
        return sorted((p for p in found if found[p] is not None), key=lambda p: (found[p] or 0.0, p.name))

    def empty(self) -> bool:
        """True when nothing waits."""
        return not self.waiting()

    def reject(self, call: CapturedCall) -> None:
        """Put a call aside that the store can never take; `rejected.jsonl` is for people to look at."""
        with self._lock:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / "rejected.jsonl").open("ab") as file:
                file.write(to_json(call) + b"\n")
                os.fsync(file.fileno())


def read(path: Path) -> Iterator[CapturedCall | None]:
    """The calls of a spool file; None for a line that a crash cut short."""
    for line in path.read_bytes().split(b"\n"):
        if line:
            try:
                yield from_json(line)
            except (ValueError, KeyError, TypeError):
                yield None


def _changed(path: Path) -> float | None:
    """When a file was last written; None when another process has just removed it."""
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return None


def _foreign(path: Path) -> bool:
    """Whether a file belongs to another process that still runs."""
    try:
        pid = int(path.stem.split("-")[1])
        if pid == os.getpid():
            return False
        os.kill(pid, 0)
    except (ValueError, IndexError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
