"""Frames: what the proxy and its writer say to each other, and how spool files are cut."""

import struct
import zlib
from collections.abc import Iterator
from typing import BinaryIO

_HEAD = struct.Struct("<cQII")
"""Kind, number, bytes that follow, their CRC-32."""


def pack(kind: bytes, number: int, body: bytes = b"") -> bytes:
    """One frame."""
    return _HEAD.pack(kind, number, len(body), zlib.crc32(body)) + body


class Unpacker:
    """Feed bytes, get (kind, number, body) of every frame that they complete."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """The frames that `data` completes. Raises `ValueError` when the bytes are no frames."""
        self._pending += data
        at = 0
        while len(self._pending) - at >= _HEAD.size:
            kind, number, length, check = _HEAD.unpack_from(self._pending, at)
            end = at + _HEAD.size + length
            if len(self._pending) < end:
                break
            body = bytes(self._pending[at + _HEAD.size : end])
            if zlib.crc32(body) != check:
                raise ValueError("a frame is damaged")
            at = end
            yield kind, number, body
        del self._pending[:at]


def read(file: BinaryIO) -> Iterator[bytes | None]:
    """The bodies of a file's frames; ends with None when the last one was cut short or anything is damaged."""
    while head := file.read(_HEAD.size):
        if len(head) < _HEAD.size:
            yield None
            return
        _, _, length, check = _HEAD.unpack(head)
        body = file.read(length)
        if len(body) < length or zlib.crc32(body) != check:
            yield None
            return
        yield body
