"""What a job would train now, and why the rest would not: for every scored trajectory, without changing anything.

Contributions are those of group statistics whatever is configured, since the engine is not asked; they do not decide
which trajectories are trained.
"""

import re
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mosaic.credit import DropReason
from mosaic.job_settings import TrainConfig
from mosaic.records import TrajectoryState
from mosaic.scoring.passive import to_score
from mosaic.settings import Settings
from mosaic.store import Store
from mosaic.store.listing import HELD_OUT, ScoredTrajectory
from trainer.job import waiting_for
from trainer.selection import Selection, choose, rule


@dataclass(frozen=True, slots=True)
class Candidate:
    """One scored trajectory."""

    trajectory_id: str
    task_key: str
    reward: float | None
    reason: str | None
    """Why it would not be trained; None when it would."""
    sequences: int
    tokens: int
    """Trained tokens, in one epoch."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a job would do."""

    version: int
    """The live policy version, from which it would start."""
    groups_trained: int
    trajectories_trained: int
    sequences_trained: int
    tokens_trained: int
    """Over all epochs."""
    candidates: tuple[Candidate, ...]
    """Every scored trajectory, newest first."""
    left_out: Mapping[str, int]
    """Reason -> trajectories, groups or calls, as a job would count them."""
    inexact: Mapping[str, int]
    """Reason -> calls of the task that cannot be trained, in the trajectories that a job would look at."""
    not_scored: Mapping[str, int]
    """State -> trajectories that are in no job's reach: open, closed (no reward yet), unscorable, failed, truncated."""
    trained_before: int
    """Trajectories that earlier jobs trained."""
    unsettled_job: str | None
    """The job that died, and that the next run takes up before it begins another."""
    to_score: int
    """Closed trajectories about which the scorer of [score] would be asked first; they are in no number above."""


def preview(store: Store, settings: Settings) -> Preview:
    """Choose and credit as a job would, and say what came out. Raises `SettingsError`."""
    config = settings.train
    version, _ = store.policy()
    waiting = waiting_for(store, config, version)
    selection = choose(store.groups(waiting), config, rule(config), version)
    taken = {i for ids in waiting.groups.values() for i in ids}
    reasons = _reasons(selection)
    sequences, tokens = Counter[str](), Counter[str]()
    for sequence in selection.sequences:
        sequences[sequence.trajectory_id] += 1
        tokens[sequence.trajectory_id] += sequence.n_trained
    candidates = []
    for one in store.scored():
        name = one.trajectory_id
        reason = (
            reasons.get(name, f"trajectory_{DropReason.NO_TOKENS}") if name in taken else _outside(one, config, version)
        )
        trained = name in selection.trained
        candidates.append(
            Candidate(name, one.task_key, one.reward, None if trained else reason, sequences[name], tokens[name])
        )
    job = store.unsettled_job()
    states = dict(store.states())
    trained_before = states.pop(TrajectoryState.TRAINED.value, 0)
    return Preview(
        version=version,
        groups_trained=selection.groups_trained,
        trajectories_trained=len(selection.trained),
        sequences_trained=len(selection.sequences),
        tokens_trained=tokens.total() * config.epochs,
        candidates=tuple(candidates),
        left_out={**waiting.left_out, **selection.left_out},
        inexact=dict(store.inexact_reasons(waiting)),  # asdict cannot copy a Counter
        not_scored={state: number for state, number in states.items() if state != TrajectoryState.SCORED},
        trained_before=trained_before,
        unsettled_job=None if job is None else f"{job.job_id} ({job.state.value})",
        to_score=len(to_score(store, settings.score)),
    )


def _reasons(selection: Selection) -> dict[str, str]:
    """Why trajectories that a job would look at are not trained."""
    found: dict[str, str] = {}
    for credit in selection.credits:
        if credit.drop_reason is not None:
            found.update({t.trajectory_id: f"group_{credit.drop_reason}" for t in credit.trajectories})
        found.update({name: f"trajectory_{reason}" for name, reason in credit.dropped.items()})
    return found


def _outside(one: ScoredTrajectory, config: TrainConfig, version: int) -> str:
    """Why a job would not even look at it."""
    if one.trajectory_id.startswith(HELD_OUT):
        return "held_out"
    if config.only is not None and not _like(one.trajectory_id, config.only):
        return "other_run"
    if config.task is not None and not _like(one.task_key, config.task):
        return "other_task"
    if one.policy_version < version - config.max_staleness:
        return "trajectory_stale"
    if config.max_age_s is not None and one.updated_at < time.time() - config.max_age_s:
        return "trajectory_too_old"
    return "trajectory_over_limit"


def _like(text: str, pattern: str) -> bool:
    """SQL's LIKE, without regard to case, which is what SQLite does with ASCII."""
    parts = (".*" if c == "%" else "." if c == "_" else re.escape(c) for c in pattern)
    return re.fullmatch("".join(parts), text, re.DOTALL | re.IGNORECASE) is not None
