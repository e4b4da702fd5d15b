"""One run of the real experiment: one setting, one rule, one seed; collect, train and reload until the calls are spent.

deepagents, `mosaic serve`, vLLM and TRL as in `examples.demo`, which it builds on. The questions are the demo's of one
kind: `chain` questions are too long for the agent's context, so it compacts; `fork` questions are for subagents. At
the end, attempts at held-out questions are replayed with and without each session (`replaying`), so that the credit of
every rule and the scores of information gain can be compared with the true contributions.
"""

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.credit.replaying import ReplayServer, script
from examples.demo.__main__ import Plan, Stage
from examples.demo.questions import Kind, Question, questions, score
from mosaic.credit import Estimate, GroupStatistics, assign, group_input
from mosaic.credit.estimate import pearson, spearman
from mosaic.credit.information_gain import Scale, contributions, survivals
from mosaic.credit.replay import Removal, removals, replayed
from mosaic.errors import NothingToTrain
from mosaic.records import Group, Trajectory
from trainer.engine_control import engine_control
from trainer.scoring import AnswerScorer, Scored, ScoringSettings, recorded_tools

SETTINGS: dict[str, Kind] = {"compaction": "chain", "subagents": "fork"}
"""Setting -> kind of the demo's questions."""

COMPARED = ("broadcast", "mosaic:trajectory", "mosaic:session", "mosaic")
"""Rules whose session advantages are compared with replayed contributions."""


FLOOR = 20.0
"""Nats per token: a policy in the middle of its search hardly ever answers, so that an answer's probability is 1e-6."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one run may do; the same for every rule."""

    calls: int = 6000
    """Calls of training attempts; no round begins that would exceed them."""
    tasks: int = 16
    """Questions per round."""
    attempts: int = 8
    """Attempts at each question of a round."""
    held_out: int = 96
    """Attempts at held-out questions, before and after."""
    probed: int = 4
    """Held-out questions with `attempts` attempts each, from which sessions are taken for replay."""
    replayed: int = 16
    """Sessions that are replayed."""
    repeats: int = 4
    """Replays of a session in each arm."""


TINY = Budget(calls=400, tasks=4, attempts=4, held_out=8, probed=2, replayed=3, repeats=2)
"""Proves that everything runs; its figures mean nothing."""


def run_one(setting: str, rule: str, seed: int, budget: Budget, folder: Path) -> dict[str, Any]:
    """The whole run; everything that it started is stopped when this returns or raises."""
    began = time.monotonic()
    kind = SETTINGS[setting]
    plan = Plan(seed=seed, credit=rule, tasks=budget.tasks, attempts=budget.attempts)
    held_out = _repeated([q for q in questions("heldout") if q.kind == kind], budget.held_out)
    with ExitStack() as stack:
        stage = Stage(plan, folder, stack)
        before = stage.collect("before", "before", held_out)
        rounds, spent = _train(stage, budget, kind)
        after = stage.collect("after", "after", held_out)
        probe = _probe(stage, budget, held_out)
        kept = {name: _survival(stage, name, held_out) for name in ("before", "after")}
    return {
        "setting": setting,
        "rule": rule,
        "seed": seed,
        "budget": asdict(budget),
        "before": asdict(before),
        "after": asdict(after),
        "rounds": rounds,
        "calls": spent,
        "probe": probe,
        "survival": kept,
        "seconds": round(time.monotonic() - began, 1),
    }


def _repeated(asked: Sequence[Question], amount: int) -> list[Question]:
    return [asked[i % len(asked)] for i in range(amount)]


def _train(stage: Stage, budget: Budget, kind: Kind) -> tuple[list[dict[str, Any]], int]:
    """Rounds until the budget of calls is spent; the last one is cut to fit, by the calls that attempts took so far."""
    rng = random.Random(stage.plan.seed)
    order: list[Question] = []
    rounds: list[dict[str, Any]] = []
    spent, calls_per_attempt = 0, 8.0
    while True:
        affordable = int((budget.calls - spent) / (calls_per_attempt * budget.attempts))
        if min(affordable, budget.tasks) < 1 or (rounds and affordable < budget.tasks / 4):
            return rounds, spent
        amount = min(budget.tasks, affordable)
        while len(order) < amount:
            pool = [q for q in questions("train") if q.kind == kind]
            order += rng.sample(pool, len(pool))
        asked, order = order[:amount], order[amount:]
        name = f"round-{len(rounds) + 1}"
        batch = stage.collect(name, name.replace("-", " "), [q for q in asked for _ in range(budget.attempts)])
        spent, calls_per_attempt = spent + batch.calls, batch.calls / batch.attempts
        rounds.append({"batch": asdict(batch), **_trained(stage)})


def _trained(stage: Stage) -> dict[str, Any]:
    try:
        report = stage.train()
    except NothingToTrain as nothing:
        return {"trained_tokens": 0, "nothing": str(nothing)}
    return {
        "trained_tokens": report.train.tokens_trained,
        "train_s": report.train.train_seconds,
        "left_out": dict(report.left_out),
    }


