"""Records in files: JSON lines (also gzip), one Parquet file, or a folder that `datasets.load_dataset` loads.

A file is written under another name beside its own, synced and renamed: what has the name that was asked for is
complete. JSON lines take one record in memory at a time, Parquet one row group (`portable_parquet`).
"""

import gzip
import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from mosaic.errors import MosaicError
from mosaic.store import portable_parquet
from mosaic.store.portable import FORMAT, Record, check


class FileFormat(StrEnum):
    """How records are written."""

    JSONL = "jsonl"
    """One JSON object per line; compressed when the name ends in `.gz`."""
    PARQUET = "parquet"
    """One Parquet file, one row per trajectory."""
    HF = "hf"
    """A folder with a dataset card and Parquet files, which `datasets.load_dataset` loads."""


def write(records: Iterable[Record], out: Path, form: FileFormat, *, force: bool = False) -> int:
    """Write all records to `out` and return how many; on any error `out` is what it was before.

    Raises `MosaicError` when `out` is there already (with `force` a file or an earlier export is replaced) or cannot be
    written.
    """
    _check_free(out, form, force)
    written = 0

    def counted() -> Iterator[Record]:
        nonlocal written
        for record in records:
            _check_numbers(record)
            yield record
            written += 1
            del record

    with _appearing(out) as partial:
        if form is FileFormat.JSONL:
            _write_json_lines(counted(), partial, compressed=out.suffix == ".gz")
        elif form is FileFormat.PARQUET:
            portable_parquet.write_file(counted(), partial)
        else:
            portable_parquet.write_dataset(counted(), partial)
    return written


def read(path: Path) -> Iterator[tuple[str, Record]]:
    """(where it stands, record) of each record of a file or folder that `write` wrote, checked, one at a time.

    Raises `MosaicError`, naming the line or row, at the first record that is not as it must be.
    """
    place = f"{path}"
    try:
        for number, (unit, raw) in enumerate(_raw(path), 1):
            place = f"{path}, {unit} {number},"
            yield place, check(orjson.loads(raw) if isinstance(raw, bytes) else raw)
            place = f"{path}, after {unit} {number},"
    except (ValueError, EOFError, OSError) as error:  # those of gzip and Arrow are among them
        raise MosaicError(
            f"{place} cannot be read: {error}.", "Correct or remove it, or export again, and import once more."
        ) from error


def _check_free(out: Path, form: FileFormat, force: bool) -> None:
    folder = form is FileFormat.HF
    if not out.exists():
        return
    if out.is_dir() != folder:
        kind = "file" if folder else "folder"
        raise MosaicError(f"{out} is a {kind}, which --format {form} does not replace.", "Name another place.")
    if not force:
        raise MosaicError(f"{out} is there already.", "Name another place, or replace it with --force.")
    card = out / "README.md"
    if folder and not (card.is_file() and FORMAT in card.read_text(errors="replace")):
        raise MosaicError(f"{out} is a folder that no export wrote.", "Name another; --force replaces only exports.")


def _check_numbers(record: Record) -> None:
    for call in record["calls"]:
        if any(np.isnan(choice["logprobs"]).any() for choice in call["choices"]):
            raise MosaicError(
                f"call {call['call_id']!r} of trajectory {record['trajectory_id']!r} holds a logprob that is NaN.",
                "Leave the trajectory out with --like or --state.",
            )


@contextmanager
def _appearing(out: Path) -> Iterator[Path]:
    """A name beside `out` to write to; `out` is it once all went well."""
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        yield partial
        for path in [*partial.rglob("*"), partial]:
            _sync(path)
        _take_place(partial, out)
        _sync(out.parent)
    except OSError as error:
        raise MosaicError(f"{out} cannot be written: {error}.", "Check the folder and its free space.") from error
    finally:
        _remove(partial)


def _take_place(partial: Path, out: Path) -> None:
    if not out.is_dir():
        partial.replace(out)
        return
    # No folder can be put in the place of another in one step.
    old = partial.with_suffix(".old")
    out.rename(old)
    partial.rename(out)
    _remove(old)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write_json_lines(records: Iterable[Record], path: Path, *, compressed: bool) -> None:
    with gzip.open(path, "wb", compresslevel=6) if compressed else path.open("wb") as file:
        for record in records:
            file.write(orjson.dumps(_in_json(record), option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE))
            del record  # nobody holds it while the next one is read


def _in_json(record: Record) -> Record:
    """Logprobs as doubles, so that any reader of JSON has the very same numbers; minus infinity becomes null."""
    calls = [
        {**c, "choices": [{**choice, "logprobs": choice["logprobs"].astype(np.float64)} for choice in c["choices"]]}
        for c in record["calls"]
    ]
    return {**record, "calls": calls}


def _raw(path: Path) -> Iterator[tuple[str, Any]]:
    """(`line` or `row`, what stands there), whatever it is."""
    if path.is_dir():
        files = sorted(path.glob("data/*.parquet"))
        if not files:
            raise ValueError("the folder holds no data/*.parquet")
        rows = itertools.chain.from_iterable(map(portable_parquet.read_file, files))
        return (("row", row) for row in rows)
    with path.open("rb") as file:
        start = file.read(4)
    if start == b"PAR1":
        return (("row", row) for row in portable_parquet.read_file(path))
    return (("line", line) for line in _lines(path, gzip.open if start.startswith(b"\x1f\x8b") else open))


def _lines(path: Path, opened: Callable[..., Any]) -> Iterator[bytes]:
    with opened(path, "rb") as file:
        yield from file
