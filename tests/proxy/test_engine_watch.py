"""What `mosaic serve` says on its terminal of engines that go and come back, and when it stops."""

import asyncio
import json
import signal
import socket
import sqlite3
import subprocess
import threading
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mosaic.settings import OtherModel, Settings
from proxy.engine_watch import Engine, engines_of, why_not
from proxy.reading import waiting_calls
from tests.conftest import until
from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.test_recorder import BODY, ask, start


def lines(folder: Path) -> list[dict[str, Any]]:
    """All that the server logged."""
    said = "".join(path.read_text() for path in sorted(folder.glob("serve-*.log")))
    return [json.loads(line) for line in said.splitlines() if line.startswith("{") and line.endswith("}")]


def told(folder: Path, *words: str) -> list[dict[str, Any]]:
    """Those whose event has one of these words."""
    return [line for line in lines(folder) if any(word in line["event"] for word in words)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def ended(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, 30)


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_an_engine_that_goes_and_comes_back_is_told_of_once_each(tmp_path: Path, workers: str) -> None:
    port = free_port()
    goes = f"http://127.0.0.1:{port}/v1"
    async with ScriptedEngine(lambda _: Turn("Hi")).serve() as stays:
        given = {"MOSAIC_REPLICAS": json.dumps([goes]), "MOSAIC_WORKERS": workers, "MOSAIC_ENGINE_WAIT_S": "0"}
        process, url = start(tmp_path, stays, f"sqlite:///{tmp_path}/mosaic.db", **given)
        try:
            await until(lambda: told(tmp_path, "does not answer"), 30)
            async with aiohttp.ClientSession() as client:
                refused = [await refusal(client, url, f"run-{n}") for n in range(9)]
            assert 503 in refused
            async with ScriptedEngine(lambda _: Turn("Hi")).serve(port):
                await until(lambda: told(tmp_path, "answers again"), 30)
            await until(lambda: len(told(tmp_path, "does not answer")) == 2, 30)
            process.send_signal(signal.SIGTERM)
            assert await ended(process) == 0
        finally:
            process.kill()
            process.wait()
    said = told(tmp_path, "does not answer", "answers again")
    assert [(line["engine"], line["serves"]) for line in said] == [(goes, "the policy, replica 2")] * 3
    assert said[0]["event"] == "the engine does not answer; calls get 503 until it does"
    assert (said[0]["level"], said[0]["why"]) == ("error", "connection refused")
    assert said[1]["after_s"] > 0
    assert told(tmp_path, "stopped")[0]["event"] == "stopped; all calls are stored"


async def refusal(client: aiohttp.ClientSession, url: str, trajectory_id: str) -> int:
    async with client.post(f"{url}/t/{trajectory_id}/v1/chat/completions", json=BODY) as response:
        await response.read()
        return response.status


async def test_who_is_told_to_stop_says_what_is_waited_for_and_that_all_is_stored(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: Turn("Hello there, you", fault=Fault.HANG_MID_STREAM))
    async with engine.serve() as upstream, aiohttp.ClientSession() as client:
        process, url = start(tmp_path, upstream, f"sqlite:///{tmp_path}/mosaic.db", MOSAIC_DRAIN_S="1")
        try:
            async with client.post(f"{url}/t/run/v1/chat/completions", json=BODY) as response:
                await engine.reached.wait()
                process.send_signal(signal.SIGTERM)
                await until(lambda: told(tmp_path, "stopping"))
                with pytest.raises(aiohttp.ClientPayloadError):
                    await response.read()
            assert await ended(process) == 0
        finally:
            process.kill()
            process.wait()
    (stopping,) = told(tmp_path, "stopping")
    assert (stopping["calls"], stopping["at_most_s"]) == (1, 1.0)
    (cut,) = (line for line in lines(tmp_path) if line["level"] == "error")
    assert cut["event"] == "Cancel 1 running task(s), timeout graceful shutdown exceeded"
    assert lines(tmp_path)[-1]["event"] == "stopped; all calls are stored"


async def test_calls_that_the_database_did_not_take_are_told_of_at_the_end(tmp_path: Path) -> None:
    async with ScriptedEngine(lambda _: Turn("Hi")).serve() as upstream:
        process, url = start(tmp_path, upstream, f"sqlite:///{tmp_path}/mosaic.db")
        try:
            await ask(url, "before")
            await until(lambda: waiting_calls(tmp_path / "spool") == 0)
            with sqlite3.connect(tmp_path / "mosaic.db", isolation_level=None) as lock:
                lock.execute("BEGIN EXCLUSIVE")
                await ask(url, "after")
                process.send_signal(signal.SIGTERM)
                assert await ended(process) == 0
                lock.execute("ROLLBACK")
        finally:
            process.kill()
            process.wait()
    last = lines(tmp_path)[-1]
    assert last["event"] == "stopped; calls wait on the disk until the next start stores them"
    assert (last["calls"], last["folder"]) == (1, str(tmp_path / "spool"))


def test_a_forwarder_that_closes_each_connection_is_no_engine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as forwarder:
        url = f"http://127.0.0.1:{forwarder.getsockname()[1]}/v1"

        def close_the_next() -> None:
            forwarder.accept()[0].close()

        closing = threading.Thread(target=close_the_next)
        closing.start()
        assert why_not(url, 5.0) == "it closes connections at once"
        closing.join()
        assert why_not(url, 5.0) is None


def test_each_engine_is_named_without_its_password() -> None:
    other = OtherModel(upstream="http://judge:secret@c:1/v1")
    settings = Settings(upstream="http://a:1/v1", replicas=["http://b:1/v1"], models={"gpt-*": other})
    assert [engine.said for engine in engines_of(settings)] == [
        {"engine": "http://a:1/v1", "serves": "the policy, replica 1"},
        {"engine": "http://b:1/v1", "serves": "the policy, replica 2"},
        {"engine": "http://***@c:1/v1", "serves": "models gpt-*"},
    ]
    assert Engine("the policy", "http://a:1/v1") in engines_of(Settings(upstream="http://a:1/v1"))
