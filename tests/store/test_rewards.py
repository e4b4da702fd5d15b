"""Rewards are append-only; late and corrected ones re-open a trajectory within the window; states follow."""

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from sqlalchemy import text

from mosaic.errors import RequestError
from mosaic.records import MAX_REWARD, TrajectoryState
from mosaic.store import Store
from mosaic.store.rewards import RewardOutcome
from tests.lineage.test_lineage import linear
from tests.playbook import Recording, assistant, user

WINDOW_S = 100.0


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url, WINDOW_S)
    opened.record(linear(Recording()))
    yield opened
    opened.close()


def state(store: Store) -> TrajectoryState:
    return store.trajectory("run-1").state


def train(store: Store, reward: float = 1.0) -> int:
    """A job that trains run-1 with this reward."""
    job = store.start_job({})
    version = store.new_version("/checkpoint", job)
    store.version_live(version)
    (session,) = store.trajectory("run-1").sessions
    store.finish_training(job, version, {"run-1": reward}, {session.session_id: 0.5}, {})
    store.end_job(job)
    return version


def trained_at(store: Store) -> float:
    with store.engine.connect() as connection:
        return float(connection.execute(text("select state_at from trajectories")).scalar_one())


def test_rewards_append_and_the_last_one_is_in_force(store: Store) -> None:
    store.reward("run-1", 0.0, "first")
    store.reward("run-1", 1.0, "second", "a note")
    assert (store.trajectory("run-1").reward, state(store)) == (1.0, TrajectoryState.SCORED)
    with store.engine.connect() as connection:
        kept = connection.execute(text("select value, source, note from rewards order by reward_id")).all()
    assert [tuple(r) for r in kept] == [(0.0, "first", None), (1.0, "second", "a note")]
    assert store.reward("run-1", None, "third").state is TrajectoryState.UNSCORABLE


@pytest.mark.parametrize("value", [MAX_REWARD, -MAX_REWARD])
def test_the_largest_rewards_are_kept_as_they_are(store: Store, value: float) -> None:
    store.reward("run-1", value, "test")
    assert store.trajectory("run-1").reward == value


def test_a_reward_in_an_open_or_scored_trajectory_counts_however_late_it_is(store: Store) -> None:
    assert store.reward("run-1", 1.0, "late", now=4e9).in_force
    assert store.reward("run-1", 0.0, "later", now=5e9).in_force
    assert store.trajectory("run-1").reward == 0.0


@pytest.mark.parametrize("settled", ["trained", "failed", "truncated", "unscorable"])
def test_a_settled_trajectory_is_re_opened_within_the_window_and_not_after(store: Store, settled: str) -> None:
    store.reward("run-1", 1.0, "test")
    if settled == "trained":
        train(store)
    elif settled == "unscorable":
        store.reward("run-1", None, "test")
    else:
        store.end("run-1", TrajectoryState(settled), "test")
    then = trained_at(store)
    before = store.trajectory("run-1").reward
    late = store.reward("run-1", 0.25, "late", now=then + WINDOW_S + 1)
    assert late == RewardOutcome("run-1", TrajectoryState(settled), in_force=False, reopened=False)
    assert store.trajectory("run-1").reward == before
    corrected = store.reward("run-1", 0.5, "corrected", now=then + WINDOW_S - 1)
    assert corrected == RewardOutcome("run-1", TrajectoryState.SCORED, in_force=True, reopened=True)
    assert store.waiting().groups == {store.trajectory("run-1").task_key: ["run-1"]}
    assert store.counters()["late_rewards"] == {f"after_window_{settled}": 1, f"reopened_{settled}": 1}
    with store.engine.connect() as connection:
        kept = connection.execute(text("select value from rewards where not in_force")).scalars().all()
    assert kept == [0.25]


def test_a_reward_that_came_while_a_job_trained_with_another_is_not_lost(store: Store) -> None:
    store.reward("run-1", 1.0, "test")
    used = store.trajectory("run-1").reward
    assert used == 1.0
    store.reward("run-1", 0.0, "corrected while the job runs")
    train(store, used)
    assert state(store) is TrajectoryState.SCORED
    assert store.counters()["late_rewards"] == {"while_training": 1}
    train(store, 0.0)
    assert state(store) is TrajectoryState.TRAINED


