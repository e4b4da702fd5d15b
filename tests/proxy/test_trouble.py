"""Troubles that a hostile tester found: each lost calls, doubled them, or left the recorder dead for good."""

import fcntl
import socket
import threading
from dataclasses import replace
from pathlib import Path

import orjson
import pytest
from sqlalchemy import event

from mosaic.capture import CallStatus
from mosaic.store import Store
from mosaic.store.checking import check
from proxy import frames
from proxy.journal import Journal
from proxy.reading import JournalFile
from proxy.telling import Telling
from proxy.trace import captured
from proxy.writer import Writer
from tests.conftest import ProxyFactory, until
from tests.engine import Turn
from tests.proxy.traces import conversation, leave
from tests.store.test_many_processes import picture


async def test_a_damaged_journal_stops_nobody(start_proxy: ProxyFactory, tmp_path: Path) -> None:
    path = await leave(tmp_path / "spool", conversation(2), ended=0)
    data = path.read_bytes()
    path.write_bytes(data.replace(b'{"call_id"', b"{nonsense!", 1) + b"\0" * 4096)
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await until(proxy.store.trajectories)
        assert [t.calls for t in proxy.store.trajectories()] == [1]
        await until((tmp_path / "spool" / f"damaged-{path.name}").exists)
        assert proxy.store.counters()["journal_calls_unreadable"] == {"damaged": 2}


async def test_a_file_with_a_damaged_call_gives_the_others_and_is_kept(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    path = await leave(tmp_path / "spool", conversation(5))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await until(lambda: "journal_calls_unreadable" in proxy.store.counters())
        await until((tmp_path / "spool" / f"damaged-{path.name}").exists)
        assert [t.calls for t in proxy.store.trajectories()] == [4]


def test_a_journal_of_another_release_is_read(tmp_path: Path) -> None:
    (call,) = conversation(1)
    path = tmp_path / "calls-1"
    head = orjson.dumps(call.origin).replace(b"{", b'{"flavour":"sweet",', 1)
    how = b'{"colour":"blue","pieces":2,"event_stream":true,"status":"ok","http_status":200,"error":null}'
    pieces = b"".join(frames.frame(b"P", 1, piece, when) for when, piece in call.pieces)
    begin = frames.frame(b"B", 1, head + b"\n" + call.body, 0.0)
    path.write_bytes(begin + pieces + frames.frame(b"E", 1, frames.AT.pack(0.0) + how, call.ended_at))
    assert list(JournalFile(path).ended(1.0)) == [call]


async def test_what_stands_in_a_removed_file_is_not_called_durable(tmp_path: Path) -> None:
    first, second = conversation(2)
    journal = Journal(tmp_path)
    file = journal.end(journal.begin(first.origin, first.body), first)
    assert file is not None
    assert await journal.sync(file)
    file.path.unlink()
    other = journal.write(second)
    assert other is file
    assert not await journal.sync(file)
    again = journal.write(second)
    assert again is not None
    assert again is not file
    assert await journal.sync(again)
    journal.close()


async def test_the_writer_works_on_any_descriptor_and_one_at_a_time_on_a_folder(tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/mosaic.db"
    await leave(tmp_path / "spool", conversation(3))
    sides = [socket.socketpair() for _ in range(2)]
    high = [socket.socket(fileno=fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD, 1100)) for _, theirs in sides]
    writers = [threading.Thread(target=Writer(at, database, tmp_path / "spool").run) for at in high]
    for (ours, theirs), writer in zip(sides, writers, strict=True):
        theirs.close()
        writer.start()
        assert ours.recv(10) == b"!"
    store = Store(database)
    assert [t.calls for t in store.trajectories()] == [3]
    sides[0][0].close()
    writers[0].join()
    await leave(tmp_path / "spool", conversation(3, "run-2"))
    sides[1][0].close()
    writers[1].join()
    assert {t.trajectory_id: t.calls for t in store.trajectories()} == {"run-1": 3, "run-2": 3}
    store.close()
    for descriptor in high:
        descriptor.close()


async def test_calls_that_nobody_can_be_told_of_are_stored_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*_: object) -> None:
        raise RuntimeError("the figures are broken")

    monkeypatch.setattr(Telling, "stored", break_off)
    database = f"sqlite:///{tmp_path}/mosaic.db"
    await leave(tmp_path / "spool", conversation(3))
    ours, theirs = socket.socketpair()
    writer = threading.Thread(target=Writer(theirs, database, tmp_path / "spool").run)
    writer.start()
    assert ours.recv(10) == b"!"
    ours.close()
    writer.join()
    theirs.close()
    store = Store(database)
    assert [t.calls for t in store.trajectories()] == [3]
    assert store.counters()["untold_calls"] == {"broken": 3}
    store.close()


def test_a_database_that_went_back_in_time_is_written_soundly(database_url: str) -> None:
    store = Store(database_url)
    calls = [captured(call) for call in conversation(6)]
    store.record(calls[:4])
    with store.engine.begin() as connection:  # as if a backup had been put back
        gone = "('call-run-1-2', 'call-run-1-3')"
        connection.exec_driver_sql(f"delete from tokens where call_id in {gone}")
        connection.exec_driver_sql(f"delete from calls where call_id in {gone}")
        connection.exec_driver_sql("delete from messages where depth > 3")
    store.record(calls[4:5])
    store.record(calls[5:])
    assert check(store.database, deep=True) == []
    kept = [c for s in store.trajectory("run-1").sessions for c in s.calls]
    assert [c.prompt_ids_P.tolist() for c in kept] == [calls[n].prompt_ids_P.tolist() for n in (0, 1, 4, 5)]
    store.close()


def test_a_database_file_that_is_replaced_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "mosaic.db"
    store = Store(f"sqlite:///{path}")
    calls = [captured(call) for call in conversation(4)]
    store.record(calls[:2])
    for file in tmp_path.glob("mosaic.db*"):
        file.unlink()
    store.record(calls[2:])
    other = Store(f"sqlite:///{path}")
    assert [t.calls for t in other.trajectories()] == [2]
    assert check(other.database, deep=True) == []
    other.close()
    store.close()


def test_after_a_commit_that_failed_another_writers_rows_are_noticed(tmp_path: Path) -> None:
    calls = [captured(call) for call in conversation(4)]
    alone = Store(f"sqlite:///{tmp_path}/alone.db")
    alone.record(calls[:3])
    one, other = (Store(f"sqlite:///{tmp_path}/shared.db") for _ in range(2))
    one.record(calls[:1])
    failing = [True]

    def refuse(_connection: object) -> None:
        if failing:
            failing.clear()
            raise OSError("the disk is full")

    event.listen(one.engine, "commit", refuse)
    with pytest.raises(OSError, match="full"):
        one.record([replace(calls[3], call_id="elsewhere", trajectory_id="run-9")])
    other.record(calls[1:2])
    one.record(calls[2:3])
    assert picture(one) == picture(alone)
    for store in (alone, one, other):
        store.close()


def test_an_interrupted_call_is_never_exact() -> None:
    (call,) = conversation(1)
    kept = captured(replace(call, status=CallStatus.INTERRUPTED))
    assert (kept.exact, kept.inexact_reason) == (False, "call_interrupted")
