"""What nobody has scored is scored once: by function, command or judge; nobody's word is overruled."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mosaic.errors import EngineError, NothingToTrain, SettingsError
from mosaic.job_settings import ScoreConfig, TrainConfig
from mosaic.records import Trajectory, TrajectoryState
from mosaic.scoring.outcome import Score
from mosaic.scoring.passive import score_closed
from mosaic.scoring.scorers import scorer_of
from mosaic.settings import Settings
from mosaic.store import Store
from tests.cli.command import mosaic
from tests.playbook import Recording, assistant, user
from trainer.job import run_job

BY_REPLY = "tests.scoring.functions:by_reply"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path}/mosaic.db")
    yield opened
    opened.close()


def record(store: Store, *replies: str) -> None:
    """Closed trajectories, each named by its only reply."""
    for reply in replies:
        store.record([Recording(reply).call([user("do it")], assistant(reply))])
        store.end(reply, TrajectoryState.CLOSED, "test")


def states(store: Store) -> dict[str, tuple[str, float | None]]:
    return {t.trajectory_id: (t.state, t.reward) for t in store.trajectories()}


def scored(store: Store, config: ScoreConfig, *, dry_run: bool = False) -> dict[str, float | str | None]:
    scorer = scorer_of(config)
    assert scorer is not None
    found = score_closed(store, scorer, config, dry_run=dry_run)
    return {one.trajectory_id: one.reward if one.error is None else "failed" for one in found}


def test_one_failure_does_not_end_the_run_and_none_means_unscorable(store: Store) -> None:
    record(store, "half", "raise", "none", "note", "odd")
    config = ScoreConfig(function=BY_REPLY)
    assert scored(store, config) == {"half": 0.5, "raise": "failed", "none": None, "note": 1, "odd": "failed"}
    assert states(store) == {
        "half": ("scored", 0.5),
        "raise": ("closed", None),
        "none": ("unscorable", None),
        "note": ("scored", 1),
        "odd": ("closed", None),
    }
    assert store.counters()["scorer_failures"] == {f"function:{BY_REPLY}": 2}
    assert scored(store, config) == {"raise": "failed", "odd": "failed"}


def test_only_closed_trajectories_that_nobody_scored_and_the_filters_allow_are_asked_about(store: Store) -> None:
    record(store, "half", "note", "none")
    store.record([Recording("open").call([user("do it")], assistant("half"))])
    store.reward("note", 0.0, "a person")
    store.name_task("none", "other", "")
    assert scored(store, ScoreConfig(function=BY_REPLY, only="n%"), dry_run=True) == {"none": None}
    assert scored(store, ScoreConfig(function=BY_REPLY, task="other"), dry_run=True) == {"none": None}
    assert scored(store, ScoreConfig(function=BY_REPLY, limit=1), dry_run=True) == {"half": 0.5}
    assert states(store)["half"] == ("closed", None)


class Slow:
    """While it thinks, somebody else says how it went."""

    source = "slow"

    def __init__(self, store: Store) -> None:
        self._store = store

    def score(self, trajectory: Trajectory) -> Score:
        self._store.reward(trajectory.trajectory_id, 0.25, "a person")
        return Score(1.0)


def test_a_reward_that_came_meanwhile_stands(store: Store) -> None:
    record(store, "half")
    (one,) = score_closed(store, Slow(store), ScoreConfig())
    assert not one.kept
    assert states(store)["half"] == ("scored", 0.25)
    assert store.counters()["scores_not_used"] == {"scored": 1}


def test_a_command_gets_the_trajectory_as_json(store: Store) -> None:
    record(store, "half")
    code = "import json, sys; t = json.load(sys.stdin); print(t['task'], len(t['sessions'])); print(0.75)"
    assert scored(store, ScoreConfig(command=f'{sys.executable} -c "{code}"')) == {"half": 0.75}


def test_a_command_that_hangs_is_given_up(store: Store) -> None:
    record(store, "half")
    scorer = scorer_of(ScoreConfig(command="sleep 60", timeout_s=0.3))
    assert scorer is not None
    (one,) = score_closed(store, scorer, ScoreConfig())
    assert "longer than 0.3 s" in (one.error or "")


def test_a_job_scores_before_it_selects(store: Store, tmp_path: Path) -> None:
    record(store, "half", "note")
    (tmp_path / "config.json").write_text("{}")
    config = TrainConfig(model=tmp_path, credit="broadcast")
    with pytest.raises(NothingToTrain):
        run_job(store, Settings(train=config, score=ScoreConfig(function=BY_REPLY, in_jobs=False)))
    assert {state for state, _ in states(store).values()} == {"closed"}
    settings = Settings(upstream="http://127.0.0.1:9/v1", train=config, score=ScoreConfig(function=BY_REPLY))
    with pytest.raises(EngineError, match="engine runs"):
        run_job(store, settings)
    assert {state for state, _ in states(store).values()} == {"scored"}


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        (ScoreConfig(function="a:b", command="x"), "function and command"),
        (ScoreConfig(judge="http://x/v1"), "no model"),
        (ScoreConfig(function="no.such:thing"), "cannot be loaded"),
    ],
)
def test_a_scorer_that_cannot_be_used_is_refused(config: ScoreConfig, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        scorer_of(config)


def test_the_command_tells_what_it_did(store: Store, tmp_path: Path) -> None:
    record(store, "half", "raise", "note")
    where = ("--database", f"sqlite:///{tmp_path}/mosaic.db", "--function", BY_REPLY)
    told = json.loads(mosaic(tmp_path, "score", "--dry-run", "--json", *where).stdout)
    assert [(t["trajectory_id"], t["reward"], t["kept"]) for t in told["trajectories"]] == [
        ("half", 0.5, False),
        ("raise", None, False),
        ("note", 1, False),
    ]
    done = mosaic(tmp_path, "score", *where)
    assert done.stdout.splitlines()[-1] == "2 scored, mean 0.75, 0 unscorable, 1 failed; 2 written"
    assert (done.returncode, mosaic(tmp_path, "score", *where).returncode) == (0, 1)


def test_the_command_says_each_failure_once(store: Store, tmp_path: Path) -> None:
    record(store, "one", "two")
    done = mosaic(tmp_path, "score", "--command", "exit 4", "--database", f"sqlite:///{tmp_path}/mosaic.db")
    assert (done.returncode, done.stdout.count("status 4"), len(done.stderr.splitlines())) == (1, 2, 1), done.stderr
