"""A call is durable once the journal has it: the database follows, and nothing that has ended is lost on the way."""

import asyncio
import math
import os
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import aiohttp
import caio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mosaic.capture import CallStatus, Fidelity
from mosaic.settings import Settings
from mosaic.store import Store
from proxy.journal import Journal
from proxy.reading import JournalFile, files_in, waiting_calls
from proxy.recorder import Recorder
from proxy.trace import Trace
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Turn
from tests.proxy.traces import conversation, leave

BODY = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}


async def ask(proxy: Proxy, trajectory: str) -> str:
    url = f"{proxy.url}/t/{trajectory}/v1/chat/completions"
    async with aiohttp.ClientSession() as client, client.post(url, json=BODY) as response:
        assert response.status == 200
        return await response.text()


async def test_an_answer_ends_while_the_database_is_locked_and_is_stored_afterwards(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi"), commit_first=False, store_wait_s=60) as proxy:
        lock = sqlite3.connect(proxy.settings.database.removeprefix("sqlite:///"), isolation_level=None)
        lock.execute("BEGIN EXCLUSIVE")
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(20)) as client:
            url = f"{proxy.url}/t/run-1/v1/chat/completions"
            async with client.post(url, json=BODY) as response:  # with `commit_first` this would take a minute
                assert "Hi" in await response.text()
        assert waiting_calls(proxy.settings.spool) == 1
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


async def test_a_folder_that_is_taken_away_costs_no_call(start_proxy: ProxyFactory, tmp_path: Path) -> None:
    async with start_proxy(lambda _: Turn("Hi"), commit_first=False) as proxy:
        await ask(proxy, "before")
        await until(proxy.store.trajectories)
        (tmp_path / "spool").rename(tmp_path / "away")
        (tmp_path / "spool").write_text("not a folder")
        await ask(proxy, "after")
        await until(lambda: {t.trajectory_id for t in proxy.store.trajectories()} == {"before", "after"})


