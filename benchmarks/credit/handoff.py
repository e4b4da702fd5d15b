"""Does the credit of handoffs teach a policy to carry state across compactions? A simulation with one decision.

A task needs three facts. Each session finds a missing one with probability .7 and, unless all are held, hands over by a
summary, at most six times. The only decision is how: a careful summary keeps each held fact with .98, a terse one with
.7. The measure is the share of held facts that survive a handoff. Compared are three credits for the summary's tokens:
the successor's advantage (the rule, mosaic.md 4.6), that of the session which writes it, and the trajectory's.
Contributions are
by information gain: the score after the handoff minus the one before the session, as in `contributions`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.credit.contributions import NOISE, SLOPE
from benchmarks.credit.environment import ATTEMPTS, SUCCESS, TASKS, Floats, sigmoid
from benchmarks.credit.methods import MOSAIC
from benchmarks.results import Bar, write
from mosaic.credit import GroupInput, SessionInput, TrajectoryCredit, TrajectoryInput, assign
from mosaic.records import SessionKind

FACTS, MOST, FIND = 3, 6, 0.7
KEEP = {True: 0.98, False: 0.7}
"""Probability that a held fact survives, by whether the summary was careful."""
STEPS, LAST, RATE = 60, 20, 0.4
"""The rate was chosen on seeds 0-2, so that what is learned is not all learned at once."""

FRESH_SEEDS = tuple(range(2000, 2008))

Credit = Callable[[TrajectoryCredit, int], float]
"""The advantage of the summary that session k writes."""


def _successor(credit: TrajectoryCredit, k: int) -> float:
    return next(span.advantage for span in credit.spans if span.call_id == str(k))


CREDITS: dict[str, Credit] = {
    "successor": _successor,
    "own session": lambda credit, k: credit.sessions[k].advantage,
    "trajectory": lambda credit, _: credit.advantage,
}


@dataclass(frozen=True, slots=True)
class Attempt:
    """One trajectory: what was held after each session and each summary, and how the summaries were."""

    input: TrajectoryInput
    careful: tuple[bool, ...]
    held: int
    """Facts held before handoffs, over all of them."""
    kept: int
    """Those of them that survived."""
    success: float


def measure() -> bool:
    """All credits on the fresh seeds; writes `results/credit_handoff.json`. True when the goal is met."""
    curves = {name: [carry(credit, seed) for seed in FRESH_SEEDS] for name, credit in CREDITS.items()}
    last = {name: [float(share[-LAST:].mean()) for share, _ in of] for name, of in curves.items()}
    bars = {}
    for name in ("own session", "trajectory"):
        gains = [100 * (a - b) for a, b in zip(last["successor"], last[name], strict=True)]
        bars[f"survival_gain_over_{name.replace(' ', '_')}"] = Bar("points", ">= 0", name, gains)
    details = {
        "fresh_seeds": list(FRESH_SEEDS),
        "steps": STEPS,
        "survival": {
            name: [round(float(np.mean([share[i : i + 10].mean() for share, _ in of])), 4) for i in range(0, STEPS, 10)]
            for name, of in curves.items()
        },
        "success_last": {name: [round(float(s[-LAST:].mean()), 4) for _, s in of] for name, of in curves.items()},
        "survival_last": last,
    }
    return write("credit_handoff", bars, details, command="python -m benchmarks.credit handoff")


def carry(credit: Credit, seed: int, steps: int = STEPS) -> tuple[Floats, Floats]:
    """Train one policy; per step, the share of held facts that survived a handoff, and the success probability."""
    rng, logit = np.random.default_rng(seed), 0.0
    shares, successes = [], []
    for _ in range(steps):
        careful = float(sigmoid(np.array(logit)))
        attempts = [_attempt(rng, careful, str(n)) for n in range(TASKS * ATTEMPTS)]
        starts = range(0, len(attempts), ATTEMPTS)
        inputs = [a.input for a in attempts]
        groups = [GroupInput(task_key=str(i), trajectories=tuple(inputs[i : i + ATTEMPTS])) for i in starts]
        credits = [t for group in assign(groups, MOSAIC) for t in group.trajectories]
        for attempt, given in zip(attempts, credits, strict=True):
            weight = RATE / (len(attempts) * max(len(attempt.careful), 1))
            for k, chosen in enumerate(attempt.careful):
                logit += weight * credit(given, k) * (chosen - careful)
        shares.append(sum(a.kept for a in attempts) / max(sum(a.held for a in attempts), 1))
        successes.append(sum(a.success for a in attempts) / len(attempts))
    return np.array(shares), np.array(successes)


def _attempt(rng: np.random.Generator, careful: float, name: str) -> Attempt:
    held, before, kept, choices, sessions = 0, 0, 0, list[bool](), list[SessionInput]()
    score = _score(rng, 0)
    for k in range(MOST):
        held += int(rng.random() < FIND)
        if held < FACTS and k < MOST - 1:
            choices.append(bool(rng.random() < careful))
            before += held
            held = int(rng.binomial(held, KEEP[choices[-1]]))
            kept += held
        after = _score(rng, held)
        sessions.append(_session(k, after - score))
        score = after
        if held == FACTS or k == MOST - 1:
            break
    success = float(SUCCESS[FACTS - held])
    reward = float(rng.random() < success)
    made = TrajectoryInput(trajectory_id=name, reward=reward, sessions=tuple(sessions))
    return Attempt(made, tuple(choices), before, kept, success)


def _session(k: int, contribution: float) -> SessionInput:
    parent = str(k - 1) if k else None
    return SessionInput(
        session_id=str(k),
        kind=SessionKind.COMPACTION if k else SessionKind.ROOT,
        parent_session_id=parent,
        opened_by_call_id=parent,
        last_call_id=str(k),
        tokens=2,
        contribution=contribution,
        exploration=1.0,
    )


def _score(rng: np.random.Generator, held: int) -> float:
    """What a policy thinks of its chances, as in `contributions`."""
    p = SUCCESS[FACTS - held]
    return float(sigmoid(SLOPE * np.log(p / (1 - p)) + NOISE * rng.standard_normal()))
