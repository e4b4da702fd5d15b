"""`/metrics` is right, whichever worker answers; the Grafana dashboard and the alerts ask for nothing else."""

import asyncio
import json
import os
import re
import signal
from pathlib import Path

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

from mosaic.store import Store
from tests.conftest import ProxyFactory, until
from tests.engine import ScriptedEngine, Turn
from tests.engine.scripted import Fault
from tests.proxy.test_recorder import start
from tests.proxy.test_workers import workers_of

DOCKER = Path(__file__).parents[2] / "docker"
Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]
BODY = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}


async def scrape(url: str) -> Figures:
    """Every sample by name and labels; on a connection of its own, which any worker may take."""
    async with aiohttp.ClientSession() as client, client.get(f"{url}/metrics") as response:
        assert response.status == 200
        text = await response.text()
    families = text_string_to_metric_families(text)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def counted(found: Figures, metric: str, /, **labels: str) -> float:
    return sum(value for (n, ls), value in found.items() if n == metric and labels.items() <= dict(ls).items())


async def call(url: str, *, stream: bool = False, path: str = "") -> None:
    body = {**BODY, "stream": stream}
    try:
        async with (
            aiohttp.ClientSession() as client,
            client.post(f"{url}{path}/v1/chat/completions", json=body) as response,
        ):
            await response.read()
    except aiohttp.ClientError:
        await asyncio.sleep(0.1)
        await call(url, stream=stream, path=path)


async def test_every_worker_says_the_same_and_a_killed_one_takes_nothing_away(tmp_path: Path) -> None:
    calls = 24
    async with ScriptedEngine(lambda _: Turn("Hello")).serve() as upstream:
        database = f"sqlite:///{tmp_path}/mosaic.db"
        process, url = start(tmp_path, upstream, database, MOSAIC_WORKERS="3")
        try:
            await asyncio.gather(*(call(url, stream=at % 2 == 0) for at in range(calls)))
            store = Store(database)
            await until(lambda: sum(t.calls for t in store.trajectories(100)) == calls)
            store.close()
            for _ in range(8):
                check(await scrape(url), calls)
            os.kill(workers_of(process.pid)[0], signal.SIGKILL)
            await until(lambda: len(workers_of(process.pid)) == 3, 60)
            await call(url)
            await until_it_says(url, "mosaic_calls_total", calls + 1)
            for _ in range(8):
                check(await scrape(url), calls + 1)
        finally:
            process.terminate()
            process.wait(30)


async def until_it_says(url: str, metric: str, value: float) -> None:
    async with asyncio.timeout(30):
        while counted(await scrape(url), metric) != value:  # noqa: ASYNC110 - one has to ask
            await asyncio.sleep(0.02)


def check(found: Figures, calls: int) -> None:
    assert counted(found, "mosaic_recorder_recorded_total") == calls
    assert counted(found, "mosaic_calls_total", wire="chat", status="ok") == calls
    assert counted(found, "mosaic_exact_calls_total") == calls
    assert counted(found, "mosaic_call_seconds_count") == calls
    assert counted(found, "mosaic_first_byte_seconds_bucket", le="+Inf") == calls
    assert counted(found, "mosaic_sampled_tokens_total") == calls * (len("Hello") + 1)
    assert (counted(found, "mosaic_writer_up"), counted(found, "mosaic_open_calls")) == (1, 0)


async def test_calls_are_counted_by_how_they_ended_and_those_in_flight_as_open(start_proxy: ProxyFactory) -> None:
    faults = {"hang": Fault.HANG, "refuse": Fault.REFUSE, "fine": Fault.NONE}
    turns = iter(faults.values())
    async with start_proxy(lambda _: Turn("Hello", fault=next(turns))) as proxy:
        hanging = asyncio.ensure_future(call(proxy.url))
        await until_it_says(proxy.url, "mosaic_open_calls", 1)
        await call(proxy.url)
        await call(proxy.url)
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        await until_it_says(proxy.url, "mosaic_calls_total", 3)
        found = await scrape(proxy.url)
        ends = {status: counted(found, "mosaic_calls_total", status=status) for status in ("ok", "failed", "aborted")}
        assert ends == {"ok": 1, "failed": 1, "aborted": 1}
        assert counted(found, "mosaic_open_calls") == 0


async def test_what_the_newest_job_measured_is_told(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hello")) as proxy:
        proxy.store.end_job(proxy.store.start_job({}), metrics={"reward_mean": 0.75})
        found = await scrape(proxy.url)
        assert counted(found, "mosaic_job", name="reward_mean") == 0.75
        assert counted(found, "mosaic_job_state") == 1


def asked() -> set[str]:
    """Every metric that the dashboard and the alerts name."""
    panels = json.loads((DOCKER / "grafana" / "mosaic.json").read_text())["panels"]
    said = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    for group in yaml.safe_load((DOCKER / "prometheus" / "alerts.yaml").read_text())["groups"]:
        said += [rule["expr"] for rule in group["rules"]]
    assert len(said) > 15
    return {name for expression in said for name in re.findall(r"\bmosaic_\w+", expression)}


def documented() -> set[str]:
    """Every metric of the table in docs/operations.md."""
    page = (DOCKER.parent / "docs" / "operations.md").read_text()
    rows = page.partition("| metric | counts |")[2].partition("\n\n")[0]
    return set(re.findall(r"`(mosaic_\w+)", "\n".join(row.split("|")[1] for row in rows.splitlines()[2:])))


async def test_dashboard_and_alerts_name_metrics_that_are_there_and_the_docs_name_all(
    start_proxy: ProxyFactory,
) -> None:
    async with start_proxy(lambda _: Turn("Hello")) as proxy:
        await call(proxy.url, path="/t/run-17")
        proxy.store.count("inexact_calls", "call_failed")
        proxy.store.end_job(proxy.store.start_job({}), metrics={"reward_mean": 0.75})
        await until_it_says(proxy.url, "mosaic_calls_total", 1)
        there = {name for name, _ in await scrape(proxy.url)}
        there = {name for name in there if name.startswith("mosaic_")}
    assert asked() - there == set()
    assert documented() == {re.sub(r"_(bucket|sum|count)$", "", name) for name in there}
