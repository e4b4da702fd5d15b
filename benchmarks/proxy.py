"""What stands between an agent and its engine costs: ours, recording, against a pass-through that stores nothing.

Ours is measured in capture mode, and in exact prefix mode where that adds requests to the engine.

All processes share this machine's cores, so the mock engine and the clients are counted too; `direct` is the engine
without a proxy. Rounds are interleaved; every bar compares figures of the same round. Writes `results/proxy.json`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console

from benchmarks.proxy_targets import ROOT, SETTLE_S, Held, Target, bare, becomes, engine, ours
from benchmarks.results import NONE, Bar, write

Measured = dict[str, float]
Runs = dict[str, list[Measured]]

PACED = (2500, 500)
"""Chunks of a paced stream, and how many a second."""
EXACT = ("whole 1", "whole 32", "stream 1")
"""Situations in which exact prefix mode is measured too; all its calls but a trajectory's first are spliced."""
WARM, CALLS = 2_000, 20_000
"""Calls of the long run, before and while it is measured."""

console = Console(stderr=True)


def situations(seconds: float) -> dict[str, list[str]]:
    """What is measured of each target: a name, and the clients' arguments."""
    timed = ["--seconds", str(seconds)]
    chunks, per_s = PACED
    return {
        **{f"whole {n}": ["--clients", str(n), *timed] for n in (1, 32, 200)},
        **{f"stream {n}": ["--clients", str(n), "--stream", *timed] for n in (1, 128)},
        "slow stream 128": ["--clients", "128", "--paced", "32,50", *timed],
        "paced 32": ["--clients", "32", "--calls", "32", "--paced", f"{chunks},{per_s}"],
    }


def clients(target: Target, arguments: Iterable[str]) -> Measured:
    """One run of the clients, with the processor time of the target's processes."""
    before = target.cpu_s()
    command = [sys.executable, "-m", "benchmarks.load", "clients", "--port", str(target.port), "--run"]
    command += [os.urandom(4).hex(), *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=600)
    measured: Measured = orjson.loads(done.stdout)
    for name, now in target.cpu_s().items():
        measured[f"{name}_cpu_us_per_call"] = 1e6 * (now - before[name]) / max(1, measured["begun"])
    return measured


def checked(target: Target, arguments: Iterable[str]) -> Measured:
    """`clients`, after which every call that was begun must be a row, and every good answer an exact one."""
    before = target.rows()
    measured = clients(target, arguments)
    if not before:
        return measured

    def grown() -> dict[str, int]:
        return {name: count - before.get(name, 0) for name, count in target.rows().items()}

    becomes(lambda: grown()["all"] >= measured["begun"])
    rows = grown()
    measured["rows_missing"] = abs(measured["begun"] - rows["all"])
    measured["rows_inexact"] = abs(measured["answers"] - rows["exact"])
    return measured | {f"rows_{name}": count for name, count in rows.items()}


def rounds(count: int, seconds: float, folder: Path) -> Runs:
    """All situations in turns, by target."""
    runs: Runs = {}
    with ExitStack() as stack:
        mock = stack.enter_context(engine())
        targets = [mock, stack.enter_context(bare(mock)), stack.enter_context(ours(mock, folder / "rounds"))]
        targets.append(stack.enter_context(ours(mock, folder / "exact", fidelity="exact")))
        for target in targets[:3]:  # the mock builds its long answers, and whatever else a first call does
            clients(target, ["--clients", "1", "--calls", "1", "--paced", f"{PACED[0]},100000"])
        for round_ in range(count):
            for situation, arguments in situations(seconds).items():
                for target in targets if situation in EXACT else targets[:3]:
                    measured = checked(target, arguments)
                    runs.setdefault(f"{target.name} {situation}", []).append(measured)
                    _show(f"{round_} {target.name} {situation}", measured)
    return runs


def long_run(folder: Path, calls: int) -> dict[str, Measured]:
    """What ours holds after many calls, whole and streamed, failed and cut short, more than after the first ones."""
    with ExitStack() as stack:
        target = stack.enter_context(ours(stack.enter_context(engine()), folder / "long"))
        arguments = ["--mixed", "--clients", "32", "--calls"]
        warmed = checked(target, [*arguments, str(WARM)])
        before, tasks = _at_rest(target)
        measured = checked(target, [*arguments, str(calls)])
        _show("long run", measured)

        after, tasks_after = _at_rest(target)
    growth: Measured = {"tasks": tasks_after - tasks}
    for name, now in after.items():
        growth[f"{name}_mib"] = now.rss_mib - before[name].rss_mib
        growth[f"{name}_descriptors"] = now.descriptors - before[name].descriptors
        growth[f"{name}_threads"] = now.threads - before[name].threads
    _show("growth", growth)
    start: Measured = {"tasks": tasks}
    for name, held in before.items():
        start |= {f"{name}_mib": held.rss_mib, f"{name}_descriptors": held.descriptors, f"{name}_threads": held.threads}
    return {"warm": warmed, "measured": measured, "at_start": start, "growth": growth}


