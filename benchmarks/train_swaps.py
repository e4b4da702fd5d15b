"""Swaps under load: streams through `mosaic serve` in front of the real vLLM, while weights change again and again.

Every stream is read by a client that checks it: it must end with [DONE] after as many tokens as were asked for. What
was recorded says the rest: each call exact, each token with the version that sampled it.
"""

import asyncio
import os
import shutil
import statistics
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import orjson
from sqlalchemy import text

from benchmarks.results import Bar
from examples.demo.__main__ import POLICY
from examples.demo.processes import ProxyProcess
from mosaic.store import Store
from trainer.engine import Engine, EngineSettings, free_port
from trainer.engine_control import EngineControl
from trainer.publish import Publication, PublishReport, publish

TOKENS = 160
"""Tokens of each stream."""
WARM_UP = 3
"""Swaps that are not measured: the first waits for the first batch to be compiled."""


@dataclass
class Load:
    """Streams that are opened again as soon as they end."""

    url: str
    streams: int
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    warm: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when as many have ended as are in flight, or one has failed."""
    done: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    async def stream(self, client: aiohttp.ClientSession, number: int) -> None:
        """One client: streams until it is told to stop."""
        attempt = 0
        while not self.stop.is_set():
            attempt += 1
            body = {
                "model": "policy",
                "messages": [{"role": "user", "content": f"Tell me about city {number}, part {attempt}."}],
                "stream": True,
                "max_tokens": TOKENS,
                "ignore_eos": True,
                "stream_options": {"include_usage": True},
            }
            try:
                async with client.post(f"{self.url}/t/s{number}-{attempt}/v1/chat/completions", json=body) as response:
                    content = await response.read()
                self._judge(response.status, content)
            except aiohttp.ClientError as error:
                self.failed[type(error).__name__] += 1
            if self.failed or self.done >= self.streams:
                self.warm.set()

    def _judge(self, status: int, content: bytes) -> None:
        events = [orjson.loads(e[6:]) for e in content.split(b"\n\n") if e.startswith(b"data: {")]
        usage = next((e["usage"] for e in reversed(events) if e.get("usage")), None)
        if status != 200:
            self.failed[f"status {status}"] += 1
        elif not content.endswith(b"data: [DONE]\n\n"):
            self.failed["cut"] += 1
        elif usage is None or usage["completion_tokens"] != TOKENS:
            self.failed["short"] += 1
        else:
            self.done += 1


def swaps(kind: str, streams: int, n_swaps: int) -> tuple[dict[str, Bar], dict[str, Any]]:
    """Measure `full` or `lora` swaps; returns bars and details."""
    with tempfile.TemporaryDirectory(prefix="mosaic-swaps-") as name:
        folder = Path(name)
        served, first, second, arguments = _weights(kind, folder)
        settings = EngineSettings(
            served,
            folder / "engine.log",
            max_model_len=1024,
            max_num_seqs=max(streams, 64),
            threads=1,
            served_model_name="policy" if kind == "full" else "base",
            extra_args=arguments,
        )
        database = f"sqlite:///{folder}/mosaic.db"
        if kind == "lora":
            os.environ["MOSAIC_POLICY_MODEL"] = "policy"
        try:
            with Engine(settings) as engine, ProxyProcess(free_port(), f"{engine.base_url}/v1", database, folder) as it:
                it.wait()
                control = EngineControl(engine.base_url, model="policy", adapter=kind == "lora")
                load = Load(it.url, streams)
                reports = asyncio.run(_under_load(load, n_swaps, control, (first, second), database))
        finally:
            os.environ.pop("MOSAIC_POLICY_MODEL", None)
        return _figures(kind, load, reports[WARM_UP:], database)


def _weights(kind: str, folder: Path) -> tuple[Path, Path, Path, tuple[str, ...]]:
    """What vLLM starts with, two sets of weights to swap, and further arguments of the engine."""
    import torch
    from safetensors.torch import load_file, save_file

    if kind == "full":
        first, moved, file = POLICY, "", "model.safetensors"
        arguments: tuple[str, ...] = ()
    else:
        from trainer.adapter import live_link, make_adapter

        first, moved, file = folder / "first", "lora_B", "adapter_model.safetensors"
        make_adapter(POLICY, first, 8)
        arguments = ("--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"policy={live_link(first)}")
    second = folder / "second"
    shutil.copytree(first, second)
    torch.manual_seed(0)
    weights = load_file(first / file)
    for key, value in weights.items():
        if moved in key:
            weights[key] = value + (0.01 * torch.randn(value.shape)).to(value.dtype)
    save_file(weights, second / file, metadata={"format": "pt"})
    return POLICY, first, second, arguments


async def _under_load(
    load: Load, n_swaps: int, control: EngineControl, pair: tuple[Path, Path], database: str
) -> list[PublishReport]:
    reports = []
    store = Store(database)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as client:
        clients = [asyncio.ensure_future(load.stream(client, number)) for number in range(load.streams)]
        await load.warm.wait()
        live = 0
        for number in range(WARM_UP + n_swaps):
            old, new = pair if number % 2 == 0 else pair[::-1]
            version = store.new_version(str(new), None)
            publication = Publication(new, version, old, live, np.arange(5, 69, dtype=np.int32))
            loaded = partial(store.version_live, version)
            reports.append(await asyncio.to_thread(publish, [control], publication, loaded))
            live = version
        load.stop.set()
        await asyncio.gather(*clients)
    store.close()
    return reports


def _figures(
    kind: str, load: Load, reports: list[PublishReport], database: str
) -> tuple[dict[str, Bar], dict[str, Any]]:
    recorded = _recorded(database)
    paused = [1000 * (report.pause_seconds or 0.0) for report in reports]
    baseline = f"{load.done} streams of {TOKENS} tokens through the proxy, {len(reports)} swaps"
    bars = {
        f"{kind}_failed_or_cut_requests": Bar("requests", "== 0", baseline, [float(load.failed.total())]),
        f"{kind}_tokens_of_unknown_version": Bar("tokens", "== 0", baseline, [float(recorded["unknown"])]),
        f"{kind}_standstill_median": Bar(
            "ms", "<= 500", "generation paused, load included", [statistics.median(paused)]
        ),
        f"{kind}_standstill_max": Bar("ms", "<= 2000", "the worst of all swaps", [max(paused)]),
        f"{kind}_logprob_gap_max": Bar(
            "nats",
            "<= 0.001",
            "engine against the trainer's own forward pass, after each swap",
            [max(report.gap_max for report in reports)],
        ),
    }
    details = {
        "streams": load.done,
        "failures": dict(load.failed),
        "swap_s": [round(report.seconds, 3) for report in reports],
        "standstill_ms": [round(ms, 1) for ms in paused],
        "change_mean": statistics.median(report.change_mean for report in reports),
        **recorded,
    }
    return bars, details


def _recorded(database: str) -> dict[str, int]:
    """What the store knows of the tokens: those whose version is not exactly known, and calls that span swaps."""
    store = Store(database)
    with store.database.reading() as connection:
        rows = connection.execute(
            text(
                "select c.exact, c.sampled_tokens, c.policy_version, c.policy_version_end, t.versions "
                "from calls c left join tokens t on t.call_id = c.call_id"
            )
        ).all()
    store.close()
    unknown = spanning = most = 0
    for exact, sampled, first, last, versions in rows:
        spans = orjson.loads(versions) if versions else [[first, 0, sampled]]
        covered = sum(end - start for _, start, end in spans)
        known = bool(exact) and covered == sampled and spans[0][0] == first and spans[-1][0] == last
        unknown += 0 if known else sampled
        spanning += first != last
        most = max(most, len(spans))
    sampled_tokens = sum(row[1] for row in rows)
    return {
        "calls": len(rows),
        "sampled_tokens": sampled_tokens,
        "unknown": unknown,
        "calls_over_swaps": spanning,
        "most_versions_in_a_call": most,
    }
