"""`mosaic export` and `mosaic import`."""

import sys
from pathlib import Path

import orjson
import pytest

from mosaic.errors import MosaicError, StoreError
from mosaic.store import Store
from tests.lineage.test_lineage import linear
from tests.playbook import Recording
from tests.store.portable_builders import all_records, fill, run, three_lines


def test_the_commands_move_what_was_asked_for(store: Store, other: Store, tmp_path: Path) -> None:
    fill(store)
    out = str(tmp_path / "x.parquet")
    result = run(store, "export", out, "--format", "parquet", "--like", "run-%", "--state", "scored", "--json")
    assert result.exit_code == 0, result.output
    assert orjson.loads(result.stdout) == {"out": out, "format": "parquet", "trajectories": 3}
    assert "3 trajectories imported, 0 were there" in run(other, "import", out).stdout
    again = run(other, "import", out, "--json")
    assert orjson.loads(again.stdout) == {"imported": 0, "skipped": 3}
    assert other.counters()["imports"] == {"imported": 3, "skipped": 3}
    assert sorted(all_records(other)) == ["run-1", "run-2", "run-3"]
    assert run(store, "export", out, "--state", "asleep").exit_code == 2
    named = str(tmp_path / "named.parquet")
    assert orjson.loads(run(store, "export", named, "--json").stdout)["format"] == "parquet"
    nowhere = run(store, "import", str(tmp_path / "nowhere"))
    assert str(nowhere.exception).startswith(f"there is no {tmp_path / 'nowhere'}. Name a file")
    refused = run(store, "export", out)
    assert isinstance(refused.exception, MosaicError)
    assert "--force" in str(refused.exception)
    both = run(store, "export", out, "--state", "trained", "--state", "truncated", "--force")
    assert "2 trajectories" in both.stdout


def test_without_pyarrow_parquet_is_one_clear_error(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for form in ("parquet", "hf"):
        result = run(store, "export", str(tmp_path / "x"), "--format", form)
        assert isinstance(result.exception, MosaicError)
        assert "pip install pyarrow" in str(result.exception)
    assert run(store, "export", str(tmp_path / "x")).exit_code == 0


def test_a_database_that_refuses_names_the_trajectory(store: Store, tmp_path: Path) -> None:
    lines = three_lines(tmp_path)
    store.record(linear(Recording("run-0")))
    clash = lines[0].replace(b'"trajectory_id":"run-0"', b'"trajectory_id":"run-9"')
    (tmp_path / "x.jsonl").write_bytes(clash)
    result = run(store, "import", str(tmp_path / "x.jsonl"))
    assert isinstance(result.exception, StoreError)
    assert "line 1, trajectory 'run-9': the database refused" in str(result.exception)
    assert list(all_records(store)) == ["run-0"]
