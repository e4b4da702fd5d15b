"""Where a call goes when the database cannot take it: one fsynced frame per call, replayed later, in order.

Replaying a call twice is harmless: the store leaves alone what it has. A replay works on files that nobody writes to
any more, so that spooling never waits for the database.
"""

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson

from proxy import frames, owned
from proxy.trace import Trace, decode

PREFIX = "calls-"


class Spool:
    """Append-only files of encoded calls, each owned by the process that wrote it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._active: tuple[Path, int] | None = None
        self._closed: list[tuple[Path, int]] = []

    def append(self, *calls: Sequence[bytes]) -> None:
        """All the encoded calls are durable when this returns. Raises `OSError` when the disk refuses; then none is."""
        with self._lock:
            if self._active is None or os.fstat(self._active[1]).st_nlink == 0:  # somebody has removed it
                self._active = owned.create(self._folder, PREFIX)
            _, descriptor = self._active
            before = os.fstat(descriptor).st_size
            try:
                for parts in calls:
                    for part in (frames.head(b"C", 0, parts), *parts):
                        _write(descriptor, part)
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, before)
                raise

    def adopt(self) -> None:
        """Take over the files of processes that have died."""
        with self._lock:
            self._closed += owned.abandoned(self._folder, PREFIX)

    def take(self) -> list[Path]:
        """The files to replay, oldest first; the one that was written to is closed to further writing."""
        with self._lock:
            if self._active is not None:
                self._closed.append(self._active)
                self._active = None
            return [path for path, _ in sorted(self._closed)]

    def replayed(self, paths: list[Path]) -> None:
        """All that these files held is dealt with: remove them."""
        with self._lock:
            for file in [file for file in self._closed if file[0] in paths]:
                self._closed.remove(file)
                if sum(call is None for call in read(file[0])) > 0:
                    owned.set_aside(*file)
                else:
                    owned.remove(*file)

    def empty(self) -> bool:
        """True when nothing of ours waits."""
        with self._lock:
            return self._active is None and not self._closed

    def close(self) -> None:
        """Let go of the files; whoever starts next takes them over."""
        with self._lock:
            for _, descriptor in [*self._closed, *([self._active] if self._active else [])]:
                os.close(descriptor)
            self._closed, self._active = [], None


def read(path: Path) -> Iterator[Trace | None]:
    """The calls of a spool file; None for what a crash has cut short or damaged, or for a file that is gone."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        yield None
        return
    with file:
        for body in frames.read(file):
            try:
                yield None if body is None else decode(body)
            except (ValueError, KeyError, TypeError):
                yield None


def waiting_calls(folder: Path) -> int:
    """Calls that wait in a folder, whichever process wrote them."""
    found = 0
    for path in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            found += sum(1 for body in frames.read(file) if body is not None)
    return found


def reject(folder: Path, trace: Trace, why: str) -> None:
    """Put a call aside that the store can never take: a line of `rejected.jsonl`, for people to look at."""
    texts = {"body": trace.body, "answer": b"".join(piece for _, piece in trace.pieces)}
    line = {"why": why, "origin": trace.origin, "status": trace.status.value, "error": trace.error}
    line |= {name: text.decode("utf-8", "backslashreplace") for name, text in texts.items()}
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "rejected.jsonl").open("ab") as file:
        file.write(orjson.dumps(line) + b"\n")
        file.flush()
        os.fsync(file.fileno())


def _write(descriptor: int, data: bytes) -> None:
    """All of the data, whatever portion the system takes at once."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
