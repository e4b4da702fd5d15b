"""When the database cannot take a call: the client is served, the call is spooled, and nothing is lost."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import Engine, event

from mosaic.settings import Settings
from mosaic.store import Store
from proxy.recorder import REPLAY_PAUSE_S, Recorder
from proxy.spool import Spool
from tests.conftest import ProxyFactory, until
from tests.engine import Fault, ScriptedEngine, Turn
from tests.lineage.test_lineage import linear
from tests.playbook import Recording

BODY = {"model": "policy", "messages": [{"role": "user", "content": "Hello"}], "stream": True}


async def ask(url: str, trajectory_id: str, body: dict[str, Any] | None = None) -> bytes:
    address = f"{url}/t/{trajectory_id}/v1/chat/completions"
    async with aiohttp.ClientSession() as client, client.post(address, json=body or BODY) as response:
        assert response.status == 200
        return await response.read()


async def test_a_locked_database_delays_no_answer_and_loses_no_call(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi"), store_wait_s=0.2) as proxy:
        await ask(proxy.url, "before")
        path = proxy.settings.database.removeprefix("sqlite:///")
        lock = sqlite3.connect(path, isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        answers = await asyncio.gather(*(ask(proxy.url, f"locked-{n}") for n in range(5)))
        assert all(a.endswith(b"data: [DONE]\n\n") for a in answers)
        assert not Spool(proxy.settings.spool).empty()
        lock.execute("ROLLBACK")
        lock.close()
        await ask(proxy.url, "after")
        found = {t.trajectory_id: t.calls for t in proxy.store.trajectories()}
        assert found == dict.fromkeys(["before", *(f"locked-{n}" for n in range(5)), "after"], 1)


def fill_up(engine: Engine, pages: int) -> None:
    """Let SQLite say that the disk is full once the file has grown by that many pages."""
    with engine.connect() as connection:
        now = connection.exec_driver_sql("PRAGMA page_count").scalar_one()

    def pragma(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count={now + pages}")

    event.listen(engine, "connect", pragma)
    engine.dispose()


async def test_a_full_disk_is_spooled_through_and_replayed_once_there_is_room(tmp_path: Path) -> None:
    settings = Settings(database=f"sqlite:///{tmp_path}/mosaic.db", spool=tmp_path / "spool")
    calls = linear(Recording(), 30)
    store = Store(settings.database)
    fill_up(store.engine, 4)
    recorder = Recorder(store, settings)
    for call in calls:
        await recorder.record(call)
    recorder.close()
    store.close()
    assert recorder.health.spooled > 0
    assert recorder.health.lost == 0
    assert "full" in (recorder.health.last_error or "")
    roomy = Store(settings.database)
    later = Recorder(roomy, settings)
    later.replay_now()
    later.close()
    assert later.spool.empty()
    (session,) = roomy.trajectory("run-1").sessions
    assert [c.call_id for c in session.calls] == [c.call_id for c in calls]
    roomy.close()


async def test_a_reward_that_the_database_refuses_is_a_507_with_the_next_step(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await ask(proxy.url, "run-1")
        path = proxy.settings.database.removeprefix("sqlite:///")
        with sqlite3.connect(path) as connection:
            connection.execute("create trigger full before insert on rewards begin select raise(abort, 'disk'); end")
        connection.close()
        address = f"{proxy.url}/api/trajectories/run-1/reward"
        async with aiohttp.ClientSession() as client, client.post(address, json={"reward": 1}) as response:
            assert response.status == 507
            assert "free space" in (await response.json())["error"]["message"]


def test_a_spool_line_that_a_crash_cut_short_takes_no_other_with_it(tmp_path: Path) -> None:
    settings = Settings(database=f"sqlite:///{tmp_path}/mosaic.db", spool=tmp_path / "spool")
    calls = linear(Recording(), 3)
    spool = Spool(settings.spool)
    for call in calls:
        spool.append(call)
    (path,) = spool.waiting()
    path.write_bytes(path.read_bytes()[:-40])
    store = Store(settings.database)
    recorder = Recorder(store, settings)
    recorder.replay_now()
    recorder.close()
    assert [t.calls for t in store.trajectories()] == [2]
    assert store.counters()["spool_lines_unreadable"] == {"cut": 1}
    store.close()


@pytest.mark.parametrize("kill_after", [1, 3, 7])
async def test_what_a_client_received_in_full_survives_kill_9(tmp_path: Path, kill_after: int) -> None:
    """Many streams at once; the proxy is killed without warning; every finished answer is in the store."""
    engine = ScriptedEngine(lambda body: Turn("Echo of " + str(body["messages"][0]["content"])))
    database = f"sqlite:///{tmp_path}/mosaic.db"
    finished: list[str] = []
    async with engine.serve() as upstream:
        process, url = start(tmp_path, upstream, database)
        try:

            async def client(number: int) -> None:
                for turn in range(1000):
                    name = f"run-{number}-{turn}"
                    if (await ask(url, name)).endswith(b"data: [DONE]\n\n"):
                        finished.append(name)
                    if len(finished) >= kill_after * 8:
                        os.kill(process.pid, signal.SIGKILL)

            clients = [asyncio.ensure_future(client(n)) for n in range(8)]
            done = await asyncio.gather(*clients, return_exceptions=True)
            assert all(isinstance(d, aiohttp.ClientError | AssertionError) for d in done)
        finally:
            process.kill()
            process.communicate()
    store = Store(database)
    kept = {t.trajectory_id: t for t in store.trajectories(10_000)}
    assert len(finished) >= kill_after * 8
    assert set(finished) <= set(kept)
    assert all(kept[name].inexact_calls == 0 for name in finished)
    store.close()


def start(folder: Path, upstream: str, database: str, **settings: str) -> tuple[subprocess.Popen[str], str]:
    """`mosaic serve` on a free port; its socket listens when it says where, so a request only has to wait."""
    command = [sys.executable, "-m", "mosaic", "serve", "--port", "0", "--upstream", upstream, "--database", database]
    environment = {**os.environ, "MOSAIC_SPOOL": str(folder / "spool"), **settings}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert "mosaic serves http" in line, line
    url = line.split()[2].removesuffix("/v1")
    return process, url


async def test_a_call_whose_client_left_while_the_database_was_locked_is_not_lost(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi"), store_wait_s=20) as proxy:
        await ask(proxy.url, "before")
        lock = sqlite3.connect(proxy.settings.database.removeprefix("sqlite:///"), isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        address = f"{proxy.url}/t/left/v1/chat/completions"
        async with aiohttp.ClientSession() as client, client.post(address, json=BODY) as response:
            await response.content.readany()
        await until(lambda: not Spool(proxy.settings.spool).empty())
        lock.execute("ROLLBACK")
        lock.close()
        await asyncio.sleep(REPLAY_PAUSE_S)
        await ask(proxy.url, "after")
        assert {t.trajectory_id for t in proxy.store.trajectories()} == {"before", "left", "after"}


async def test_a_call_that_can_never_be_stored_is_put_aside_and_takes_no_other_with_it(tmp_path: Path) -> None:
    settings = Settings(database=f"sqlite:///{tmp_path}/mosaic.db", spool=tmp_path / "spool")
    first, second, third = linear(Recording(), 3)
    spool = Spool(settings.spool)
    for call in (replace(first, retry_count=2**63), second):
        spool.append(call)
    store = Store(settings.database)
    recorder = Recorder(store, settings)
    recorder.replay_now()
    await recorder.record(third)
    assert recorder.alive()
    recorder.close()
    assert recorder.spool.empty()
    assert [t.calls for t in store.trajectories()] == [2]
    assert (recorder.health.rejected, recorder.health.lost) == (1, 0)
    assert store.counters()["rejected_calls"] == {"unwritable": 1}
    assert (settings.spool / "rejected.jsonl").read_bytes().count(b"\n") == 1
    store.close()


async def test_sigterm_ends_open_streams_records_why_and_exits_with_0(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: Turn("A longer text of many pieces", fault=Fault.HANG_MID_STREAM))
    database = f"sqlite:///{tmp_path}/mosaic.db"
    async with engine.serve() as upstream:
        process, url = start(tmp_path, upstream, database, MOSAIC_DRAIN_S="1")
        waiting = asyncio.ensure_future(ask(url, "open"))
        await engine.reached.wait()
        process.terminate()
        code = await asyncio.to_thread(process.wait, 30)
        process.communicate()
        with pytest.raises(aiohttp.ClientError):
            await waiting
    assert code == 0
    store = Store(database)
    with store.engine.connect() as connection:
        status, error = connection.exec_driver_sql("select status, error from calls").one()
    assert (status, error) == ("aborted", "the proxy was stopped before the answer ended")
    store.close()
