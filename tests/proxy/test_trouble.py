"""Troubles that a hostile tester found: each lost calls, doubled them, or left the recorder dead for good."""

import fcntl
import json
import os
import socket
import threading
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from sqlalchemy import event

from mosaic.capture import CallStatus
from mosaic.store import Store
from mosaic.store.checking import check
from proxy import frames, spool
from proxy.journal import Journal
from proxy.spool import Spool, waiting_calls
from proxy.trace import Trace, captured, encode
from proxy.writer import Writer
from tests.conftest import ProxyFactory, until
from tests.engine import Turn
from tests.proxy.test_recorder import spooled
from tests.proxy.traces import conversation
from tests.store.test_many_processes import picture


def left_in_flight(folder: Path, calls: list[Trace]) -> None:
    """The journal of a process that died with these calls open."""
    journal = Journal(folder)
    for call in calls:
        entry = journal.begin(call.origin, call.body)
        journal.piece(entry, call.pieces[0][1], call.pieces[0][0])
    for segment in journal._segments:
        os.close(segment.descriptor)


async def test_a_spooled_call_whose_end_the_journal_lacks_is_stored_as_it_ended(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    calls = conversation(3)
    spooled(tmp_path / "spool", calls)
    left_in_flight(tmp_path / "spool", calls[1:])
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await until(lambda: proxy.store.trajectories() and proxy.store.trajectories()[0].calls == 3)
        await until(lambda: waiting_calls(proxy.settings.spool) == 0)
        (session,) = proxy.store.trajectory("run-1").sessions
        assert [call.exact for call in session.calls] == [True] * 3


async def test_what_another_worker_has_spooled_comes_before_a_call_that_answers_it(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    """Two workers on one folder: one is behind, the agent's next call goes to the other."""
    behind = Spool(tmp_path / "spool")
    calls = conversation(4)
    async with start_proxy(lambda _: Turn("This is reply 3")) as proxy:
        for call in calls[:3]:
            behind.append(encode(call))
        body = json.loads(calls[3].body)
        url = f"{proxy.url}/t/run-1/v1/chat/completions"
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
            await response.read()
        assert [t.calls for t in proxy.store.trajectories()] == [4]
        (session,) = proxy.store.trajectory("run-1").sessions
        assert [len(call.messages) for call in session.calls] == [1, 3, 5, 7]
        assert waiting_calls(tmp_path / "spool") == 3
    behind.close()


async def test_a_damaged_journal_stops_nobody(start_proxy: ProxyFactory, tmp_path: Path) -> None:
    calls = conversation(2)
    left_in_flight(tmp_path / "spool", calls)
    (path,) = (tmp_path / "spool").glob("inflight-*")
    data = path.read_bytes()
    path.write_bytes(data.replace(b'{"call_id"', b"{nonsense!", 1) + b"\0" * 4096)
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await until(proxy.store.trajectories)
        assert [t.calls for t in proxy.store.trajectories()] == [1]
        await until((tmp_path / "spool" / f"damaged-{path.name}").exists)


async def test_a_spool_file_with_a_damaged_call_gives_the_others_and_is_kept(
    start_proxy: ProxyFactory, tmp_path: Path
) -> None:
    path = spooled(tmp_path / "spool", conversation(5))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await until(lambda: "spool_calls_unreadable" in proxy.store.counters())
        await until((tmp_path / "spool" / f"damaged-{path.name}").exists)
        assert [t.calls for t in proxy.store.trajectories()] == [4]


def test_a_spool_file_of_another_release_is_read(tmp_path: Path) -> None:
    (call,) = conversation(1)
    head, *rest = encode(call)
    newer = head.replace(b'{"origin":{', b'{"colour":"blue","origin":{"flavour":"sweet",')
    lengths = len(newer) - 8
    newer = lengths.to_bytes(4, "little") + newer[4:]
    path = tmp_path / "calls-1"
    path.write_bytes(frames.pack(b"C", 0, newer, *rest))
    assert list(spool.read(path)) == [call]


def test_what_is_spooled_into_a_removed_file_is_not_called_durable(tmp_path: Path) -> None:
    first, second = conversation(2)
    held = Spool(tmp_path)
    held.append(encode(first))
    for path in tmp_path.glob("calls-*"):
        path.unlink()
    held.append(encode(second))
    assert waiting_calls(tmp_path) == 1
    held.close()


def test_the_writer_works_on_any_descriptor_and_outlives_a_file_that_is_gone(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    high = socket.socket(fileno=fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD, 1100))
    theirs.close()
    database = f"sqlite:///{tmp_path}/mosaic.db"
    writer = threading.Thread(target=Writer(high, database, tmp_path).run)
    writer.start()
    (call,) = conversation(1)
    ours.sendall(frames.pack(b"R", 1, b'["/nowhere/calls-1"]') + frames.pack(b"C", 2, *encode(call)))
    unpacker, answered = frames.Unpacker(), list[tuple[bytes, int, bytes]]()
    while len(answered) < 3:
        answered += unpacker.feed(ours.recv(1000))
    assert [(kind, body) for kind, _, body in answered] == [(b"D", b"[]"), (b"D", b"[1]"), (b"D", b"[2]")]
    ours.close()
    writer.join()
    high.close()


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
