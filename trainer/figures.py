"""What a job is about, in numbers: taken when its trajectories are credited, kept with the job, and tracked.

Each name means one thing, and stands in docs/training.md: considered is all that a job looked at, trained what is left
of it after credit and staleness.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from mosaic.records import Group
from trainer.publish import PublishReport
from trainer.round import TrainReport
from trainer.selection import Selection


def chosen_figures(
    groups: Sequence[Group], selection: Selection, version: int, success_reward: float
) -> dict[str, float]:
    """What a job considered: reward, success (a reward of at least `success_reward`), sessions; what of it is trained,
    and how many versions the trained tokens are behind the live one."""
    trajectories = [t for group in groups for t in group.trajectories]
    rewards = [t.reward for t in trajectories if t.reward is not None]
    of_groups = [{t.reward for t in group.trajectories if t.reward is not None} for group in groups]
    behind = np.concatenate([np.zeros(0), *(version - s.versions_L[s.mask_L] for s in selection.sequences)])
    return {
        "reward_mean": _mean(rewards),
        "reward_std": float(np.std(rewards)) if rewards else 0.0,
        "success": _mean([float(reward >= success_reward) for reward in rewards]),
        "sessions_per_trajectory": _mean([float(len(t.sessions)) for t in trajectories]),
        "trajectories_considered": float(len(trajectories)),
        "groups_considered": float(len(groups)),
        "groups_trained": float(selection.groups_trained),
        "groups_zero_variance": float(sum(len(found) == 1 for found in of_groups)),
        "staleness_mean": float(behind.mean()) if behind.size else 0.0,
        "staleness_max": float(behind.max()) if behind.size else 0.0,
    }


def trained_figures(report: TrainReport) -> dict[str, float]:
    """The numbers of a round."""
    numbers = {k: float(v) for k, v in asdict(report).items() if isinstance(v, int | float)}
    return {
        **numbers,
        "tokens_trained_per_s": report.tokens_trained / report.train_seconds if report.train_seconds else 0.0,
    }


def job_figures(
    chosen: Mapping[str, float], left_out: Mapping[str, int], trained: TrainReport, published: PublishReport
) -> dict[str, float]:
    """All of a job's numbers under one roof: what was chosen, left out by reason, trained and published."""
    skipped = {f"left_out_{reason}": float(number) for reason, number in left_out.items()}
    return {**chosen, **skipped, **trained_figures(trained), **published.metrics}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
