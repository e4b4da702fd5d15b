"""Frames: what the proxy and its writer say to each other, and how spool files are cut."""

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

_HEAD = struct.Struct("<cQII")
"""Kind, number, bytes that follow, their CRC-32."""


def head(kind: bytes, number: int, parts: Sequence[bytes]) -> bytes:
    """What stands before the parts of a frame's body."""
    check = 0
    for part in parts:
        check = zlib.crc32(part, check)
    return _HEAD.pack(kind, number, sum(map(len, parts)), check)


def numbered(head: bytes, number: int) -> bytes:
    """The head with another number; the checksum does not cover it."""
    kind, _, length, check = _HEAD.unpack(head)
    return _HEAD.pack(kind, number, length, check)


def pack(kind: bytes, number: int, *parts: bytes) -> bytes:
    """One frame."""
    return b"".join([head(kind, number, parts), *parts])


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


def count(file: BinaryIO) -> int:
    """How many frames a file holds, without reading what they hold."""
    found, at, end = 0, 0, file.seek(0, 2)
    while at + _HEAD.size <= end:
        file.seek(at)
        kind, _, length, _ = _HEAD.unpack(file.read(_HEAD.size))
        at += _HEAD.size + length
        if kind != b"C" or at > end:
            break
        found += 1
    return found


def read(file: BinaryIO) -> Iterator[bytes | None]:
    """The bodies of a file's frames; None for one that is damaged, or cut short, which is the last."""
    while head := file.read(_HEAD.size):
        if len(head) < _HEAD.size:
            yield None
            return
        kind, _, length, check = _HEAD.unpack(head)
        body = file.read(length)
        yield body if kind == b"C" and zlib.crc32(body) == check else None
        if kind != b"C" or len(body) < length:
            return  # what follows cannot be told apart
