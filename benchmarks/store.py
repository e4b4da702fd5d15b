"""What the store costs: recording against recording off, bytes on disk, and the work in a database of a million calls.

Writes `results/store.json`. Parts that are not run keep the figures that are there; `details` has each part's date.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson

from benchmarks.results import RESULTS, Bar, write
from benchmarks.store_growth import growth
from benchmarks.store_million import million
from benchmarks.store_throughput import throughput

PARTS = ("throughput", "growth", "million")

Figures = tuple[dict[str, Bar], dict[str, Any]]
"""A part's bars and its other figures."""


def merged(there: dict[str, Any], measured: dict[str, Figures]) -> Figures:
    """A result's bars and details, with those of the measured parts in place of their own."""
    kept = {p: details for p, details in there.get("details", {}).items() if p in PARTS and "bars" in details}
    replaced = {name for part in measured for name in kept.get(part, {}).get("bars", ())}
    bars: dict[str, Bar] = {}
    for name, bar in there.get("bars", {}).items():
        if name not in replaced and any(name in details["bars"] for details in kept.values()):
            bars[name] = Bar(bar["unit"], bar["goal"], bar["baseline"], bar["runs"])
    for part, (more, details) in measured.items():
        bars |= more
        kept[part] = {"date": time.strftime("%Y-%m-%d"), "bars": [*more], **details}
    return bars, kept


def main() -> None:
    """Run the parts and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--seconds", type=float, default=5, help="measured seconds of each run of throughput")
    parser.add_argument("--rounds", type=int, default=3, help="runs of throughput")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    run: dict[str, Callable[[], Figures]] = {
        "throughput": lambda: throughput(arguments.seconds, arguments.rounds),
        "growth": growth,
        "million": million,
    }
    measured = {part: run[part]() for part in arguments.parts or PARTS}
    file = RESULTS / "store.json"
    there = orjson.loads(file.read_bytes()) if file.exists() else {}
    sys.exit(0 if write("store", *merged(there, measured)) else 1)


if __name__ == "__main__":
    main()
