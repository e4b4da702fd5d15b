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
        self._own: set[Path] = set()
        self._others: dict[Path, int] = {}
        """Files of other workers -> their size when they were last replayed."""
        self._listed_at = -1

    def others(self, *, grown: bool = False) -> list[Path]:
        """The files of other workers; with `grown`, none unless a call has come to any since they were last asked for.

        Costs one look at the folder while there are none. Used by one thread.
        """
        try:
            changed = self._folder.stat().st_mtime_ns
        except FileNotFoundError:
            return []
        if changed != self._listed_at:
            found = [path for path in self._folder.glob(f"{PREFIX}*") if path not in self._own]
            self._others = {path: self._others.get(path, 0) for path in found}
            self._listed_at = changed
        more = not grown
        for path, known in self._others.items():
            with contextlib.suppress(FileNotFoundError):
                size = path.stat().st_size
                more = more or size > known
                self._others[path] = size
        return list(self._others) if more else []

    def append(self, *calls: Sequence[bytes]) -> None:
        """All the encoded calls are durable when this returns. Raises `OSError` when the disk refuses; then none is."""
        with self._lock:
            if self._active is None or os.fstat(self._active[1]).st_nlink == 0:  # somebody has removed it
                self._active = owned.create(self._folder, PREFIX)
                self._own.add(self._active[0])
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
            self._own.update(path for path, _ in self._closed)

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
                self._own.discard(file[0])
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
    """The calls of a spool file; None for what a crash has cut short or damaged. None at all when the file is gone."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for body in frames.read(file):
            try:
                yield None if body is None else decode(body)
            except (ValueError, KeyError, TypeError):
                yield None


def spooled_ids(folder: Path) -> set[str]:
    """Ids of the calls in a folder's spool files."""
    traces = (trace for path in folder.glob(f"{PREFIX}*") for trace in read(path))
    return {trace.origin.call_id for trace in traces if trace is not None}


def waiting_calls(folder: Path) -> int:
    """Calls that wait in a folder, whichever process wrote them."""
    found = 0
    for path in folder.glob(f"{PREFIX}*"):
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            found += frames.count(file)
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
