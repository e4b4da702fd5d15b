"""The five figures of the credit benchmark, drawn from `results/credit.json` and nothing else.

1. success and sessions over training; 2. utility per session; 3. session advantage against true contribution, and the
correlations; 4. ablations; 5. sessions per trajectory, by outcome.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks.credit.svg import COLOURS, Chart, page
from benchmarks.results import RESULTS

Result = Mapping[str, Any]
"""Method -> what the simulation found of it."""

PAIR = ("broadcast", "mosaic")
ABLATIONS = ("mosaic", "without usage", "without session shaping", "without gate", "broadcast")
CORRELATED = ("broadcast", "without session shaping", "mosaic", "mosaic, group", "mosaic, true contribution")


def draw(result: Path = RESULTS / "credit.json", folder: Path = RESULTS / "credit") -> list[Path]:
    """Write the five figures; returns their paths."""
    settings: Mapping[str, Result] = orjson.loads(result.read_bytes())["details"]["settings"]
    figures = {
        "1-learning": [c for name, of in settings.items() for c in _learning(name, of)],
        "2-utility": [_curve(name, of, "utility", "contribution per session") for name, of in settings.items()],
        "3-advantage": [c for name, of in settings.items() for c in _advantage(name, of)],
        "4-ablations": [c for name, of in settings.items() for c in _ablations(name, of)],
        "5-sessions": [c for name, of in settings.items() for c in _counts(name, of)],
    }
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, charts in figures.items():
        paths.append(folder / f"{name}.svg")
        paths[-1].write_text(page(charts))
    return paths


def _learning(setting: str, of: Result) -> list[Chart]:
    return [_curve(setting, of, "success", "success probability"), _curve(setting, of, "sessions", "sessions")]


def _curve(setting: str, of: Result, figure: str, label: str) -> Chart:
    curves = {name: of[name]["curves"][figure] for name in PAIR}
    values = [v + s for c in curves.values() for v, s in zip(c["mean"], c["std"], strict=True)]
    low = min(v - s for c in curves.values() for v, s in zip(c["mean"], c["std"], strict=True))
    amount = len(curves[PAIR[0]]["mean"])
    every = of[PAIR[0]]["curve_steps"]
    chart = Chart(f"{setting}: {figure}", "step", label, (0, amount * every), _padded(low, max(values)))
    x = [every * (i + 0.5) for i in range(amount)]
    for name, colour in zip(PAIR, COLOURS, strict=False):
        chart.line(x, curves[name]["mean"], colour, name, curves[name]["std"])
    return chart


def _advantage(setting: str, of: Result) -> list[Chart]:
    scatter = Chart(f"{setting}: credit", "true contribution", "session advantage", (-0.1, 0.9), (-3, 3))
    for name, colour in zip(PAIR, COLOURS, strict=False):
        scatter.points(of[name]["scatter"], colour, name)
    rows = [of[name]["fidelity"]["trained"] for name in CORRELATED]
    return [
        scatter,
        _bars(
            f"{setting}: correlation with it",
            CORRELATED,
            rows,
            {"within_defined": "within a trajectory", "successes": "in successes"},
        ),
    ]


def _ablations(setting: str, of: Result) -> list[Chart]:
    rows = [of[name] for name in ABLATIONS]
    return [_bars(f"{setting}: {f}", ABLATIONS, rows, {f: ""}, of["broadcast"][f]) for f in ("success", "sessions")]


def _bars(
    title: str, names: Sequence[str], rows: Sequence[Result], figures: Mapping[str, str], around: Sequence[float] = ()
) -> Chart:
    """Means over seeds with their standard deviation; around a reference, the axis does not begin at zero."""
    means = {f: [statistics.fmean(row[f]) for row in rows] for f in figures}
    stds = {f: [statistics.pstdev(row[f]) for row in rows] for f in figures}
    every = [m + s for f in figures for m, s in zip(means[f], stds[f], strict=True)]
    low = min(m - s for f in figures for m, s in zip(means[f], stds[f], strict=True))
    limits = _padded(low, max(every)) if around else (min(0.0, low), max(1.0, *every))
    chart = Chart(title, "", "", (-0.6, len(names) - 0.4), limits, [_short(name) for name in names])
    width = 0.7 / len(figures)
    for index, (figure, label) in enumerate(figures.items()):
        x = [i + (index - (len(figures) - 1) / 2) * width for i in range(len(names))]
        if around:
            chart.dots(x, means[figure], stds[figure], COLOURS[index])
            continue
        chart.bars(x, means[figure], stds[figure], width=width, colour=COLOURS[index], name=label)
    return chart


def _counts(setting: str, of: Result) -> list[Chart]:
    charts = []
    for name in PAIR:
        counts = of[name]["session_counts"]
        top = max(*counts["success"], *counts["failure"])
        chart = Chart(f"{setting}: {name}", "sessions", "share of trajectories", (0.2, 9.6), (0, top * 1.1))
        for offset, outcome, colour in ((-0.2, "success", COLOURS[2]), (0.2, "failure", COLOURS[1])):
            x = [k + offset for k in range(1, len(counts[outcome]))]
            chart.bars(x, counts[outcome][1:], width=0.36, colour=colour, name=outcome)
        charts.append(chart)
    return charts


def _short(name: str) -> str:
    return name.removeprefix("mosaic, ").replace("without ", "no ").replace(" contribution", "").replace("session ", "")


def _padded(low: float, high: float) -> tuple[float, float]:
    margin = 0.06 * (high - low) or 0.1
    return low - margin, high + margin
