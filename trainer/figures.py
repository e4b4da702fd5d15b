"""What a job is about, in numbers: taken when its trajectories are credited, kept with the job, and tracked."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from mosaic.records import Group
from trainer.publish import PublishReport
from trainer.round import TrainReport
from trainer.sequences import Sequence as TrainingSequence


def chosen_figures(groups: Sequence[Group], sequences: Sequence[TrainingSequence], version: int) -> dict[str, float]:
    """Reward, success (a reward above 0) and sessions per trajectory over all that a job looked at; groups whose
    rewards are all equal; how many versions the trained tokens are behind the live one."""
    trajectories = [t for group in groups for t in group.trajectories]
    rewards = [t.reward for t in trajectories if t.reward is not None]
    of_groups = [{t.reward for t in group.trajectories if t.reward is not None} for group in groups]
    behind = np.concatenate([np.zeros(0), *(version - s.versions_L[s.mask_L] for s in sequences)])
    return {
        "reward_mean": _mean(rewards),
        "reward_std": float(np.std(rewards)) if rewards else 0.0,
        "success": _mean([float(reward > 0) for reward in rewards]),
        "sessions_per_trajectory": _mean([float(len(t.sessions)) for t in trajectories]),
        "groups": float(len(groups)),
        "groups_zero_variance": float(sum(len(found) == 1 for found in of_groups)),
        "staleness_mean": float(behind.mean()) if behind.size else 0.0,
        "staleness_max": float(behind.max()) if behind.size else 0.0,
    }


def trained_figures(report: TrainReport) -> dict[str, float]:
    """The numbers of a round."""
    numbers = {k: float(v) for k, v in asdict(report).items() if isinstance(v, int | float)}
    return {**numbers, "tokens_per_s": report.tokens / report.seconds if report.seconds else 0.0}


def job_figures(
    chosen: Mapping[str, float], left_out: Mapping[str, int], trained: TrainReport, published: PublishReport
) -> dict[str, float]:
    """All of a job's numbers under one roof: what was chosen, left out by reason, trained and published."""
    skipped = {f"left_out_{reason}": float(number) for reason, number in left_out.items()}
    return {**chosen, **skipped, **trained_figures(trained), **published.metrics}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0
