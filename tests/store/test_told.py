"""What the trainer said of tokens, what a schedule says of itself, and which ends of jobs are to be announced."""

from collections.abc import Iterator

import numpy as np
import pytest

from mosaic.records import TrajectoryState
from mosaic.store import Store, jobs, schedules, trained_tokens
from mosaic.store.pruning import PruneRule, prune
from mosaic.store.schedules import ScheduleState
from mosaic.store.trained_tokens import TrainedTokens
from tests.lineage.test_lineage import linear
from tests.playbook import Recording


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    yield opened
    opened.close()


def said(store: Store, call_id: str, choice: int = 0) -> list[float] | None:
    with store.database.reading() as connection:
        found = trained_tokens.of(connection, call_id, choice)
    return None if found is None else found.tolist()


def keep(store: Store, job_id: str, *values: float, call_id: str) -> None:
    with store.database.writing() as connection:
        tokens = TrainedTokens(call_id, 0, np.asarray(values, np.float32))
        trained_tokens.keep(connection, job_id, [tokens, TrainedTokens("gone", 0, np.zeros(1, np.float32))])


def test_the_newest_jobs_word_stands_until_the_call_is_pruned(store: Store) -> None:
    calls = linear(Recording("run"), 2)
    store.record(calls)
    first, second = (call.call_id for call in calls)
    keep(store, "job-1", -0.5, -1.5, call_id=first)
    keep(store, "job-1", -2.0, call_id=second)
    keep(store, "job-2", -0.25, np.nan, call_id=first)
    assert said(store, second) == [-2.0]
    assert said(store, first) == [-0.25, pytest.approx(np.nan, nan_ok=True)]
    assert said(store, first, 1) is said(store, "gone") is None
    store.end("run", TrajectoryState.CLOSED, "over")
    prune(store.database, PruneRule(older_than_s=0.0))
    assert said(store, first) is said(store, second) is None


def test_a_schedule_keeps_what_it_is_not_told_and_answers_what_was_asked_until_then(store: Store) -> None:
    with store.database.writing() as connection:
        assert schedules.read(connection) == ScheduleState()
        schedules.change(connection, asked_at=5.0)
        schedules.change(connection, next_at=9.0, due="cron")
        assert schedules.read(connection) == ScheduleState(next_at=9.0, due="cron", asked_at=5.0)
        schedules.answered(connection, 4.0)
        assert schedules.read(connection).asked_at == 5.0
        schedules.answered(connection, 5.0)
        assert schedules.read(connection) == ScheduleState(next_at=9.0, due="cron")


def test_the_end_of_a_job_is_to_be_announced_and_an_open_one_is_not(store: Store) -> None:
    finished, failed, refused, _ = (store.start_job({}) for _ in range(4))
    store.finish_training(finished, 1, {}, {}, {})
    store.end_job(failed, error="EngineError: away")
    store.finish_training(refused, 1, {}, {}, {}, error="version 1 is worse")
    with store.database.reading() as connection:
        found = [(event, job.job_id) for event, job in jobs.unannounced(connection)]
    assert found == [("job.finished", finished), ("job.failed", failed), ("gate.failed", refused)]
