"""What jobs measured, written where it is asked for, and read back with each tracker's own reader."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosaic.credit import GroupCredit, TrajectoryCredit
from mosaic.errors import SettingsError
from mosaic.job_settings import TrainConfig
from mosaic.records import Group, Trajectory, TrajectoryState
from mosaic.settings import Settings
from mosaic.store import Store
from tests.trainer.conftest import MakeSequence
from trainer.figures import chosen_figures, job_figures
from trainer.job import run_job
from trainer.publish import PublishReport
from trainer.round import StepReport, TrainReport
from trainer.selection import Selection
from trainer.tracking import JsonLines, Kind, Tracking, check_trackers

STEP = StepReport(1, 2, loss=0.5, grad_norm=1.5, tokens=40, mean_ratio=1.0, clip_fraction=0.1, entropy=0.7)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path}/mosaic.db")
    yield opened
    opened.close()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def two_jobs(store: Store, config: TrainConfig, folder: Path) -> None:
    """Two jobs of two steps each."""
    for number in (1, 2):
        job = store.start_job({})
        with Tracking.of(store, config, folder / job) as tracking:
            tracking.step(STEP)
            tracking.step(StepReport(2, 2, 0.25, 1.0, 40, 1.0, 0.1, 0.6, kl=0.01))
            tracking.job(number, {"reward_mean": number / 2})
        store.end_job(job, metrics={"steps": 2.0})


def test_json_lines_lie_beside_the_checkpoint_and_steps_are_counted_on_over_jobs(store: Store, tmp_path: Path) -> None:
    two_jobs(store, TrainConfig(), tmp_path)
    files = sorted(tmp_path.glob("job-*.jsonl"), key=lambda f: f.stat().st_mtime_ns)
    written = [line for file in files for line in lines(file)]
    steps = [line for line in written if line["kind"] == "step"]
    assert [(s["optimizer_step"], s["loss"]) for s in steps] == [(1, 0.5), (2, 0.25), (3, 0.5), (4, 0.25)]
    assert ["kl" in s for s in steps] == [False, True, False, True]
    jobs = [line for line in written if line["kind"] == "job"]
    assert [(j["policy_version"], j["reward_mean"]) for j in jobs] == [(1, 0.5), (2, 1.0)]


@pytest.mark.filterwarnings("ignore")
def test_tensorboard_reads_one_curve_over_all_jobs(store: Store, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    two_jobs(store, TrainConfig(trackers=["tensorboard"]), tmp_path)
    assert store.counters().get("tracker_failures") is None
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    read: dict[str, list[tuple[int, float]]] = {
        name: [(e.step, e.value) for e in events.Scalars(name)] for name in ("step/loss", "job/reward_mean")
    }
    assert read == {"step/loss": [(1, 0.5), (2, 0.25), (3, 0.5), (4, 0.25)], "job/reward_mean": [(1, 0.5), (2, 1.0)]}


def test_a_tracker_that_is_not_installed_is_said_before_anything_is_trained(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    for name in ("tensorboard", "trackio", "wandb"):
        config = TrainConfig(trackers=[name])
        with pytest.raises(SettingsError, match=f"{name} is not installed.*pip install {name}"):
            check_trackers(config)
        with pytest.raises(SettingsError):
            run_job(store, Settings(train=config))
    assert store.jobs() == []


class Broken:
    """Raises at the first figure."""

    def log(self, kind: Kind, at: int, figures: Mapping[str, float]) -> None:  # noqa: ARG002 - The interface.
        raise ConnectionError("no network")

    def close(self) -> None:
        raise AssertionError("it had been left out")


def test_a_tracker_that_fails_is_left_out_counted_and_fails_no_job(store: Store, tmp_path: Path) -> None:
    with Tracking(store, {"broken": Broken(), "jsonl": JsonLines(tmp_path / "x.jsonl")}) as tracking:
        tracking.step(STEP)
        tracking.step(STEP)
    assert store.counters()["tracker_failures"] == {"broken": 1}
    assert len(lines(tmp_path / "x.jsonl")) == 2


def group(key: str, *rewards: float | None) -> Group:
    attempts = (Trajectory(f"{key}-{n}", key, r, TrajectoryState.SCORED, ()) for n, r in enumerate(rewards))
    return Group(key, tuple(attempts))


def compared(*names: str) -> GroupCredit:
    nothing: dict[str, Any] = {"advantage": 0.0, "usage": 0.0, "usage_rank": 0.5, "sessions": (), "spans": ()}
    found = tuple(TrajectoryCredit(trajectory_id=name, **nothing) for name in names)
    return GroupCredit(task_key=names[0], trajectories=found, dropped={}, drop_reason=None)


def test_figures_say_what_was_chosen_left_out_trained_and_published(make_sequence: MakeSequence) -> None:
    groups = [group("a", 1.0, 0.0), group("b", 1.0, 1.0, None), group("c", -1.0)]
    sequences = [make_sequence(0, "a-0"), make_sequence(1, "a-1")]
    selection = Selection(sequences, {"a-0": 1.0, "a-1": 0.0}, [compared("a-0", "a-1"), compared("c-0")], {})
    chosen = chosen_figures(groups, selection, 3, success_reward=0.5)
    assert chosen["reward_mean"] == pytest.approx(0.4)
    assert chosen["success"] == pytest.approx(0.6)
    assert (chosen["groups_considered"], chosen["groups_trained"], chosen["groups_zero_variance"]) == (3, 1, 2)
    assert (chosen["staleness_mean"], chosen["staleness_max"]) == (2, 2)
    trained = TrainReport(*(0.1, 1.0, 1.0, 0.0, 0.5, 1e-6, 1e-5), 100, 200, 0.1, 2, 2, 1, 4.0, Path("x"), None)
    published = PublishReport(4, 1e-6, 1e-5, 0.1, 0.2, 0.03, 1.0)
    found = job_figures(chosen, {"group_no_contrast": 2}, trained, published)
    page = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    table = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = {name for cell in table for name in re.findall(r"`(\w+)`", cell)}
    assert {name for name in found if not name.startswith("left_out_")} - named == set()
    assert found["tokens_trained_per_s"] == 25
    assert found["left_out_group_no_contrast"] == 2
    assert found["publish_pause_seconds"] == pytest.approx(0.03)
    assert found["logprob_gap_mean"] == pytest.approx(1e-6)
    assert "kl" not in found
    assert all(np.isfinite(value) for value in found.values())


def test_figures_of_nothing_are_zeros() -> None:
    nothing = Selection([], {}, [], {})
    assert set(chosen_figures([], nothing, 0, success_reward=0.5).values()) == {0.0}
