"""Calls that wait for an engine that is away, and what their clients get when it comes, or does not."""

import asyncio
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from mosaic.settings import Settings
from mosaic.store import Store
from proxy import upstream as names
from proxy.journal import Entry
from proxy.recorder import Recorder
from proxy.trace import Trace
from tests.conftest import serving, until
from tests.engine import ScriptedEngine, Turn

BODY = {"model": "gpt-5-mini", "messages": [{"role": "user", "content": "Hello"}]}


async def ask(url: str, **more: object) -> tuple[int, str]:
    """One call under a name of the agent's own."""
    body = {**BODY, **more}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as response:
        return response.status, await response.text()


async def settings_before_nobody(folder: Path, **more: object) -> Settings:
    """Settings of a proxy whose engine's port is free."""
    async with ScriptedEngine(lambda _: Turn("Hi")).serve() as url:
        pass
    values = {"upstream": url, "database": f"sqlite:///{folder}/mosaic.db", "spool": folder / "spool"}
    return Settings(**{**values, "writer_process": False, **more})  # type: ignore[arg-type]


async def test_a_call_that_waits_for_the_first_start_of_the_engine_asks_for_the_policy(tmp_path: Path) -> None:
    settings = await settings_before_nobody(tmp_path)
    async with serving(settings) as url:
        asking = asyncio.ensure_future(ask(url))
        await asyncio.sleep(0.3)  # it has found nobody
        engine = ScriptedEngine(lambda _: Turn("Hi"))
        async with engine.serve(urlsplit(settings.upstream).port or 0):
            assert (await asking)[0] == 200
    assert [request["model"] for request in engine.requests] == ["policy"]


async def test_a_call_that_waits_for_a_restart_asks_for_the_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "NAMES_S", 0.0)
    settings = await settings_before_nobody(tmp_path)
    port = urlsplit(settings.upstream).port or 0
    engine = ScriptedEngine(lambda _: Turn("Hi"))
    async with serving(settings) as url:
        async with engine.serve(port):
            assert (await ask(url))[0] == 200
        asking = asyncio.ensure_future(ask(url))
        await asyncio.sleep(0.3)
        async with engine.serve(port):
            assert (await asking)[0] == 200
    assert [request["model"] for request in engine.requests] == ["policy", "policy"]


async def test_a_client_that_leaves_before_the_engine_has_ever_answered_ends_the_wait(tmp_path: Path) -> None:
    settings = await settings_before_nobody(tmp_path)
    async with serving(settings) as url:
        asking = asyncio.ensure_future(ask(url))
        await asyncio.sleep(0.3)
        asking.cancel()
        store = Store(settings.database)
        await until(store.trajectories, settings.engine_wait_s / 2)
        store.close()


@pytest.mark.parametrize("ping_s", [0.01, 0.05])
async def test_an_error_ends_a_stream_that_a_keep_alive_began_while_the_call_was_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ping_s: float
) -> None:
    began = asyncio.Event()
    record = Recorder.record

    async def slowly(self: Recorder, entry: Entry | None, trace: Trace) -> None:
        began.set()
        await asyncio.sleep(0.2)
        await record(self, entry, trace)

    monkeypatch.setattr(Recorder, "record", slowly)
    settings = await settings_before_nobody(tmp_path, engine_wait_s=0, ping_s=ping_s)
    async with serving(settings) as url:
        status, said = await ask(url, stream=True)
    assert began.is_set()
    assert status == 200
    assert "cannot connect" in said.lower()


async def test_a_call_waits_for_an_engine_that_is_too_busy_to_take_connections(tmp_path: Path) -> None:
    settings = await settings_before_nobody(tmp_path, connect_timeout_s=0.2, policy_model="policy")
    port = urlsplit(settings.upstream).port or 0
    with socket.create_server(("127.0.0.1", port), backlog=0) as busy, ExitStack() as waiting:
        for _ in range(3):  # more than its queue holds
            connection = waiting.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(busy.getsockname())
        async with serving(settings) as url:
            asking = asyncio.ensure_future(ask(url))
            await asyncio.sleep(0.7)  # some connections were given up
            assert not asking.done()
            waiting.close()
            busy.close()
            async with ScriptedEngine(lambda _: Turn("Hi")).serve(port):
                assert (await asking)[0] == 200


async def test_an_absent_engine_is_asked_as_often_for_many_calls_as_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def nobody(_: names.Upstream, base: str) -> tuple[str, ...]:
        asked.append(base)
        return ()

    monkeypatch.setattr(names.Upstream, "_ask", nobody)
    upstream = names.Upstream(await settings_before_nobody(tmp_path, engine_wait_s=3 * names.RETRY_S))
    await asyncio.gather(*(upstream.learn_names() for _ in range(50)))
    await upstream.close()
    assert 2 <= len(asked) <= 6
