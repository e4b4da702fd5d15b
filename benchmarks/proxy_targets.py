"""The processes of `benchmarks.proxy`: a mock engine, and in front of it a bare pass-through and ours."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, func, select

from mosaic.store.models import CallRow

ROOT = Path(__file__).parent.parent
START_S = 30.0
SETTLE_S = 10.0
"""Seconds that what a call leaves behind may take to go: idle connections are kept for a few."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds."""

    rss_mib: float
    descriptors: int
    threads: int


@dataclass(frozen=True, slots=True)
class Target:
    """Something that the clients can call."""

    name: str
    port: int
    process: int
    home: Path | None = None
    """Where ours keeps its files."""

    def processes(self) -> dict[str, int]:
        """Its own process, and its writer's where it has one."""
        children = [
            int(c) for f in Path(f"/proc/{self.process}").glob("task/*/children") for c in f.read_text().split()
        ]
        writers = [c for c in children if b"proxy.writer" in Path(f"/proc/{c}/cmdline").read_bytes()]
        return {self.name: self.process, **({"writer": writers[0]} if writers else {})}

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds so far, by process."""
        return {name: _cpu_s(process) for name, process in self.processes().items()}

    def held(self) -> dict[str, Held]:
        """What its processes hold, by process."""
        return {name: _held(process) for name, process in self.processes().items()}

    def rows(self) -> dict[str, int]:
        """Calls in the database: all, the exact ones, those that fell back in exact mode, those of each status."""
        if self.home is None:
            return {}
        engine = create_engine(f"sqlite:///{self.home}/mosaic.db")
        with engine.connect() as connection:
            exact = connection.execute(select(func.count()).where(CallRow.exact)).scalar_one()
            counts = connection.execute(select(CallRow.status, func.count()).group_by(CallRow.status)).all()
            query = select(func.count()).where(CallRow.fidelity == "fell_back")
            fell_back = connection.execute(query).scalar_one()
        engine.dispose()
        states = {str(status): int(count) for status, count in counts}
        return {"all": sum(states.values()), "exact": int(exact), "fell_back": int(fell_back), **states}

    def tasks(self) -> int:
        """Asyncio tasks of ours."""
        assert self.home is not None
        file = self.home / "tasks"
        before = _lines(file)
        os.kill(self.process, signal.SIGUSR1)
        until(lambda: len(_lines(file)) > len(before), "ours does not count its tasks")
        return int(_lines(file)[-1])


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _cpu_s(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _held(process: int) -> Held:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{process}/status").read_text().splitlines())
    descriptors = len(list(Path(f"/proc/{process}/fd").iterdir()))
    return Held(int(status["VmRSS"].split()[0]) / 1024, descriptors, int(status["Threads"]))


@contextmanager
def engine() -> Iterator[Target]:
    """The mock engine."""
    with _printing_its_port("direct", ["benchmarks.load", "engine"]) as target:
        yield target


@contextmanager
def bare(engine: Target) -> Iterator[Target]:
    """The pass-through that stores nothing."""
    with _printing_its_port("bare", ["benchmarks.proxy_bare", f"http://127.0.0.1:{engine.port}"]) as target:
        yield target


@contextmanager
def _printing_its_port(name: str, module: list[str]) -> Iterator[Target]:
    with _running([sys.executable, "-m", *module], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        target = Target(name, int(process.stdout.readline()), process.pid)
        until(lambda: _answers(target.port), f"{name} does not answer")
        yield target


@contextmanager
def ours(engine: Target, home: Path, *, fidelity: str = "capture") -> Iterator[Target]:
    """`mosaic serve` with one worker, recording to SQLite in a folder of its own; what it has to say is in `log`."""
    home.mkdir()
    command = [sys.executable, "-m", "benchmarks.proxy_served", str(home / "tasks"), "serve", "--port", "0"]
    command += ["--upstream", f"http://127.0.0.1:{engine.port}/v1", "--database", f"sqlite:///{home}/mosaic.db"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MOSAIC_")} | {"PYTHONPATH": str(ROOT)}
    environment["MOSAIC_FIDELITY"] = fidelity
    log = home / "log"
    with log.open("wb") as out, _running(command, cwd=home, env=environment, stderr=out) as process:
        said: list[str] = []

        def found() -> bool:
            said[:] = re.findall(r"mosaic\s+serves\s+http://127\.0\.0\.1:(\d+)", log.read_text())
            if process.poll() is not None:
                raise SystemExit(f"the proxy did not start: {log.read_text()}")
            return bool(said) and _answers(int(said[0]))

        until(found, "the proxy does not answer")
        target = Target("ours" if fidelity == "capture" else "exact", int(said[0]), process.pid, home)
        until(lambda: "writer" in target.processes(), "the writer does not run")
        yield target


@contextmanager
def _running(command: list[str], **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(ready: Callable[[], bool], why: str, within_s: float = START_S) -> None:
    """Wait. Raises `SystemExit` when it takes too long."""
    if not becomes(ready, within_s):
        raise SystemExit(why)


def becomes(ready: Callable[[], bool], within_s: float = SETTLE_S) -> bool:
    """Whether it is true within this time."""
    deadline = time.monotonic() + within_s
    while not ready():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
