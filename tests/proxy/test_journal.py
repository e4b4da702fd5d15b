"""A call is durable once the journal has it: the database follows, and nothing that has ended is lost on the way."""

import asyncio
import os
import sqlite3
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic.capture import CallStatus, Fidelity
from mosaic.store import Store
from proxy.journal import Journal, left_behind
from proxy.trace import Trace
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Turn
from tests.proxy.traces import conversation

BODY = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}


async def ask(proxy: Proxy, trajectory: str) -> str:
    url = f"{proxy.url}/t/{trajectory}/v1/chat/completions"
    async with aiohttp.ClientSession() as client, client.post(url, json=BODY) as response:
        assert response.status == 200
        return await response.text()


async def health(proxy: Proxy) -> dict[str, object]:
    async with aiohttp.ClientSession() as client, client.get(f"{proxy.url}/api/health") as response:
        recorder: dict[str, object] = (await response.json())["recorder"]
        return recorder


async def test_an_answer_ends_while_the_database_is_locked_and_is_stored_afterwards(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi"), commit_first=False, store_wait_s=60) as proxy:
        lock = sqlite3.connect(proxy.settings.database.removeprefix("sqlite:///"), isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as client:
            url = f"{proxy.url}/t/run-1/v1/chat/completions"
            async with client.post(url, json=BODY) as response:  # with `commit_first` this would take a minute
                assert "Hi" in await response.text()
        (left,) = proxy.settings.spool.glob("inflight-*")
        assert b'"status":"ok"' in left.read_bytes()
        lock.execute("ROLLBACK")
        lock.close()
        await until(lambda: [t.calls for t in proxy.store.trajectories()] == [1])


async def test_the_control_api_knows_of_every_call_that_has_ended(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi"), commit_first=False) as proxy:
        for run in range(5):
            await ask(proxy, f"run-{run}")
            address = f"{proxy.url}/api/trajectories/run-{run}/reward"
            async with aiohttp.ClientSession() as client, client.post(address, json={"reward": 1}) as response:
                assert response.status == 200
        assert len(proxy.store.trajectories()) == 5


async def test_without_a_journal_an_answer_waits_for_the_database(start_proxy: ProxyFactory, tmp_path: Path) -> None:
    async with start_proxy(lambda _: Turn("Hi"), commit_first=False) as proxy:
        (tmp_path / "spool").rename(tmp_path / "away")
        (tmp_path / "spool").write_text("not a folder")
        await ask(proxy, "run-1")
        assert [t.trajectory_id for t in proxy.store.trajectories()] == ["run-1"]


async def test_what_had_ended_when_the_proxy_died_is_stored_as_it_ended(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    calls = conversation(4)
    await leave(tmp_path / "spool", calls, ended=3)
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await until(lambda: proxy.store.trajectories() and proxy.store.trajectories()[0].calls == 4)
        assert statuses(proxy.store) == ["ok", "ok", "ok", "interrupted"]
        assert (await health(proxy))["interrupted"] == 1
        await until(lambda: len(list((tmp_path / "spool").glob("inflight-*"))) <= 1)


async def leave(folder: Path, calls: list[Trace], ended: int) -> None:
    """The journal of a process that died when so many of these calls had ended, none of them stored."""
    journal = Journal(folder)
    entries = [journal.begin(call.origin, call.body) for call in calls]
    for call, entry in zip(calls, entries, strict=True):
        if call.event_stream:
            for when, piece in call.pieces:
                journal.piece(entry, piece, when)
    for call, entry in list(zip(calls, entries, strict=True))[:ended]:
        assert await journal.ended(entry, call)
    for segment in journal._segments:
        os.close(segment.descriptor)


def statuses(store: Store) -> list[str]:
    with store.engine.connect() as connection:
        return list(connection.exec_driver_sql("select status from calls order by started_at").scalars())


async def test_a_call_comes_back_from_the_journal_as_it_was(tmp_path: Path) -> None:
    first, *others = conversation(5)
    calls = [replace(first, fidelity=Fidelity("fell_back", "text_differs", ((0, ((3, 0, 2),)),))), *others]
    await leave(tmp_path, calls, ended=5)
    (left,) = left_behind(tmp_path)
    assert list(left.calls) == sorted(calls, key=lambda call: call.ended_at)
    os.close(left.file[1])


@given(cut=st.integers(0, 20_000))
async def test_a_journal_cut_anywhere_gives_whole_calls_only(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    calls = conversation(5)
    await leave(folder, calls, ended=5)
    (path,) = folder.glob("inflight-*")
    os.truncate(path, max(0, path.stat().st_size - cut))
    (left,) = left_behind(folder)
    by_id = {call.origin.call_id: call for call in calls}
    for call in left.calls:
        whole = by_id[call.origin.call_id]
        assert call == whole or call.status is CallStatus.INTERRUPTED
        assert call.body == whole.body
    os.close(left.file[1])


async def test_a_call_that_neither_writer_nor_spool_takes_stays_in_the_journal(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    folder, away = tmp_path / "spool", tmp_path / "away"
    async with start_proxy(lambda _: Turn("Hi"), commit_first=False) as proxy:
        await ask(proxy, "before")
        await until(proxy.store.trajectories)
        folder.rename(away)
        folder.write_text("not a folder")
        lock = sqlite3.connect(proxy.settings.database.removeprefix("sqlite:///"), isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        await ask(proxy, "left")
        async with asyncio.timeout(30):
            while not (said := await health(proxy))["left_in_journal"]:
                pass
        assert (said["left_in_journal"], said["lost"]) == (1, 0)
        lock.execute("ROLLBACK")
        lock.close()
    folder.unlink()
    away.rename(folder)
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await until(lambda: {t.trajectory_id for t in proxy.store.trajectories()} == {"before", "left"})
