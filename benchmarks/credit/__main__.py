"""`python -m benchmarks.credit`: the simulation; `... figures` draws it; `... chain`: the real thing."""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.credit import figures, handoff
from benchmarks.credit.methods import FRESH_SEEDS, METHODS, TUNING_SEEDS
from benchmarks.credit.simulation import Job, jobs, simulate
from benchmarks.results import Bar, write

CACHE = Path("var/benchmarks/credit")

Settings = Mapping[str, Mapping[str, Mapping[str, Any]]]


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.credit", description=__doc__)
    commands = parser.add_subparsers(dest="command")
    simulation = commands.add_parser("simulation", help="the default: learn, measure, write results/credit.json")
    for each in (parser, simulation):
        each.add_argument("--json", action="store_true", help="print the result as JSON and no table")
        each.add_argument("--tuning", action="store_true", help="on the tuning seeds; nothing is written")
    commands.add_parser("figures", help="draw the five figures from results/credit.json")
    commands.add_parser("handoff", help="what survives a compaction, by how the handoff is credited")
    chain_all = commands.add_parser("chain", help="the real experiment, resumable")
    chain_all.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one = commands.add_parser("chain-run", help="one run of it (used by chain)")
    one.add_argument("setting", choices=["compaction", "subagents"])
    one.add_argument("rule")
    one.add_argument("seed", type=int)
    one.add_argument("folder", type=Path)
    for each in (chain_all, one):
        each.add_argument("--tiny", action="store_true", help="the smallest budget; its figures mean nothing")
    arguments = parser.parse_args()
    if arguments.command in ("chain", "chain-run"):
        sys.exit(0 if _chain(arguments) else 1)
    if arguments.command == "handoff":
        sys.exit(0 if handoff.measure() else 1)
    if arguments.command == "figures":
        for path in figures.draw():
            print(path)
        return
    sys.exit(0 if run(arguments.tuning, arguments.json) else 1)


def _chain(arguments: argparse.Namespace) -> bool:
    from benchmarks.credit import chain  # it needs the demo's packages, which the simulation does not

    if arguments.command == "chain":
        return chain.run_all(arguments.seeds[:1] if arguments.tiny else arguments.seeds, arguments.tiny)
    chain.run_here(arguments.setting, arguments.rule, arguments.seed, arguments.folder, arguments.tiny)
    return True


def run(tuning: bool, as_json: bool) -> bool:
    """Simulate and report; True when every goal is met."""
    seeds = TUNING_SEEDS if tuning else FRESH_SEEDS
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        bar = progress.add_task("simulation", total=len(jobs()))

        def done(job: Job) -> None:
            progress.update(bar, advance=1, description=f"{job.setting}: {job.name}")

        settings = {str(setting): of for setting, of in simulate(seeds, CACHE, done).items()}
    found = bars(settings)
    if as_json:
        print(
            json.dumps({"bars": {n: {"value": b.value, **asdict(b)} for n, b in found.items()}, "settings": settings})
        )
    else:
        show(settings)
    if tuning:
        return all(bar.met for bar in found.values())
    details = {
        "fresh_seeds": list(FRESH_SEEDS),
        "tuning_seeds": list(TUNING_SEEDS),
        "rules": {name: {k: str(v) for k, v in asdict(method.rule).items()} for name, method in METHODS.items()},
        "settings": {setting: {name: _kept(name, row) for name, row in of.items()} for setting, of in settings.items()},
    }
    return write("credit", found, details, quiet=as_json)


def _kept(name: str, row: Mapping[str, Any]) -> dict[str, Any]:
    """What the results file keeps of a method: curves and scatter only of those that figures show."""
    return {k: v for k, v in row.items() if name in figures.PAIR or k not in ("curves", "curve_steps", "scatter")}


def bars(settings: Settings) -> dict[str, Bar]:
    """The figures that issue and docs name; one run per seed, compared seed by seed."""
    found = {}
    for setting, of in settings.items():
        base, ours = of["broadcast"], of["mosaic"]
        pairs = list(zip(ours["sessions"], base["sessions"], strict=True))
        found[f"{setting}_sessions"] = Bar(
            "% of broadcast's", "<= 90", "broadcast, same seed", [100 * a / b for a, b in pairs]
        )
        gains = [100 * (a - b) for a, b in zip(ours["success"], base["success"], strict=True)]
        found[f"{setting}_success_gain"] = Bar("points", ">= 0", "broadcast, same seed", gains)
        ratio = [a / b for a, b in zip(ours["utility"], base["utility"], strict=True)]
        found[f"{setting}_utility"] = Bar("x broadcast's", ">= 1", "broadcast, same seed", ratio)
        for stage, measured in ours["fidelity"].items():
            found[f"{setting}_fidelity_{stage}"] = Bar(
                "Spearman within a trajectory whose true contributions differ",
                ">= 0.6",
                "true contribution; broadcast has 0",
                measured["within_defined"],
            )
        oracle = statistics.fmean(of["mosaic, true contribution"]["fidelity"]["trained"]["within"])
        found[f"{setting}_fidelity_undefined_as_0"] = Bar(
            "the same over all trajectories, 0 where it is undefined",
            ">= 0.6",
            f"true contribution; credit by the true contribution itself reaches {oracle:.2f}",
            ours["fidelity"]["trained"]["within"],
        )
    return found


def show(settings: Settings) -> None:
    """Print mean and spread over seeds of every method."""
    for setting, of in settings.items():
        heads = ("success", "sessions", "utility", "early success", "within", "in successes", "pooled")
        table = Table(setting, *heads, box=None)
        for name, row in of.items():
            measured = row["fidelity"]["trained"]
            columns = [row[k] for k in ("success", "sessions", "utility", "early_success")]
            columns += [measured[k] for k in ("within_defined", "successes", "pooled")]
            table.add_row(name, *(f"{statistics.fmean(c):.3f} ± {statistics.pstdev(c):.3f}" for c in columns))
        Console().print(table)


if __name__ == "__main__":
    main()
