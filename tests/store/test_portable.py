"""What is exported is imported again as it was, in every format and on both databases, whole or not at all."""

import gzip
import itertools
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sqlalchemy import event, text
from typer.testing import CliRunner

from mosaic.capture import CallStatus, CapturedCall
from mosaic.errors import MosaicError, StoreError
from mosaic.records import LogprobArray, TrajectoryState
from mosaic.store import Store, portable_files, portable_parquet, portable_rows
from mosaic.store.portable import LAYOUT, Field, Record, prompt_ids
from mosaic.store.portable_files import FileFormat
from mosaic.transfer_commands import export_, import_
from tests.lineage.test_lineage import compaction, linear, spawns
from tests.playbook import Recording, assistant, choice, system, user

OUTPUTS = {"x.jsonl": FileFormat.JSONL, "x.jsonl.gz": FileFormat.JSONL, "x.parquet": FileFormat.PARQUET, "x": "hf"}


def odd(recording: Recording) -> list[CapturedCall]:
    """Two choices, a logprob of minus infinity, large tools, headers, a swap in the stream, a failure without reply."""
    replies = assistant("one"), assistant("two")
    first = choice(replies[0], [5, 6, 7])
    several = replace(first, logprobs_T=np.asarray([-np.inf, -0.1, -0.0], np.float32), arrivals=((1, 1.0), (3, 4e9)))
    asked = [system("s" * 10), user("question")]
    tools = [{"type": "function", "function": {"name": f"tool_{n}", "description": "d" * 50}} for n in range(20)]
    call = recording.call(asked, replies[0])
    call = replace(
        call,
        choices=(several, choice(replies[1], [8], index=1)),
        params={"model": "policy", "tools": tools},
        headers={"x-session": "é\ud800"},
    )
    again = [*asked, replies[1], user("and?")]
    grown = np.concatenate([call.prompt_ids_P, [8, 300, 301]]).astype(np.int32)
    more = replace(recording.call(again, assistant("three")), params=call.params, prompt_ids_P=grown)
    lost = recording.call([user("nobody answers")], assistant("?"))
    failed = replace(lost, choices=(), status=CallStatus.FAILED, error="gone\0", http_status=502, inexact_reason="none")
    return [call, more, failed]


MAKERS: list[Callable[[Recording], list[CapturedCall]]] = [
    linear,
    compaction,
    lambda recording: spawns(recording, ("capital of the first", "capital of the second")),
    odd,
]


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    yield opened
    opened.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    """A second, empty store; always SQLite, so that trajectories also move between the two kinds."""
    opened = Store(f"sqlite:///{tmp_path}/other.db")
    yield opened
    opened.close()


def fill(store: Store) -> None:
    """Trajectories of every shape, some rewarded, one trained."""
    version = store.new_version("/checkpoint", None)
    store.version_live(version)
    for number, make in enumerate(MAKERS):
        store.record(make(Recording(f"run-{number}")))
        store.reward(f"run-{number}", 0.1 + number, "test", note="first")
        store.reward(f"run-{number}", 1.0 / 3 + number, "test")
    session = store.trajectory("run-2").sessions[1].session_id
    store.reward("run-2", 0.5, "judge", session_id=session)
    store.record(linear(Recording(None, "passive")))
    job = store.start_job({"a": 1})
    store.finish_training(job, version, {"run-0": 1.0 / 3}, {"s-c1-run-0": -0.7}, {})
    store.end(store.trajectories(1, like="tr-%")[0].trajectory_id, TrajectoryState.TRUNCATED, "test")


def all_records(store: Store) -> dict[str, Any]:
    """Every record by its id, comparable."""
    return {r["trajectory_id"]: comparable(r) for r in portable_rows.records(store.database)}


def comparable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    return [comparable(one) for one in value] if isinstance(value, list | tuple) else value


def export(store: Store, out: Path, form: str = "jsonl", **options: bool) -> int:
    return portable_files.write(portable_rows.records(store.database), out, FileFormat(form), **options)


def bring_in(store: Store, path: Path) -> list[bool]:
    done = []
    for _, record in portable_files.read(path):
        with store.database.writing() as connection:
            done.append(portable_rows.insert(connection, record))
    return done


def groups(store: Store) -> Any:
    """What training sees, in an order that does not depend on ties."""
    found = store.groups(store.waiting())
    return {
        group.task_key: comparable(sorted(map(asdict, group.trajectories), key=lambda t: str(t["trajectory_id"])))
        for group in found
    }


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


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.floats(-1e300, 1e300)), min_size=1, max_size=3))
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


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """One record of a compaction."""
    opened = Store(f"sqlite:///{tmp_path_factory.mktemp('example')}/mosaic.db")
    opened.record(compaction(Recording("run-1")))
    opened.reward("run-1", 1.0, "test")
    (record,) = portable_rows.records(opened.database)
    opened.close()
    return record


@settings(max_examples=60, deadline=None)
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


def with_logprobs(record: Record, logprobs: LogprobArray) -> list[Record]:
    first, *rest = record["calls"]
    return [{**first, "choices": [{**first["choices"][0], "logprobs": logprobs}]}, *rest]


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


def test_an_export_of_nothing_is_complete(store: Store, other: Store, tmp_path: Path) -> None:
    for name, form in OUTPUTS.items():
        assert export(store, tmp_path / name, form) == 0
        assert bring_in(other, tmp_path / name) == []


# memory


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


# whole or not at all


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


# what is refused


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
    assert "1 trajectories before it are imported" in message
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


def three_lines(folder: Path) -> list[bytes]:
    source = Store(f"sqlite:///{folder}/three.db")
    for number in range(3):
        source.record([replace(c, started_at=c.started_at + number) for c in linear(Recording(f"run-{number}"))])
    export(source, folder / "three.jsonl")
    source.close()
    return (folder / "three.jsonl").read_bytes().splitlines(keepends=True)


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


# commands

app = typer.Typer()
app.command("export")(export_)
app.command("import")(import_)


def run(store: Store, *arguments: str) -> Any:
    url = store.engine.url.render_as_string(hide_password=False)
    return CliRunner().invoke(app, [*arguments, "--database", url])


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


# docs


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
