"""Writes `docs/benchmarks.md` from the committed results: `python -m benchmarks.page`. No number is typed by hand.

A benchmark that writes its results (`benchmarks.results.write`) writes the page anew too.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import orjson

from benchmarks.results import NONE, RESULTS, Bar

PAGE = RESULTS.parents[1] / "docs" / "benchmarks.md"
WHAT = {
    "demo": "The whole chain, three seeds: deepagents, proxy, vLLM on the CPU, TRL, reload. Held-out questions before "
    "and after training.",
    "proxy": "What the proxy adds to a bare FastAPI + aiohttp pass-through beside it, before a scripted engine; what "
    "it leaves behind.",
    "lineage": "A labelled corpus of playbooks, several at once, in variants (`stripped`: without the frameworks' ids; "
    "`identical`: word for word equal attempts); what placing a call costs.",
    "store": "What recording costs, how much is stored per new token, and how a million calls are read and pruned.",
    "credit": "A simulation with a known truth, fresh seeds: learning with the credit rule against broadcast (GRPO).",
    "credit_handoff": "The same simulation where a session lives from what the one before it left.",
    "credit_chain": "The credit rule against broadcast in the real chain (deepagents, vLLM, TRL), 6,000 calls a run; "
    "what the figures mean and what they do not is in [credit.md](credit.md).",
    "train": "Swaps of weights under load, and what joined sequences save.",
}
"""Result -> what it measures, in the order of the page."""
INTRO = """\
# Benchmarks

Written by `python -m benchmarks.page` from `benchmarks/results/*.json`; a test holds it to them. Each benchmark is
repeated by its command and writes its results, and this page, anew. A value is the median of the runs beside it. A
goal that is missed is published as missed. Comparisons are made side by side in one run. The machines were shared:
other work ran beside most of these.
"""


def page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The page; `results` maps names to what the files hold."""
    known = {name: results[name] for name in (*WHAT, *sorted(results)) if name in results}
    missed = [(name, figure) for name, said in known.items() for figure, bar in _bars(said) if not bar.met]
    lines = [INTRO, _missed(missed)]
    for name, said in known.items():
        lines.append(_section(name, said))
    absent = [f"`python -m benchmarks.{name}`" for name in WHAT if name not in results]
    if absent:
        lines.append(f"## Not committed\n\nNo result is committed yet of {', '.join(absent)}.\n")
    return "\n".join(lines)


def _missed(missed: Iterable[tuple[str, str]]) -> str:
    found = [f"`{figure}` ({name})" for name, figure in missed]
    return f"**Goals missed: {len(found)}.** {', '.join(found)}.\n" if found else "**Every goal is met.**\n"


def _section(name: str, said: Mapping[str, Any]) -> str:
    machine = said["machine"]
    packages = ", ".join(f"{package} {version}" for package, version in machine["packages"].items())
    about = (
        f"{said['date']}, {machine['cores']} cores, {machine['memory_gib']} GiB, {machine['architecture']}, no GPU, "
    )
    about += f"Python {machine['python']}; {packages}."
    rows = [_row(figure, bar) for figure, bar in _bars(said)]
    head = ["| figure | value | unit | goal | | runs | against |", "|---|---|---|---|---|---|---|"]
    what = f"{WHAT[name]} " if name in WHAT else ""
    return "\n".join([f"## {name}\n", f"{what}`{said['command']}`\n", *head, *rows, f"\n{about}\n"])


def _row(figure: str, bar: Bar) -> str:
    mark = "" if bar.goal == NONE else "met" if bar.met else "**missed**"
    goal = "" if bar.goal == NONE else bar.goal.replace("<=", "≤").replace(">=", "≥").replace("==", "=")
    runs = " ".join(_number(run) for run in bar.runs) if len(bar.runs) > 1 else ""
    return f"| `{figure}` | {_number(bar.value)} | {bar.unit} | {goal} | {mark} | {runs} | {bar.baseline} |"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _bars(said: Mapping[str, Any]) -> list[tuple[str, Bar]]:
    return [(n, Bar(b["unit"], b["goal"], b["baseline"], b["runs"])) for n, b in said["bars"].items()]


def committed(folder: Path = RESULTS) -> dict[str, Any]:
    """Name -> what its file holds; files of single runs, which hold no bars, are left out."""
    read = {path.stem: orjson.loads(path.read_bytes()) for path in sorted(folder.glob("*.json"))}
    return {name: said for name, said in read.items() if "bars" in said}


def write_page() -> None:
    """Write it."""
    PAGE.write_text(page(committed()), encoding="utf-8")


if __name__ == "__main__":
    write_page()
    print(f"{PAGE} is written")
