"""Several proxy workers on one database: agents whose calls land anywhere are found as by one worker."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mosaic.store import Store
from mosaic.store.checking import check
from tests.conftest import until
from tests.engine import ScriptedEngine, Turn
from tests.proxy.test_recorder import start

TURNS = 6


def reply_to(body: dict[str, Any]) -> Turn:
    """Each reply names its task and turn, and calls a tool, whose id comes back."""
    task = body["messages"][0]["content"]
    return Turn(f"{task}, step {len(body['messages'])}", calls=(("look", f'{{"at": "{task}"}}'),))


async def agent(url: str, name: str, keyed: bool) -> None:
    """A tool-calling conversation, each call on its own connection; a call that a dying worker drops is retried."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"task of {name}"}]
    path = f"/t/{name}/v1" if keyed else "/v1"
    for turn in range(TURNS):
        body = {"model": "policy", "messages": messages, "tools": [{"type": "function", "function": {"name": "look"}}]}
        reply = await ask(f"{url}{path}/chat/completions", body, name)
        call = reply["tool_calls"][0]
        result = {"role": "tool", "tool_call_id": call["id"], "content": f"result {turn} for {name}"}
        messages = [*messages, reply, result]


async def ask(address: str, body: dict[str, Any], name: str) -> dict[str, Any]:
    for attempt in range(20):
        headers = {"user-agent": f"agent {name}", "x-stainless-retry-count": str(attempt)}
        try:
            async with (
                aiohttp.ClientSession(headers=headers) as client,
                client.post(address, json=body) as response,
            ):
                message: dict[str, Any] = (await response.json())["choices"][0]["message"]
                return message
        except aiohttp.ClientError:
            await asyncio.sleep(0.1)
    raise AssertionError("no worker answers")


@pytest.mark.parametrize("kill", [False, True])
async def test_calls_that_land_on_any_worker_form_one_session(database_url: str, tmp_path: Path, kill: bool) -> None:
    async with ScriptedEngine(reply_to).serve() as upstream:
        process, url = start(tmp_path, upstream, database_url, MOSAIC_WORKERS="3")
        try:
            names = [f"agent-{n}" for n in range(16)]
            agents = [asyncio.ensure_future(agent(url, name, keyed=at % 2 == 0)) for at, name in enumerate(names)]
            store = Store(database_url)
            if kill:
                await until(lambda: len(store.trajectories(100)) > 8, 60)  # they have to start
                os.kill(workers_of(process.pid)[0], signal.SIGKILL)
            await asyncio.gather(*agents)
            await until(lambda: sum(t.calls for t in store.trajectories(100)) >= TURNS * len(names))
        finally:
            process.terminate()
            assert process.wait(30) == 0
            process.wait()
    assert check(store.database, deep=True) == []
    found = store.trajectories(100)
    assert len(found) == len(names)
    for summary in found:
        (session,) = store.trajectory(summary.trajectory_id).sessions
        ended_well = [call for call in session.calls if call.samples]
        assert sorted({len(call.messages) for call in ended_well}) == [1 + 2 * turn for turn in range(TURNS)]
    store.close()


def workers_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


async def test_workers_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    async with ScriptedEngine(reply_to).serve() as upstream:
        database = f"sqlite:///{tmp_path}/mosaic.db"
        process, url = start(tmp_path, upstream, database, MOSAIC_WORKERS="2")
        await ask(
            f"{url}/v1/chat/completions", {"model": "policy", "messages": [{"role": "user", "content": "a"}]}, "a"
        )
        workers = workers_of(process.pid)
        assert len(workers) == 2
        process.kill()
        process.wait()
        await until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
