"""What goes into the store comes out again, exactly, also after a restart; rewards, groups, versions."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sqlalchemy import text

from mosaic.capture import CapturedCall, from_json, to_json
from mosaic.errors import RequestError, StoreError
from mosaic.records import IdArray, LogprobArray, SessionKind, TrajectoryState
from mosaic.store import Store
from mosaic.store.codec import common_prefix, pack, unpack_ids, unpack_logprobs
from mosaic.store.versions import Timeline
from tests.lineage.test_lineage import compaction, linear, spawns
from tests.playbook import Recording, assistant, choice, user


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path}/mosaic.db")
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
        assert new.scalar_one() < 120
        messages = connection.execute(text("select count(*) from messages")).scalar_one()
    assert messages == 2 + 40 + 39


@pytest.mark.parametrize("make", [linear, compaction])
@pytest.mark.parametrize("keyed", [True, False])
def test_a_store_that_restarts_after_every_call_answers_as_one_that_does_not(
    tmp_path: Path, make: object, keyed: bool
) -> None:
    assert callable(make)
    calls = make(Recording("run-1" if keyed else None))
    whole = Store(f"sqlite:///{tmp_path}/whole.db")
    whole.record(calls)
    name = whole.trajectories()[0].trajectory_id
    for call in calls:
        part = Store(f"sqlite:///{tmp_path}/part.db")
        part.record([call])
        part.close()
    part = Store(f"sqlite:///{tmp_path}/part.db")
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


def test_rewards_append_and_the_last_one_is_in_force(store: Store) -> None:
    store.record(linear(Recording()))
    store.reward("run-1", 0.0, "first")
    store.reward("run-1", 1.0, "second")
    assert (store.trajectory("run-1").reward, store.trajectory("run-1").state) == (1.0, TrajectoryState.SCORED)
    with store.engine.connect() as connection:
        kept = connection.execute(text("select value, source from rewards order by reward_id")).all()
    assert [tuple(r) for r in kept] == [(0.0, "first"), (1.0, "second")]
    store.reward("run-1", None, "third")
    assert store.trajectory("run-1").state is TrajectoryState.UNSCORABLE


def test_a_reward_for_an_unknown_trajectory_is_refused_with_the_next_step(store: Store) -> None:
    with pytest.raises(RequestError, match="mosaic trajectories") as caught:
        store.reward("nowhere", 1.0, "test")
    assert caught.value.status == 404


def test_groups_hold_what_is_scored_and_not_yet_trained(store: Store) -> None:
    for name in ("a", "b", "c", "d"):
        store.record(spawns(Recording(name), ("capital of the first", "capital of the second")))
    for name in ("a", "b", "c"):
        store.reward(name, 1.0, "test")
    store.fail("c", "timeout")
    (group,) = store.untrained_groups()
    assert {t.trajectory_id for t in group.trajectories} == {"a", "b"}
    job = store.start_job({})
    version = store.new_version("/checkpoint", job)
    store.version_live(version)
    store.finish_training(job, version, ["a", "b"], {})
    store.end_job(job)
    assert store.untrained_groups() == []
    assert store.policy() == (1, "/checkpoint")
    store.reward("a", 0.0, "late")
    assert store.untrained_groups() == []
    assert store.counters()["late_rewards"] == {"after_training": 1}


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


@pytest.mark.parametrize("nasty", ["nul \0 inside", "\ud800 alone", "x" * 1_000_000, "💥é"])
def test_texts_that_databases_hate_come_back(store: Store, nasty: str) -> None:
    reply = assistant(nasty)
    call = replace(Recording().call([user(nasty)], reply), choices=(choice(reply, [1, 2]),))
    store.record([call])
    check_kept(store, [call])


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


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 6), st.integers(1, 3))
def test_a_spooled_call_is_read_back_as_it_was(turns: int, copies: int) -> None:
    for call in linear(Recording(), turns) * copies:
        assert to_json(from_json(to_json(call))) == to_json(call)
