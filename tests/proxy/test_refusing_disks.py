"""Disks that take some writes and refuse others: every call is kept once, and nothing else grows."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mosaic.store import Store
from proxy import journal as journals
from proxy.journal import MAX_TORN, Journal
from proxy.reading import JournalFile, files_in
from proxy.trace import Trace
from proxy.writer import MAX_OPEN, Writer
from tests.conftest import ProxyFactory, until
from tests.engine import Turn
from tests.proxy.test_recorder import ask, recorder
from tests.proxy.traces import conversation, leave

Taken = Callable[[int, bytes], int]
"""`os.write`."""


class Reader:
    """Reads the journal while it grows, as the writer does."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[Path, JournalFile] = {}
        self.ended: list[Trace] = []
        self.interrupted: list[Trace] = []
        self.unreadable = 0

    def look(self) -> None:
        for path in files_in(self._folder):
            if path not in self._files:
                self._files[path] = JournalFile(path)
        for file in self._files.values():
            file.look_for_owner()
        for path, file in list(self._files.items()):
            self.ended += file.ended(float("inf"))
            if file.owner_gone:
                self.interrupted += file.interrupted()
                self.unreadable += file.unreadable
                del self._files[path]
                file.remove()


def written(outcomes: list[str]) -> Taken:
    """Takes, halves or refuses one write after the other; all that come later are taken."""
    write, left = os.write, iter(outcomes)

    def some(descriptor: int, data: bytes) -> int:
        outcome = next(left, "takes")
        if outcome == "refuses":
            raise OSError(28, "No space left on device")
        return write(descriptor, data[: len(data) // 2] if outcome == "half" else data)

    return some


@given(outcomes=st.lists(st.sampled_from(["takes", "half", "refuses"]), max_size=120), ahead=st.integers(1, 20))
@example(outcomes=["half"] * 40, ahead=20)  # more files than are kept open
async def test_every_call_is_kept_once_however_the_disk_refuses(
    tmp_path_factory: pytest.TempPathFactory, outcomes: list[str], ahead: int
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    calls = conversation(24)
    journal, reader = Journal(folder), Reader(folder)
    begun = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("proxy.journal.os.write", written(outcomes))
        for at, call in enumerate(calls):
            begun.append(journal.begin(call.origin, call.body))
            journal.flush()
            if at >= ahead:
                await end(journal, begun[at - ahead], calls[at - ahead])
                journal.retry()
            reader.look()
            assert len(journal._files) <= MAX_TORN + 3
            assert len(files_in(folder)) <= MAX_TORN + 3
    for entry, call in list(zip(begun, calls, strict=True))[-ahead:]:
        await end(journal, entry, call)
    journal.retry()
    assert (journal.held, journal._held_bytes) == (0, 0)
    journal.close()
    reader.look()
    assert sorted(reader.ended, key=calls.index) == calls
    assert reader.unreadable == 0
    assert files_in(folder) == []


async def end(journal: Journal, entry: journals.Entry | None, call: Trace) -> None:
    """As the recorder does it."""
    for when, piece in call.pieces:
        journal.piece(entry, piece, when)
        journal.flush()
    file = journal.end(entry, call)
    if file is None or not await journal.sync(file):
        file = journal.write(call)
        if file is None or not await journal.sync(file):
            assert journal.hold(entry, call)
            return
    journal.over(entry)


async def test_what_is_held_is_counted_as_it_is_written_not_once_all_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (call,) = conversation(1)
    journal = Journal(tmp_path)
    size = len(call.body) + sum(len(piece) for _, piece in call.pieces)
    monkeypatch.setattr("proxy.journal.MAX_HELD_BYTES", 10 * size)
    for _ in range(8):
        assert journal.hold(None, call)
    monkeypatch.setattr("proxy.journal.os.write", written(["takes"] * 6 + ["refuses"] * 9))
    journal.retry()
    assert journal.held == 2
    assert [journal.hold(None, call) for _ in range(9)] == [True] * 8 + [False]
    journal.close()


async def test_a_disk_that_stays_full_for_long_leaves_no_files_and_no_descriptors(
    start_proxy: ProxyFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_proxy(lambda _: Turn("Hi"), commit_first=False) as proxy:
        await ask(proxy.url, "before")
        with monkeypatch.context() as patch:
            write = os.write
            patch.setattr(
                "proxy.journal.os.write", lambda d, data: written(["refuses"])(d, data) if data else write(d, data)
            )
            before = len(os.listdir("/proc/self/fd"))
            for number in range(100):
                await ask(proxy.url, f"run-{number}")
            assert len(os.listdir("/proc/self/fd")) < before + 30
            assert len(files_in(tmp_path / "spool")) < MAX_TORN
            assert (await recorder(proxy.url))["lost"] == 0
        await until(lambda: len(proxy.store.trajectories(200)) == 101)
        assert (await recorder(proxy.url))["held"] == 0


async def test_more_files_than_are_read_at_a_time_are_all_read(start_proxy: ProxyFactory, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    for number in range(MAX_OPEN + 40):
        (spool / f"calls-{number:020}-00000000").touch()
    await leave(spool, conversation(3))
    async with start_proxy(lambda _: Turn("Hi"), commit_first=False) as proxy:
        await ask(proxy.url, "after")
        await until(lambda: len(proxy.store.trajectories()) == 2)
        await until(lambda: len(files_in(spool)) <= 1)


async def test_what_stands_in_a_file_that_is_read_later_is_not_given_as_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk took a call's beginning in one file and all of it in a later one."""
    monkeypatch.setattr("proxy.writer.MAX_OPEN", 3)
    spool = tmp_path / "spool"
    calls = conversation(6)
    for call in calls[:2]:
        await leave(spool, [call], ended=0)
    for call in [*calls[2:], *calls[:2]]:
        await leave(spool, [call])
    ours, theirs = socket.socketpair()
    ours.close()  # the worker has gone: it brings in what there is, and ends
    with theirs:
        Writer(theirs, f"sqlite:///{tmp_path}/mosaic.db", spool).run()
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    with store.engine.connect() as connection:
        assert list(connection.exec_driver_sql("select status from calls").scalars()) == ["ok"] * 6
    assert files_in(spool) == []
    store.close()


async def test_files_that_hold_open_calls_do_not_stop_those_that_come_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.writer.MAX_OPEN", 2)
    calls = conversation(6)
    for number, call in enumerate(calls):
        await leave(tmp_path, [call], ended=number % 2)
    ours, theirs = socket.socketpair()
    ours.close()
    with theirs:
        Writer(theirs, f"sqlite:///{tmp_path}/mosaic.db", tmp_path).run()
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    with store.engine.connect() as connection:
        found = list(connection.exec_driver_sql("select status from calls order by started_at").scalars())
    assert found == ["interrupted", "ok"] * 3
    assert files_in(tmp_path) == []
    store.close()


async def test_a_file_that_cannot_be_opened_stops_no_other(start_proxy: ProxyFactory, tmp_path: Path) -> None:
    (tmp_path / "spool" / "calls-00000000000000000001-00000000").mkdir(parents=True)
    async with start_proxy(lambda _: Turn("Hi"), commit_first=False) as proxy:
        await ask(proxy.url, "run-1")
        await until(lambda: stored(proxy.store))
        assert (await recorder(proxy.url))["lost"] == 0
        assert proxy.store.counters()["journal_files_unreadable"] == {"EISDIR": 1}


def stored(store: Store) -> bool:
    return [t.trajectory_id for t in store.trajectories()] == ["run-1"]
