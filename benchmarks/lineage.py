"""Lineage on the labelled corpus: sessions, links, auxiliary calls, false merges, calibration; and what placing costs.

`python -m benchmarks.lineage` writes `results/lineage.json`; `--json` prints it instead of the table. The corpus and
the counting are those of `tests/lineage`. Goals are set where the traffic can be decided: copies that say the same to
the letter only must not be merged at a score that claims to be sure.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from benchmarks.lineage_cost import cost
from benchmarks.results import RESULTS, Bar, write
from tests.lineage.corpus import PLAYBOOKS, ROWS
from tests.lineage.corpus.variants import MIXED, VARIANTS, mixed, run
from tests.lineage.scoring import Score, place, score

SEEDS = 3
"""Interleavings of each playbook in each variant."""
DECIDABLE = ("alone", "alone stripped", "different", "stripped", MIXED)
GOALS: Mapping[str, tuple[str, str]] = {
    "purity": (">= 1", "sessions found that hold the calls of one true session only"),
    "f1": (">= 0.99", "pairs of calls in one session"),
    "kind_accuracy": (">= 0.98", "sessions that opened as they truly did"),
    "parent_accuracy": (">= 0.98", "the same, under the true parent"),
    "auxiliary_f1": (">= 0.95", "calls that serve the framework"),
}


def quality() -> tuple[dict[str, Bar], dict[str, Any]]:
    """Figures of each variant, over all playbooks."""
    bars: dict[str, Bar] = {}
    details: dict[str, Any] = {}
    everything = Score()
    for variant, scores in measured().items():
        whole = total(list(scores.values()))
        everything.add(whole)
        name = variant.replace(",", "").replace(" ", "_")
        for figure, (goal, baseline) in GOALS.items() if variant in DECIDABLE else ():
            bars[f"{name}_{figure}"] = Bar("share", goal, baseline, [getattr(whole, figure)])
        bars[f"{name}_sure_merges"] = Bar("calls", "== 0", "put into another trajectory at >= 0.9", [whole.sure_merges])
        details[variant] = {**told(whole), "missed": _missed(scores)}
    details["calibration"] = calibration(everything)
    details["rows"] = {str(row): [p.__name__ for p in playbooks] for row, playbooks in sorted(ROWS.items())}
    return bars, details


def measured() -> dict[str, dict[str, Score]]:
    """Variant -> playbook -> what was counted over all seeds."""
    found = {
        name: {p: total([score(place(run(p, variant, seed))) for seed in range(SEEDS)]) for p in PLAYBOOKS}
        for name, variant in VARIANTS.items()
    }
    return {**found, MIXED: {"all": total([score(place(mixed(seed))) for seed in range(SEEDS)])}}


def total(scores: list[Score]) -> Score:
    """Several runs as one."""
    whole = Score()
    for one in scores:
        whole.add(one)
    return whole


def told(one: Score) -> dict[str, Any]:
    """A score as figures."""
    auxiliary, summaries, retries = one.auxiliary, one.summaries, one.retries
    return {
        "calls": one.calls,
        "sessions": one.sessions,
        **{figure: round(getattr(one, figure), 4) for figure in GOALS},
        "auxiliary": dict(auxiliary),
        "summaries": dict(summaries),
        "retries": dict(retries),
        "merges_at_0.9_or_more": one.sure_merges,
        "merges_below": len(one.merges) - one.sure_merges,
    }


def calibration(one: Score) -> list[dict[str, float]]:
    """For each bin of scores: how many links, and how many of them are right."""
    table = [
        {"from": bound, "links": counted["all"], "right": round(counted["right"] / counted["all"], 4)}
        for bound, counted in sorted(one.bins.items())
    ]
    roots = one.roots
    return [*table, {"roots": roots["all"], "right": round(roots["right"] / max(1, roots["all"]), 4)}]


def _missed(scores: dict[str, Score]) -> dict[str, Any]:
    """The playbooks in which something is wrong."""
    wrong = {p: told(s) for p, s in scores.items() if s.wrong or s.merges or s.impure}
    kept = (*GOALS, "merges_at_0.9_or_more", "merges_below")
    return {p: {figure: figures[figure] for figure in kept} for p, figures in wrong.items()}


def main() -> None:
    """Measure and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--only", choices=("quality", "cost"), help="measure one part and print it; nothing is written")
    arguments = parser.parse_args()
    parts: dict[str, Callable[[], tuple[dict[str, Bar], dict[str, Any]]]] = {"quality": quality, "cost": cost}
    if arguments.only:
        bars, details = parts[arguments.only]()
        shown = {n: {"value": b.value, "goal": b.goal, "met": b.met} for n, b in bars.items()}
        sys.stdout.write(orjson.dumps([shown, details], option=_PRINTED).decode() + "\n")
        return
    figures = {name: part() for name, part in parts.items()}
    bars = {n: b for found, _ in figures.values() for n, b in found.items()}
    with contextlib.redirect_stdout(sys.stderr if arguments.json else sys.stdout):
        met = write("lineage", bars, {name: details for name, (_, details) in figures.items()})
    if arguments.json:
        sys.stdout.write((RESULTS / "lineage.json").read_text())
    sys.exit(0 if met else 1)


_PRINTED = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS

if __name__ == "__main__":
    main()
