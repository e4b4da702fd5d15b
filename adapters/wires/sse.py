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

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The events that `chunk` completes, each with its closing blank line."""
        self._pending += chunk
        start = 0
        while end := _END.search(self._pending, max(start, self._searched)):
            event = bytes(self._pending[start : end.end()])
            start = self._searched = end.end()
            yield event
        del self._pending[:start]
        self._searched = max(0, len(self._pending) - 3)

    def last(self) -> bytes:
        """The event that the end of the stream completes: what is left, with the blank line that it lacks."""
        left = bytes(self._pending).strip()
        self._pending.clear()
        return left + b"\n\n" if left else b""


def data_of(event: bytes) -> bytes | None:
    """The event's data, or None when it has none (a comment, for example)."""
    lines = [line.rstrip(b"\r") for line in _DATA.findall(event)]
    return b"\n".join(lines) if lines else None


def without_data(event: bytes) -> bytes:
    """The event's other lines (its name, its id, comments)."""
    return b"".join(line + b"\n" for line in _OTHER.findall(event))
