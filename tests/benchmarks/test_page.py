"""`docs/benchmarks.md` says what the committed results say, missed goals too."""

from benchmarks.page import PAGE, committed, page
from benchmarks.results import Bar


def test_the_page_is_that_of_the_committed_results() -> None:
    assert PAGE.read_text() == page(committed()), "run `python -m benchmarks.page`"


def test_a_missed_goal_is_named_as_missed() -> None:
    bars = {"fast": Bar("ms", "<= 1", "nothing", [0.5, 0.7]), "slow": Bar("ms", "<= 1", "nothing", [2, 3])}
    machine = {"cores": 2, "memory_gib": 8, "architecture": "x", "python": "3", "packages": {"trl": "1"}}
    said = {"command": "python -m benchmarks.x", "date": "2026-11-30", "machine": machine}
    shown = page({"x": {**said, "bars": {n: {**_as_json(b), "value": b.value} for n, b in bars.items()}}})
    assert "**Goals missed: 1.** `slow` (x)." in shown
    assert "| `slow` | 2.5 | ms | ≤ 1 | **missed** | 2 3 | nothing |" in shown
    assert "| `fast` | 0.6 | ms | ≤ 1 | met | 0.5 0.7 | nothing |" in shown


def _as_json(bar: Bar) -> dict[str, object]:
    return {"unit": bar.unit, "goal": bar.goal, "baseline": bar.baseline, "runs": bar.runs}
