"""What is exported is imported again as it was, in every format and on both databases."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sqlalchemy import text

from mosaic.errors import MosaicError
from mosaic.records import LogprobArray
from mosaic.store import Store, portable_files, portable_rows
from mosaic.store.portable import LAYOUT, Field, Record, prompt_ids
from mosaic.store.portable_files import FileFormat
from tests.lineage.test_lineage import linear
from tests.playbook import Recording, assistant, choice, user
from tests.store.portable_builders import (
    MAKERS,
    OUTPUTS,
    all_records,
    bring_in,
    comparable,
    export,
    fill,
    groups,
    three_lines,
    with_logprobs,
)


@pytest.mark.parametrize("name", OUTPUTS)
def test_what_was_exported_comes_back_equal_and_trains_equal(
    store: Store, other: Store, tmp_path: Path, name: str
) -> None:
    fill(store)
    assert export(store, tmp_path / name, OUTPUTS[name]) == 5
    assert bring_in(other, tmp_path / name) == [True] * 5
    assert all_records(other) == all_records(store)
    assert groups(other) == groups(store)
    assert groups(store)


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_other_way_too(store: Store, other: Store, tmp_path: Path, name: str) -> None:
    fill(other)
    export(other, tmp_path / name, OUTPUTS[name])
    bring_in(store, tmp_path / name)
    assert all_records(store) == all_records(other)
    assert groups(store) == groups(other)
    assert [link["evidence"] for link in store.links("run-1")] == [link["evidence"] for link in other.links("run-1")]


def test_recording_goes_on_after_an_import(store: Store, other: Store, tmp_path: Path) -> None:
    first, second, *rest = linear(Recording("run-1"))
    other.record([first, second])
    export(other, tmp_path / "x.jsonl")
    bring_in(store, tmp_path / "x.jsonl")
    store.record(rest)
    (session,) = store.trajectory("run-1").sessions
    assert len(session.calls) == 2 + len(rest)


def test_calls_come_back_in_the_order_in_which_they_ended(store: Store, other: Store, tmp_path: Path) -> None:
    fill(other)
    store.record(linear(Recording("there before")))
    export(other, tmp_path / "x.jsonl")
    bring_in(store, tmp_path / "x.jsonl")
    query = text("select call_id from calls where trajectory_id = 'run-1' order by seq")
    with store.engine.connect() as new, other.engine.connect() as old:
        assert new.execute(query).all() == old.execute(query).all()


@pytest.mark.parametrize("name", OUTPUTS)
def test_importing_twice_changes_nothing(store: Store, other: Store, tmp_path: Path, name: str) -> None:
    fill(other)
    export(other, tmp_path / name, OUTPUTS[name])
    assert all(bring_in(store, tmp_path / name))
    before = all_records(store)
    assert not any(bring_in(store, tmp_path / name))
    assert all_records(store) == before


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.floats(-1e6, 1e6)), min_size=1, max_size=3))
def test_any_playbook_comes_back(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[int, float | None]]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    one, two = Store(f"sqlite:///{folder}/one.db"), Store(f"sqlite:///{folder}/two.db")
    for number, (shape, reward) in enumerate(plan):
        one.record(MAKERS[shape](Recording(f"run-{number}")))
        one.reward(f"run-{number}", reward, "test")
    export(one, folder / "x.jsonl")
    bring_in(two, folder / "x.jsonl")
    assert all_records(two) == all_records(one)
    one.close()
    two.close()


@settings(max_examples=60)
@given(
    logprobs=arrays(np.float32, st.integers(0, 20), elements=st.floats(-np.inf, 0, width=32)),
    when=st.floats(allow_nan=False, allow_infinity=False),
    form=st.sampled_from(["jsonl", "parquet"]),
)
def test_any_logprob_and_any_time_come_back_to_the_bit(
    tmp_path_factory: pytest.TempPathFactory, example: Record, logprobs: LogprobArray, when: float, form: str
) -> None:
    path = tmp_path_factory.getbasetemp() / f"bits.{form}"
    changed = {**example, "created_at": when, "calls": with_logprobs(example, logprobs)}
    portable_files.write([changed], path, FileFormat(form), force=True)
    ((_, found),) = portable_files.read(path)
    assert comparable(found) == comparable(changed)


def test_a_logprob_that_is_rounded_twice_by_readers_of_short_numbers_comes_back(
    example: Record, tmp_path: Path
) -> None:
    # Its shortest decimal form, read as a double and then rounded to float32, is the next number.
    tricky = np.asarray([0x95AE43FD], np.uint32).view(np.float32)
    portable_files.write([{**example, "calls": with_logprobs(example, tricky)}], tmp_path / "x", FileFormat.JSONL)
    ((_, found),) = portable_files.read(tmp_path / "x")
    assert found["calls"][0]["choices"][0]["logprobs"].tobytes() == tricky.tobytes()


def test_a_logprob_beyond_float32_comes_back_as_infinite(example: Record, tmp_path: Path) -> None:
    beyond = {**example, "calls": with_logprobs(example, np.asarray([np.inf], np.float32))}
    for form in FileFormat.JSONL, FileFormat.PARQUET:
        portable_files.write([beyond], tmp_path / form.value, form)
        ((_, found),) = portable_files.read(tmp_path / form.value)
        assert not np.isfinite(found["calls"][0]["choices"][0]["logprobs"]).any()


def test_a_logprob_that_is_no_number_is_not_exported(example: Record, tmp_path: Path) -> None:
    broken = {**example, "calls": with_logprobs(example, np.asarray([np.nan], np.float32))}
    with pytest.raises(MosaicError, match=r"run-1.*NaN"):
        portable_files.write([broken], tmp_path / "x", FileFormat.PARQUET)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
@pytest.mark.parametrize("nasty", ["nul \0 inside", "\ud800 alone", "x" * 1_000_000, "💥é"])
def test_texts_that_databases_hate_come_back(store: Store, other: Store, tmp_path: Path, nasty: str, form: str) -> None:
    reply = assistant(nasty)
    call = replace(Recording().call([user(nasty)], reply), choices=(choice(reply, [1, 2]),))
    store.record([replace(call, params={"model": nasty, "stop": [nasty]}, client=nasty[:100], error=nasty)])
    export(store, tmp_path / "x", form)
    bring_in(other, tmp_path / "x")
    assert all_records(other) == all_records(store)
    (kept,) = other.trajectory("run-1").sessions[0].calls
    assert (kept.messages, kept.samples[0].message) == ((user(nasty),), reply)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_what_exact_mode_made_of_calls_is_carried_and_older_files_lack_it(
    store: Store, other: Store, tmp_path: Path, form: str
) -> None:
    fill(store)
    export(store, tmp_path / "x", form)
    found = {record["trajectory_id"]: record for _, record in portable_files.read(tmp_path / "x")}
    made = [(call["fidelity"], call["fidelity_reason"]) for call in found["run-3"]["calls"]]
    assert made == [("spliced", None), ("fell_back", "ambiguous"), (None, None)]
    line = orjson.loads(three_lines(tmp_path)[0])
    for call in line["calls"]:
        del call["fidelity"], call["fidelity_reason"]
    (tmp_path / "old.jsonl").write_bytes(orjson.dumps(line))
    assert bring_in(other, tmp_path / "old.jsonl") == [True]


@pytest.mark.parametrize("name", OUTPUTS)
def test_prompts_are_put_together_from_a_record_of_any_format(store: Store, tmp_path: Path, name: str) -> None:
    fill(store)
    export(store, tmp_path / name, OUTPUTS[name])
    for _, record in portable_files.read(tmp_path / name):
        kept = store.trajectory(record["trajectory_id"])
        wanted = {c.call_id: c.prompt_ids_P.tolist() for s in kept.sessions for c in s.calls}
        assert {call_id: ids.tolist() for call_id, ids in prompt_ids(record).items()} == wanted


def test_a_record_holds_history_once(store: Store) -> None:
    store.record(linear(Recording(), turns=40))
    (record,) = portable_rows.records(store.database)
    assert len(record["messages"]) == 2 + 40 + 39
    assert max(len(c["choices"][0]["prompt_new"]) for c in record["calls"][1:]) < 120
    large = [{"function": {"name": f"tool_{n}", "description": "d" * 50}} for n in range(20)]
    store.record([replace(c, params={"tools": large}) for c in linear(Recording("run-2"), turns=40)])
    (record,) = portable_rows.records(store.database, like="run-2")
    assert len(record["params"]) == 1


def test_an_export_of_nothing_is_complete(store: Store, other: Store, tmp_path: Path) -> None:
    for name, form in OUTPUTS.items():
        assert export(store, tmp_path / name, form) == 0
        assert bring_in(other, tmp_path / name) == []


def test_a_job_of_another_database_gets_a_row_that_says_so(store: Store, other: Store, tmp_path: Path) -> None:
    fill(other)
    export(other, tmp_path / "x.jsonl")
    bring_in(store, tmp_path / "x.jsonl")
    with store.engine.connect() as connection:
        jobs = connection.execute(text("select j.state, a.value from jobs j join advantages a using (job_id)")).all()
        views = connection.execute(text("select count(*) from v_sessions")).scalar_one()
    assert [tuple(job) for job in jobs] == [("imported", -0.7)]
    assert views == sum(len(other.trajectory(t.trajectory_id).sessions) for t in other.trajectories())
    assert store.policy() == (0, None)


def flat(layout: Any, before: str = "") -> Iterator[tuple[str, str]]:
    """(path, type) of every field, as docs/export.md writes them."""
    wanted: Field
    for name, wanted in layout.items():
        suffix = "[]" if wanted.type == "rows" else ""
        if not wanted.fields:
            yield f"`{before}{name}`", wanted.type + (" or null" if wanted.optional else "")
        yield from flat(wanted.fields, f"{before}{name}{suffix}.")


def test_the_documented_fields_are_those_of_a_record() -> None:
    page = (Path(__file__).parents[2] / "docs/export.md").read_text().partition("## Fields")[2]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| `")]
    assert [(name, kind) for name, kind, _ in rows] == list(flat(LAYOUT))
    assert all(meaning for _, _, meaning in rows)
