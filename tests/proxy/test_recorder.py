"""When the database cannot take a call: the client is served, the journal keeps the call, and nothing is lost."""

import asyncio
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mosaic.store import Store
from mosaic.store.checking import check
from proxy.reading import waiting_calls
from tests.conftest import ProxyFactory, until
from tests.engine import Fault, ScriptedEngine, Turn
from tests.postgres import Server
from tests.proxy.traces import conversation, leave, unwritable

BODY = {"model": "policy", "messages": [{"role": "user", "content": "Hello"}], "stream": True}


async def ask(url: str, trajectory_id: str, body: dict[str, Any] | None = None) -> bytes:
    address = f"{url}/t/{trajectory_id}/v1/chat/completions"
    async with aiohttp.ClientSession() as client, client.post(address, json=body or BODY) as response:
        assert response.status == 200
        return await response.read()


async def test_a_locked_database_delays_no_answer_and_loses_no_call(
    start_proxy: ProxyFactory, database_url: str
) -> None:
    async with start_proxy(lambda _: Turn("Hi"), database=database_url, store_wait_s=0.2) as proxy:
        await ask(proxy.url, "before")
        with locked(proxy.store):
            answers = await asyncio.gather(*(ask(proxy.url, f"locked-{n}") for n in range(5)))
            assert all(a.endswith(b"data: [DONE]\n\n") for a in answers)
            assert waiting_calls(proxy.settings.spool) >= 5
            assert (await recorder(proxy.url))["waits_given_up"] >= 5
        await ask(proxy.url, "after")
        expected = dict.fromkeys(["before", *(f"locked-{n}" for n in range(5)), "after"], 1)
        await until(lambda: {t.trajectory_id: t.calls for t in proxy.store.trajectories()} == expected)
        await until(lambda: waiting_calls(proxy.settings.spool) == 0)


@contextmanager
def locked(store: Store) -> Iterator[None]:
    """Nobody else can write, as when a backup or another program holds the database."""
    sqlite = store.engine.dialect.name == "sqlite"
    with store.engine.connect().execution_options(mosaic_writing=True) as connection:
        connection.exec_driver_sql("select 1" if sqlite else "lock table calls in access exclusive mode")
        yield
        connection.rollback()