def _probe(stage: Stage, budget: Budget, held_out: Sequence[Question]) -> dict[str, Any]:
    """Attempts by the trained policy in groups, their credit under every rule, and replays of some sessions."""
    asked = [q for q in held_out[: budget.probed] for _ in range(budget.attempts)]
    batch = stage.collect("probe", "probe", asked)
    found = {f"probe-{number:03}": question for number, question in enumerate(asked)}
    read = {i: stage.store.trajectory(i) for i in found}
    groups = [
        Group(str(k), tuple(list(read.values())[k * budget.attempts : (k + 1) * budget.attempts]))
        for k in range(budget.probed)
    ]
    chosen = _sample(list(read.values()), budget.replayed, stage.plan.seed)
    truth, fidelity = _replay(stage, chosen, found, budget.repeats)
    gains = _gains(_scored(stage, [t for t, _ in chosen], {i: q.answer for i, q in found.items()}), chosen)
    by_group = {sid: e.value for group in groups for sid, e in GroupStatistics().contributions(group).items()}
    rows = []
    credits = {rule: _advantages(groups, rule) for rule in COMPARED}
    for trajectory, removal in chosen:
        sid = removal.session_id
        rows.append(
            {
                "trajectory_id": trajectory.trajectory_id,
                "reward": trajectory.reward,
                "replayed": truth[sid].value,
                "variance": truth[sid].variance,
                "group": by_group.get(sid),
                "information_gain": gains.get(sid),
                **{rule: credits[rule].get(sid, 0.0) for rule in COMPARED},
            }
        )
    return {
        "batch": asdict(batch),
        "sessions": rows,
        "replay_fidelity": fidelity,
        "utility": statistics.fmean(truth[removal.session_id].value for _, removal in chosen) if chosen else None,
        "correlation": _correlations(rows),
    }


def _sample(read: Sequence[Trajectory], amount: int, seed: int) -> list[tuple[Trajectory, Removal]]:
    """Removable sessions, successes and failures alike, in an order that the seed fixes."""
    every = [(t, removal) for t in read for removal in removals(t)]
    return random.Random(seed).sample(every, min(amount, len(every)))


def _replay(
    stage: Stage, chosen: Sequence[tuple[Trajectory, Removal]], asked: Mapping[str, Question], repeats: int
) -> tuple[dict[str, Estimate], dict[str, float]]:
    """Both arms of every removal; the contributions by session, and how closely the record was followed."""
    rewards: dict[str, float] = {}
    with ReplayServer(stage.engine.base_url) as server:
        jobs, questions_of = [], {}
        for number, (trajectory, removal) in enumerate(chosen):
            for arm in ("with", "without"):
                for repeat in range(repeats):
                    name = f"{number}-{arm}-{repeat}"
                    server.scripts[name] = script(trajectory, removal, arm == "with")
                    questions_of[name] = asked[trajectory.trajectory_id]
                    prompt = questions_of[name].prompt
                    jobs.append({"trajectory_id": name, "base_url": server.url(name), "prompt": prompt})

        def on_result(result: Mapping[str, Any]) -> None:
            name = result["trajectory_id"]
            rewards[name] = score(questions_of[name], result["answer"])

        stage.agent.work(jobs, on_result)
        scripts = list(server.scripts.values())
    truth = {}
    for number, (_, removal) in enumerate(chosen):
        arms = [[rewards[f"{number}-{arm}-{repeat}"] for repeat in range(repeats)] for arm in ("with", "without")]
        truth[removal.session_id] = replayed(*arms)
    given = sum(s.given for s in scripts)
    return truth, {
        "replays": len(scripts),
        "recorded_replies": given,
        "generated_replies": sum(s.generated for s in scripts),
        "left_the_record": sum(s.unused > 0 for s in scripts),
    }


def _scored(stage: Stage, read: Sequence[Trajectory], answers: Mapping[str, str]) -> Scored:
    unique = list({t.trajectory_id: t for t in read}.values())
    scorer = AnswerScorer(engine_control(stage.settings), ScoringSettings(Scale.LOG, FLOOR, prefix=" "))
    return scorer.score(unique, lambda t: [answers[t.trajectory_id]], recorded_tools(stage.store, unique))


def _gains(scored: Scored, chosen: Sequence[tuple[Trajectory, Removal]]) -> dict[str, float]:
    gains: dict[str, float] = {}
    for trajectory in {t.trajectory_id: t for t, _ in chosen}.values():
        gains |= contributions(trajectory, scored.scores.get(trajectory.trajectory_id, {}))
    return gains


def _survival(stage: Stage, name: str, held_out: Sequence[Question], most: int = 24) -> dict[str, Any]:
    """How much of the answer's information survives a compaction: mean share, and the scores around it.

    All summaries are read by the trained policy, those of the untrained one too: one judge for both.
    """
    answers = {f"{name}-{number:03}": question.answer for number, question in enumerate(held_out)}
    read = [stage.store.trajectory(i) for i in answers]
    compacted = [t for t in read if any(s.kind == "compaction" for s in t.sessions)][:most]
    scored = _scored(stage, compacted, answers)
    rows = [row for t in compacted for row in survivals(t, scored.scores.get(t.trajectory_id, {}))]
    shares = [row.share for row in rows if row.share is not None]
    return {
        "compactions": len(rows),
        "with_something_to_lose": len(shares),
        "share": statistics.fmean(shares) if shares else None,
        "before": statistics.fmean(row.before for row in rows) if rows else None,
        "after": statistics.fmean(row.after for row in rows) if rows else None,
        "cost": asdict(scored.cost),
    }


def _advantages(groups: Sequence[Group], rule: str) -> dict[str, float]:
    credits = assign([group_input(group) for group in groups], rule)
    return {s.session_id: s.advantage for credit in credits for t in credit.trajectories for s in t.sessions}


def _correlations(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Of every rule's advantage, and of the estimates, with the replayed contribution; 0 where undefined."""
    found = {}
    for name in (*COMPARED, "group", "information_gain"):
        known = [row for row in rows if row[name] is not None]
        value, truth = (np.array([row[key] for row in known], dtype=np.float64) for key in (name, "replayed"))
        found[name] = {"pearson": pearson(value, truth), "spearman": spearman(value, truth), "sessions": len(known)}
    return found
