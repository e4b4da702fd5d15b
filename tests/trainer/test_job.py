"""What a job selects and what it leaves out; the training itself is tested in tests/live and test_policy_trainer."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import text

from mosaic.capture import CapturedCall
from mosaic.credit import rule_settings
from mosaic.errors import EngineError, NothingToTrain
from mosaic.job_settings import TrainConfig
from mosaic.settings import Settings
from mosaic.store import Store
from mosaic.store.jobs import unannounced
from tests.lineage.test_lineage import compaction, spawns
from tests.playbook import Recording
from trainer.job import run_job
from trainer.selection import select


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that looks like a checkpoint, for jobs that end before they load one."""
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path}/mosaic.db")
    yield opened
    opened.close()


def attempts(store: Store, rewards: dict[str, float]) -> list[CapturedCall]:
    """Attempts at one task, alternately with a compaction and with two subagents, each with its reward."""
    calls = []
    for number, (name, reward) in enumerate(rewards.items()):
        recording = Recording(name)
        prompts = ("capital of the first", "capital of the second")
        made = compaction(recording) if number % 2 else spawns(recording, prompts)
        store.record(made)
        store.reward(name, reward, "test")
        calls += made
    return calls


def test_every_sampled_token_of_a_group_with_contrast_is_trained_once(store: Store) -> None:
    calls = attempts(store, {"a": 1, "b": 0, "c": 0, "d": 1})
    selection = select(store.groups(store.waiting()), TrainConfig(), rule_settings("mosaic"))
    assert sorted(selection.trained) == ["a", "b", "c", "d"]
    assert selection.left_out == {}
    trained = [(span.call_id, span.sample_index) for s in selection.sequences for span in s.spans]
    assert sorted(trained) == sorted((c.call_id, 0) for c in calls)
    assert sum(s.n_trained for s in selection.sequences) == sum(len(c.choices[0].ids_T) for c in calls)


@pytest.mark.parametrize("rule", ["mosaic", "broadcast"])
def test_what_succeeded_is_reinforced_and_what_failed_is_not(store: Store, rule: str) -> None:
    attempts(store, {"a": 1, "b": 0, "c": 0, "d": 1})
    selection = select(store.groups(store.waiting()), TrainConfig(), rule_settings(rule))
    given = {good: [s for s in selection.sequences if (s.trajectory_id in "ad") is good] for good in (True, False)}
    assert all((s.advantages_L[s.mask_L] <= 0).all() for s in given[False])
    assert np.mean([s.advantages_L[s.mask_L].mean() for s in given[True]]) > 0.1
    if rule == "broadcast":  # Mosaic may blame a success for its many sessions
        assert all((s.advantages_L[s.mask_L] > 0.5).all() for s in given[True])


def test_what_is_stale_or_without_contrast_is_left_out_and_counted(store: Store) -> None:
    attempts(store, {"a": 1, "b": 1})
    old = store.waiting(oldest_version=3)
    assert (old.groups, old.left_out) == ({}, {"trajectory_stale": 2})
    fresh = select(store.groups(store.waiting()), TrainConfig(), rule_settings("broadcast"))
    assert (fresh.sequences, fresh.left_out) == ([], {"group_no_contrast": 1})


def test_a_job_with_nothing_to_learn_from_says_why_and_counts_as_skipped(store: Store, model: Path) -> None:
    attempts(store, {"a": 1, "b": 1})
    settings = Settings(train=TrainConfig(model=model, credit="broadcast"))
    with pytest.raises(NothingToTrain, match=r"\(groups: 1 no_contrast\)"):
        run_job(store, settings)
    assert store.counters()["left_out_of_training"] == {"group_no_contrast": 1}
    with store.engine.connect() as connection:
        state, error = connection.execute(text("select state, error from jobs")).one()
    (job,) = store.jobs()
    assert (state, error.startswith("there is nothing to learn from")) == ("skipped", True)
    assert job.ended_at is not None
    assert store.job_metrics(job.job_id) == {"left_out_group_no_contrast": 1}
    with store.database.reading() as connection:
        assert unannounced(connection) == []
    assert store.unsettled_job() is None
    assert {t.state for t in store.trajectories()} == {"scored"}


def test_only_trajectories_of_the_given_name_are_trained(store: Store) -> None:
    attempts(store, {"round-1": 1, "held-1": 0, "round-2": 0})
    (group,) = store.groups(store.waiting("round-%"))
    assert {t.trajectory_id for t in group.trajectories} == {"round-1", "round-2"}


def test_an_engine_that_is_down_is_said_before_anything_is_trained(store: Store, model: Path) -> None:
    attempts(store, {"a": 1, "b": 0})
    settings = Settings(upstream="http://127.0.0.1:9/v1", train=TrainConfig(model=model))
    with pytest.raises(EngineError, match="Check that the engine runs"):
        run_job(store, settings)
    assert {t.state for t in store.trajectories()} == {"scored"}
    assert store.policy() == (0, None)
