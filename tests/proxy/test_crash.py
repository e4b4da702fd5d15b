"""Agents under load while processes are killed without warning: what a client has in full, the store has in full."""

import asyncio
import os
import random
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mosaic.records import Call
from mosaic.store import Store
from mosaic.store.checking import check
from tests.conftest import until
from tests.engine import ScriptedEngine, Turn
from tests.engine.scripted import END, render
from tests.proxy.test_recorder import start, writers_of

CLIENTS = 12
Answered = dict[str, tuple[list[dict[str, Any]], str]]
"""Call id -> (messages, the reply) of each answer that a client received to its last byte."""


def reply_to(body: dict[str, Any]) -> Turn:
    return Turn(f"Reply to message {len(body['messages'])} of {body['messages'][0]['content']}, and more. " * 3)


async def agent(url: str, name: str, answered: Answered) -> None:
    """One trajectory after another, three calls each, until the proxy is gone."""
    async with aiohttp.ClientSession() as client:
        for number in range(10_000):
            messages: list[dict[str, Any]] = [{"role": "user", "content": f"task of {name}-{number}"}]
            for turn in range(3):
                address = f"{url}/t/{name}-{number}/v1/chat/completions"
                body = {"model": "policy", "messages": messages, "stream": bool((number + turn) % 2)}
                async with client.post(address, json=body) as response:
                    assert response.status == 200
                    await response.read()
                    answered[response.headers["x-mosaic-call-id"]] = messages, reply_to(body).content
                reply = {"role": "assistant", "content": reply_to(body).content}
                messages = [*messages, reply, {"role": "user", "content": f"go on {turn}"}]


async def one_life(folder: Path, upstream: str, database: str, name: str, chance: random.Random) -> Answered:
    """Start a proxy, load it, kill its writer, itself or both at a random moment."""
    answered: Answered = {}
    process, url = start(folder, upstream, database)
    try:
        agents = [asyncio.ensure_future(agent(url, f"{name}-{n}", answered)) for n in range(CLIENTS)]
        await until(lambda: len(answered) > chance.randrange(3 * CLIENTS))
        victims = chance.choice(["proxy", "proxy", "writer", "both"])
        if victims != "proxy":
            for writer in writers_of(process.pid):
                os.kill(writer, signal.SIGKILL)
        if victims == "writer":
            seen = len(answered)
            await until(lambda: len(answered) > seen + chance.randrange(CLIENTS))
        os.kill(process.pid, signal.SIGKILL)
        ended = await asyncio.gather(*agents, return_exceptions=True)
        assert all(isinstance(e, aiohttp.ClientError) for e in ended), ended
    finally:
        process.kill()
        process.wait()
    return answered


async def kill_many(folder: Path, database: str, kills: int, seed: int) -> None:
    chance, answered = random.Random(seed), Answered()
    async with ScriptedEngine(reply_to).serve() as upstream:
        for life in range(kills):
            answered |= await one_life(folder, upstream, database, f"life{life}", chance)
        process, _ = start(folder, upstream, database)
        store = Store(database)
        try:
            await until(lambda: not left_over(folder), 60)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            process.wait()
    check_all(store, answered)
    store.close()


def left_over(folder: Path) -> bool:
    """Whether anything of a dead process waits to be recorded."""
    return any(path.stat().st_size for path in (folder / "spool").glob("calls-*"))


def check_all(store: Store, answered: Answered) -> None:
    assert check(store.database, deep=True) == []
    with store.engine.connect() as connection:
        rows = connection.exec_driver_sql("select call_id, status, exact from calls").all()
    status = {row[0]: row[1] for row in rows}
    certificate = Counter(status.values())
    assert {call_id: status.get(call_id) for call_id in answered} == dict.fromkeys(answered, "ok")
    assert certificate["interrupted"] > 0
    assert set(certificate) <= {"ok", "interrupted", "aborted"}
    found: dict[str, Call] = {}
    for summary in store.trajectories(100_000):
        trajectory = store.trajectory(summary.trajectory_id)
        found |= {call.call_id: call for session in trajectory.sessions for call in session.calls}
        assert trajectory.sessions[0].kind.value == "root"
    for call_id, (messages, reply) in answered.items():
        call = found[call_id]
        assert call.exact
        assert call.prompt_ids_P.tolist() == render(messages)
        assert call.samples[0].ids_T.tolist() == [*reply.encode(), END]
        assert len(call.samples[0].logprobs_T) == len(call.samples[0].ids_T)
        assert list(call.messages) == messages


@pytest.mark.timeout(600)
async def test_no_answer_that_a_client_has_is_lost_in_ten_kills(database_url: str, tmp_path: Path) -> None:
    await kill_many(tmp_path, database_url, 10, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_answer_that_a_client_has_is_lost_in_a_hundred_kills(
    database_url: str, tmp_path: Path, seed: int
) -> None:
    await kill_many(tmp_path, database_url, 100, seed)
