"""The journal's frames: how calls stand in its files.

`B` a call begins: its origin as JSON, a line feed, its body. `P` a piece of the answer. `E` it has ended: how, as JSON.
All frames of a call stand in one file, under its number there.
"""

import struct
import zlib
from dataclasses import dataclass, field
from typing import Any

import orjson

from mosaic.capture import CallStatus
from proxy.trace import Origin, Trace, fidelity_from, origin_from

PREFIX = "calls-"
"""Of the names of the journal's files."""
HEAD = struct.Struct("<cIIId")
"""Kind, number of the call in its file, bytes that follow, `check_of` them, Unix seconds."""
AT = struct.Struct("<d")
"""What an `E` frame's body begins with: the end on the system's monotonic clock."""


def frame(kind: bytes, number: int, body: bytes, when: float) -> bytes:
    """One frame."""
    return HEAD.pack(kind, number, len(body), check_of(number, body), when) + body


def check_of(number: int, body: bytes) -> int:
    """Checksum of a frame's body and number."""
    return zlib.crc32(body, number)


def opening(number: int, origin: Origin, body: bytes) -> bytes:
    """A call begins. Raises `TypeError` for an origin that is no JSON."""
    return frame(b"B", number, orjson.dumps(origin) + b"\n" + body, origin.started_at)


def ending(number: int, trace: Trace, at: float) -> bytes:
    """A call has ended; `at` is the monotonic time."""
    how = {
        "pieces": len(trace.pieces),
        "event_stream": trace.event_stream,
        "status": trace.status.value,
        "http_status": trace.http_status,
        "error": trace.error,
        "fidelity": trace.fidelity,
        "weights": trace.weights,
    }
    return frame(b"E", number, AT.pack(at) + orjson.dumps(how), trace.ended_at)


def whole(number: int, trace: Trace, at: float) -> bytes:
    """All of a call."""
    pieces = [frame(b"P", number, piece, when) for when, piece in trace.pieces]
    return b"".join([opening(number, trace.origin, trace.body), *pieces, ending(number, trace, at)])


@dataclass(slots=True)
class Found:
    """A call as it is read back."""

    opening: bytes
    pieces: list[tuple[float, bytes]] = field(default_factory=list)

    def ended(self, body: bytes, when: float) -> Trace:
        """The call as it ended. Raises `ValueError`, `KeyError` or `TypeError` for what cannot be read."""
        how: dict[str, Any] = orjson.loads(body[AT.size :])
        if how["pieces"] != len(self.pieces):
            raise ValueError("a piece of the answer is missing")
        known = {"event_stream", "http_status", "error", "weights"}
        origin, asked = self._opening()
        return Trace(
            origin,
            asked,
            tuple(self.pieces),
            status=CallStatus(how["status"]),
            ended_at=when,
            fidelity=fidelity_from(how.get("fidelity")),
            **{name: value for name, value in how.items() if name in known},
        )

    def interrupted(self) -> Trace:
        """The call whose end nobody wrote. Raises `ValueError`, `KeyError` or `TypeError` for what cannot be read."""
        origin, asked = self._opening()
        return Trace(
            origin=origin,
            body=asked,
            pieces=tuple(self.pieces),
            event_stream=bool(self.pieces),
            status=CallStatus.INTERRUPTED,
            http_status=200 if self.pieces else 499,
            error="the proxy was killed before the answer ended",
            ended_at=self.pieces[-1][0] if self.pieces else origin.started_at,
        )

    def _opening(self) -> tuple[Origin, bytes]:
        head, _, asked = self.opening.partition(b"\n")
        return origin_from(orjson.loads(head)), asked
