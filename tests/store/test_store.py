"""What goes into the store comes out again, exactly, also after a restart; rewards, groups, versions."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sqlalchemy import text

from mosaic.capture import CapturedCall
from mosaic.errors import StoreError
from mosaic.records import IdArray, LogprobArray, SessionKind, TrajectoryState
from mosaic.store import Store
from mosaic.store.codec import common_prefix, pack, unpack_ids, unpack_logprobs
from mosaic.store.reading import read_placed
from mosaic.store.versions import Timeline
from tests.lineage.test_lineage import compaction, linear, spawns
from tests.playbook import Recording, assistant, choice, user


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    yield opened
    opened.close()


def check_kept(store: Store, calls: list[CapturedCall], trajectory_id: str = "run-1") -> None:
    """Every call is there with its prompt, samples and messages."""
    kept = {c.call_id: c for s in store.trajectory(trajectory_id).sessions for c in s.calls}
    assert len(kept) == len(calls)
    for call in calls:
        found = kept[call.call_id]
        assert found.prompt_ids_P.tolist() == call.prompt_ids_P.tolist()
        assert found.messages == call.messages
        for sample, sent in zip(found.samples, call.choices, strict=True):
            assert sample.ids_T.tolist() == sent.ids_T.tolist()
            assert sample.logprobs_T.tolist() == sent.logprobs_T.tolist()
            assert sample.message == sent.message


@pytest.mark.parametrize("make", [linear, compaction])
@pytest.mark.parametrize("batch", [1, 100])
def test_calls_come_back_exactly(store: Store, make: object, batch: int) -> None:
    assert callable(make)
    calls = make(Recording())
    for at in range(0, len(calls), batch):
        store.record(calls[at : at + batch])
    check_kept(store, calls)


def test_sessions_links_and_the_confirmed_summary_come_back(store: Store) -> None:
    calls = compaction(Recording())
    store.record(calls)
    root, after = store.trajectory("run-1").sessions
    assert (root.kind, after.kind) == (SessionKind.ROOT, SessionKind.COMPACTION)
    assert after.parent_session_id == root.session_id
    assert after.opened_by_call_id == root.calls[-1].call_id
    assert root.calls[-1].auxiliary is None
    assert [link["rung"] for link in store.links("run-1")] == ["none", "summary"]


def test_history_is_stored_once_however_often_it_is_repeated(store: Store) -> None:
    store.record(linear(Recording(), turns=40))
    with store.engine.connect() as connection:
        new = connection.execute(text("select max(length(prompt_new)) from tokens where base_call_id is not null"))
        assert new.scalar_one() < 800
        messages = connection.execute(text("select count(*) from messages")).scalar_one()
    assert messages == 2 + 40 + 39


@pytest.mark.parametrize("make", [linear, compaction])
@pytest.mark.parametrize("keyed", [True, False])
def test_a_store_that_restarts_after_every_call_answers_as_one_that_does_not(
    tmp_path: Path, database_url: str, make: object, keyed: bool
) -> None:
    assert callable(make)
    calls = make(Recording("run-1" if keyed else None))
    whole = Store(f"sqlite:///{tmp_path}/whole.db")
    whole.record(calls)
    name = whole.trajectories()[0].trajectory_id
    for call in calls:
        part = Store(database_url)
        part.record([call])
        part.close()
    part = Store(database_url)
    assert part.links(name) == whole.links(name)
    check_kept(part, calls, name)
    whole.close()
    part.close()


def test_recording_a_call_twice_changes_nothing(store: Store) -> None:
    calls = linear(Recording())
    store.record(calls)
    assert store.record(calls) == []
    check_kept(store, calls)


def test_a_failed_batch_leaves_nothing_behind_and_can_be_sent_again(store: Store) -> None:
    calls = linear(Recording())
    broken = replace(calls[1], ended_at=None)  # type: ignore[arg-type]
    with pytest.raises((StoreError, TypeError)):
        store.record([calls[0], broken])
    assert store.trajectories() == []
    store.record(calls)
    check_kept(store, calls)


def test_groups_hold_what_is_scored_and_not_yet_trained(store: Store) -> None:
    for name in ("a", "b", "c", "d"):
        store.record(spawns(Recording(name), ("capital of the first", "capital of the second")))
    for name in ("a", "b", "c"):
        store.reward(name, 1.0, "test")
    store.end("c", TrajectoryState.FAILED, "timeout")
    (group,) = store.groups(store.waiting())
    assert {t.trajectory_id for t in group.trajectories} == {"a", "b"}
    job = store.start_job({})
    version = store.new_version("/checkpoint", job)
    store.version_live(version)
    store.finish_training(job, version, {"a": 1.0, "b": 1.0}, {}, {})
    store.end_job(job)
    assert store.waiting().groups == {}
    assert store.policy() == (1, "/checkpoint")


def test_a_calls_version_is_the_one_that_was_live_when_its_tokens_came(store: Store) -> None:
    version = store.new_version("/checkpoint", None)
    store.version_live(version)
    before, after = linear(Recording(), 2)
    later = 4e9
    store.record([before, replace(after, started_at=later, ended_at=later + 1)])
    versions = [c.policy_version for s in store.trajectory("run-1").sessions for c in s.calls]
    assert versions == [0, version]


def test_a_swap_inside_a_stream_parts_its_tokens() -> None:
    timeline = Timeline((10.0, 20.0), (1, 2))
    call = linear(Recording(), 1)[0]
    arrivals = [(2, 9.0), (5, 9.9), (6, 10.5), (9, 25.0)]
    assert timeline.spans(arrivals, 9, call) == [(0, 0, 5), (1, 5, 6), (2, 6, 9)]
    spanning = replace(call, started_at=9.0, ended_at=11.0)
    assert timeline.spans([], 9, spanning) == [(0, 0, 9), (1, 0, 9)]


IMAGE = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgo" * 300_000}}]


@pytest.mark.parametrize(
    "nasty",
    ["nul \0 inside", "\ud800 alone", "x" * 20_000_000, "💥é", "\ufffe\uffff", "'; drop table calls; --", IMAGE],
    ids=["nul", "surrogate", "20 MB", "emoji", "noncharacters", "sql", "image"],
)
def test_texts_that_databases_hate_come_back(store: Store, nasty: Any) -> None:
    """Wherever they stand: in messages, parameters, names, headers, errors, notes."""
    text = nasty if isinstance(nasty, str) else "image"
    short = text[:1000]
    reply = {**assistant(text), "tool_calls": [{"id": short, "function": {"name": short, "arguments": short}}]}
    call = Recording().call(
        [{"role": short, "content": nasty, short: short}, user(text)],
        reply,
        choices=(replace(choice(reply, [1, 2]), finish_reason=short),),
        params={"model": short, "stop": [short], short: nasty},
        client=short,
        error=short,
        headers={"x-session": short},
        inexact_reason=short,
        task_key=short,
    )
    store.record([call])
    check_kept(store, [call])
    store.reward("run-1", 1.0, short, short)
    store.count(short, short)
    store.end("run-1", TrajectoryState.FAILED, short)
    with store.database.reading() as connection:
        ((kept, _),) = read_placed(connection)
    assert (kept.params, kept.headers) == (call.params, call.headers)


def test_parameters_are_kept_small_ones_with_the_call_and_large_ones_once(store: Store) -> None:
    tools = [{"type": "function", "function": {"name": "look", "description": "x" * 2000}}]
    recording, calls = Recording(), list[CapturedCall]()
    for number in range(5):
        params = {"model": "policy", "tools": tools, "seed": number, "stop": ["a"], "metadata": {}}
        calls.append(recording.call([user(f"task {number}")], assistant("done"), params=params))
    store.record(calls)
    with store.database.reading() as connection:
        assert [call.params for call, _ in read_placed(connection)] == [call.params for call in calls]
        assert connection.execute(text("select count(*) from params")).scalar_one() == 1
        assert connection.execute(text("select max(length(params)) from calls")).scalar_one() < 200


def test_an_unusable_database_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file.db").write_bytes(b"this is no database, not at all, whatever its name says" * 100)
    with pytest.raises(StoreError, match="Check that"):
        Store(f"sqlite:///{tmp_path}/file.db")
    with pytest.raises(StoreError, match="sqlite:///"):
        Store("nonsense")


@given(arrays(np.int32, st.integers(0, 300)), arrays(np.float32, st.integers(0, 300)))
def test_arrays_survive_packing(ids: IdArray, logprobs: LogprobArray) -> None:
    assert unpack_ids(pack(ids)).tobytes() == ids.tobytes()
    assert unpack_logprobs(pack(logprobs)).tobytes() == logprobs.tobytes()


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_the_common_prefix_is_the_longest(a: list[int], b: list[int]) -> None:
    n = common_prefix(np.asarray(a, np.int32), np.asarray(b, np.int32))
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]
