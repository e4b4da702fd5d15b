"""The demo over several seeds: does the agent get better, is every call exact, how long does it take.

Writes `results/demo.json` and one summary per seed, `results/demo-seed-N.json`.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson

from benchmarks.results import RESULTS, Bar, write


def run(seed: int, folder: Path) -> dict[str, Any]:
    """One run of the demo in a process of its own; its summary."""
    command = [sys.executable, "-m", "examples.demo", "--seed", str(seed), "--folder", str(folder)]
    done = subprocess.run(command, check=False)
    if not (folder / "summary.json").exists():
        raise SystemExit(f"seed {seed} failed with code {done.returncode}; its logs are in {folder}")
    summary: dict[str, Any] = orjson.loads((folder / "summary.json").read_bytes())
    RESULTS.mkdir(exist_ok=True)
    shutil.copy(folder / "summary.json", RESULTS / f"demo-seed-{seed}.json")
    return summary


def bars(summaries: list[dict[str, Any]]) -> dict[str, Bar]:
    """The figures that issue and docs name."""

    def over(figure: Any) -> list[float]:
        return [float(figure(s)) for s in summaries]

    return {
        "held_out_gain": Bar(
            "points", ">= 10", "before", over(lambda s: 100 * (s["after"]["success"] - s["before"]["success"]))
        ),
        "held_out_before": Bar(
            "share", ">= 0.2", "a policy that can do something", over(lambda s: s["before"]["success"])
        ),
        "held_out_after": Bar("share", ">= 0.5", "before", over(lambda s: s["after"]["success"])),
        "sessions_per_attempt_change": Bar(
            "sessions", "<= 0", "before", over(lambda s: s["after"]["sessions"] - s["before"]["sessions"])
        ),
        "sessions_of_successes_change": Bar(
            "sessions",
            "<= 0",
            "before",
            over(lambda s: s["after"]["success_sessions"] - s["before"]["success_sessions"]),
        ),
        "sessions_per_success_change": Bar(
            "sessions", "<= 0", "before", over(lambda s: _per_success(s["after"]) - _per_success(s["before"]))
        ),
        "inexact_calls": Bar("calls", "== 0", "all calls", over(lambda s: s["inexact_calls"])),
        "total": Bar("s", "<= 600", "ten minutes when installed", over(lambda s: s["total_s"])),
        "swap": Bar(
            "s", "<= 1", "generation stands still", over(lambda s: statistics.median(r["pause_s"] for r in s["rounds"]))
        ),
    }


def _per_success(batch: dict[str, Any]) -> float:
    return float(batch["sessions"] / batch["success"])


def main() -> None:
    """Run all seeds and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arguments = parser.parse_args()
    summaries = [run(seed, Path(f"var/benchmarks/demo-{seed}")) for seed in arguments.seeds]
    phases = [
        {
            "start": s["started_s"],
            "collect": sum(b["collect_s"] for b in (s["before"], *(r["batch"] for r in s["rounds"]), s["after"])),
            "train": sum(r["train_s"] for r in s["rounds"]),
            "publish": sum(r["publish_s"] for r in s["rounds"]),
        }
        for s in summaries
    ]
    met = write("demo", bars(summaries), {"seeds": arguments.seeds, "seconds_per_phase": phases})
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    main()