def test_a_session_can_be_judged_without_scoring_the_trajectory(store: Store) -> None:
    (session,) = store.trajectory("run-1").sessions
    outcome = store.reward("run-1", 0.5, "judge", session_id=session.session_id)
    assert (outcome.in_force, state(store)) == (True, TrajectoryState.OPEN)
    with pytest.raises(RequestError, match="no session"):
        store.reward("run-1", 0.5, "judge", session_id="s-elsewhere")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e300, -1_000_001.0])
def test_a_reward_that_is_no_number_or_too_large_is_refused_and_nothing_is_kept(store: Store, value: float) -> None:
    with pytest.raises(RequestError, match="finite"):
        store.reward("run-1", value, "test")
    with store.engine.connect() as connection:
        assert connection.execute(text("select count(*) from rewards")).scalar_one() == 0


def test_a_reward_for_an_unknown_trajectory_is_refused_with_the_next_step(store: Store) -> None:
    with pytest.raises(RequestError, match="mosaic trajectories") as caught:
        store.reward("nowhere", 1.0, "test")
    assert caught.value.status == 404


def test_endings_do_not_undo_what_was_scored_or_trained(store: Store) -> None:
    assert store.end("run-1", TrajectoryState.CLOSED, "done") is TrajectoryState.CLOSED
    store.reward("run-1", 1.0, "test")
    assert store.end("run-1", TrajectoryState.CLOSED, "done") is TrajectoryState.SCORED
    train(store)
    assert store.end("run-1", TrajectoryState.FAILED, "too late") is TrajectoryState.TRAINED
    with pytest.raises(RequestError, match="Use one of"):
        store.end("run-1", TrajectoryState.TRAINED, "no")
    with pytest.raises(RequestError, match="no trajectory"):
        store.end("nowhere", TrajectoryState.CLOSED, "no")


def test_a_truncated_or_failed_trajectory_is_not_trained(store: Store) -> None:
    store.reward("run-1", 0.0, "test")
    store.end("run-1", TrajectoryState.TRUNCATED, "time limit")
    assert store.waiting().groups == {}
    assert store.counters()["truncated_trajectories"] == {"time limit": 1}


def test_a_trajectory_that_lineage_found_is_closed_sooner_once_all_its_agents_have_answered(store: Store) -> None:
    passive = Recording(None, "passive")
    waits = passive.call([user("a")], assistant(None, ("id-1", "look", "{}")), "look", call_id="waits")
    answers = passive.call([user("b")], assistant("yes"), call_id="answers")
    now = time.time()
    store.record([replace(c, started_at=now - 100, ended_at=now - 90) for c in (waits, answers)])
    assert store.close_silent(1000, answered_s=60) == 2  # and run-1, silent for years
    found = {t.trajectory_id: t.state for t in store.trajectories(like="tr-%")}
    assert found == {"tr-waits": "open", "tr-answers": "closed"}


def test_a_task_is_named_by_its_key_and_a_long_one_by_its_digest(store: Store) -> None:
    assert store.name_task("run-1", "swe-17", "Fix it.") == "swe-17"
    assert store.name_task("run-1", "x" * 300) == store.name_task("run-1", "x" * 300) != "x" * 200
    assert len(store.trajectory("run-1").task_key) == 16
    with pytest.raises(RequestError, match="no trajectory"):
        store.name_task("nobody", "swe-17")


def test_a_silent_trajectory_is_closed_and_a_call_opens_it_again(store: Store) -> None:
    assert store.close_silent(60) == 1
    assert state(store) is TrajectoryState.CLOSED
    assert store.close_silent(60) == 0
    store.record([Recording().call([user("more")], assistant("yes"), call_id="later")])
    assert state(store) is TrajectoryState.OPEN


def test_a_job_takes_whole_groups_the_newest_first_and_counts_what_waits(store: Store) -> None:
    for task in range(4):
        for attempt in range(3):
            name = f"t{task}-{attempt}"
            recording = Recording(name)
            started = 10.0 + 10 * task + attempt
            store.record([recording.call([user(f"task {task}")], assistant("yes"), started_at=started)])
            store.reward(name, 1.0, "test")
    waiting = store.waiting("t%", limit=7)
    assert [list(ids) for ids in waiting.groups.values()] == [
        [f"t{task}-{attempt}" for attempt in range(3)] for task in (2, 3)
    ]
    assert waiting.left_out == {"trajectory_over_limit": 6}
    assert [len(group.trajectories) for group in store.groups(waiting)] == [3, 3]
    assert len(store.waiting("t%", limit=2).groups) == 1
