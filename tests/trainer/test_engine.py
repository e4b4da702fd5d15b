"""The real vLLM: starting, failing, training on what it sampled, and swapping weights under load."""

import contextlib
import json
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mosaic.errors import EngineError, PublishError
from mosaic.settings import Settings
from trainer.engine import Engine, EngineSettings
from trainer.engine_control import EngineControl
from trainer.publish import Publication, publish
from trainer.replicas import Live, running_engines
from trainer.round import TrainSettings
from trainer.sequences import Cause, Sequence, Span

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]

PROBE_L = np.arange(5, 25, dtype=np.int32)


def alive(group: int) -> list[str]:
    """The command names of the group's processes; one that only waits to be reaped is not alive."""
    names = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, fields = stat.read_text().rsplit(")", 1)
            state, _, process_group = fields.split()[:3]
            if int(process_group) == group and state != "Z":
                names.append(name)
    return names


@pytest.fixture(scope="session")
def old_model(tmp_path_factory: pytest.TempPathFactory, save_model: Callable[..., Path]) -> Path:
    return save_model(tmp_path_factory.mktemp("served") / "old", hidden=128, layers=4)


@pytest.fixture(scope="session")
def engine(old_model: Path) -> Iterator[Engine]:
    settings = EngineSettings(old_model, old_model.parent / "engine.log", max_model_len=512)
    with Engine(settings) as running:
        group = running.pid
        yield running
    assert group is not None
    assert not alive(group)


@pytest.fixture
def control(engine: Engine) -> EngineControl:
    return EngineControl(engine.base_url)