async def test_a_full_disk_is_waited_out_and_nothing_is_lost(start_proxy: ProxyFactory, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        async with start_proxy(lambda _: Turn("Hi" * 2000), database=f"sqlite:///{disk}/mosaic.db") as proxy:
            names = [f"run-{n}" for n in range(40)]
            for name in names:
                await ask(proxy.url, name)
            assert waiting_calls(proxy.settings.spool) > 0
            assert len(proxy.store.trajectories(100)) < len(names)
            await asyncio.to_thread(remount, disk, "size=64m")
            await until(lambda: sorted(t.trajectory_id for t in proxy.store.trajectories(100)) == sorted(names))
            await until(lambda: waiting_calls(proxy.settings.spool) == 0)
            assert await health(proxy.url) == {"lost": 0, "rejected": {}}
            assert check(proxy.store.database, deep=True) == []


async def test_a_disk_that_is_full_for_the_journal_too_delays_the_record_and_not_the_answer(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        place = {"database": f"sqlite:///{disk}/mosaic.db", "spool": disk / "spool"}
        async with start_proxy(lambda _: Turn("Hi" * 2000), **place) as proxy:
            for number in range(60):
                assert (await ask(proxy.url, f"run-{number}")).endswith(b"data: [DONE]\n\n")
            said = await recorder(proxy.url)
            assert said["held"] > 0
            assert said["lost"] == 0
            await asyncio.to_thread(remount, disk, "size=64m")
            await until(lambda: len(proxy.store.trajectories(100)) == 60)
            assert all(t.inexact_calls == 0 for t in proxy.store.trajectories(100))
            assert (await recorder(proxy.url))["held"] == 0
            assert check(proxy.store.database, deep=True) == []


async def recorder(url: str) -> dict[str, int]:
    async with aiohttp.ClientSession() as client, client.get(f"{url}/api/health") as response:
        said: dict[str, int] = (await response.json())["recorder"]
        return said


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of its own, of that size."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    made = subprocess.run(command, capture_output=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no file system may be mounted here: {made.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(disk: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


async def health(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as client, client.get(f"{url}/api/health") as response:
        said = await response.json()
    return {"lost": said["recorder"]["lost"], "rejected": said["counters"].get("rejected_calls", {})}


async def test_a_database_that_stops_and_starts_again_loses_no_call_and_no_order(
    start_proxy: ProxyFactory, postgres_server: Server
) -> None:
    """An agent goes on while PostgreSQL is away: its calls are kept, and its session is whole afterwards."""
    database = postgres_server.create("stops")
    script = Turn("Hi")
    async with start_proxy(lambda _: script, database=database, store_wait_s=0.5) as proxy:
        messages = [{"role": "user", "content": "Begin"}]
        for number in range(12):
            if number in (3, 8):
                await asyncio.to_thread(postgres_server.stop if number == 3 else postgres_server.crash)
            if number in (6, 10):
                await asyncio.to_thread(postgres_server.start)
            await ask(proxy.url, "agent", {**BODY, "messages": messages})
            messages = [*messages, {"role": "assistant", "content": "Hi"}, {"role": "user", "content": f"On {number}"}]
        await until(lambda: proxy.store.trajectories() and proxy.store.trajectories()[0].calls == 12)
        await until(lambda: waiting_calls(proxy.settings.spool) == 0)
        (session,) = proxy.store.trajectory("agent").sessions
        assert [len(call.messages) for call in session.calls] == list(range(1, 24, 2))
        assert all(call.exact for call in session.calls)
        assert check(proxy.store.database, deep=True) == []
    postgres_server.drop("stops")


def test_a_database_that_cannot_be_written_is_said_at_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "4m") as disk:
        remount(disk, "ro")
        command = [sys.executable, "-m", "mosaic", "serve", "--port", "0", "--database", f"sqlite:///{disk}/mosaic.db"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 3
    assert "writable" in said.stderr


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


async def test_what_a_dead_process_had_not_stored_is_stored_in_its_order(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    await leave(tmp_path / "spool", conversation(30))
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await until(lambda: waiting_calls(proxy.settings.spool) == 0)
        (session,) = proxy.store.trajectory("run-1").sessions
        assert [len(call.messages) for call in session.calls] == list(range(1, 60, 2))


@pytest.mark.parametrize("cut", [1, 40, 3000])
async def test_a_journal_that_a_crash_cut_short_gives_what_it_holds(
    start_proxy: ProxyFactory, tmp_path: Path, cut: int
) -> None:
    path = await leave(tmp_path / "spool", conversation(1))
    path.write_bytes(path.read_bytes()[:-cut])
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await until(proxy.store.trajectories)
        await until(lambda: proxy.store.counters().get("interrupted_calls") == {"killed": 1})
        await until((tmp_path / "spool" / f"damaged-{path.name}").exists)


def start(folder: Path, upstream: str, database: str, **settings: str) -> tuple[subprocess.Popen[bytes], str]:
    """`mosaic serve` on a free port; its socket listens when it says where, so a request only has to wait."""
    command = [sys.executable, "-m", "mosaic", "serve", "--port", "0", "--upstream", upstream, "--database", database]
    environment = {**os.environ, "MOSAIC_SPOOL": str(folder / "spool"), **settings}
    said = folder / f"serve-{time.monotonic_ns()}.log"
    with said.open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)
    deadline = time.monotonic() + 60
    while not (found := re.search(r"mosaic serves (http://[\d.:]+)/v1", said.read_text())):
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.02)
    return process, found[1]


async def test_a_call_whose_client_left_while_the_database_was_locked_is_not_lost(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi"), store_wait_s=20) as proxy:
        await ask(proxy.url, "before")
        lock = sqlite3.connect(proxy.settings.database.removeprefix("sqlite:///"), isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        address = f"{proxy.url}/t/left/v1/chat/completions"
        async with aiohttp.ClientSession() as client, client.post(address, json=BODY) as response:
            await response.content.readany()
        await until(lambda: waiting_calls(proxy.settings.spool) == 1)
        lock.execute("ROLLBACK")
        lock.close()
        await ask(proxy.url, "after")
        await until(lambda: {t.trajectory_id for t in proxy.store.trajectories()} == {"before", "left", "after"})


async def test_a_call_that_can_never_be_stored_is_put_aside_and_takes_no_other_with_it(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    first, second, third = conversation(3)
    await leave(tmp_path / "spool", [unwritable(first), second, third])
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await until(lambda: waiting_calls(proxy.settings.spool) == 0)
        assert [t.calls for t in proxy.store.trajectories()] == [2]
        assert await health(proxy.url) == {"lost": 0, "rejected": {"unwritable": 1}}
        assert (proxy.settings.spool / "rejected.jsonl").read_bytes().count(b"\n") == 1


async def test_what_a_killed_proxy_had_in_flight_is_recorded_as_interrupted(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    """One stream that had begun, one answer that had not: both are there, with what was seen."""
    engine = ScriptedEngine(
        lambda body: Turn(
            "A longer text of many pieces", fault=Fault.HANG_MID_STREAM if body.get("stream") else Fault.HANG
        )
    )
    database = f"sqlite:///{tmp_path}/mosaic.db"
    async with engine.serve() as upstream:
        process, url = start(tmp_path, upstream, database)
        asking = [asyncio.ensure_future(ask(url, name, {**BODY, "stream": name == "s"})) for name in ("s", "w")]
        await until(lambda: len(engine.requests) == 2)
        await until(lambda: b"data: " in next(iter((tmp_path / "spool").glob("calls-*"))).read_bytes())
        process.kill()
        process.wait()
        await asyncio.gather(*asking, return_exceptions=True)
    async with start_proxy(lambda _: Turn("Hi"), database=database) as proxy:
        await until(lambda: len(proxy.store.trajectories()) == 2)
        with proxy.store.engine.connect() as connection:
            rows = connection.exec_driver_sql(
                "select trajectory_id, status, inexact_reason, reply from v_calls order by trajectory_id"
            ).all()
        assert [tuple(row[:3]) for row in rows] == [
            ("s", "interrupted", "call_interrupted"),
            ("w", "interrupted", "call_interrupted"),
        ]
        assert "A longer text".startswith(rows[0][3] or "A")
        assert rows[0][3]
        await until(lambda: proxy.store.counters().get("interrupted_calls") == {"killed": 2})
        await until(lambda: len(list((tmp_path / "spool").glob("calls-*"))) <= 1)


async def test_a_killed_writer_is_started_again_and_loses_no_call(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: Turn("Hi"))
    database = f"sqlite:///{tmp_path}/mosaic.db"
    async with engine.serve() as upstream:
        process, url = start(tmp_path, upstream, database)
        try:
            for number in range(4):
                await ask(url, f"run-{number}")
                if number < 3:
                    await until(lambda: writers_of(process.pid))
                    os.kill(writers_of(process.pid)[0], signal.SIGKILL)
            store = Store(database)
            await until(lambda: len(store.trajectories()) == 4)
            store.close()
        finally:
            process.terminate()
            process.wait()


def writers_of(pid: int) -> list[int]:
    """The writer processes of a proxy."""
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found if b"proxy.writer" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
async def test_sigterm_ends_open_streams_records_why_and_exits_with_0(tmp_path: Path, asked: signal.Signals) -> None:
    engine = ScriptedEngine(lambda _: Turn("A longer text of many pieces", fault=Fault.HANG_MID_STREAM))
    database = f"sqlite:///{tmp_path}/mosaic.db"
    async with engine.serve() as upstream:
        process, url = start(tmp_path, upstream, database, MOSAIC_DRAIN_S="1")
        waiting = asyncio.ensure_future(ask(url, "open"))
        await engine.reached.wait()
        process.send_signal(asked)
        code = await asyncio.to_thread(process.wait, 30)
        process.wait()
        with pytest.raises(aiohttp.ClientError):
            await waiting
    assert code == 0
    store = Store(database)
    with store.engine.connect() as connection:
        status, error = connection.exec_driver_sql("select status, error from calls").one()
    assert (status, error) == ("interrupted", "the proxy was stopped before the answer ended")
    store.close()
