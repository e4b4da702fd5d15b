"""Which weights are live: several replicas in one state, the gate, going back, and holding a version."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from sqlalchemy import text
from typer.testing import CliRunner

from mosaic.errors import EngineError, GateError, MosaicError, PublishError, SettingsError
from mosaic.job_settings import TrainConfig
from mosaic.records import JobState
from mosaic.settings import Settings
from mosaic.store import Store, trained_tokens
from tests.engine.control import ServedCheckpoint
from tests.trainer.test_job import attempts
from trainer.adapter import live_link
from trainer.job import run_job
from trainer.policies import before, put_back, serving
from trainer.policy_commands import app
from trainer.replicas import MAX_GAP

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:TRL currently supports vLLM"
)


@dataclass
class Place:
    """Two replicas, a database with something to train, and a model."""

    settings: Settings
    store: Store
    replicas: list[ServedCheckpoint]
    folder: Path

    def with_(self, **train: object) -> Settings:
        return self.settings.model_copy(update={"train": self.settings.train.model_copy(update=train)})

    @property
    def served(self) -> set[tuple[str, str | None, bool]]:
        """(checkpoint, version, paused) over the replicas: one, if they move together."""
        return {(replica.path.name, replica.version, replica.paused) for replica in self.replicas}

    def command(self, *arguments: str) -> str:
        flags = ["--database", self.settings.database]
        if arguments[0] in ("rollback", "pin"):
            flags += ["--upstream", self.settings.upstream]
        replicas = {"MOSAIC_REPLICAS": json.dumps(self.settings.replicas)}
        done = CliRunner().invoke(app, [*arguments, *flags], env=replicas)
        if done.exception is not None:
            raise done.exception
        return done.stdout


@pytest.fixture
def place(tmp_path: Path, model_dir: Path) -> Iterator[Place]:
    replicas = [ServedCheckpoint(model_dir), ServedCheckpoint(model_dir)]
    with ExitStack() as stack:
        urls = [stack.enter_context(replica.serving()) for replica in replicas]
        train = TrainConfig(model=model_dir, output=tmp_path / "checkpoints", learning_rate=1e-3, max_staleness=5)
        database = f"sqlite:///{tmp_path}/mosaic.db"
        settings = Settings(upstream=urls[0], replicas=urls[1:], database=database, train=train)
        store = Store(settings.database)
        attempts(store, {"a": 1, "b": 0})
        yield Place(settings, store, replicas, tmp_path)
        store.close()


def score_by(folder: Path, before: str, after: str) -> str:
    """A gate's command that prints one thing before and another after, and keeps a diary."""
    said = {"before": before, "after": after}
    script = folder / "gate.py"
    script.write_text(
        "import os\n"
        f"open({str(folder / 'diary')!r}, 'a').write(os.environ['GATE_VERSION'] + ' ')\n"
        f"print('about to judge')\nprint({said!r}[os.environ['GATE_PHASE']])\n"
    )
    return f"{sys.executable} {script}"


def test_all_replicas_move_together(place: Place) -> None:
    report = run_job(place.store, place.settings)
    assert place.served == {(report.job_id, "1", False)}


def test_the_store_keeps_what_the_trainer_said_of_every_token_that_it_trained(place: Place) -> None:
    run_job(place.store, place.settings)
    calls = [c for name in "ab" for session in place.store.trajectory(name).sessions for c in session.calls]
    with place.store.database.reading() as connection:
        for call in calls:
            said_T = trained_tokens.of(connection, call.call_id, 0)
            assert said_T is not None
            assert len(said_T) == len(call.samples[0].ids_T)
            assert (said_T < 0).all()


def test_nothing_of_tokens_is_kept_where_that_is_not_wanted(place: Place) -> None:
    run_job(place.store, place.with_(keep_logprobs=False))
    with place.store.database.reading() as connection:
        assert connection.execute(text("select count(*) from trained_tokens")).scalar_one() == 0


def test_one_replica_that_does_not_load_keeps_all_on_the_old_weights(place: Place, model_dir: Path) -> None:
    place.replicas[1].refuses = lambda path: path.name.startswith("job-")
    with pytest.raises(PublishError, match="weights did not change"):
        run_job(place.store, place.settings)
    assert place.served == {(model_dir.name, "0", False)}
    assert place.store.policy()[0] == 0
    assert {t.state for t in place.store.trajectories()} == {"scored"}


