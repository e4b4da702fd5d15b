"""Joined sequences against one row per call: tokens that go through the model, and seconds of a step.

With a database, on its recorded trajectories; without one, on sessions made in the shape of a coding agent's: a prompt
of a few hundred tokens, then calls whose prompts each extend the one before by what was sampled and a tool's result.
"""

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import Bar
from examples.demo.__main__ import POLICY
from mosaic.records import Call, Sample, Session, SessionKind, Trajectory, TrajectoryState
from mosaic.store import Store
from trainer.batches import Normalisation, plan_epoch, pushed
from trainer.round import StepReport, TrainSettings
from trainer.sequences import Credit, Sequence, build_sequences

CALLS = 20
"""Calls of a session."""
SESSIONS = 4
MICRO_BATCH = 8192
RUNS = 3


def tokens(database: str | None) -> tuple[dict[str, Bar], dict[str, Any]]:
    """Measure both ways side by side; returns bars and details."""
    found = list(_recorded(database) if database else _made(np.random.default_rng(0)))
    joined = [s for t in found for s in build_sequences(t, _credit(t), 1_000_000).sequences]
    apart = [s for t in found for s in _one_row_per_call(t)]
    if sum(s.n_trained for s in joined) != sum(s.n_trained for s in apart):
        raise AssertionError("both ways must train the same tokens")
    real = {name: pushed(rows, _plan(rows)) for name, rows in (("joined", joined), ("apart", apart))}
    seconds: dict[str, list[float]] = {"joined": [], "apart": []}
    if not database:
        for _, (name, rows) in itertools.product(range(RUNS), (("apart", apart), ("joined", joined))):
            seconds[name].append(_step_seconds(rows))
    unique = sum(len(s.ids_L) for s in joined)
    bars = {
        "tokens_pushed_ratio": Bar(
            "times", ">= 3", "one row per call, over joined sequences", [real["apart"].real / real["joined"].real]
        ),
    }
    if not database:
        ratios = [a / j for a, j in zip(seconds["apart"], seconds["joined"], strict=True)]
        bars["step_seconds_ratio"] = Bar("times", ">= 2", "one row per call, over joined sequences", ratios)
    details = {
        "traffic": "recorded" if database else f"made: {SESSIONS} sessions of {CALLS} calls",
        "trajectories": len(found),
        "trained_tokens": sum(s.n_trained for s in joined),
        "joined_tokens": unique,
        "rows": {"joined": len(joined), "apart": len(apart)},
        "pushed": {name: one.real for name, one in real.items()},
        "padding_waste": {name: round(one.waste, 4) for name, one in real.items()},
        "step_seconds": {name: statistics.median(runs) if runs else None for name, runs in seconds.items()},
    }
    return bars, details


def _plan(rows: list[Sequence]) -> Any:
    return plan_epoch(rows, Normalisation.TRAJECTORY_MEAN, 1, MICRO_BATCH, 0)


def _step_seconds(rows: list[Sequence]) -> float:
    """Seconds of an optimizer step, loading and saving left out: from the end of the first to that of the last."""
    from trainer.policy_trainer import train

    ends: list[float] = []

    def on_step(_step: StepReport) -> None:
        ends.append(time.perf_counter())

    settings = TrainSettings(epochs=2, micro_batch_tokens=MICRO_BATCH, save_optimizer=False)
    with tempfile.TemporaryDirectory() as folder:
        train(POLICY, rows, settings, Path(folder) / "out", on_step=on_step)
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def _credit(trajectory: Trajectory) -> Credit:
    return Credit({session.session_id: 1.0 for session in trajectory.sessions})


def _one_row_per_call(trajectory: Trajectory) -> Iterator[Sequence]:
    """Each call as a trajectory of its own would be, under the trajectory's name."""
    for session in trajectory.sessions:
        for call in session.calls:
            alone = Session(session.session_id, SessionKind.ROOT, None, None, (call,))
            one = Trajectory(trajectory.trajectory_id, "", 1.0, TrajectoryState.SCORED, (alone,))
            yield from build_sequences(one, _credit(one), 1_000_000).sequences


def _recorded(database: str) -> Iterator[Trajectory]:
    store = Store(database)
    for one in store.trajectories(1000):
        yield store.trajectory(one.trajectory_id)
    store.close()


def _made(rng: np.random.Generator) -> Iterator[Trajectory]:
    for number in range(SESSIONS):
        context = rng.integers(3, 1000, int(rng.integers(150, 350))).tolist()
        calls = []
        for k in range(CALLS):
            sampled = rng.integers(3, 1000, int(rng.integers(10, 40)))
            message = {"role": "assistant", "content": ""}
            sample = Sample(0, sampled.astype(np.int32), np.full(len(sampled), -7.0, np.float32), message, "stop")
            calls.append(_call(f"c{number}-{k}", context, sample))
            context = [*context, *sampled.tolist(), *rng.integers(3, 1000, int(rng.integers(10, 60))).tolist()]
        session = Session(f"s{number}", SessionKind.ROOT, None, None, tuple(calls))
        yield Trajectory(f"t{number}", "task", 1.0, TrajectoryState.SCORED, (session,))


def _call(call_id: str, context: list[int], sample: Sample) -> Call:
    return Call(
        call_id=call_id,
        prompt_ids_P=np.asarray(context, np.int32),
        samples=(sample,),
        messages=(),
        policy_version=0,
        policy_version_end=0,
        exact=True,
        auxiliary=None,
        started_at=0.0,
    )
