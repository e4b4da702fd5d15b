"""Pruning removes what is old, whole, and nothing that anything else needs, while others go on writing."""

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, text

from mosaic.capture import CapturedCall
from mosaic.errors import RequestError
from mosaic.records import TrajectoryState
from mosaic.store import Store, pruning
from mosaic.store.checking import check
from mosaic.store.models import Base
from mosaic.store.pruning import Pruned, PruneRule, prune
from tests.lineage.test_lineage import compaction, linear, spawns
from tests.playbook import Recording, assistant, system, user

OLD = PruneRule(older_than_s=3600.0)
LARGE = "x" * 500


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "PAUSE_S", 0.0)


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    yield opened
    opened.close()


def settle(store: Store, *names: str) -> None:
    for name in names:
        store.end(name, TrajectoryState.CLOSED, "over")


def names_of(store: Store) -> set[str]:
    return {t.trajectory_id for t in store.trajectories()}


def rows(store: Store) -> dict[str, int]:
    """Table -> rows, where there are any; counters do not count."""
    with store.database.reading() as connection:
        found = {name: connection.scalar(text(f"select count(*) from {name}")) for name in Base.metadata.tables}
    return {name: number for name, number in found.items() if number and name != "counters"}


def read(store: Store, name: str) -> list[Any]:
    """A trajectory as values that can be compared."""
    trajectory = store.trajectory(name)
    return [
        (s.session_id, s.kind, c.call_id, c.messages, c.prompt_ids_P.tolist(), sample)
        for s in trajectory.sessions
        for c in s.calls
        for sample in [[(x.ids_T.tolist(), x.logprobs_T.tolist(), x.message) for x in c.samples]]
    ]


def test_an_old_trajectory_goes_with_all_that_only_it_needs(store: Store) -> None:
    store.record([*compaction(Recording("old")), *spawns(Recording("odd"), ("first", "second"))])
    store.record([replace(c, params={**c.params, "tool_choice": LARGE}) for c in linear(Recording("params"))])
    store.reward("old", 1.0, "test")
    store.reward("old", 0.5, "test", session_id=store.trajectory("old").sessions[1].session_id)
    settle(store, "odd", "params")
    job = store.start_job({})
    store.finish_training(job, 1, {"old": 1.0}, {store.trajectory("old").sessions[0].session_id: 0.5}, {})
    before = rows(store)
    gone = prune(store.database, OLD)
    names = ("trajectories", "sessions", "calls", "messages", "params", "tasks")
    assert gone == Pruned(*(before[name] for name in names))
    assert rows(store) == {"jobs": 1}
    assert store.counters()["pruned"] == {"runs": 1, "trajectories": 3}


def test_nothing_to_prune_changes_nothing(store: Store) -> None:
    assert prune(store.database, OLD) == Pruned()
    assert "pruned" not in store.counters()


def test_what_is_young_or_open_or_in_another_state_stays(store: Store) -> None:
    now = 1e6
    for name in ("old", "young", "open", "failed"):
        store.record(linear(Recording(name)))
    settle(store, "old")
    store.end("failed", TrajectoryState.FAILED, "timeout")
    (late,) = linear(Recording("young"), 1)
    store.record([replace(late, call_id="late", started_at=now - 10, ended_at=now - 5)])
    settle(store, "young")
    prune(store.database, replace(OLD, states=(TrajectoryState.CLOSED,)), now=now)
    assert names_of(store) == {"young", "open", "failed"}
    prune(store.database, OLD, now=now)
    assert names_of(store) == {"young", "open"}
    prune(store.database, replace(OLD, states=(TrajectoryState.OPEN,)), now=now)
    assert names_of(store) == {"young"}
    assert check(store.database, deep=True) == []


