"""`mosaic tail` in a process of its own: it follows, survives what breaks, and ends when it is told to."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from sqlalchemy import delete

from mosaic.settings import Settings
from mosaic.store import Store
from mosaic.store.models import CallRow
from mosaic.tail_command import _json, _line
from proxy import events
from proxy.trace import captured
from tests.conftest import serving
from tests.postgres import Server
from tests.proxy.traces import conversation


class Tail:
    """A running `mosaic tail`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.began = ""
        """What it said when it began."""

    async def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        return (await asyncio.wait_for(self.process.stdout.readline(), 20)).decode().rstrip()

    async def said(self) -> str:
        """The next line of its standard error."""
        assert self.process.stderr is not None
        return (await asyncio.wait_for(self.process.stderr.readline(), 20)).decode().rstrip()

    async def interrupted(self) -> tuple[int, str]:
        """Its exit code and what it still said, after Ctrl-C; once more where Python lost it (in a destructor)."""
        ended = asyncio.ensure_future(self.process.communicate())
        while not ended.done():
            self.process.send_signal(signal.SIGINT)
            await asyncio.wait([ended], timeout=10)
        assert self.process.returncode is not None
        return self.process.returncode, ended.result()[1].decode()


IN_FRONT = """
import signal
from mosaic.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
main()
"""
"""The command line as a terminal starts it: what a shell starts behind itself ignores Ctrl-C."""