def complete(engine: Engine, prompt: list[int], max_tokens: int, seed: int) -> dict[str, Any]:
    """One sampled completion with ids and logprobs."""
    body = {
        "model": "policy",
        "prompt": prompt,
        "max_tokens": max_tokens,
        "logprobs": 0,
        "return_token_ids": True,
        "ignore_eos": True,
        "seed": seed,
    }
    request = urllib.request.Request(
        engine.base_url + "/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as reply:
        choice: dict[str, Any] = json.load(reply)["choices"][0]
    return choice


def sampled(engine: Engine, n: int) -> list[Sequence]:
    rng = np.random.default_rng(0)
    sequences = []
    for k in range(n):
        prompt = rng.integers(3, 300, 12).tolist()
        choice = complete(engine, prompt, 40, seed=k)
        ids_L = np.array(prompt + choice["token_ids"], np.int32)
        mask_L = np.arange(len(ids_L)) >= len(prompt)
        logprobs_L = np.array([0.0] * len(prompt) + choice["logprobs"]["token_logprobs"], np.float32)
        advantages_L = np.where(mask_L, 1.0 if k % 2 else -1.0, 0).astype(np.float32)
        versions_L = np.where(mask_L, 1, -1).astype(np.int32)
        spans = (Span(f"c{k}", 0, len(prompt), len(ids_L)),)
        sequences.append(
            Sequence(
                f"t{k}", f"s{k}", Cause.ROOT, ids_L, mask_L, logprobs_L, advantages_L, versions_L, len(prompt), spans
            )
        )
    return sequences


def test_a_round_trained_on_sampled_tokens_goes_live_under_load(
    engine: Engine, control: EngineControl, old_model: Path, tmp_path: Path
) -> None:
    from trainer.policy_trainer import train

    sequences = sampled(engine, 6)
    report = train(old_model, sequences, TrainSettings(learning_rate=1e-3), tmp_path / "new")
    assert report.logprob_gap_max < 2e-3
    assert report.mean_ratio == pytest.approx(1, abs=1e-3)

    results: list[int] = []

    def load(seed: int) -> None:
        results.append(len(complete(engine, [5, 6, 7], 250, seed)["token_ids"]))

    threads = [threading.Thread(target=load, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    seen: list[Any] = []
    publication = Publication(tmp_path / "new", 2, old_model, 1, sequences[0].ids_L)
    there = publish([control], publication, lambda: seen.append((control.is_paused(), control.version())))
    for thread in threads:
        thread.join()
    print(report, there, sep="\n")  # noqa: T201 - shown with -s, and when the test fails
    assert results == [250] * 8
    assert seen == [(True, "2")]
    assert not control.is_paused()
    assert there.gap_max < 2e-3
    assert there.change_max > 10 * there.gap_max

    back = publish([control], Publication(old_model, 3, tmp_path / "new", 2, sequences[0].ids_L), lambda: None)
    assert back.gap_max < 2e-3
    assert control.version() == "3"


def test_a_checkpoint_of_another_architecture_is_refused_untouched(
    control: EngineControl, old_model: Path, save_model: Callable[..., Path], tmp_path: Path
) -> None:
    other = save_model(tmp_path / "other", seed=1, hidden=64, layers=2)
    version = control.version()
    with pytest.raises(PublishError, match="does not fit the model that is served"):
        publish([control], Publication(other, 9, old_model, 8, PROBE_L), lambda: None)
    assert control.version() == version


@dataclass(frozen=True, slots=True)
class MisledControl(EngineControl):
    """Loads something else than it is told, as an engine on a machine without the shared folder would."""

    wrong: Path | None = None

    def load(self, checkpoint: Path, version: int) -> None:
        instead = self.wrong if version == 9 else None
        EngineControl.load(self, instead or checkpoint, version)


@pytest.mark.parametrize("what", ["missing", "other shapes"])
def test_a_load_that_fails_half_way_is_rolled_back(
    control: EngineControl, old_model: Path, save_model: Callable[..., Path], tmp_path: Path, what: str
) -> None:
    fine = save_model(tmp_path / "fine", seed=1, hidden=128, layers=4)
    wrong = tmp_path / "nowhere"
    if what == "other shapes":
        save_model(wrong, seed=1, hidden=64, layers=2)
    before_L = control.logprobs(PROBE_L)
    misled = MisledControl(control.base_url, wrong=wrong)
    with pytest.raises(PublishError, match=r"Version 9 was not put live, version 8 serves on"):
        publish([misled], Publication(fine, 9, old_model, 8, PROBE_L), lambda: None)
    assert not control.is_paused()
    assert control.version() == "8"
    np.testing.assert_allclose(control.logprobs(PROBE_L), before_L, atol=1e-4)


def test_weights_other_than_the_checkpoint_says_are_rolled_back(
    control: EngineControl, old_model: Path, save_model: Callable[..., Path], tmp_path: Path
) -> None:
    other = save_model(tmp_path / "other", seed=1, hidden=128, layers=4)
    before_L = control.logprobs(PROBE_L)
    undone: list[bool] = []
    publication = Publication(
        other, 11, old_model, 10, PROBE_L, gap_growth=-1.0, gap_floor=-1.0
    )  # no load can satisfy this
    with pytest.raises(PublishError, match="nats off"):
        publish([control], publication, lambda: None, lambda: undone.append(control.is_paused()))
    assert undone == [True]
    np.testing.assert_allclose(control.logprobs(PROBE_L), before_L, atol=1e-4)


def test_an_engine_that_serves_other_weights_than_are_said_to_be_live_is_refused(
    engine: Engine, control: EngineControl, old_model: Path, save_model: Callable[..., Path], tmp_path: Path
) -> None:
    """By what the engine says of them, and by its logprobs where it was told a wrong number."""
    other = save_model(tmp_path / "other", seed=1, hidden=128, layers=4)
    settings = Settings(upstream=f"{engine.base_url}/v1")
    control.pause()
    control.load(old_model, 20)
    control.resume()
    (found,) = running_engines(settings, Live(old_model, 20, frozenset({20})), PROBE_L)
    assert found.model == "policy"
    for numbers, why in (({21}, "says that it has version 20"), ({20, 21}, "nats off")):
        with pytest.raises(EngineError, match=f"does not serve version 21: .*{why}"):
            running_engines(settings, Live(other, 21, frozenset(numbers)), PROBE_L)


def test_the_prefix_cache_of_the_old_weights_is_not_used(
    engine: Engine, control: EngineControl, old_model: Path, save_model: Callable[..., Path], tmp_path: Path
) -> None:
    """A prompt that is cached under the old weights continues as under the new ones, with requests in flight."""
    other = save_model(tmp_path / "other", seed=1, hidden=128, layers=4)
    prompt = np.random.default_rng(1).integers(3, 300, 200).tolist()
    complete(engine, prompt, 1, 0)
    busy = threading.Thread(target=complete, args=(engine, [5, 6, 7], 400, 0))
    busy.start()
    time.sleep(0.3)
    probe_L = np.array(prompt[:50], np.int32)
    publish([control], Publication(other, 13, old_model, 12, probe_L), lambda: None)
    choice = complete(engine, prompt, 8, 0)
    busy.join()
    from trainer.probe import checkpoint_logprobs

    ids_L = np.array(prompt + choice["token_ids"], np.int32)
    expected_T = checkpoint_logprobs(other, ids_L)[-8:]
    publish([control], Publication(old_model, 14, other, 13, probe_L), lambda: None)
    np.testing.assert_allclose(choice["logprobs"]["token_logprobs"], expected_T, atol=2e-3)


def test_an_engine_that_cannot_start_says_where_its_log_is(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with (
        pytest.raises(EngineError, match=r"(?s)exited with status 1 .*See .*engine\.log"),
        Engine(EngineSettings(tmp_path / "empty", tmp_path / "engine.log")),
    ):
        pass


def test_a_missed_deadline_leaves_no_process(old_model: Path, tmp_path: Path) -> None:
    engine = Engine(EngineSettings(old_model, tmp_path / "engine.log", start_deadline=1))
    with pytest.raises(EngineError, match="not healthy within 1 s"), engine:
        pass
    assert engine.pid is None


def test_ctrl_c_stops_the_engine(old_model: Path, tmp_path: Path) -> None:
    script = f"""
        import pathlib, signal
        from trainer.engine import Engine, EngineSettings
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
        model_dir, log_path = pathlib.Path({str(old_model)!r}), pathlib.Path({str(tmp_path / "engine.log")!r})
        engine = Engine(EngineSettings(model_dir, log_path, max_model_len=512))
        is_healthy = engine.is_healthy
        engine.is_healthy = lambda: print(engine.pid, flush=True) or is_healthy()
        with engine:
            pass
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        group = int(child.stdout.readline())
        for _ in range(4):  # one line per look at the engine: by then it has children of its own
            assert int(child.stdout.readline()) == group
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert not alive(group)


def test_an_unreachable_engine_is_an_engine_error() -> None:
    with pytest.raises(EngineError, match="Check that the engine runs"):
        replace(EngineControl("http://127.0.0.1:9"), timeout=2).pause()
