"""A job killed at any point is taken up by the next run: the weights of an undisturbed one, nothing trained twice.

The jobs run in processes of their own (forked from a server that has imported TRL once) and kill themselves.
"""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from mosaic.errors import EngineError, LeaseTaken, NothingToTrain, PolicyPinned
from mosaic.job_settings import TrainConfig
from mosaic.lease import held
from mosaic.records import JobState
from mosaic.settings import Settings
from mosaic.store import Store
from mosaic.store.policies import LEASE
from tests.engine.control import ServedCheckpoint
from tests.trainer.test_job import attempts
from trainer.job import run_job
from trainer.round import REPORT_FILE

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:TRL currently supports vLLM"
)

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["trainer.policy_trainer", "tests.trainer.test_recovery"])
REWARDS = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 1.0}


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(store: Store, at: str) -> Callable[..., None]:
    """Arm the store so that this process dies at a point of the job; returns what the job calls after each step."""
    reached, began, live, finish = store.job_reached, store.start_job, store.version_live, store.finish_training
    numbered = store.new_version

    def after(work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            work(*given, **named)
            die()

        return call

    def job_reached(job_id: str, state: JobState, **values: Any) -> None:
        if at == f"before {state.value}":
            die()
        reached(job_id, state, **values)
        if at == state.value:
            die()

    store.job_reached = job_reached  # type: ignore[method-assign]
    if at == "selected":
        store.start_job = after(began)  # type: ignore[method-assign]
    if at == "numbered":
        store.new_version = after(numbered)  # type: ignore[method-assign]
    if at == "announced":
        store.version_live = after(live)  # type: ignore[method-assign]
    if at == "published":
        store.finish_training = after(finish)  # type: ignore[method-assign]
    return die if at == "training" else lambda _step: None


def job(settings: Settings, at: str) -> None:
    """What the processes run."""
    store = Store(settings.database)
    run_job(store, settings, dying(store, at))


@dataclass
class Place:
    """An engine, a database and a model for one test."""

    settings: Settings
    store: Store
    engine: ServedCheckpoint

    def run(self, at: str = "") -> int | None:
        process = FORKS.Process(target=job, args=(self.settings, at))
        process.start()
        if at == "loading":
            self.engine.on_load = lambda _path: process.kill()
        process.join()
        self.engine.on_load = lambda _path: None
        return process.exitcode

    @property
    def weights(self) -> bytes:
        (checkpoint,) = (p for p in self.settings.train.output.iterdir() if p.is_dir())
        return (checkpoint / "model.safetensors").read_bytes()


@pytest.fixture
def place(tmp_path: Path, model_dir: Path) -> Iterator[Place]:
    engine = ServedCheckpoint(model_dir)
    with engine.serving() as url:
        train = TrainConfig(model=model_dir, output=tmp_path / "checkpoints", learning_rate=1e-3, minibatches=2)
        settings = Settings(upstream=url, database=f"sqlite:///{tmp_path}/mosaic.db", train=train)
        store = Store(settings.database)
        attempts(store, REWARDS)
        yield Place(settings, store, engine)
        store.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, model_dir: Path) -> bytes:
    """The weights that a job makes when nothing happens to it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    engine = ServedCheckpoint(model_dir)
    with engine.serving() as url:
        train = TrainConfig(model=model_dir, output=folder / "checkpoints", learning_rate=1e-3, minibatches=2)
        settings = Settings(upstream=url, database=f"sqlite:///{folder}/mosaic.db", train=train)
        store = Store(settings.database)
        attempts(store, REWARDS)
        place = Place(settings, store, engine)
        assert place.run() == 0
        store.close()
        return place.weights


KILLED = -signal.SIGKILL


@pytest.mark.parametrize(
    "at",
    [
        *("training", "loading", "announced"),
        *(
            pytest.param(at, marks=pytest.mark.slow)
            for at in ("selected", "credited", "before trained", "trained", "numbered", "before verified", "verified")
        ),
    ],
)
def test_a_killed_job_is_taken_up_and_gives_the_weights_of_an_undisturbed_one(
    place: Place, undisturbed: bytes, at: str
) -> None:
    assert place.run(at) == KILLED
    (died,) = place.store.jobs()
    assert place.run() == 0
    (done,) = place.store.jobs()
    assert (done.job_id, done.state, done.attempts) == (died.job_id, JobState.PUBLISHED, 2)
    assert place.weights == undisturbed
    assert (place.engine.path.name, place.engine.version, place.engine.paused) == (done.job_id, "1", False)
    assert place.store.policy() == (1, str(place.engine.path))
    assert not list(place.settings.train.output.glob(".*"))
    check_trained_once(place)
    check_tracked(place.settings.train.output / f"{done.job_id}.jsonl", place.store.job_metrics(done.job_id))


def check_tracked(file: Path, kept: Mapping[str, float]) -> None:
    """Beside the checkpoint lies a line for each step, and one for the job, with the numbers that the database has."""
    written = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert {line["optimizer_step"] for line in written if line["kind"] == "step"} == {1, 2}
    (told,) = (line for line in written if line["kind"] == "job")
    assert (told["policy_version"], told["reward_mean"], told["success"]) == (1, 0.5, 0.5)
    assert (told["groups_considered"], told["groups_trained"], told["groups_zero_variance"]) == (1, 1, 0)
    assert told["sessions_per_trajectory"] > 1
    assert kept.items() <= told.items()


def check_trained_once(place: Place) -> None:
    """All that was selected is trained, by one job, and the next has nothing left."""
    assert {t.state for t in place.store.trajectories()} == {"trained"}
    with place.store.engine.connect() as connection:
        jobs = connection.execute(text("select count(distinct trained_job_id) from trajectories")).scalar_one()
        live = connection.execute(text("select count(*) from policy_versions where state = 'live'")).scalar_one()
    assert (jobs, live) == (1, 1)
    with pytest.raises(NothingToTrain):
        run_job(place.store, place.settings)


def test_a_job_that_died_after_its_end_is_not_run_again(place: Place, undisturbed: bytes) -> None:
    assert place.run("published") == KILLED
    assert place.weights == undisturbed
    check_trained_once(place)


def test_a_job_whose_settings_changed_is_failed_and_begun_anew(place: Place, undisturbed: bytes) -> None:
    assert place.run("credited") == KILLED
    changed = place.settings.train.model_copy(update={"learning_rate": 2e-3})
    place.settings = place.settings.model_copy(update={"train": changed})
    assert place.run() == 0
    done, failed = place.store.jobs()
    assert (done.state, failed.state) == (JobState.PUBLISHED, JobState.FAILED)
    assert failed.error == "died in state credited; [train] has changed since"
    assert place.weights != undisturbed
    check_trained_once(place)


def test_a_job_is_failed_when_another_version_has_gone_live_since(place: Place, model_dir: Path) -> None:
    assert place.run("trained") == KILLED
    place.store.version_live(place.store.new_version(str(model_dir), None))
    report = run_job(place.store, place.settings)
    done, failed = place.store.jobs()
    assert failed.error == "died in state trained; version 1 has gone live since"
    assert (done.policy_from, report.version, report.resumed_from) == (1, 2, None)


def test_a_job_that_dies_again_and_again_is_failed(place: Place) -> None:
    for _ in range(3):
        assert place.run("training") == KILLED
    assert place.run("selected") == KILLED
    new, failed = place.store.jobs()
    assert failed.error == "died 3 times in state credited"
    assert new.state is JobState.SELECTED


def test_a_fresh_job_gives_up_the_one_that_died(place: Place) -> None:
    assert place.run("trained") == KILLED
    run_job(place.store, place.settings, fresh=True)
    done, given_up = place.store.jobs()
    assert (done.state, given_up.state) == (JobState.PUBLISHED, JobState.FAILED)


def test_an_engine_that_is_away_when_the_checkpoint_is_to_go_live_gets_it_later(place: Place) -> None:
    assert place.run("trained") == KILLED
    here = place.settings
    away = here.model_copy(update={"upstream": "http://127.0.0.1:9/v1"})
    with pytest.raises(EngineError):
        run_job(place.store, away)
    (job,) = place.store.jobs()
    assert job.state is JobState.TRAINED
    assert "127.0.0.1:9" in str(job.error)
    report = run_job(place.store, here)
    assert report.resumed_from is JobState.TRAINED
    assert place.store.job(job.job_id).error is None


def test_a_job_of_another_release_is_failed(place: Place) -> None:
    old = place.store.start_job({"model": "/somewhere", "an option that is gone": 1})
    report = run_job(place.store, place.settings)
    assert "another release" in str(place.store.job(old).error)
    assert report.job_id != old


@pytest.mark.parametrize(
    "at", ["trained", "verified", *(pytest.param(at, marks=pytest.mark.slow) for at in ("before trained", "announced"))]
)
@pytest.mark.parametrize("part", ["report", "selection"])
def test_what_another_release_left_is_not_published_and_its_trajectories_are_trained_once(
    place: Place, undisturbed: bytes, at: str, part: str
) -> None:
    lasting = place.settings.train.model_copy(
        update={"max_staleness": 2}
    )  # weights that are put back count as a version
    place.settings = place.settings.model_copy(update={"train": lasting})
    assert place.run(at) == KILLED
    (old,) = place.store.jobs()
    report = place.settings.train.output / old.job_id / REPORT_FILE
    if part == "report":
        report.write_text(report.read_text(encoding="utf-8").replace("tokens_trained", "tokens"), encoding="utf-8")
    else:
        renamed = {("trained_groups" if n == "groups_trained" else n): v for n, v in old.selection.items()}
        place.store.job_reached(old.job_id, old.state, selection=renamed)
    was_live = place.store.policy()[0]
    done = run_job(place.store, place.settings)
    failed = place.store.job(old.job_id)
    assert failed.state is JobState.FAILED
    assert str(failed.error).endswith("its settings, or what it left, are those of another release")
    put_back = [(v.state, v.restores) for v in place.store.versions() if v.version != done.version]
    assert put_back == ([("failed", None), ("live", 0)] if was_live else [])
    assert (done.resumed_from, done.trajectories_trained) == (None, 4)
    assert (place.engine.path / "model.safetensors").read_bytes() == undisturbed
    assert {t.state for t in place.store.trajectories()} == {"trained"}
    with pytest.raises(NothingToTrain):
        run_job(place.store, place.settings)


def test_a_policy_that_is_pinned_meanwhile_keeps_the_checkpoint_for_later(place: Place, model_dir: Path) -> None:
    held_back = place.store.new_version(str(model_dir), None)
    place.store.version_live(held_back)
    assert place.run("trained") == KILLED
    place.store.pin(held_back)
    with pytest.raises(PolicyPinned):
        run_job(place.store, place.settings)
    (job,) = place.store.jobs()
    assert job.state is JobState.TRAINED
    place.store.pin(None)
    assert run_job(place.store, place.settings).job_id == job.job_id


def test_one_job_runs_at_a_time(place: Place) -> None:
    with held(place.store, LEASE), pytest.raises(LeaseTaken, match="another process does this already"):
        run_job(place.store, place.settings)
    assert place.store.jobs() == []
    run_job(place.store, place.settings)


def test_the_optimizer_goes_on_where_the_job_before_left_it(place: Place) -> None:
    import torch

    run_job(place.store, place.settings)
    for name, reward in REWARDS.items():
        place.store.reward(name, 1 - reward, "corrected")
    second = run_job(place.store, place.settings)
    assert second.train.optimizer_state is not None
    state = torch.load(second.train.optimizer_state, weights_only=True)
    assert {int(s["step"]) for s in state["state"].values()} == {4}