@asynccontextmanager
async def tailing(folder: Path, *arguments: str) -> AsyncIterator[Tail]:
    """Follow calls; what it says when it has begun is read."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", IN_FRONT, "tail", *arguments),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    tail = Tail(process)
    try:
        tail.began = await tail.said()
        assert "following calls" in tail.began
        yield tail
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def record(store: Store, name: str) -> None:
    store.record([captured(trace) for trace in conversation(2, name)])


async def test_calls_of_one_trajectory_follow_as_they_end_and_ctrl_c_is_no_failure(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mosaic.db"
    store = Store(url)
    record(store, "before")
    async with tailing(tmp_path, "--database", url, "--trajectory", "run-1", "--json") as tail:
        assert "there is no trajectory 'run-1' yet" in tail.began
        record(store, "run-2")
        record(store, "run-1")
        found = [json.loads(await tail.line()) for _ in range(2)]
        assert [(call["trajectory_id"], call["status"], call["exact"]) for call in found] == [("run-1", "ok", True)] * 2
        assert found[0]["call_id"] != found[1]["call_id"]
        assert await tail.interrupted() == (0, "")
    store.close()


async def test_a_line_says_what_a_call_is_worth_and_how_its_reply_begins(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mosaic.db"
    store = Store(url)
    async with tailing(tmp_path, "--database", url) as tail:
        record(store, "run-\x1b[2J")
        line = await tail.line()
        assert " run-?[2J  " in line
        assert "  exact  " in line
        assert " tokens  " in line
        assert await tail.interrupted() == (0, "")
    store.close()


CALLS = st.fixed_dictionaries(
    {
        "trajectory_id": st.text(max_size=60),
        "auxiliary": st.sampled_from([None, "title"]),
        "status": st.sampled_from(["ok", "aborted", "failed", "interrupted"]),
        "http_status": st.sampled_from([200, 404, 499]),
        "exact": st.booleans(),
        "inexact_reason": st.sampled_from([None, "other_weights"]),
        "prompt_tokens": st.integers(0, 99_999),
        "sampled_tokens": st.integers(0, 9_999),
        "policy_version": st.integers(0, 99),
        "started_at": st.just(1.0),
        "ended_at": st.floats(1, 60),
        "says": st.text(),
        "error": st.none() | st.text(),
    }
)


@given(CALLS, st.integers(20, 200))
def test_no_line_is_wider_than_the_terminal(call: dict[str, Any], width: int) -> None:
    assert cell_len(_line(call, width)) <= width


def test_a_line_leaves_room_for_the_reply_and_says_how_a_call_failed() -> None:
    call: dict[str, Any] = {
        "trajectory_id": "run-20261130-093011-ab12.task_7.3",
        "auxiliary": None,
        "http_status": 404,
        "exact": False,
    }
    call |= {"inexact_reason": "call_failed", "prompt_tokens": 0, "sampled_tokens": 0, "policy_version": 3}
    call |= {"started_at": 1.0, "ended_at": 1.5, "status": "failed", "says": "", "error": "there is no model 'x'; " * 9}
    narrow, whole = _line(call, 80)[9:], _line(call, None)[9:]
    assert re.fullmatch(r"run-2…_7.3  0 -> 0 tokens  0.50 s  v3  failed \(HTTP 404\)  there is no …", narrow)
    figures = "0 -> 0 tokens  0.50 s  v3  failed (HTTP 404)"
    assert whole == f"{call['trajectory_id']}  {figures}  {str(call['error']).strip()}"
    call |= {"status": "aborted", "http_status": 200, "error": None}
    assert _line(call, 80).endswith("  v3  aborted")


async def test_a_file_that_takes_the_place_of_the_one_followed_is_followed_on(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mosaic.db"
    store = Store(url)
    record(store, "before")
    async with tailing(tmp_path, "--database", url, "--json") as tail:
        store.close()
        for end in ("", "-wal", "-shm"):
            (tmp_path / f"mosaic.db{end}").unlink(missing_ok=True)
        store = Store(url)
        assert "no longer holds what was followed" in await tail.said()
        record(store, "anew")
        assert json.loads(await tail.line())["trajectory_id"] == "anew"
        assert await tail.interrupted() == (0, "")
    store.close()


async def test_numbers_that_are_given_again_are_followed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mosaic.db"
    store = Store(url)
    record(store, "before")
    async with tailing(tmp_path, "--database", url, "--json") as tail:
        with store.database.writing() as connection:
            connection.execute(delete(CallRow))
        assert "no longer holds what was followed" in await tail.said()
        record(store, "again")
        assert json.loads(await tail.line())["trajectory_id"] == "again"
        assert await tail.interrupted() == (0, "")
    store.close()


def test_half_of_a_surrogate_pair_is_json_too() -> None:
    assert json.loads(_json({"says": "x\ud800"})) == {"says": "x\ud800"}
    assert _json({"says": "\xe9"}) == '{"says":"\xe9"}'


async def test_a_database_that_is_away_for_a_while_is_asked_again(tmp_path: Path, postgres_server: Server) -> None:
    url = postgres_server.create("test_tail")
    store = Store(url)
    async with tailing(tmp_path, "--database", url, "--json") as tail:
        await asyncio.to_thread(postgres_server.stop)
        try:
            assert (await tail.said()).endswith("It is asked again.")
        finally:
            await asyncio.to_thread(postgres_server.start)
        record(store, "afterwards")
        assert json.loads(await tail.line())["trajectory_id"] == "afterwards"
        assert await tail.interrupted() == (0, "")
    store.close()
    postgres_server.drop("test_tail")


async def test_a_trajectory_that_is_not_there_is_said_also_by_a_proxy(tmp_path: Path) -> None:
    settings = Settings(database=f"sqlite:///{tmp_path}/mosaic.db", spool=tmp_path / "spool", writer_process=False)
    store = Store(settings.database)
    record(store, "run-1")
    store.close()
    async with serving(settings) as url:
        for name, said in {"nosuch": True, "run-1": False}.items():
            async with tailing(tmp_path, "--proxy", url, "--trajectory", name) as tail:
                assert (f"no trajectory {name!r} yet" in tail.began) is said
                assert await tail.interrupted() == (0, "")


async def test_a_proxy_that_is_started_anew_is_followed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVERY_S", 0.02)
    settings = Settings(
        database=f"sqlite:///{tmp_path}/mosaic.db", spool=tmp_path / "spool", writer_process=False, commit_first=True
    )
    store, numbers = Store(settings.database), count()
    async with AsyncExitStack() as stack:
        async with serving(settings) as url:
            tail = await stack.enter_async_context(tailing(tmp_path, "--proxy", url, "--json"))
            first = asyncio.ensure_future(tail.line())
            while not first.done():
                record(store, f"first-{next(numbers)}")
                await asyncio.wait([first], timeout=0.2)
        last = f"first-{next(numbers) - 1}"
        record(store, "meanwhile")
        async with serving(settings, int(url.rpartition(":")[2])):
            seen = [json.loads(await first)["trajectory_id"]]
            while seen[-1] != "meanwhile":
                seen.append(json.loads(await tail.line())["trajectory_id"])
            assert seen[-2] == last
            assert await tail.interrupted() == (0, "")
    store.close()
