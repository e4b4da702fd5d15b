"""Calls that come faster than they are stored slow down until the writer is nearer, and no longer."""

import asyncio
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from mosaic.settings import Settings
from proxy import journal, writer
from proxy.progress import Progress
from proxy.reading import JournalFile, files_in
from proxy.recorder import Recorder
from proxy.trace import Trace
from proxy.writer import Writer
from tests.proxy.traces import conversation, leave


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the journal for each call, and three of them are far behind."""
    monkeypatch.setattr(journal, "FILE_BYTES", 1)
    monkeypatch.setattr(journal, "FILES_BEHIND", 3)


async def recording(recorder: Recorder, call: Trace) -> None:
    entry = recorder.journal.begin(call.origin, call.body)
    for when, piece in call.pieces:
        recorder.journal.piece(entry, piece, when)
    await recorder.record(entry, call)


async def test_a_call_waits_until_one_file_is_dealt_with(tmp_path: Path) -> None:
    recorder = Recorder(Settings(upstream="http://127.0.0.1:1/v1", spool=tmp_path, store_wait_s=60))
    calls = conversation(6)
    for call in calls[:3]:
        await asyncio.wait_for(recording(recorder, call), 10)
    late = [asyncio.ensure_future(recording(recorder, call)) for call in calls[3:]]
    done, _ = await asyncio.wait(late, timeout=0.3)
    assert not done
    for path in files_in(tmp_path)[:4]:  # as a writer does that has stored what is in them
        path.unlink()
    await asyncio.wait_for(asyncio.gather(*late), 10)
    assert recorder.figures()["waits_given_up"] == 0
    await recorder.close()


async def test_a_call_waits_no_longer_than_it_may(tmp_path: Path) -> None:
    recorder = Recorder(Settings(upstream="http://127.0.0.1:1/v1", spool=tmp_path, store_wait_s=0.1))
    for call in conversation(6):
        await asyncio.wait_for(recording(recorder, call), 10)
    assert recorder.figures()["waits_given_up"] >= 1
    await recorder.close()


async def test_a_call_that_ends_after_the_recorder_waits_for_no_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(Settings(upstream="http://127.0.0.1:1/v1", spool=tmp_path, store_wait_s=60))
    *calls, last = conversation(4)
    for call in calls:
        await asyncio.wait_for(recording(recorder, call), 10)
    entry = recorder.journal.begin(last.origin, last.body)
    await recorder.close()
    assert recorder.journal.behind()
    rung: list[None] = []
    monkeypatch.setattr(Progress, "wake", lambda _: rung.append(None))  # its descriptor may be another's by now
    await asyncio.wait_for(recorder.record(entry, last), 10)
    assert rung == []


async def test_a_file_goes_as_soon_as_its_calls_are_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not only when all that has ended is: a worker that is far ahead waits for it."""
    monkeypatch.setattr(writer, "MAX_BATCH", 2)
    spool = tmp_path / "spool"
    for call in conversation(8):
        await leave(spool, [call])
    left: list[int] = []
    commit = Writer._commit

    def counting(self: Writer, traces: Sequence[Trace]) -> None:
        left.append(len(files_in(spool)))
        commit(self, traces)

    monkeypatch.setattr(Writer, "_commit", counting)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.shutdown(socket.SHUT_WR)
        thread = threading.Thread(target=Writer(theirs, f"sqlite:///{tmp_path}/mosaic.db", spool).run)
        thread.start()
        await asyncio.to_thread(thread.join, 30)
    assert left[0] == 8
    assert left[-1] <= 4
    assert files_in(spool) == []


async def test_a_file_is_done_once_its_owner_has_gone_and_all_of_it_was_given(tmp_path: Path) -> None:
    file = JournalFile(await leave(tmp_path, conversation(3), ended=2))
    assert len(list(file.ended(time.monotonic()))) == 2
    done = [file.done]  # nobody knows yet whether its owner lives
    file.look_for_owner()
    list(file.ended(time.monotonic()))
    done.append(file.done)  # one call has not ended
    assert len(file.interrupted()) == 1
    assert [*done, file.done] == [False, False, True]
    file.close()