@pytest.mark.parametrize(("says", "why"), [("default", "was started on .*/policy and given"), (None, "nats off")])
def test_an_engine_that_was_restarted_on_older_weights_is_refused_however_near_they_are(
    place: Place, model_dir: Path, says: str | None, why: str
) -> None:
    near = place.with_(learning_rate=1e-4)
    report = run_job(place.store, near)
    assert 0.002 < report.published.change_mean < MAX_GAP / 2
    for name, reward in {"a": 0.0, "b": 1.0}.items():
        place.store.reward(name, reward, "corrected")
    place.replicas[1].restart(model_dir, says)
    with pytest.raises(EngineError, match=f"does not serve version 1: .*{why}") as refused:
        run_job(place.store, near)
    assert refused.value.next_step == f"Restart it with --model {report.train.checkpoint}."
    assert {t.state for t in place.store.trajectories()} == {"scored"}
    place.replicas[1].restart(report.train.checkpoint, says)
    assert run_job(place.store, near).version == 2


def test_weights_that_were_put_back_may_still_go_by_their_first_number(place: Place, model_dir: Path) -> None:
    run_job(place.store, place.settings)
    put_back(place.store, place.settings, 0, lambda: None)
    assert serving(place.store, 2, model_dir).numbers == {0, 2}
    place.replicas[0].version = "0"
    assert put_back(place.store, place.settings, 1, lambda: None) == 3


@pytest.mark.parametrize(
    ("scores", "stays"), [(("0.5", "0.5"), True), (("0.5", "0.45"), True), (("0.5", "0.3"), False)]
)
def test_a_worse_policy_does_not_stay_live(place: Place, model_dir: Path, scores: tuple[str, str], stays: bool) -> None:
    gate = score_by(place.folder, *scores)
    settings = place.with_(gate=gate, gate_tolerance=0.1)
    if stays:
        report = run_job(place.store, settings)
        assert place.served == {(report.job_id, "1", False)}
        assert place.store.job_metrics(report.job_id)["gate_after"] == float(scores[1])
        return
    with pytest.raises(PublishError, match=r"version 1 is worse: the gate gave 0\.3 after 0\.5"):
        run_job(place.store, settings)
    assert place.served == {(model_dir.name, "2", False)}
    assert place.store.policy()[0] == 2
    states = [(v.version, v.state, v.restores) for v in place.store.versions()]
    assert states == [(1, "failed", None), (2, "live", 0)]
    (job,) = place.store.jobs()
    assert job.state is JobState.FAILED
    assert {t.state for t in place.store.trajectories()} == {"trained"}
    assert (place.folder / "diary").read_text() == "0 1 "


def test_a_gate_that_fails_before_leaves_the_checkpoint_for_the_next_run(place: Place, model_dir: Path) -> None:
    with pytest.raises(GateError, match=r"\(before\) printed no number at the end, but 'nothing'"):
        run_job(place.store, place.with_(gate=score_by(place.folder, "nothing", "1")))
    assert place.served == {(model_dir.name, None, False)}
    (job,) = place.store.jobs()
    assert job.state is JobState.TRAINED
    report = run_job(place.store, place.with_(gate=score_by(place.folder, "0", "1")))
    assert (report.job_id, report.resumed_from) == (job.job_id, JobState.TRAINED)


@pytest.mark.parametrize("after", ["nan", "nothing"])
def test_a_gate_that_says_nothing_afterwards_is_no_approval(place: Place, model_dir: Path, after: str) -> None:
    with pytest.raises(GateError, match=r"\(after\)"):
        run_job(place.store, place.with_(gate=score_by(place.folder, "0", after)))
    assert place.served == {(model_dir.name, "2", False)}


def test_a_gate_that_exits_badly_or_takes_too_long_says_so(place: Place) -> None:
    with pytest.raises(GateError, match="ended with status 3: no data"):
        run_job(place.store, place.with_(gate="echo no data >&2; exit 3"))
    with pytest.raises(GateError, match=r"took longer than 0\.2 s"):
        run_job(place.store, place.with_(gate="exec sleep 60", gate_timeout_s=0.2))


