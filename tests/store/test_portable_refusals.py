"""Broken records and files are refused by their line; those before it stay."""

import gzip
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson
import pytest

from mosaic.errors import MosaicError
from mosaic.store import Store, portable_files
from mosaic.store.portable import Record
from tests.store.portable_builders import all_records, run, three_lines


def change(path: str, value: Any) -> Callable[[Record], None]:
    """Sets what stands at `path` (names and numbers parted by dots); `...` removes it."""

    def changed(record: Record) -> None:
        *way, last = [int(part) if part.isdigit() else part for part in path.split(".")]
        at: Any = record
        for part in way:
            at = at[part]
        if value is ...:
            del at[last]
        else:
            at[last] = value

    return changed


BROKEN = {
    "another version": (change("format", "mosaic-trajectory-2"), "mosaic-trajectory-1"),
    "no version": (change("format", ...), "mosaic-trajectory-1"),
    "a missing field": (change("calls.0.wire", ...), r"calls\[0\].wire is missing"),
    "an unknown field": (change("calls.0.colour", "red"), "colour is no field"),
    "no list": (change("calls", {}), "calls is no list"),
    "no object": (change("sessions.0", 3), r"sessions\[0\]"),
    "a number for text": (change("attribution", 3), "attribution: text"),
    "text for a number": (change("created_at", "now"), "created_at"),
    "a number that is too large": (change("calls.0.http_status", 2**40), "32 bits"),
    "a number for a truth": (change("calls.0.exact", 1), "exact"),
    "an unknown state": (change("state", "asleep"), "asleep"),
    "an unknown kind": (change("sessions.0.kind", "twig"), "twig"),
    "no JSON": (change("sessions.0.link.evidence", "{"), "evidence"),
    "ids that are no ids": (change("calls.0.choices.0.sampled", [1.5]), "token ids"),
    "ids that are too large": (change("calls.0.choices.0.sampled", [2**31]), "token ids"),
    "ids within ids": (change("calls.0.choices.0.sampled", [[1]]), "token ids"),
    "logprobs that are text": (change("calls.0.choices.0.logprobs", ["-0.5"]), "numbers"),
    "a message that was edited": (change("messages.1.body", '{"role":"user"}'), r"messages\[1\].body"),
    "a message without its parent": (change("messages.1.parent_id", "f" * 32), r"messages\[1\]"),
    "a prompt that builds on nothing": (change("calls.1.choices.0.base_call_id", "nowhere"), "put together"),
    "a prompt that keeps too much": (change("calls.1.choices.0.prompt_kept", 10**6), "put together"),
    "a call of another session": (change("calls.0.session_id", "s-nowhere"), "s-nowhere"),
    "an unknown message": (change("calls.0.message_id", "f" * 32), "f" * 32),
    "a reward beyond what can be given": (change("reward", -1.1e6), "reward is beyond"),
    "a reward in its history beyond that": (change("rewards.0.value", 2e6), r"rewards\[0\].value is beyond"),
    "two calls of one id": (lambda record: record["calls"].append(record["calls"][0]), "refused"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_record_is_refused_by_its_line_and_those_before_it_stay(
    other: Store, tmp_path: Path, broken: str
) -> None:
    breaks, said = BROKEN[broken]
    lines = three_lines(tmp_path)
    record = orjson.loads(lines[1])
    breaks(record)
    path = tmp_path / "x.jsonl"
    path.write_bytes(lines[0] + orjson.dumps(record) + b"\n" + lines[2])
    result = run(other, "import", str(path))
    assert isinstance(result.exception, MosaicError)
    message = str(result.exception)
    assert f"{path}, line 2," in message
    assert "1 trajectory before it stay" in message
    with pytest.raises(MosaicError, match=said):
        raise result.exception
    assert list(all_records(other)) == ["run-0"]


def test_a_line_that_is_cut_or_no_json_is_refused(tmp_path: Path) -> None:
    lines = three_lines(tmp_path)
    path = tmp_path / "x.jsonl"
    for cut in (lines[1][:-20], b"\xff\xfe\n", b'{"text": "\xed\xa0\x80"}\n', b"[]\n", b"NaN\n"):
        path.write_bytes(lines[0] + cut)
        with pytest.raises(MosaicError, match="line 2, cannot be read"):
            list(portable_files.read(path))
    whole = gzip.compress(b"".join(lines))
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(MosaicError, match="cannot be read: Compressed file ended"):
        list(portable_files.read(path))


def test_a_parquet_file_of_something_else_is_refused(tmp_path: Path) -> None:
    arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    parquet.write_table(arrow.table({"prompt": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(MosaicError, match=r"row 1, .*mosaic-trajectory-1"):
        list(portable_files.read(tmp_path / "x.parquet"))
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and nothing more")
    for missing in (tmp_path / "x.parquet", tmp_path / "nowhere", tmp_path):
        with pytest.raises(MosaicError, match="cannot be read"):
            list(portable_files.read(missing))