@pytest.mark.parametrize(
    ("since", "kept"), [(None, set()), (0, {"one", "two"}), (1, {"one", "two"}), (2, {"two"}), (3, set())]
)
def test_what_a_version_was_trained_on_is_kept_if_asked(store: Store, since: int | None, kept: set[str]) -> None:
    for name in ("one", "two", "never"):
        store.record(linear(Recording(name)))
        store.reward(name, 1.0, "test")
    for version, name in ((1, "one"), (2, "two")):
        store.finish_training(store.start_job({}), version, {name: 1.0}, {}, {})
    prune(store.database, replace(OLD, keep_trained_since=since))
    assert names_of(store) == kept
    assert check(store.database, deep=True) == []


def test_a_dry_run_counts_what_the_run_removes(store: Store) -> None:
    store.record([*compaction(Recording("one")), *linear(Recording("two"))])
    settle(store, "one")
    would = prune(store.database, replace(OLD, dry_run=True))
    assert names_of(store) == {"one", "two"}
    gone = prune(store.database, OLD)
    assert (
        (would.trajectories, would.sessions, would.calls) == (gone.trajectories, gone.sessions, gone.calls) == (1, 2, 5)
    )


def test_each_batch_is_a_transaction_of_its_own_and_progress_is_told(store: Store) -> None:
    for number in range(7):
        store.record(linear(Recording(f"t{number}"), 2))
        settle(store, f"t{number}")
    told: list[tuple[int, int]] = []
    prune(store.database, replace(OLD, batch=3), lambda done, total: told.append((done, total)))
    assert told == [(3, 7), (6, 7), (7, 7)]
    assert store.counters()["pruned"] == {"runs": 3, "trajectories": 7}


def test_a_transaction_removes_few_calls_but_every_trajectory_whole(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pruning, "FIRST_CALLS", 5)
    monkeypatch.setattr(pruning, "_room", lambda *_: 5)
    for name, turns in (("a", 3), ("b", 2), ("c", 8), ("d", 1)):
        store.record(linear(Recording(name), turns))
        settle(store, name)
    told: list[int] = []
    prune(store.database, OLD, lambda done, _: told.append(done))
    assert told == [2, 3, 4]


@given(st.integers(0, 10_000), st.integers(pruning.LEAST_CALLS, 10_000), st.floats(0, 100))
def test_the_next_transaction_grows_until_it_takes_too_long(calls: int, room: int, took: float) -> None:
    new = pruning._room(calls, room, took)
    if took <= pruning.GOAL_S:
        assert room < new <= 1.5 * room
    else:
        assert pruning.LEAST_CALLS <= new <= max(calls, pruning.LEAST_CALLS)


def test_a_trajectory_that_has_a_call_after_it_was_chosen_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        store.record(linear(Recording(name), 2))
        settle(store, name)
    calls = linear(Recording("b"), 3)
    # Between the choice of the second batch and its transaction.
    monkeypatch.setattr("mosaic.store.pruning.time.sleep", lambda _: store.record(calls[2:]))
    assert prune(store.database, replace(OLD, batch=1)).trajectories == 1
    assert [row[2] for row in read(store, "b")] == [c.call_id for c in calls]


def test_a_proxy_that_remembers_pruned_rows_writes_them_again(store: Store, database_url: str) -> None:
    calls = [replace(c, params={**c.params, "tool_choice": LARGE}) for c in linear(Recording("run"))]
    store.record(calls[:3])
    other = Store(database_url)
    settle(other, "run")
    assert prune(other.database, OLD).trajectories == 1
    other.close()
    again = [replace(c, trajectory_id="next", call_id=f"n-{c.call_id}") for c in calls]
    store.record([*again, calls[3]])
    assert [row[2] for row in read(store, "next")] == [c.call_id for c in again]
    assert read(store, "run")[0][3:5] == (calls[3].messages, calls[3].prompt_ids_P.tolist())
    assert check(store.database, deep=True) == []


def test_a_pruned_trajectory_is_unknown_and_its_id_can_be_used_again(store: Store) -> None:
    calls = linear(Recording("run"), 2)
    store.record(calls)
    settle(store, "run")
    prune(store.database, OLD)
    with pytest.raises(RequestError, match="no trajectory"):
        store.trajectory("run")
    store.record(calls)
    assert len(read(store, "run")) == 2


