"""Server-sent events cut out of a byte stream, whatever way the bytes were split.

Source: WHATWG HTML, section 9.2.6. Events are kept as the bytes that arrived, so that what is not understood can be
passed on unchanged.
"""

import re
from collections.abc import Iterator

_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_OTHER = re.compile(rb"^(?!data:)[^\r\n]+", re.MULTILINE)
_DATA = re.compile(rb"^data: ?(.*)$", re.MULTILINE)


class EventSplitter:
    """Feed bytes, get whole events; what has not ended yet is kept."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._searched = 0
        """Bytes of `_pending` in which no end of an event begins."""
        self._returns = False
        """Whether there was a carriage return: without one, searching is a plain search."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The events that `chunk` completes, each with its closing blank line."""
        self._pending += chunk
        self._returns = self._returns or b"\r" in chunk
        start = 0
        while (end := self._end(max(start, self._searched))) > 0:
            event = bytes(self._pending[start:end])
            start = self._searched = end
            yield event
        del self._pending[:start]
        self._searched = max(0, len(self._pending) - 3)

    def _end(self, at: int) -> int:
        """Where the first event ends that ends behind `at`; 0 when none does yet."""
        if self._returns:
            found = _END.search(self._pending, at)
            return found.end() if found else 0
        found_at = self._pending.find(b"\n\n", at)
        return found_at + 2 if found_at >= 0 else 0

    def last(self) -> bytes:
        """The event that the end of the stream completes: what is left, with the blank line that it lacks."""
        left = bytes(self._pending).strip()
        self._pending.clear()
        return left + b"\n\n" if left else b""


def data_of(event: bytes) -> bytes | None:
    """The event's data, or None when it has none (a comment, for example)."""
    if _is_one_line(event):
        return event[5:-2].removeprefix(b" ")
    lines = [line.rstrip(b"\r") for line in _DATA.findall(event)]
    return b"\n".join(lines) if lines else None


def without_data(event: bytes) -> bytes:
    """The event's other lines (its name, its id, comments)."""
    if _is_one_line(event):
        return b""
    return b"".join(line + b"\n" for line in _OTHER.findall(event))


def _is_one_line(event: bytes) -> bool:
    """Whether an event is one line of data, as nearly all are."""
    return (
        event.find(b"\n") == len(event) - 2
        and event.startswith(b"data:")
        and event[-1:] == b"\n"
        and b"\r" not in event
    )
