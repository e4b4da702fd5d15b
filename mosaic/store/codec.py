"""Token arrays and message digests as the database holds them.

An array is one byte of codec followed by its little-endian bytes: `r` raw, `z` zlib. Ids are int32, logprobs float32
(which hardly compress, and are left as they are). Digests are the first 16 bytes of SHA-256, in hex: a message's digest
covers its parent's, so it names a whole prefix.
"""

import hashlib
import sys
import zlib

import numpy as np
import orjson

from mosaic.records import IdArray, LogprobArray

_MIN_COMPRESSED = 1024
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY


def pack(array: IdArray | LogprobArray) -> bytes:
    """The array as bytes, compressed where that makes it smaller."""
    raw = (array if sys.byteorder == "little" else array.byteswap()).tobytes()
    if array.dtype.kind == "i" and len(raw) >= _MIN_COMPRESSED:
        packed = zlib.compress(raw, 1)
        if len(packed) < len(raw):
            return b"z" + packed
    return b"r" + raw


def unpack_ids(blob: bytes) -> IdArray:
    """Token ids, int32, from `pack`'s bytes."""
    return np.frombuffer(_bytes(blob), "<i4").astype(np.int32, copy=False)


def unpack_logprobs(blob: bytes) -> LogprobArray:
    """Logprobs, float32, from `pack`'s bytes."""
    return np.frombuffer(_bytes(blob), "<f4").astype(np.float32, copy=False)


def _bytes(blob: bytes) -> bytes:
    tag, body = blob[:1], blob[1:]
    if tag == b"z":
        return zlib.decompress(body)
    if tag == b"r":
        return body
    raise ValueError(f"unknown array codec {tag!r}")


def digest(body: bytes, parent: str | None = None) -> str:
    """Content address of `body` after `parent`: 32 hex characters."""
    return hashlib.sha256((parent or "").encode() + body).hexdigest()[:32]


def dump(value: object) -> bytes:
    """JSON with sorted keys. Lone surrogates survive as `\\udXXX` escapes, which orjson refuses to write.

    Raises `RecursionError` for what is nested too deeply to be read back by everybody (`mosaic.nesting`).
    """
    try:
        return orjson.dumps(value, option=_OPTIONS)
    except TypeError as error:
        if "Recursion" in str(error):
            raise RecursionError("nested too deeply") from error
        import json

        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def common_prefix(a: IdArray, b: IdArray) -> int:
    """Number of leading ids that both arrays share."""
    n = min(len(a), len(b))
    (different,) = (a[:n] != b[:n]).nonzero()
    return int(different[0]) if len(different) else n
