"""What looking, selecting, pruning and recording cost in a database with a million calls.

`python -m benchmarks.store_million URL PART` measures a database that is there, in a process of its own: what was done
before would hide how memory grows.
"""

import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from rich.console import Console
from sqlalchemy import Connection, select

from benchmarks.results import Bar
from benchmarks.store_filling import FRESH, PLAIN, fill, trajectory_id
from mosaic.capture import CallStatus, CapturedCall, Choice
from mosaic.store import Store
from mosaic.store.database import Database
from mosaic.store.models import TrajectoryRow
from mosaic.store.pruning import SETTLED, PruneRule, prune
from mosaic.store.stats import stats
from tests.postgres import server

ROOT = Path(__file__).parent.parent
TRAJECTORIES = 100_000
CALLS = 10 * TRAJECTORIES
PRUNED = 20_000
RUNS = 5
BATCH = 32
"""Calls that are recorded in one transaction."""
LIMIT = 256
"""Trajectories of a training batch."""
RULE = PruneRule(older_than_s=0)
MEASURE_S = 600.0

Seconds = dict[str, list[float]]
Figures = tuple[dict[str, Bar], dict[str, Any]]

console = Console(stderr=True)


def million() -> Figures:
    """Fill and measure both databases."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        found["sqlite"] = _filled(f"sqlite:///{folder}/million.db")
        try:
            url = stack.enter_context(server()).create("million")
        except RuntimeError as error:
            console.print(f"PostgreSQL is not measured: {error}")
        else:
            found["postgres"] = _filled(url)
    bars: dict[str, Bar] = {}
    for name, figures in found.items():
        bars |= _bars(name, figures)
    return bars, {"calls": CALLS, **found}


def _filled(url: str) -> dict[str, Any]:
    begin = time.perf_counter()
    fill(url, TRAJECTORIES)
    filled_s = time.perf_counter() - begin
    seconds: Seconds = {}
    growth: dict[str, float] = {}
    for part in PARTS:
        command = [sys.executable, "-m", "benchmarks.store_million", url, part]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=MEASURE_S)
        found = orjson.loads(done.stdout)
        seconds |= found["seconds"]
        growth |= found["memory_growth_mib"]
    return {"filled_s": filled_s, "seconds": seconds, "memory_growth_mib": growth}


def _bars(name: str, figures: dict[str, Any]) -> dict[str, Bar]:
    """The figures that have goals."""
    baseline = f"{CALLS:,} calls, {name}"
    seconds = {
        "listing": f"50 trajectories of {baseline}",
        "showing": f"a trajectory with its links, {baseline}",
        "selecting": f"{LIMIT} trajectories to train, read in full, {baseline}",
        "longest_prune_transaction": f"while {PRUNED:,} trajectories are pruned, {baseline}",
    }
    bars = {f"{name}_{what}": Bar("s", "<= 1", said, figures["seconds"][what]) for what, said in seconds.items()}
    growth = [figures["memory_growth_mib"]["pruning"]]
    return {**bars, f"{name}_prune_memory_growth": Bar("MiB", "<= 100", f"pruning {PRUNED:,} trajectories", growth)}


# in the measuring process


class Timed(Database):
    """Knows how long its writers were alone."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.took_s: list[float] = []

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """The transaction, timed from its wish to begin until it is durable."""
        begin = time.perf_counter()
        with super().writing() as connection:
            yield connection
        self.took_s.append(time.perf_counter() - begin)


class Measured:
    """Seconds of each run and the growth of memory by the name of what was done."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}
        self.memory_growth_mib: dict[str, float] = {}

    def run(self, what: str, work: Callable[[int], object], runs: int = RUNS) -> None:
        """Do it several times; `work` gets the number of the run."""
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak
        for number in range(runs):
            begin = time.perf_counter()
            work(number)
            self.seconds.setdefault(what, []).append(time.perf_counter() - begin)
        self.memory_growth_mib[what] = max(0.0, _memory("VmHWM") - before)
        shown = " ".join(f"{1000 * took:.1f}" for took in self.seconds[what][-runs:])
        console.print(f"{what}: {shown} ms, {self.memory_growth_mib[what]:.1f} MiB", soft_wrap=True)


def _memory(field: str) -> float:
    """MiB that this process holds (`VmRSS`), or held at most (`VmHWM`)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{field}:")[2].split()[0]) / 1024


