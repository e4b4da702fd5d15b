"""What a run of the demo says at its end: a table per round, before and after, and the same as JSON."""

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table


@dataclass(slots=True)
class Batch:
    """Attempts that were made together; counts are over all of them, means per trajectory."""

    name: str
    """`before`, `after` or `round N`."""
    attempts: int
    success: float
    """Share of attempts with reward 1."""
    sessions: float
    """Mean sessions per trajectory."""
    success_sessions: float | None
    """The same over those that succeeded, which the rule is to make fewer; None without any."""
    compactions: int
    subagents: int
    calls: int
    inexact_calls: int
    errors: int
    """Attempts that ended in an error of the framework (they score 0: the policy led it there)."""
    policy_version: int
    """Newest version among the calls."""
    collect_s: float

    @property
    def sessions_per_success(self) -> float:
        """Sessions spent for one success; infinite without any."""
        return self.sessions / self.success if self.success else math.inf


@dataclass(slots=True)
class Round:
    """One round: a batch of attempts and the training job on it."""

    batch: Batch
    trained_tokens: int
    sequences: int
    loss: float
    published_version: int
    train_s: float
    publish_s: float
    pause_s: float
    """How long generation stood still while the weights were swapped."""
    logprob_gap: float
    """Mean difference between engine and trainer on the new weights, in nats."""
    logprob_change: float
    """Mean change of the engine's logprobs by the reload, in nats."""
    left_out: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Summary:
    """The whole run."""

    seed: int
    credit: str
    rounds: list[Round]
    before: Batch
    after: Batch
    started_s: float
    """Seconds until engine, proxy and agent were up."""
    total_s: float
    inexact_reasons: dict[str, int]
    weights_verified: bool
    failures: list[str]
    """Links of the chain that did not hold; empty when all did."""

    def batches(self) -> list[Batch]:
        """All batches in order."""
        return [self.before, *(r.batch for r in self.rounds), self.after]

    def as_json(self) -> dict[str, Any]:
        """The summary with the totals that issue and docs name."""
        batches = self.batches()
        totals = {
            "compactions": sum(b.compactions for b in batches),
            "subagents": sum(b.subagents for b in batches),
            "calls": sum(b.calls for b in batches),
            "inexact_calls": sum(b.inexact_calls for b in batches),
        }
        return {**asdict(self), **totals}

    def write(self, path: Path) -> None:
        """Write the summary as JSON."""
        path.write_bytes(orjson.dumps(self.as_json(), option=orjson.OPT_INDENT_2) + b"\n")

    def print(self, console: Console) -> None:
        """Print the tables."""
        table = Table(
            box=None, padding=(0, 0, 0, 1), title=f"Mosaic demo (seed {self.seed}, credit rule {self.credit})"
        )
        for column in _COLUMNS:
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        trained = {r.batch.name: r for r in self.rounds}
        for batch in self.batches():
            table.add_row(*_row(batch, trained.get(batch.name)))
        console.print(table)
        console.print(_LEGEND, style="dim")
        gain = 100 * (self.after.success - self.before.success)
        console.print(
            f"Held-out success {self.before.success:.0%} -> {self.after.success:.0%} ({gain:+.0f} points), "
            f"sessions per attempt {self.before.sessions:.2f} -> {self.after.sessions:.2f} "
            f"(of those that succeed {_mean(self.before.success_sessions)} -> {_mean(self.after.success_sessions)}), "
            f"spent per success {self.before.sessions_per_success:.2f} -> {self.after.sessions_per_success:.2f}, "
            f"{self.total_s:.0f} s in all ({self.started_s:.0f} s to start)."
        )


_COLUMNS = ("", "tries", "success", "sess.", "comp.", "sub.", "calls", "tokens", "ver.", "collect", "train", "swap")
_LEGEND = (
    "tries: attempts; sess.: sessions per attempt; comp., sub.: compactions and subagents inferred; "
    "tokens: trained; ver.: newest policy version among the calls; swap: how long generation stood still"
)


def _mean(sessions: float | None) -> str:
    return "none" if sessions is None else f"{sessions:.2f}"


def _row(batch: Batch, trained: Round | None) -> list[str]:
    cells = [
        batch.name,
        str(batch.attempts),
        f"{batch.success:.0%}",
        f"{batch.sessions:.2f}",
        str(batch.compactions),
        str(batch.subagents),
        str(batch.calls),
        str(trained.trained_tokens) if trained else "",
        str(batch.policy_version),
        f"{batch.collect_s:.0f} s",
    ]
    return [*cells, f"{trained.train_s:.0f} s", f"{trained.pause_s:.2f} s"] if trained else [*cells, "", ""]