def test_going_back_serves_the_weights_before_and_forth_again(place: Place, model_dir: Path) -> None:
    report = run_job(place.store, place.settings)
    assert place.command("rollback") == "version 2 is live, with the weights of version 0\n"
    assert place.served == {(model_dir.name, "2", False)}
    with pytest.raises(PublishError, match="no version to go back to"):
        place.command("rollback")
    assert place.command("rollback", "1") == "version 3 is live, with the weights of version 1\n"
    assert place.served == {(report.job_id, "3", False)}
    assert before(place.store) == 2
    listed = json.loads(place.command("list", "--json"))
    assert [(v["version"], v["restores"], v["serves"]) for v in listed] == [
        (3, 1, True),
        (2, 0, False),
        (1, None, False),
        (0, None, False),
    ]
    assert listed[-1]["path"] == str(model_dir)
    assert json.loads(place.command("show", "0", "--json"))["version"]["path"] == str(model_dir)
    assert "3" in place.command("list")
    assert json.loads(place.command("show", "--json"))["version"]["version"] == 3
    assert place.command("show") == place.command("show", "3") != place.command("show", "1")
    shown = json.loads(place.command("show", "1", "--json"))
    assert shown["job"]["job_id"] == report.job_id
    assert shown["metrics"]["loss"] == report.train.loss
    assert report.job_id in place.command("show", "1")


def test_going_back_to_what_is_live_already_makes_no_version(place: Place) -> None:
    run_job(place.store, place.settings)
    assert place.command("rollback", "1") == "version 1 is already live\n"
    place.command("rollback", "0")
    journals = [list(replica.journal) for replica in place.replicas]
    for again in ("0", "2"):
        assert place.command("rollback", again) == "version 2 is already live, with the weights of version 0\n"
    assert [replica.journal for replica in place.replicas] == journals
    assert [v.version for v in place.store.versions()] == [1, 2]


def test_a_first_checkpoint_that_was_moved_may_be_given(place: Place, model_dir: Path) -> None:
    first = shutil.copytree(model_dir, place.folder / "first")
    run_job(place.store, place.with_(model=first))
    first.rename(place.folder / "moved")
    with pytest.raises(SettingsError, match="first holds no checkpoint"):
        place.command("rollback")
    assert place.command("rollback", "--model", str(place.folder / "moved")).startswith("version 2 is live")


def test_the_first_checkpoint_is_known_by_its_whole_path(
    place: Place, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model_dir.parent)
    run_job(place.store, place.with_(model=Path(model_dir.name)))
    monkeypatch.chdir(place.folder)
    assert place.command("rollback") == "version 2 is live, with the weights of version 0\n"


def test_a_failed_way_back_leaves_the_live_version(place: Place) -> None:
    report = run_job(place.store, place.settings)
    place.replicas[0].refuses = lambda path: not path.name.startswith("job-")
    with pytest.raises(PublishError, match="version 1 serves on"):
        put_back(place.store, place.settings, 0, lambda: None)
    assert {path for path, _, _ in place.served} == {report.job_id}
    assert place.store.policy()[0] == 1


def test_a_pinned_version_stays_until_it_is_let_go(place: Place) -> None:
    run_job(place.store, place.settings)
    assert place.command("pin", "0") == "version 2 is live, with the weights of version 0; version 2 is pinned\n"
    for name, reward in {"a": 0.0, "b": 1.0}.items():
        place.store.reward(name, reward, "corrected")
    for refused in (lambda: run_job(place.store, place.settings), lambda: place.command("rollback", "1")):
        with pytest.raises(PublishError, match="pinned at version 2"):
            refused()
    assert len(place.store.jobs()) == 1
    with pytest.raises(SystemExit, match="2"):
        place.command("pin", "1", "--off")
    assert place.command("pin", "--off") == "no version is pinned\n"
    assert run_job(place.store, place.settings).version == 3


UNKNOWN = "the checkpoint that the engine started with; its path is known once a job has published"


def test_before_the_first_job_the_engines_own_checkpoint_is_live(place: Place) -> None:
    said = f"version 0 is live: {UNKNOWN}\n"
    assert place.command("show") == place.command("show", "0") == said
    for version in ([], ["0"]):
        assert json.loads(place.command("show", *version, "--json"))["version"] == {"version": 0, "state": "live"}
    assert place.command("rollback", "0") == "version 0 is already live\n"
    for version in ([], ["0"]):
        with pytest.raises(SettingsError, match=r"version 0 is live.* once a job has published"):
            place.command("pin", *version)
    assert place.store.versions() == []