def test_a_chain_of_thousands_of_messages_goes_in_few_statements(store: Store) -> None:
    history = [system("You look things up."), *(user(f"message {n}") for n in range(3000))]
    call = Recording("long").call(history, assistant("Done."))
    sibling = Recording("short").call(history[:10], assistant("Done."))
    store.record([replace(c, prompt_ids_P=c.prompt_ids_P[:5]) for c in (call, sibling)])
    settle(store, "long")
    statements: list[str] = []

    def keep(_c: Any, _cursor: Any, statement: str, *_: Any) -> None:
        statements.append(statement)

    event.listen(store.engine, "before_cursor_execute", keep)
    gone = prune(store.database, OLD)
    event.remove(store.engine, "before_cursor_execute", keep)
    assert gone.messages == 3002 - 10
    assert len(statements) < 30
    assert read(store, "short")[0][3] == tuple(history[:10])
    assert check(store.database, deep=True) == []


def test_proxies_write_while_old_trajectories_go(store: Store, database_url: str) -> None:
    for number in range(20):
        store.record(linear(Recording(f"old{number}"), 3))
        settle(store, f"old{number}")
    wanted = [linear(Recording(f"new{number}"), 3) for number in range(20)]

    def write() -> None:
        proxy = Store(database_url)
        for calls in wanted:
            proxy.record(calls)
        proxy.close()

    writer = threading.Thread(target=write)
    writer.start()
    assert prune(store.database, replace(OLD, batch=1)).trajectories == 20
    writer.join()
    assert names_of(store) == {f"new{number}" for number in range(20)}
    for calls in wanted:
        kept = read(store, str(calls[0].trajectory_id))
        assert [(row[3], row[4]) for row in kept] == [(c.messages, c.prompt_ids_P.tolist()) for c in calls]
    assert check(store.database, deep=True) == []


TEXTS = ("one", "two")
CONVERSATION = st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4)
ATTEMPT = st.lists(st.tuples(CONVERSATION, st.sampled_from(TEXTS)), min_size=1, max_size=4)


def attempt(name: str, spoken: Sequence[tuple[list[str], str]]) -> list[CapturedCall]:
    """Calls whose texts, large parameters and tasks are shared with those of other attempts."""
    recording = Recording(name)
    calls = [
        recording.call([user(t) if n % 2 else assistant(t) for n, t in enumerate(texts, 1)], assistant(reply))
        for texts, reply in spoken
    ]
    return [replace(c, params={"tool_choice": str(c.messages[0]["content"]) * 200}) for c in calls]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(attempts=st.lists(ATTEMPT, min_size=1, max_size=6), data=st.data())
def test_whatever_is_pruned_the_others_read_back_and_nothing_unneeded_is_left(
    store: Store, attempts: list[list[tuple[list[str], str]]], data: st.DataObject
) -> None:
    calls = {f"t{number}": attempt(f"t{number}", spoken) for number, spoken in enumerate(attempts)}
    # All is drawn before anything is written: an example that Hypothesis gives up must leave nothing to the next.
    order = data.draw(st.permutations(sorted(calls)))
    doomed = data.draw(st.sets(st.sampled_from(sorted(calls))))
    batch = data.draw(st.integers(1, 3))
    for name in order:
        store.record(calls[name])
    before = {name: read(store, name) for name in calls}
    settle(store, *doomed)
    assert prune(store.database, replace(OLD, batch=batch)).trajectories == len(doomed)
    assert names_of(store) == calls.keys() - doomed
    assert all(read(store, name) == before[name] for name in calls.keys() - doomed)
    assert check(store.database, deep=True) == []
    # The same process goes on, with what it remembers.
    for name in doomed:
        store.record(calls[name])
    assert {name: read(store, name) for name in calls} == before
    settle(store, *calls)
    prune(store.database, OLD)
    assert rows(store) == {}
