"""The real experiment, unattended: settings x rules x seeds, one process each, every finished run kept on disk.

    python -m benchmarks.credit chain            all runs; started again, it goes on where it stopped
    python -m benchmarks.credit chain --tiny     one small run per setting and rule: proves that everything works

The table at its end has the paper's rows and columns (arXiv 2610.22174) at a small scale: success and sessions on
held-out questions, utility per session and the correlation of advantages with contributions, the last two by replay.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

from benchmarks.credit.chain_run import SETTINGS, TINY, Budget, run_one
from benchmarks.results import Bar, write

FOLDER = Path("var/benchmarks/credit-chain")
RULES = ("broadcast", "mosaic")

Runs = Sequence[Mapping[str, Any]]

console = Console(stderr=True)


def run_all(seeds: Sequence[int], tiny: bool) -> bool:
    """Make every run that is not on disk yet, then report; True when every goal is met (never asked of a tiny one)."""
    budget = TINY if tiny else Budget()
    plan = [(setting, rule, seed) for seed in seeds for setting in SETTINGS for rule in RULES]
    runs = []
    for number, (setting, rule, seed) in enumerate(plan, 1):
        folder = FOLDER / f"{'tiny-' if tiny else ''}{setting}-{rule}-{seed}"
        found = _finished(folder, budget)
        if found is None:
            console.print(f"run {number} of {len(plan)}: {setting}, {rule}, seed {seed}")
            command = [sys.executable, "-m", "benchmarks.credit", "chain-run", setting, rule, str(seed), str(folder)]
            code = subprocess.run([*command, *(["--tiny"] if tiny else [])], check=False).returncode
            found = _finished(folder, budget)
            if found is None:
                raise SystemExit(f"the run failed with code {code}; its logs are in {folder}, start again to go on")
        runs.append(found)
    show(runs)
    if tiny:
        return True
    details = {"runs": runs, "seconds": sum(run["seconds"] for run in runs)}
    return write("credit_chain", bars(runs), details, command="python -m benchmarks.credit chain")


def run_here(setting: str, rule: str, seed: int, folder: Path, tiny: bool) -> None:
    """One run in this process; its result is written last and at once."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("mosaic.db*"):
        old.unlink()
    result = run_one(setting, rule, seed, TINY if tiny else Budget(), folder.absolute())
    partial = folder / "result.partial"
    partial.write_bytes(orjson.dumps({**result, "date": time.strftime("%Y-%m-%d")}, option=orjson.OPT_INDENT_2))
    partial.rename(folder / "result.json")


def _finished(folder: Path, budget: Budget) -> dict[str, Any] | None:
    path = folder / "result.json"
    if not path.exists():
        return None
    found: dict[str, Any] = orjson.loads(path.read_bytes())
    return found if found["budget"] == asdict(budget) else None


def bars(runs: Runs) -> dict[str, Bar]:
    """Mosaic against broadcast on the same seed."""
    found = {}
    for setting in SETTINGS:
        base, ours = (
            sorted((r for r in runs if (r["setting"], r["rule"]) == (setting, rule)), key=lambda r: int(r["seed"]))
            for rule in RULES
        )
        pairs = list(zip(ours, base, strict=True))
        baseline = "broadcast, same seed and budget of calls"
        found[f"{setting}_success_gain"] = Bar(
            "points", ">= 0", baseline, [100 * (a["after"]["success"] - b["after"]["success"]) for a, b in pairs]
        )
        found[f"{setting}_sessions"] = Bar(
            "% of broadcast's",
            "<= 90",
            baseline,
            [100 * a["after"]["sessions"] / b["after"]["sessions"] for a, b in pairs],
        )
        found[f"{setting}_utility_gain"] = Bar(
            "reward per session", ">= 0", baseline, [_utility(a) - _utility(b) for a, b in pairs]
        )
        found[f"{setting}_correlation"] = Bar(
            "Spearman with replayed contribution",
            ">= 0.3",
            "broadcast's advantage on the same sessions",
            [r["probe"]["correlation"]["mosaic"]["spearman"] for r in ours],
        )
    return found


def _utility(run: Mapping[str, Any]) -> float:
    return float(run["probe"]["utility"] or 0.0)


def show(runs: Runs) -> None:
    """The table: mean and spread over seeds."""
    heads = ("before", "success", "sessions", "utility", "correlation", "survival", "calls", "minutes")
    table = Table("setting", "rule", *heads, box=None)
    for setting in SETTINGS:
        for rule in RULES:
            some = [r for r in runs if (r["setting"], r["rule"]) == (setting, rule)]
            columns = (
                [r["before"]["success"] for r in some],
                [r["after"]["success"] for r in some],
                [r["after"]["sessions"] for r in some],
                [_utility(r) for r in some],
                [r["probe"]["correlation"][rule]["spearman"] for r in some],
                [r["survival"]["after"]["share"] for r in some if r["survival"]["after"]["share"] is not None],
                [r["calls"] for r in some],
                [r["seconds"] / 60 for r in some],
            )
            table.add_row(setting, rule, *map(_spread, columns))
    Console().print(table)


def _spread(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f} ± {statistics.pstdev(values):.2f}" if values else "-"
