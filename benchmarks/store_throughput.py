"""Calls per second and added latency with recording on, against recording off in the same run.

All processes share this machine's cores, so the mock engine and the clients are counted too; `direct` is the engine
without a proxy.
"""

import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from sqlalchemy import create_engine, func, select

from benchmarks.results import Bar
from mosaic.settings import Settings
from mosaic.store.models import CallRow
from tests.postgres import server

ROOT = Path(__file__).parent.parent
CLIENTS = (1, 32, 200)
KINDS = {"whole": False, "stream": True}
WORKERS = 2
"""Proxy processes of the targets that are measured with several."""
STARTS, PAIRS, PAIR_S = 7, 3, 2.0
"""Turns of recording off and on with 32 clients, of so many seconds: the ratio is of neighbours in time. Proxies are
started anew for every few of them, for each start has a speed of its own."""
START_S = 30.0
WRITER = b"proxy.writer"
"""In the command line of a proxy's writer process."""

Measured = dict[str, float]
Figures = tuple[dict[str, Bar], dict[str, Any]]

console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Target:
    """Something that the clients can call."""

    name: str
    """`direct`, `off`, `sqlite` or `postgres`, the latter two also with `-2-workers`."""
    port: int
    process: int
    database: str | None
    """Where it records; None where it does not."""
    workers: int = 1

    def runs(self, clients: int, kind: str) -> bool:
        """Whether it is measured so. Several workers are measured once: the numbers of one are what counts."""
        return self.workers == 1 or (clients, kind) == (32, "whole")

    def rows(self) -> tuple[int, int]:
        """Calls in the database, and how many of them are exact."""
        if self.database is None:
            return 0, 0
        engine = create_engine(self.database)
        with engine.connect() as connection:
            total, exact = connection.execute(select(func.count(), func.count().filter(CallRow.exact))).one()
        engine.dispose()
        return int(total), int(exact)

    def cpu_s(self) -> tuple[float, float]:
        """Processor seconds so far: of its writers, and of all its other processes."""
        writers = others = 0.0
        for process in _tree(self.process):
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
            if _is_writer(process):
                writers += used
            else:
                others += used
        return writers, others


def _tree(process: int) -> Iterator[Path]:
    """`/proc/N` of a process and all that it has started."""
    here = Path(f"/proc/{process}")
    yield here
    for children in here.glob("task/*/children"):
        for child in children.read_text().split():
            yield from _tree(int(child))


def _is_writer(process: Path) -> bool:
    return WRITER in (process / "cmdline").read_bytes()


def throughput(seconds: float, rounds: int) -> Figures:
    """Recording on against off in turns, whole and streamed, at each number of clients."""
    runs: dict[str, list[Measured]] = {}
    ratios = _on_to_off()  # first: PostgreSQL tidies up after a load
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        targets = list(_targets(stack, Path(folder)))
        for round_ in range(rounds):
            for clients in CLIENTS:
                for kind in KINDS:
                    for target in (t for t in targets if t.runs(clients, kind)):
                        measured = _measure(target, clients, kind, seconds)
                        runs.setdefault(f"{target.name} {kind} {clients}", []).append(measured)
                        shown = " ".join(f"{figure}={value:.4g}" for figure, value in measured.items())
                        console.print(f"{round_} {target.name} {kind} {clients}: {shown}", soft_wrap=True)
    return _throughput_bars(runs, ratios), {"seconds": seconds, "rounds": rounds, **_medians(runs)}


def _on_to_off() -> list[float]:
    """Answers with recording on against those with it off, once for each pair; none for a tree that always records."""
    if "record" not in Settings.model_fields:
        console.print("recording off is not measured: this tree has no setting `record`")
        return []
    ratios = []
    for start in range(STARTS):
        with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
            engine = stack.enter_context(_engine()).port
            off = stack.enter_context(_proxy("off", Path(folder), engine, None))
            on = stack.enter_context(_proxy("sqlite", Path(folder), engine, f"sqlite:///{folder}/mosaic.db"))
            for turn in range(PAIRS):
                in_turn = (off, on) if turn % 2 == 0 else (on, off)
                rate = {target.name: _measure(target, 32, "whole", PAIR_S)["calls_per_s"] for target in in_turn}
                ratios.append(rate[on.name] / rate[off.name])
                console.print(f"{start} on to off: {ratios[-1]:.3f}")
    return ratios


def _targets(stack: ExitStack, folder: Path) -> Iterator[Target]:
    """The engine alone, then a proxy for each way of recording; idle ones cost nothing while another is measured."""
    engine = stack.enter_context(_engine())
    yield engine
    if "record" in Settings.model_fields:
        yield stack.enter_context(_proxy("off", folder, engine.port, None))
    for workers in (1, WORKERS):
        url = f"sqlite:///{folder}/mosaic-{workers}.db"
        yield stack.enter_context(_proxy("sqlite", folder, engine.port, url, workers))
    try:
        postgres = stack.enter_context(server())
    except RuntimeError as error:
        console.print(f"PostgreSQL is not measured: {error}")
        return
    for workers in (1, WORKERS):
        url = postgres.create(f"benchmark_{workers}")
        yield stack.enter_context(_proxy("postgres", folder, engine.port, url, workers))


