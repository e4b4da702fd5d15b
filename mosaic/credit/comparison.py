"""Which trajectories of a group may be compared, and what the rules look at in them.

A group is centred over its scored trajectories with trainable tokens only (DESIGN.md, invariant 16), so the others
leave before any mean is taken. Array suffixes of this package: `_G` trajectories of a group, `_K` sessions of a
trajectory, `_N` trajectories of the batch.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mosaic.credit.model import DropReason, GroupInput, TrajectoryInput
from mosaic.credit.settings import CreditSettings

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A group after the trajectories left that cannot be compared."""

    task_key: str
    trajectories: tuple[TrajectoryInput, ...]
    reward_G: FloatArray
    dropped: Mapping[str, DropReason]


def drop_reason(exclusion: DropReason | None, reward: float | None, tokens: int) -> DropReason | None:
    """Return why a trajectory must leave before centring, or None."""
    if exclusion is not None:
        return exclusion
    if reward is None:
        return DropReason.UNSCORED
    if not math.isfinite(reward):
        return DropReason.REWARD_NOT_FINITE
    return None if tokens > 0 else DropReason.NO_TOKENS


def compare(group: GroupInput) -> Comparison:
    """Split a group into what is compared and what is dropped, with its reason."""
    dropped: dict[str, DropReason] = {}
    kept: list[TrajectoryInput] = []
    for trajectory in group.trajectories:
        reason = drop_reason(trajectory.exclusion, trajectory.reward, trajectory.tokens)
        if reason is None:
            kept.append(trajectory)
        else:
            dropped[trajectory.trajectory_id] = reason
    reward_G = np.array([trajectory.reward for trajectory in kept], dtype=np.float64)
    return Comparison(group.task_key, tuple(kept), reward_G, dropped)


def session_count(trajectory: TrajectoryInput, success: bool, settings: CreditSettings) -> int:
    """Return the number of sessions that the usage rank counts.

    A success counts all of them. A failure counts only effective ones, up to a cap and at least one: rewarding the
    session count of failures as such (C2 of arXiv 2610.22174) would pay for padding. The guard is this project's own.
    """
    if success:
        return len(trajectory.sessions)
    effective = sum(session.effective and session.exploration >= settings.x_min for session in trajectory.sessions)
    return min(max(effective, 1), settings.k_cap)
