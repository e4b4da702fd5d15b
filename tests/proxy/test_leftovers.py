"""Nothing is left over: stopping, tasks, descriptors; and what is only passed on."""

import asyncio
import contextlib
import gc
import json
import os
import socket
import threading
from pathlib import Path

import aiohttp
import pytest

from mosaic.settings import OtherModel
from mosaic.store import Store
from proxy.reading import waiting_calls
from tests.conftest import ProxyFactory, until
from tests.engine import Fault, ScriptedEngine, Turn
from tests.engine.raw import End, RawEngine, event_stream, whole
from tests.proxy.faults import BODIES, PATHS, TEXT, Json, before, post, replying, text_in, wire_stream
from tests.proxy.test_recorder import start


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_ends_while_the_proxy_is_being_stopped_is_whole_and_recorded(
    tmp_path: Path, path: str
) -> None:
    stream = wire_stream(path, Turn(TEXT))
    engine = RawEngine(replying(event_stream(), stream[:500], End.PAUSE, stream[500:], End.FIN))
    database = f"sqlite:///{tmp_path}/mosaic.db"
    async with engine.serve() as upstream:
        process, address = start(tmp_path, upstream, database, MOSAIC_DRAIN_S="20")
        url, body = f"{address}/v1/{path}", {**BODIES[path], "stream": True}
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
            await engine.reached.wait()
            process.terminate()
            await until(lambda: not listens(address))
            engine.go.set()
            assert text_in(path, await response.read()) == TEXT
        assert await asyncio.to_thread(process.wait, 30) == 0
    store = Store(database)
    # In the store, or in the journal where the writer was not up yet: the next start brings it in.
    assert sum(t.calls for t in store.trajectories()) + waiting_calls(tmp_path / "spool") == 1
    assert all(t.inexact_calls == 0 for t in store.trajectories())
    store.close()


def listens(address: str) -> bool:
    host, port = address.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


async def test_three_hundred_mixed_requests_leave_no_task_thread_or_descriptor(start_proxy: ProxyFactory) -> None:
    faults = [Fault.NONE, Fault.CUT_MID_STREAM, Fault.HANG_MID_STREAM, Fault.REFUSE, Fault.GARBAGE, Fault.IN_BAND_ERROR]

    def script(body: Json) -> Turn:
        return Turn("A longer text of many pieces", fault=faults[int(json.dumps(body["messages"]).split("#")[1])])

    async with start_proxy(script) as proxy:
        paths = ["chat/completions", "responses", "messages"]

        async def one(number: int) -> None:
            path, fault = paths[number % 3], number // 3 % len(faults)
            body = {**BODIES[path], "stream": number % 2 == 0 or faults[fault] is Fault.HANG_MID_STREAM}
            body["input" if path == "responses" else "messages"] = (
                f"#{fault}#{number}" if path == "responses" else [{"role": "user", "content": f"#{fault}#{number}"}]
            )
            url = f"{proxy.url}/t/run-{number}/v1/{path}"
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(0.5 if faults[fault] is Fault.HANG_MID_STREAM else 20):
                    async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
                        await response.read()

        async def batch(numbers: range) -> None:
            await asyncio.gather(*(one(number) for number in numbers))

        await batch(range(60))
        await until(lambda: sum(t.calls for t in proxy.store.trajectories(1000)) == 60)
        before_them = await settled()
        for begin in range(60, 360, 60):
            await batch(range(begin, begin + 60))
        await until(lambda: sum(t.calls for t in proxy.store.trajectories(1000)) == 360)
        for _ in range(40):
            if all(after <= then + 3 for after, then in zip(await settled(), before_them, strict=True)):
                break
            await asyncio.sleep(0.25)
        assert all(after <= then + 3 for after, then in zip(await settled(), before_them, strict=True)), (
            before_them,
            await settled(),
        )


async def settled() -> tuple[int, int, int]:
    """(tasks, threads, descriptors) once idle connections were closed."""
    await asyncio.sleep(0.1)
    gc.collect()
    return len(asyncio.all_tasks()), threading.active_count(), len(os.listdir("/proc/self/fd"))


async def test_embeddings_go_where_the_map_of_models_says(start_proxy: ProxyFactory) -> None:
    other = ScriptedEngine(lambda _: Turn())
    async with other.serve() as url:
        models = {"text-*": OtherModel(upstream=url, model="e5")}
        async with before(start_proxy, replying(whole(b"{}")), models=models) as (proxy, engine):
            _, got = await post(proxy, "embeddings", {"model": "text-embedding", "input": "a"})
            assert engine.requests == []
            assert json.loads(got)["asked"] == {"model": "e5", "input": "a"}


@pytest.mark.parametrize("status", ["429 Busy", "503 Busy"])
async def test_a_busy_engine_says_so_to_embeddings_too(start_proxy: ProxyFactory, status: str) -> None:
    async with (
        before(start_proxy, replying(whole(b"{}", status=status))) as (proxy, _),
        aiohttp.ClientSession() as client,
        client.post(f"{proxy.url}/v1/embeddings", json={"model": "policy", "input": "a"}) as response,
    ):
        assert (response.status, response.headers["retry-after"]) == (int(status[:3]), "1")