@contextmanager
def _engine() -> Iterator[Target]:
    command = [sys.executable, "-m", "benchmarks.load", "engine"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Target("direct", int(process.stdout.readline()), process.pid, None)
        finally:
            process.terminate()


@contextmanager
def _proxy(kind: str, folder: Path, engine: int, database: str | None, workers: int = 1) -> Iterator[Target]:
    """`mosaic serve` in a folder of its own; what it has to say is in `log`."""
    name = kind if workers == 1 else f"{kind}-{workers}-workers"
    home = folder / name
    home.mkdir()
    command = [sys.executable, "-m", "mosaic", "serve", "--port", "0", "--upstream", f"http://127.0.0.1:{engine}/v1"]
    command += ["--database", database or f"sqlite:///{home}/unused.db", "--workers", str(workers)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MOSAIC_")} | {"PYTHONPATH": str(ROOT)}
    if database is None:
        environment["MOSAIC_RECORD"] = "false"
    log = home / "log"
    with log.open("wb") as out, subprocess.Popen(command, cwd=home, env=environment, stderr=out) as process:
        try:
            port = _port_in(log, process)
            _until(log, process, lambda: _answers(port))
            if workers > 1:
                _until(log, process, lambda: sum(map(_is_writer, _tree(process.pid))) == workers)
            yield Target(name, port, process.pid, database, workers)
        finally:
            process.terminate()


def _port_in(log: Path, process: subprocess.Popen[bytes]) -> int:
    said: list[str] = []

    def found() -> bool:
        said[:] = re.findall(r"mosaic\s+serves\s+http://127\.0\.0\.1:(\d+)", log.read_text())
        return bool(said)

    _until(log, process, found)
    return int(said[0])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _until(log: Path, process: subprocess.Popen[bytes], ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the proxy did not start: {log.read_text()}")
        time.sleep(0.05)


def _measure(target: Target, clients: int, kind: str, seconds: float) -> Measured:
    """One run of the clients; once the writer has caught up, every answer that they got must be an exact row.

    `calls_per_s` counts answers, each durable before it ended; `stored_per_s` has the catching up in its time.
    """
    rows, exact = target.rows()
    before = target.cpu_s()
    arguments = ["--port", str(target.port), "--clients", str(clients), "--seconds", str(seconds)]
    arguments += ["--run", os.urandom(4).hex(), *(["--stream"] if KINDS[kind] else [])]
    command = [sys.executable, "-m", "benchmarks.load", "clients", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=seconds + 60)
    measured: Measured = orjson.loads(done.stdout)
    writers, others = (1e6 * (b - a) / max(1, measured["answers"]) for a, b in zip(before, target.cpu_s(), strict=True))
    measured["target_cpu_us_per_call"] = others
    if target.database is not None:
        measured["behind"] = measured["answers"] - (target.rows()[0] - rows)
        measured["behind_s"] = _caught_up(target, rows + int(measured["answers"]))
        calls_s = measured["answers"] / measured["calls_per_s"]
        measured["stored_per_s"] = measured["answers"] / (calls_s + measured["behind_s"])
        measured["writer_cpu_us_per_call"] = writers
        now_rows, now_exact = target.rows()
        measured["missing"] = abs(measured["answers"] - (now_rows - rows))
        measured["inexact"] = (now_rows - rows) - (now_exact - exact)
    return measured


def _caught_up(target: Target, rows: int) -> float:
    """Seconds until the database holds all that clients have been answered; the journal has had it all along."""
    began = time.monotonic()
    while target.rows()[0] < rows and time.monotonic() < began + START_S:
        time.sleep(0.02)
    return time.monotonic() - began


def _throughput_bars(runs: dict[str, list[Measured]], ratios: list[float]) -> dict[str, Bar]:
    stored = [run["stored_per_s"] for run in runs["sqlite whole 32"]]
    latency = zip(runs["sqlite whole 1"], runs["direct whole 1"], strict=True)
    wrong = [
        sum(run["errors"] + run.get("missing", 0) + run.get("inexact", 0) for run in group) for group in runs.values()
    ]
    bars = {
        "recorded_calls": Bar("calls/s", ">= 1500", "32 clients, SQLite, all on this machine; in the database", stored),
        "added_latency": Bar(
            "ms", "<= 3", "one client, p50, without the proxy", [a["p50_ms"] - b["p50_ms"] for a, b in latency]
        ),
        "failed_missing_or_inexact_calls": Bar("calls", "== 0", "answers that clients got", [sum(wrong)]),
    }
    if ratios:
        bars["recording_on_to_off"] = Bar("ratio", ">= 0.70", "answers with recording off, 32 clients, SQLite", ratios)
    return bars


def _medians(runs: dict[str, list[Measured]]) -> dict[str, Any]:
    """Per target, kind and number of clients: the median of each figure, and recorded calls against unrecorded ones."""
    medians = {
        name: {figure: statistics.median(run[figure] for run in group) for figure in group[0]}
        for name, group in runs.items()
    }
    for name, figures in medians.items():
        target, _, which = name.partition(" ")
        if target.startswith(("sqlite", "postgres")) and (off := medians.get(f"off {which}")):
            figures["on_to_off"] = figures["calls_per_s"] / off["calls_per_s"]
    return {"medians": medians, "calls_per_s_runs": {n: [r["calls_per_s"] for r in g] for n, g in runs.items()}}