def using(url: str, measured: Measured) -> None:
    """Look, select and record."""
    draw, store = random.Random(1), Store(url)
    names = [trajectory_id(draw.randrange(TRAJECTORIES // 2, TRAJECTORIES) | 1) for _ in range(2 * RUNS)]

    def selected(_: int) -> None:
        waiting = store.waiting(oldest_version=FRESH, limit=LIMIT)
        assert len(store.groups(waiting)) == len(waiting.groups) > 0

    measured.run("listing", lambda _: store.trajectories(50))
    measured.run("listing_by_name", lambda number: store.trajectories(50, f"run-0{number}%"))
    measured.run("showing", lambda number: (store.trajectory(names[number]), store.links(names[number])))
    measured.run("selecting", selected)
    measured.run("selecting_ids", lambda _: store.waiting(oldest_version=FRESH, limit=LIMIT))
    measured.run("selecting_ids_of_any_version", lambda _: store.waiting())
    measured.run("closing_silent_ones", lambda _: store.close_silent(1e9))
    measured.run("rewarding", lambda number: store.reward(names[number], 1.0, "test"))
    measured.run("stats", lambda _: stats(store.database), 3)
    batches = [_batch(number) for number in range(RUNS)]
    measured.run("recording_32", lambda number: store.record(batches[number]))
    next_calls = [_next(store, name) for name in names[RUNS:]]
    measured.run("restoring", lambda number: _restore(url, next_calls[number]))
    # Clients that name no trajectories: one that never did otherwise, and one that always has till now.
    for what, client in (("restoring_by_lineage", PLAIN), ("restoring_by_lineage_none", "agent/1 00000000")):
        calls = [_first(f"{what}-{number}", client=client) for number in range(2)]
        measured.run(what, lambda number, calls=calls: _restore(url, calls[number]), 2)  # type: ignore[misc]
    database = Timed(url)
    for number in range(RUNS):
        # What a proxy pays that knew these trajectories, when something was pruned since its last batch.
        follow = [_next(store, call.trajectory_id or "") for call in batches[number]]
        prune(database, RULE, now=_before(database, 5))
        measured.run("recording_32_after_a_prune", lambda _, calls=follow: store.record(calls), 1)  # type: ignore[misc]
    store.close()
    database.close()


def pruning(url: str, measured: Measured) -> None:
    """Remove the oldest trajectories."""
    database = Timed(url)
    before = _before(database, PRUNED)
    measured.run("counting_what_to_prune", lambda _: prune(database, replace(RULE, dry_run=True), now=before), 1)
    measured.run("pruning", lambda _: prune(database, RULE, now=before), 1)
    measured.seconds["longest_prune_transaction"] = [max(database.took_s)]
    measured.seconds["median_prune_transaction"] = [statistics.median(database.took_s)]
    database.close()


PARTS: dict[str, Callable[[str, Measured], None]] = {"using": using, "pruning": pruning}


def _before(database: Database, trajectories: int) -> float:
    """The time before which the next so many settled trajectories began, as nearly as their updates tell."""
    fitting = select(TrajectoryRow.updated_at).where(TrajectoryRow.state.in_(SETTLED))
    with database.reading() as connection:
        return connection.scalar(fitting.order_by(TrajectoryRow.created_at).offset(trajectories)) or 0.0


def _restore(url: str, call: CapturedCall) -> None:
    """What a proxy does that was started anew."""
    store = Store(url)
    (placement,) = store.record([call])
    store.close()
    if call.trajectory_id is not None and placement.parent_call_id is None:
        raise RuntimeError(f"{call.trajectory_id} was not continued")


def _batch(number: int) -> list[CapturedCall]:
    return [_first(f"new-{number}-{at}", trajectory=f"new-{number}-{at}") for at in range(BATCH)]


def _next(store: Store, name: str) -> CapturedCall:
    """The call that goes on after the last one of a trajectory's root."""
    last = store.trajectory(name).sessions[0].calls[-1]
    asked = (*last.messages, last.samples[0].message, {"role": "user", "content": f"and then? {name}"})
    ids = np.concatenate([last.prompt_ids_P, last.samples[0].ids_T, np.arange(28, dtype=np.int32)])
    return replace(_first(f"next-{name}", trajectory=name), messages=asked, prompt_ids_P=ids)


def _first(name: str, *, trajectory: str | None = None, client: str = "agent/0 00000000") -> CapturedCall:
    now = time.time()
    sampled = np.arange(32, dtype=np.int32)
    reply = {"role": "assistant", "content": f"done: {name}"}
    return CapturedCall(
        call_id=f"call-{name}",
        wire="chat",
        status=CallStatus.OK,
        http_status=200,
        messages=({"role": "system", "content": "help"}, {"role": "user", "content": f"please {name}"}),
        params={"model": "policy", "max_tokens": 512},
        choices=(Choice(0, reply, "stop", sampled, -np.ones(32, np.float32)),),
        prompt_ids_P=np.arange(120, dtype=np.int32),
        usage=None,
        inexact_reason=None,
        started_at=now - 2,
        first_byte_at=now - 1,
        ended_at=now,
        trajectory_id=trajectory,
        attribution="path" if trajectory else "lineage",
        client=client,
        streamed=True,
    )


def main() -> None:
    """Measure a part and print its figures."""
    url, part = sys.argv[1:]
    measured = Measured()
    PARTS[part](url, measured)
    print(orjson.dumps({"seconds": measured.seconds, "memory_growth_mib": measured.memory_growth_mib}).decode())


if __name__ == "__main__":
    main()
