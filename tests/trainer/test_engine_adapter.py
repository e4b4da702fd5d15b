"""The real vLLM with LoRA enabled: adapters change under running requests, verified by what they sample."""

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mosaic.errors import PublishError
from tests.trainer.test_engine import PROBE_L, complete
from trainer.adapter import live_link, make_adapter
from trainer.engine import Engine, EngineSettings
from trainer.engine_control import EngineControl
from trainer.probe import checkpoint_logprobs
from trainer.publish import Publication, publish

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory, save_model: Callable[..., Path]) -> tuple[Path, Path, Path]:
    """A base model, a first adapter that changes nothing, and one that does."""
    from safetensors.numpy import load_file, save_file

    folder = tmp_path_factory.mktemp("adapters")
    base = save_model(folder / "base", hidden=128, layers=2)
    for name in ("first", "second"):
        make_adapter(base, folder / name, 8)
    file = folder / "second" / "adapter_model.safetensors"
    rng = np.random.default_rng(0)
    moved = {
        key: value + 0.05 * rng.standard_normal(value.shape).astype(value.dtype) if "lora_B" in key else value
        for key, value in load_file(file).items()
    }
    save_file(moved, file, metadata={"format": "pt"})
    return base, folder / "first", folder / "second"


@pytest.fixture(scope="module")
def engine(adapters: tuple[Path, Path, Path]) -> Iterator[Engine]:
    base, first, _ = adapters
    arguments = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"policy={live_link(first)}")
    settings = EngineSettings(
        base, base.parent / "engine.log", max_model_len=512, served_model_name="base", extra_args=arguments
    )
    with Engine(settings) as running:
        yield running


@pytest.mark.parametrize("mode", ["keep", "wait"])
def test_an_adapter_goes_live_under_load_and_back(engine: Engine, adapters: tuple[Path, Path, Path], mode: str) -> None:
    _, first, second = adapters
    control = replace(EngineControl(engine.base_url, model="policy", adapter=True), pause_mode=mode)  # type: ignore[arg-type]
    assert control.served_models() == ["base", "policy"]
    results: list[int] = []
    threads = [
        threading.Thread(
            target=lambda seed=seed: results.append(len(complete(engine, [5, 6, 7], 150, seed)["token_ids"]))
        )
        for seed in range(6)
    ]
    for thread in threads:
        thread.start()
    there = publish([control], Publication(second, 2, first, 1, PROBE_L), lambda: None)
    back = publish([control], Publication(first, 3, second, 2, PROBE_L), lambda: None)
    for thread in threads:
        thread.join()
    assert results == [150] * 6
    for report in (there, back):
        assert report.gap_max < 1e-3 < report.change_max
    assert control.version() == "3"


def test_a_call_that_was_frozen_goes_on_with_the_new_adapter(engine: Engine, adapters: tuple[Path, Path, Path]) -> None:
    _, first, second = adapters
    control = EngineControl(engine.base_url, model="policy", adapter=True)
    swapped_to(control, second, 4)
    prompt = [5, 6, 7]
    body = {"model": "policy", "prompt": prompt, "max_tokens": 400, "logprobs": 0, "stream": True}
    asked = json.dumps({**body, "return_token_ids": True, "ignore_eos": True, "seed": 1}).encode()
    request = urllib.request.Request(engine.base_url + "/v1/completions", asked, {"content-type": "application/json"})
    ids, logprobs = list(prompt), []
    with urllib.request.urlopen(request, timeout=300) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            if len(ids) == len(prompt):
                swapped_to(control, first, 5)
            choice = json.loads(line[6:])["choices"][0]
            ids += choice["token_ids"]
            logprobs += choice["logprobs"]["token_logprobs"]
    last_N = np.asarray(logprobs[-100:])
    of_first_N, of_second_N = (checkpoint_logprobs(one, np.asarray(ids, np.int32))[-100:] for one in (first, second))
    assert np.abs(last_N - of_first_N).max() < 1e-3 < np.abs(last_N - of_second_N).mean()


def swapped_to(control: EngineControl, folder: Path, version: int) -> None:
    control.pause()
    control.load(folder, version)
    control.resume()


def test_an_adapter_that_cannot_be_loaded_leaves_the_one_before(
    engine: Engine, adapters: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    _, first, second = adapters
    control = EngineControl(engine.base_url, model="policy", adapter=True)
    missing = Publication(second, 9, first, 8, PROBE_L)

    class Misled(EngineControl):
        def load(self, checkpoint: Path, version: int) -> None:
            EngineControl.load(self, tmp_path / "nowhere" if version == 9 else checkpoint, version)

    with pytest.raises(PublishError, match="version 8 serves on"):
        publish([Misled(control.base_url, model="policy", adapter=True)], missing, lambda: None)
    assert not control.is_paused()
    assert complete(engine, [5, 6, 7], 8, 0)["token_ids"]
