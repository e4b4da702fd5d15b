"""What training costs: weights that change under load, and tokens pushed for joined sequences against one row per call.

Writes `results/train.json`. Needs the CPU stack (vLLM, TRL) and the demo's policy; nothing else.
"""

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import orjson

from benchmarks.results import RESULTS, Bar, write
from benchmarks.train_swaps import swaps
from benchmarks.train_tokens import tokens

Figures = tuple[dict[str, Bar], dict[str, Any]]
"""A part's bars and its other figures."""


def main() -> None:
    """Run the parts and write the result; parts that are not run keep the figures that are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="full, lora, tokens (default: all)")
    parser.add_argument("--streams", type=int, default=64, help="streaming requests in flight")
    parser.add_argument("--swaps", type=int, default=50, help="swaps in a row")
    parser.add_argument("--database", help="recorded traffic for `tokens` (default: sessions made in its shape)")
    arguments = parser.parse_args()
    run: dict[str, Callable[[], Figures]] = {
        "full": lambda: swaps("full", arguments.streams, arguments.swaps),
        "lora": lambda: swaps("lora", arguments.streams, arguments.swaps),
        "tokens": lambda: tokens(arguments.database),
    }
    if unknown := set(arguments.parts) - set(run):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(run)}")
    file = RESULTS / "train.json"
    there = orjson.loads(file.read_bytes()) if file.exists() else {"bars": {}, "details": {}}
    bars = {n: Bar(b["unit"], b["goal"], b["baseline"], b["runs"]) for n, b in there["bars"].items()}
    details = dict(there["details"])
    for part in arguments.parts or run:
        more, found = run[part]()
        bars |= more
        details[part] = {"date": time.strftime("%Y-%m-%d"), **found}
    sys.exit(0 if write("train", bars, details) else 1)


if __name__ == "__main__":
    main()