async def test_what_had_ended_when_the_proxy_died_is_stored_as_it_ended(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    await leave(tmp_path / "spool", conversation(4), ended=3)
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await until(lambda: proxy.store.trajectories() and proxy.store.trajectories()[0].calls == 4)
        assert statuses(proxy.store) == ["ok", "ok", "ok", "interrupted"]
        assert proxy.store.counters()["interrupted_calls"] == {"killed": 1}
        await until(lambda: not list((tmp_path / "spool").glob("calls-*")))


def statuses(store: Store) -> list[str]:
    with store.engine.connect() as connection:
        return list(connection.exec_driver_sql("select status from calls order by started_at").scalars())


async def test_a_call_comes_back_from_the_journal_as_it_was(tmp_path: Path) -> None:
    first, *others = conversation(5)
    calls = [replace(first, fidelity=Fidelity("fell_back", "text_differs", ((0, ((3, 0, 2),)),))), *others]
    file = JournalFile(await leave(tmp_path, calls))
    file.look_for_owner()
    assert list(file.ended(0.0)) == calls
    assert file.interrupted() == []
    file.remove()
    assert files_in(tmp_path) == []


@given(cut=st.integers(0, 20_000))
async def test_a_journal_cut_anywhere_gives_whole_calls_only(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    calls = conversation(5)
    path = await leave(tmp_path_factory.mktemp("journal"), calls)
    os.truncate(path, max(0, path.stat().st_size - cut))
    file = JournalFile(path)
    file.look_for_owner()
    by_id = {call.origin.call_id: call for call in calls}
    ended = list(file.ended(0.0))
    assert ended == calls[: len(ended)]
    for call in file.interrupted():
        assert call.status is CallStatus.INTERRUPTED
        assert call.body == by_id[call.origin.call_id].body
    file.close()


@given(byte=st.integers(0), bit=st.integers(0, 7))
async def test_a_damaged_journal_never_gives_a_call_that_was_not(
    tmp_path_factory: pytest.TempPathFactory, byte: int, bit: int
) -> None:
    calls = conversation(5)
    path = await leave(tmp_path_factory.mktemp("journal"), calls)
    data = bytearray(path.read_bytes())
    data[byte % len(data)] ^= 1 << bit
    path.write_bytes(data)
    file = JournalFile(path)
    file.look_for_owner()
    ended = [replace(call, ended_at=0.0) for call in file.ended(0.0)]
    seen = [replace(call, ended_at=0.0) for call in calls]
    assert all(without_times(call) in map(without_times, seen) for call in ended)
    assert len(ended) == 5 or file.interrupted() or file.unreadable
    file.close()


def without_times(call: Trace) -> tuple[object, ...]:
    """What the checksums cover; a time is in a frame's head."""
    return call.origin, call.body, [piece for _, piece in call.pieces], call.status, call.error


async def test_a_reader_gives_each_call_once_however_the_file_grows(tmp_path: Path) -> None:
    calls = conversation(6)
    journal = Journal(tmp_path)
    entries = [journal.begin(call.origin, call.body) for call in calls]
    journal.flush()
    (path,) = files_in(tmp_path)
    file, found = JournalFile(path), list[Trace]()
    for call, entry in zip(calls, entries, strict=True):
        for when, piece in call.pieces:
            journal.piece(entry, piece, when)
            journal.flush()
            found += file.ended(time.monotonic())
        before = time.monotonic()
        journal.end(entry, call)
        journal.flush()
        found += file.ended(before)  # it has ended later than we look for
        assert len(found) < len(calls)
        found += file.ended(time.monotonic())
    assert found == calls
    file.look_for_owner()
    while_it_writes = file.owner_gone
    journal.close()
    file.look_for_owner()
    assert (while_it_writes, file.owner_gone) == (False, True)
    file.close()


@pytest.mark.parametrize("failing", range(1, 8))
async def test_calls_that_a_full_disk_cut_stand_whole_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Whichever of the writes it is that the disk takes half."""
    calls = conversation(4)
    recorder = Recorder(Settings(upstream="http://127.0.0.1:1/v1", spool=tmp_path))
    write, left = os.write, [failing]

    def half(descriptor: int, data: bytes) -> int:
        left[0] -= len(data) > 10  # bells are none of ours
        return write(descriptor, data[: len(data) // 2] if left[0] == 0 and len(data) > 10 else data)

    monkeypatch.setattr(os, "write", half)
    entries = []
    for call in calls:
        entries.append(recorder.journal.begin(call.origin, call.body))
        recorder.journal.flush()
    for call, entry in zip(calls, entries, strict=True):
        for when, piece in call.pieces:
            recorder.journal.piece(entry, piece, when)
        await recorder.record(entry, call)
    assert left[0] <= 0
    await recorder.close()
    files = [JournalFile(path) for path in files_in(tmp_path)]
    for file in files:
        file.look_for_owner()
    ended = [call for file in files for call in file.ended(0.0)]
    assert sorted(ended, key=lambda call: call.origin.call_id) == calls
    for file in files:
        file.close()


async def test_calls_that_end_while_and_after_a_recorder_is_closed_are_kept(tmp_path: Path) -> None:
    """A second Ctrl-C cuts the calls that are open while the server closes what they need."""
    calls = conversation(12)
    recorder = Recorder(Settings(upstream="http://127.0.0.1:1/v1", spool=tmp_path))
    entries = [recorder.journal.begin(call.origin, call.body) for call in calls]
    for call, entry in zip(calls, entries, strict=True):
        for when, piece in call.pieces:
            recorder.journal.piece(entry, piece, when)
    recording = [
        asyncio.ensure_future(recorder.record(entry, call)) for entry, call in zip(entries[:8], calls, strict=False)
    ]
    await asyncio.sleep(0)
    await asyncio.wait_for(recorder.close(), 20)
    await asyncio.wait_for(asyncio.gather(*recording), 20)
    for entry, call in zip(entries[8:], calls[8:], strict=True):
        await asyncio.wait_for(recorder.record(entry, call), 20)
    files = [JournalFile(path) for path in files_in(tmp_path)]
    ended = {call.origin.call_id: call for file in files for call in file.ended(math.inf)}
    assert sorted(ended.values(), key=calls.index) == calls
    for file in files:
        file.close()


async def test_a_file_that_has_been_let_go_of_is_not_taken_for_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that waits for the database first may come back to it late."""
    monkeypatch.setattr("proxy.journal.FILE_BYTES", 0)
    first, second = conversation(2)
    journal = Journal(tmp_path)
    file = journal.write(first)
    assert file is not None
    journal.flush()
    journal.begin(second.origin, second.body)
    other = os.open(tmp_path, os.O_RDONLY)
    assert other == file.descriptor
    assert not await journal.sync(file)
    os.close(other)
    journal.close()


class Slow:
    """A disk that does not answer the first time until it is told to."""

    def __init__(self) -> None:
        self.asked, self.answers = asyncio.Event(), asyncio.Event()

    async def fdsync(self, _descriptor: int) -> None:
        if not self.asked.is_set():
            self.asked.set()
            await self.answers.wait()

    def close(self) -> None:
        """Nothing is open."""


async def test_a_loop_that_cancels_all_its_tasks_ends_and_keeps_the_calls_that_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a second Ctrl-C, which leaves nothing to a recorder but to be closed."""
    calls, disk = conversation(6), Slow()
    monkeypatch.setattr(caio, "AsyncioContext", lambda *_, **__: disk)
    recorder = Recorder(Settings(upstream="http://127.0.0.1:1/v1", spool=tmp_path))
    entries = [recorder.journal.begin(call.origin, call.body) for call in calls]
    for call, entry in zip(calls, entries, strict=True):
        for when, piece in call.pieces:
            recorder.journal.piece(entry, piece, when)
    recording = [asyncio.ensure_future(recorder.record(entries[0], calls[0]))]
    await disk.asked.wait()
    recording += [asyncio.ensure_future(recorder.record(*ended)) for ended in zip(entries[1:], calls[1:], strict=True)]
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()
    await asyncio.wait_for(recorder.close(), 20)
    await asyncio.gather(*recording, return_exceptions=True)
    files = [JournalFile(path) for path in files_in(tmp_path)]
    assert sorted((call for file in files for call in file.ended(math.inf)), key=calls.index) == calls
    for file in files:
        file.close()


async def test_a_call_that_waits_for_the_disk_when_the_server_stops_ends_once_as_it_ended(
    start_proxy: ProxyFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Slow()
    monkeypatch.setattr(caio, "AsyncioContext", lambda *_, **__: disk)
    async with start_proxy(lambda _: Turn("Hi"), commit_first=False, drain_s=1) as proxy:
        asked = asyncio.ensure_future(ask(proxy, "run-1"))
        asked.add_done_callback(lambda _: disk.answers.set())
        await disk.asked.wait()
    assert isinstance(asked.exception(), AssertionError)  # it was cut
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    assert statuses(store) == ["ok"]
    assert store.counters() == {}
    store.close()


def refused(*_: object, **__: object) -> None:
    raise OSError("too few locked pages")


@pytest.fixture(params=[*(m.AsyncioContext for m in caio.variants_asyncio), refused], ids=lambda way: way.__module__)
def way_to_sync(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caio, "AsyncioContext", request.param)


@pytest.mark.usefixtures("way_to_sync")
async def test_all_calls_that_end_together_are_on_disk(tmp_path: Path) -> None:
    calls = conversation(60)
    journal = Journal(tmp_path)

    async def ends(call: Trace, turns: int) -> bool:
        entry = journal.begin(call.origin, call.body)
        for when, piece in call.pieces:
            journal.piece(entry, piece, when)
        for _ in range(turns):
            await asyncio.sleep(0)
        file = journal.end(entry, call)
        assert file is not None
        return await journal.sync(file)

    synced = await asyncio.gather(*(ends(call, at % 7) for at, call in enumerate(calls)))
    file = JournalFile(files_in(tmp_path)[0])
    assert all(synced)
    assert {call.origin.call_id for call in file.ended(math.inf)} == {call.origin.call_id for call in calls}
    journal.close()
    file.close()


@pytest.mark.usefixtures("way_to_sync")
async def test_a_disk_that_refuses_to_sync_is_told_of(tmp_path: Path) -> None:
    (call,) = conversation(1)
    journal = Journal(tmp_path)
    entry = journal.begin(call.origin, call.body)
    assert entry is not None
    out, into = os.pipe()
    os.dup2(into, entry.file.descriptor)  # a pipe can be written to, and not be synced
    file = journal.end(entry, call)
    assert file is not None
    assert not await journal.sync(file)
    assert (file.torn, journal.failures) == (True, 1)
    whole = journal.write(call)
    assert whole not in (None, file)
    with capture_logs() as told:
        for _ in range(20):
            journal._failed(OSError("full"))
    assert (len(told), journal.failures) == (0, 21)  # within a second of the first one all are counted, and one is told
    journal.close()
    for descriptor in (out, into):
        os.close(descriptor)
