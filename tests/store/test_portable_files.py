"""Files of exports: complete or not there, one trajectory in memory at a time, and what `datasets` makes of them."""

import itertools
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import event

from mosaic.errors import MosaicError
from mosaic.store import Store, portable_files, portable_parquet, portable_rows
from mosaic.store.portable import Record, prompt_ids
from mosaic.store.portable_files import FileFormat
from tests.lineage.test_lineage import linear
from tests.playbook import Recording
from tests.store.portable_builders import OUTPUTS, export, fill, with_logprobs


def test_datasets_loads_the_folder_with_the_right_types(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(portable_parquet, "ROW_GROUP_BYTES", 1)
    monkeypatch.setattr(portable_parquet, "SHARD_BYTES", 1)
    fill(store)
    export(store, tmp_path / "x", "hf")
    assert len(list((tmp_path / "x/data").glob("train-0000?-of-00005.parquet"))) == 5
    from datasets import load_dataset

    dataset = load_dataset(str(tmp_path / "x"), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(dataset) == 5
    assert dataset.features.arrow_schema.remove_metadata() == portable_parquet.schema()
    rows = {row["trajectory_id"]: row for row in dataset}
    kept = {c.call_id: c for s in store.trajectory("run-3").sessions for c in s.calls}
    for call_id, ids in prompt_ids(rows["run-3"]).items():
        assert ids.tolist() == kept[call_id].prompt_ids_P.tolist()
    first = rows["run-3"]["calls"][0]["choices"][0]["logprobs"]
    assert np.asarray(first, np.float32).tobytes() == kept["c1-run-3"].samples[0].logprobs_T.tobytes()


@pytest.mark.parametrize("form", FileFormat)
def test_an_export_holds_one_trajectory_at_a_time(
    example: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: FileFormat
) -> None:
    monkeypatch.setattr(portable_parquet, "ROW_GROUP_BYTES", 1)
    arrays_made: list[weakref.ref[Any]] = []
    most = 0

    def made() -> Iterator[Record]:
        nonlocal most
        for number in range(200):
            most = max(most, sum(array() is not None for array in arrays_made))
            array = np.zeros(3, np.float32)
            arrays_made.append(weakref.ref(array))
            record = {**example, "trajectory_id": f"run-{number}", "calls": with_logprobs(example, array)}
            del array
            yield record
            del record

    assert portable_files.write(made(), tmp_path / "x", form) == 200
    assert most == 0  # whenever one is made, none is held
    assert len(list(itertools.islice(portable_files.read(tmp_path / "x"), 3))) == 3


def test_records_are_read_from_the_database_one_at_a_time(other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable_rows, "PAGE", 3)
    for number in range(7):
        other.record(linear(Recording(f"run-{number}"), turns=1))
    statements: list[str] = []
    event.listen(other.engine, "before_cursor_execute", lambda *a: statements.append(a[2]))
    found = portable_rows.records(other.database)
    next(found)
    assert sum("FROM rewards" in statement for statement in statements) == 1
    assert [record["trajectory_id"] for record in found] == [f"run-{number}" for number in range(1, 7)]


@pytest.mark.parametrize("name", OUTPUTS)
def test_a_cut_export_leaves_nothing_that_looks_complete(example: Record, tmp_path: Path, name: str) -> None:
    def cut() -> Iterator[Record]:
        yield example
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        portable_files.write(cut(), tmp_path / name, FileFormat(OUTPUTS[name]))
    assert list(tmp_path.iterdir()) == []
    portable_files.write([example], tmp_path / name, FileFormat(OUTPUTS[name]))
    with pytest.raises(KeyboardInterrupt):
        portable_files.write(cut(), tmp_path / name, FileFormat(OUTPUTS[name]), force=True)
    assert len(list(portable_files.read(tmp_path / name))) == 1
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_is_there_is_replaced_only_by_force(example: Record, tmp_path: Path, name: str) -> None:
    out, form = tmp_path / name, FileFormat(OUTPUTS[name])
    portable_files.write([example], out, form)
    with pytest.raises(MosaicError, match="--force"):
        portable_files.write([], out, form)
    assert len(list(portable_files.read(out))) == 1
    portable_files.write([], out, form, force=True)
    assert list(portable_files.read(out)) == []
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_force_never_replaces_a_folder_that_no_export_wrote(example: Record, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("years of work")
    for form in FileFormat:
        with pytest.raises(MosaicError, match="folder"):
            portable_files.write([example], tmp_path / "mine", form, force=True)
    with pytest.raises(MosaicError, match="file"):
        portable_files.write([example], tmp_path / "mine/thesis.txt", FileFormat.HF, force=True)
    with pytest.raises(MosaicError, match="free space"):
        portable_files.write([example], tmp_path / "nowhere/x", FileFormat.JSONL)
    assert (tmp_path / "mine/thesis.txt").read_text() == "years of work"