def test_the_first_checkpoint_is_shown_after_another_without_a_job_went_live(place: Place, model_dir: Path) -> None:
    place.store.version_live(place.store.new_version(str(model_dir), None))
    said = f"version 0 is {UNKNOWN}\n"
    assert place.command("show", "0") == said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("show", "9"), "no policy version 9"),
        (("rollback", "9"), "no policy version 9"),
        (("pin", "9"), "no policy version 9"),
    ],
)
def test_versions_that_are_not_there_are_named(place: Place, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(MosaicError, match=said):
        place.command(*arguments)


@pytest.mark.skipif(torch.cuda.is_available(), reason="only a machine without a GPU refuses")
def test_nccl_without_a_gpu_is_refused_before_anything_is_trained(place: Place) -> None:
    with pytest.raises(SettingsError, match="no CUDA device"):
        run_job(place.store, place.with_(transport="nccl"))
    assert not place.settings.train.output.exists()


def test_an_adapter_needs_the_name_under_which_it_is_served(
    place: Place, model_dir: Path, save_adapter: Callable[[Path], Path]
) -> None:
    first = save_adapter(place.folder / "adapter")
    link = live_link(first)
    for replica in place.replicas:
        replica.path, replica.names, replica.link = first, ("base", "policy"), link
    settings = place.with_(model=first)
    with pytest.raises(SettingsError, match=r"is a LoRA adapter, but .* serves base, policy and policy_model is None"):
        run_job(place.store, settings)
    settings = settings.model_copy(update={"policy_model": "policy"})
    place.replicas[1].link = first
    with pytest.raises(EngineError, match=r"reads the adapter 'policy' from .*/adapter, which is no absolute symbolic"):
        run_job(place.store, settings)
    place.replicas[1].link = link
    report = run_job(place.store, settings)
    assert place.served == {(report.job_id, "1", False)}
    assert link.resolve().name == report.job_id
    assert model_dir.name == "policy"


def test_one_version_is_live_and_earlier_ones_were_and_dates_and_figures_are_readable(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    job = store.start_job({})
    for number in (1, 2):
        store.version_live(store.new_version(f"/v{number}", job if number == 1 else None))
    figures = {"tokens_trained": 1234567.0, "train_seconds": 36.81234567, "loss": -1.23456789e-05}
    store.finish_training(job, 1, {}, {}, {"gap_mean": 0.012345678, "version": 1}, metrics=figures)
    flags = ["--database", f"sqlite:///{tmp_path}/mosaic.db"]
    lines = CliRunner().invoke(app, ["list", *flags]).stdout.splitlines()
    assert [line.split()[:2] for line in lines[1:3]] == [["2", "live"], ["1", "was"]]
    text = CliRunner().invoke(app, ["show", "1", *flags]).stdout
    assert re.search(r"state +was live *$", text, re.MULTILINE)
    assert re.search(r"live_at +\d{4}-\d\d-\d\d \d\d:\d\d:\d\d *$", text, re.MULTILINE)
    for figure in ("0.01235", "1234567", "36.81", "-1.235e-05"):
        assert re.search(rf" {re.escape(figure)} *$", text, re.MULTILINE)


@pytest.mark.parametrize("command", ["list", "show"])
def test_versions_fit_a_terminal_of_60_columns(tmp_path: Path, command: str) -> None:
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    job, figure = store.start_job({}), "left_out_trajectory_no_trainable_tokens"
    store.version_live(store.new_version(f"/var/lib/mosaic/checkpoints/{job}", job))
    store.finish_training(job, 1, {}, {}, {"gap_mean": 0.012345678, "version": 1}, metrics={figure: 3.0})
    store.pin(1)
    terminal = {"TTY_COMPATIBLE": "1", "TERM": "xterm", "COLUMNS": "60", "NO_COLOR": "1"}
    done = CliRunner().invoke(app, [command, "--database", f"sqlite:///{tmp_path}/mosaic.db"], env=terminal)
    lines = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 60


def test_a_first_adapter_comes_with_the_link_that_the_engine_is_to_read(model_dir: Path, tmp_path: Path) -> None:
    folder, link = tmp_path / "adapter", tmp_path / "adapter-live"
    given = ["adapter", str(model_dir), str(folder), "--rank", "4"]
    done = CliRunner().invoke(app, given)
    assert f"--lora-modules policy={link}\n" in done.stdout
    assert link.resolve() == folder
    shutil.rmtree(folder)
    with pytest.raises(SettingsError, match="adapter-live exists already"):
        raise CliRunner().invoke(app, given).exception or AssertionError("it was not refused")
