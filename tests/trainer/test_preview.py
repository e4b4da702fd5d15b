"""`mosaic train --dry-run`: for every scored trajectory, whether a job would train it and why not; nothing changes."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from mosaic.errors import NothingToTrain, SettingsError
from mosaic.job_settings import ScoreConfig, TrainConfig
from mosaic.records import TrajectoryState
from mosaic.settings import Settings
from mosaic.store import Store
from tests.lineage.test_lineage import compaction
from tests.playbook import Recording, assistant, user
from tests.trainer.test_job import attempts
from trainer.commands import _say, _show, train
from trainer.job import JobReport
from trainer.preview import preview
from trainer.publish import PublishReport
from trainer.round import StepReport, TrainReport


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path}/mosaic.db")
    yield opened
    opened.close()


def reasons(store: Store, **changes: object) -> dict[str, str | None]:
    settings = Settings(train=TrainConfig(credit="broadcast", **changes))
    return {c.trajectory_id: c.reason for c in preview(store, settings).candidates}


def test_a_group_with_contrast_would_be_trained_and_one_without_not(store: Store) -> None:
    attempts(store, {"a": 1, "b": 0})
    assert reasons(store) == {"a": None, "b": None}
    store.reward("b", 1, "corrected")
    assert reasons(store) == dict.fromkeys("ab", "group_no_contrast")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"only": "run-%"}, "other_run"),
        ({"task": "no such %"}, "other_task"),
        ({"max_age_s": 60}, "trajectory_too_old"),
        ({"max_staleness": 0}, "trajectory_stale"),
    ],
)
def test_what_a_filter_leaves_out_is_named(store: Store, changes: dict[str, object], reason: str) -> None:
    attempts(store, {"a": 1, "b": 0})
    store.version_live(store.new_version("/one", None))
    assert reasons(store, **{"max_staleness": 5, **changes}) == dict.fromkeys("ab", reason)


def test_what_goes_beyond_the_limit_is_named(store: Store) -> None:
    attempts(store, {"a": 1, "b": 0})
    other = [f"other-{n}" for n in range(2)]
    for name in other:
        store.record([Recording(name).call([user("another task")], assistant("It is done."))])
        store.reward(name, float(name == other[0]), "test")
    found = reasons(store, max_trajectories=2)
    assert sorted(map(str, found.values())) == ["None"] * 2 + ["trajectory_over_limit"] * 2


def test_the_numbers_are_those_of_the_sequences_and_nothing_is_written(store: Store) -> None:
    calls = attempts(store, {"a": 1, "b": 0, "open": 0})
    store.record(compaction(Recording("unscored")))
    store.end("open", TrajectoryState.FAILED, "test")
    found = preview(store, Settings())
    assert (found.version, found.groups_trained, found.trajectories_trained) == (0, 1, 2)
    scored = [c for c in calls if c.trajectory_id in ("a", "b")]
    assert (
        found.tokens_trained == sum(len(c.choices[0].ids_T) for c in scored) == sum(c.tokens for c in found.candidates)
    )
    assert found.sequences_trained == sum(c.sequences for c in found.candidates)
    assert found.not_scored == {"failed": 1, "open": 1}
    assert store.jobs() == []
    assert "left_out_of_training" not in store.counters()


@pytest.fixture
def app() -> typer.Typer:
    made = typer.Typer()
    made.command()(train)
    return made


def test_the_command_prints_every_candidate_and_says_when_there_is_nothing(
    store: Store, app: typer.Typer, tmp_path: Path
) -> None:
    attempts(store, {"a": 1, "b": 0})
    flags = ["--dry-run", "--json", "--credit", "broadcast", "--database", f"sqlite:///{tmp_path}/mosaic.db"]
    said = json.loads(CliRunner().invoke(app, flags, catch_exceptions=False).stdout)
    assert sorted((c["trajectory_id"], c["reason"]) for c in said["candidates"]) == [("a", None), ("b", None)]
    nothing = CliRunner().invoke(app, [*flags, "--only", "x%"])
    assert isinstance(nothing.exception, NothingToTrain)
    assert nothing.exception.exit_code == 6
    text = CliRunner().invoke(app, [flag for flag in flags if flag != "--json"], catch_exceptions=False).stdout
    assert "2 trajectories of 1 group," in text


def test_what_is_not_trained_is_said_in_a_line_for_each_kind(store: Store, app: typer.Typer, tmp_path: Path) -> None:
    attempts(store, {"a": 1, "b": 1, "c": 1})
    other = Recording("alone")
    store.record([other.call([user("another task")], assistant("It is done."))])
    store.reward("alone", 1, "test")
    for name, state in (("open", None), ("broken", TrajectoryState.FAILED)):
        store.record(compaction(Recording(name)))
        if state is not None:
            store.end(name, state, "test")
    store.finish_training(store.start_job({}, {}), store.new_version("/one", None), {"c": 1.0}, {}, {})
    flags = ["--dry-run", "--credit", "broadcast", "--max-staleness", "5", "--database"]
    done = CliRunner().invoke(app, [*flags, f"sqlite:///{tmp_path}/mosaic.db"])
    said = [line for line in done.stdout.splitlines() if line.startswith(("left out", "not scored", "trained"))]
    assert said == [
        "left out: groups: 1 too_few_to_compare, 1 no_contrast",
        "not scored: 1 failed, 1 open",
        "trained by earlier jobs: 1",
    ]


def test_calls_that_cannot_be_trained_are_named_with_their_reasons_and_the_doctor(
    store: Store, app: typer.Typer, tmp_path: Path
) -> None:
    for name, reward in (("a", 1), ("b", 0)):
        calls = [replace(call, inexact_reason="other_weights") for call in compaction(Recording(name))]
        store.record([replace(calls[0], inexact_reason="call_aborted"), *calls[1:]])
        store.reward(name, reward, "test")
    total = len(calls) - 1
    done = CliRunner().invoke(app, ["--dry-run", "--database", f"sqlite:///{tmp_path}/mosaic.db"])
    assert f"calls that cannot be trained: 2 call_aborted, {2 * total} other_weights" in done.stdout
    assert str(done.exception) == (
        f"there is nothing to learn from (trajectories: 2 no_trainable_tokens; groups: 1 too_few_to_compare; "
        f"calls: 2 call_aborted, {2 * total} other_weights). "
        "`mosaic doctor` says which engine serves other weights than the live ones."
    )
    assert {c.reason for c in preview(store, Settings()).candidates} == {"trajectory_no_trainable_tokens"}
    done = CliRunner().invoke(app, ["--dry-run", "--json", "--database", f"sqlite:///{tmp_path}/mosaic.db"])
    assert json.loads(done.stdout)["inexact"] == {"call_aborted": 2, "other_weights": 2 * total}


def test_filters_that_leave_out_all_are_named_where_there_is_nothing(
    store: Store, app: typer.Typer, tmp_path: Path
) -> None:
    attempts(store, {"a": 1, "b": 0})
    done = CliRunner().invoke(app, ["--dry-run", "--only", "z%", "--database", f"sqlite:///{tmp_path}/mosaic.db"])
    assert "no trajectory is scored, untrained and chosen" in str(done.exception)
    assert "--only" in str(done.exception)


@pytest.mark.parametrize("flags", [["--model", "/nowhere"], ["--model", "/nowhere", "--dry-run"]])
def test_a_checkpoint_that_is_not_there_is_said_before_anything_else(
    store: Store, app: typer.Typer, tmp_path: Path, flags: list[str]
) -> None:
    attempts(store, {"a": 1, "b": 0})
    done = CliRunner().invoke(app, [*flags, "--database", f"sqlite:///{tmp_path}/mosaic.db"])
    assert isinstance(done.exception, SettingsError)
    assert "/nowhere holds no checkpoint" in str(done.exception)
    assert done.output == ""


def test_the_last_line_of_a_job_says_sequences_and_that_the_time_is_the_training_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained = TrainReport(*(0.1, 1.0, 1.0, 0.0, 0.5, 1e-6, 1e-5), 100, 200, 0.1, 33, 2, 1, 36.8, Path("x"), None)
    published = PublishReport(4, 1e-6, 1e-5, 0.1, 0.2, 0.03, 1.0)
    _show(JobReport("job-1", 4, 1, 2, {}, trained, published, None))
    first, *_ = capsys.readouterr().out.splitlines()
    assert "2 trajectories of 1 group, 33 sequences, 100 tokens, 1 step; training alone took 36.8 s;" in first


@pytest.mark.parametrize(("loss", "said"), [(-1.234e-5, "-1.23e-05"), (-0.0, "0"), (0.5, "0.5"), (1.23456, "1.23")])
def test_a_small_loss_is_said_with_its_digits(loss: float, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    _say(StepReport(1, 2, loss, 0.1, 10, 1.0, 0.0, 1.0))
    assert capsys.readouterr().err == f"step 1/2: loss {said}, ratio 1.000\n"


@pytest.mark.parametrize(("age", "trained"), [("1h", False), ("9000w", True)])
def test_an_age_is_a_number_with_a_unit(
    store: Store, app: typer.Typer, tmp_path: Path, age: str, trained: bool
) -> None:
    attempts(store, {"a": 1, "b": 0})
    flags = ["--dry-run", "--json", "--newer-than", age, "--database", f"sqlite:///{tmp_path}/mosaic.db"]
    said = json.loads(CliRunner().invoke(app, flags).stdout)
    assert (said["trajectories_trained"] == 2) is trained


def test_what_the_scorer_would_be_asked_about_first_is_counted_and_not_asked(store: Store) -> None:
    store.record(compaction(Recording("unscored")))
    store.end("unscored", TrajectoryState.CLOSED, "test")
    asks = ScoreConfig(command="exit 1")
    assert preview(store, Settings(score=asks)).to_score == 1
    assert preview(store, Settings(score=asks.model_copy(update={"in_jobs": False}))).to_score == 0
    assert preview(store, Settings()).to_score == 0
    assert store.counters().get("scorer_failures") is None