def _at_rest(target: Target) -> tuple[dict[str, Held], int]:
    """What it holds once idle connections are gone."""
    time.sleep(SETTLE_S)
    return target.held(), target.tasks()


def _show(name: str, figures: Measured) -> None:
    console.print(f"{name}: {' '.join(f'{n}={v:.4g}' for n, v in figures.items())}", soft_wrap=True)


def bars_of(runs: Runs, long: dict[str, Measured]) -> dict[str, Bar]:
    """The goals of issue 4."""

    def of(target: str, situation: str, figure: str) -> list[float]:
        return [run[figure] for run in runs[f"{target} {situation}"]]

    def added(situation: str, figure: str, target: str = "ours") -> list[float]:
        pairs = zip(of(target, situation, figure), of("bare", situation, figure), strict=True)
        return [mine - theirs for mine, theirs in pairs]

    shares = zip(of("ours", "whole 32", "calls_per_s"), of("bare", "whole 32", "calls_per_s"), strict=True)
    recorded = [run for name, group in runs.items() if name.startswith(("ours ", "exact ")) for run in group]
    recorded += [long["warm"], long["measured"]]
    everything = [run for group in runs.values() for run in group] + recorded
    missing = sum(run["rows_missing"] for run in recorded)
    growth = long["growth"]
    fell_back = sum(run["rows_fell_back"] for run in recorded)
    left = sum(abs(v) for n, v in growth.items() if not n.endswith("_mib") and v > 0)
    against = "bare FastAPI + aiohttp pass-through"
    return {
        "added_latency_1": Bar("ms", "<= 1", f"{against}, p50, one client", added("whole 1", "p50_ms")),
        "throughput_32": Bar("ratio", ">= 0.60", f"{against}, 32 clients", [mine / theirs for mine, theirs in shares]),
        "slowest_200": Bar(
            "s", "<= 2", "200 clients, any call", [v / 1000 for v in of("ours", "whole 200", "slowest_ms")]
        ),
        "added_first_byte_1": Bar("ms", "<= 2", f"{against}, p50, one stream", added("stream 1", "first_byte_p50_ms")),
        "added_first_byte_128": Bar(
            "ms", "<= 30", f"{against}, p50, 128 streams back to back", added("stream 128", "first_byte_p50_ms")
        ),
        "added_first_byte_128_slow": Bar(
            "ms", "<= 30", f"{against}, p50, 128 streams of 50 chunks/s", added("slow stream 128", "first_byte_p50_ms")
        ),
        "gap_p99": Bar("ms", "<= 10", "32 streams of 500 chunks/s", of("ours", "paced 32", "gap_p99_ms")),
        "exact_added_latency_1": Bar("ms", NONE, f"{against}, p50, one client", added("whole 1", "p50_ms", "exact")),
        "exact_added_first_byte_1": Bar(
            "ms", NONE, f"{against}, p50, one stream", added("stream 1", "first_byte_p50_ms", "exact")
        ),
        "exact_throughput_32": Bar(
            "calls/s", NONE, "exact prefix mode, 32 clients", of("exact", "whole 32", "calls_per_s")
        ),
        "exact_fell_back": Bar("calls", "== 0", "calls in exact prefix mode", [fell_back]),
        "memory_growth": Bar("MiB", "<= 64", "proxy, after 20,000 calls", [growth["ours_mib"]]),
        "writer_memory_growth": Bar("MiB", "<= 64", "writer, after 20,000 calls", [growth["writer_mib"]]),
        "handles_left": Bar("tasks, descriptors and threads", "== 0", "before the 20,000 calls", [left]),
        "missing_rows": Bar("calls", "== 0", "calls begun, those cancelled and failed included", [missing]),
        "inexact_rows": Bar("calls", "== 0", "good answers", [sum(run["rows_inexact"] for run in recorded)]),
        "errors": Bar("calls", "== 0", "answers that were not as asked", [sum(run["errors"] for run in everything)]),
    }


def details_of(runs: Runs, long: dict[str, Measured]) -> dict[str, Any]:
    """Medians by target and situation, and the long run."""
    medians = {
        name: {figure: statistics.median(run.get(figure, 0) for run in group) for figure in group[0]}
        for name, group in runs.items()
    }
    return {"medians": medians, "long_run": long}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="measured seconds of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=CALLS, help="calls of the long run")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = rounds(arguments.rounds, arguments.seconds, Path(folder))
        long = long_run(Path(folder), arguments.calls)
    settings = {"seconds": arguments.seconds, "rounds": arguments.rounds, "calls": arguments.calls}
    sys.exit(0 if write("proxy", bars_of(runs, long), settings | details_of(runs, long)) else 1)


if __name__ == "__main__":
    main()
