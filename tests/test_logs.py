"""Logs that no terminal reads are JSON, one object a line, whichever process wrote them."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from mosaic.store import Store
from tests.conftest import until
from tests.engine import Fault, ScriptedEngine, Turn
from tests.proxy.test_recorder import ask, start
from tests.proxy.test_workers import workers_of

LIBRARY_AND_OURS = """
import logging, structlog
from mosaic import logs
logs.configure()
structlog.get_logger().info("ours", call="call-1")
logging.getLogger("a.library").warning("theirs: %s", 7)
logging.getLogger("a.library").info("too much")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("a.library").exception("failed")
"""


def test_what_we_log_and_what_libraries_log_has_one_form() -> None:
    done = subprocess.run([sys.executable, "-c", LIBRARY_AND_OURS], capture_output=True, text=True, check=True)
    ours, theirs, failed = map(json.loads, done.stderr.splitlines())
    assert (ours["event"], ours["level"], ours["call"], ours["timestamp"][-1]) == ("ours", "info", "call-1", "Z")
    assert (theirs["event"], theirs["level"], theirs["logger"]) == ("theirs: 7", "warning", "a.library")
    assert "ZeroDivisionError" in failed["exception"]
    assert done.stdout == ""


AS_TEXT = """
import asyncio, logging, traceback
from mosaic import logs
logs.configure()
for kind in (asyncio.CancelledError, ValueError):
    try:
        try:
            raise KeyboardInterrupt if kind is asyncio.CancelledError else asyncio.CancelledError
        finally:
            raise kind("for a reason")
    except BaseException:
        logging.getLogger("uvicorn.error").error(traceback.format_exc())
"""


def test_a_traceback_that_a_library_logs_as_text_is_told_unless_it_ends_in_a_cancellation() -> None:
    done = subprocess.run([sys.executable, "-c", AS_TEXT], capture_output=True, text=True, check=True)
    (told,) = map(json.loads, done.stderr.splitlines())
    assert told["event"].endswith("ValueError: for a reason\n")


async def test_a_second_ctrl_c_ends_the_proxy_without_a_traceback(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: Turn("A longer text of many pieces", fault=Fault.HANG_MID_STREAM))
    async with engine.serve() as upstream:
        process, url = start(tmp_path, upstream, f"sqlite:///{tmp_path}/mosaic.db", MOSAIC_DRAIN_S="50")
        log = log_in(tmp_path)
        waiting = asyncio.ensure_future(ask(url, "open"))
        await engine.reached.wait()
        process.send_signal(signal.SIGINT)
        await until(lambda: "open calls get time to end" in log.read_text())
        process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(process.wait, 30) == 0
        with pytest.raises(aiohttp.ClientError):
            await waiting
        assert "Traceback" not in log.read_text()
        assert "stopped; " in log.read_text()
        process, _ = start(tmp_path, upstream, f"sqlite:///{tmp_path}/mosaic.db")  # stores what may wait on the disk
        process.terminate()
        assert await asyncio.to_thread(process.wait, 30) == 0
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    assert [found.calls for found in store.trajectories()] == [1]
    store.close()


async def test_each_of_several_workers_logs_in_that_form(tmp_path: Path) -> None:
    async with ScriptedEngine(lambda _: Turn("Hello")).serve() as upstream:
        process, _ = start(tmp_path, upstream, f"sqlite:///{tmp_path}/mosaic.db", MOSAIC_WORKERS="2")
        log = log_in(tmp_path)
        try:
            await until(lambda: len(workers_of(process.pid)) == 2)
            worker = workers_of(process.pid)[0]
            await until(lambda: writers_of(worker))
            os.kill(writers_of(worker)[0], signal.SIGKILL)
            await until(lambda: "writer died" in log.read_text())
        finally:
            process.terminate()
            process.wait(30)
    said = [line for line in log.read_text().splitlines() if not line.startswith("mosaic serves")]
    assert "the writer died, and is started again" in [json.loads(line)["event"] for line in said]


def log_in(folder: Path) -> Path:
    (found,) = folder.glob("serve-*.log")
    return found


def writers_of(pid: int) -> list[int]:
    children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in children if b"proxy.writer" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_a_terminal_is_shown_no_local_variables() -> None:
    """They hold requests and keys."""
    program = """
import io, logging, sys, structlog
from mosaic import logs
class Terminal(io.StringIO):
    def isatty(self): return True
shown, sys.stderr = sys.stderr, Terminal()
logs.configure()
def fails():
    authorization = "Bearer " + "sk-" + "secret"
    raise RuntimeError("it failed")
for told in (structlog.get_logger().exception, logging.getLogger("uvicorn.error").exception):
    try:
        fails()
    except RuntimeError:
        told("here")
print(sys.stderr.getvalue())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.count("it failed") == 2
    assert "sk-secret" not in done.stdout
