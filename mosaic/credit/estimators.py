"""Estimators of a session's contribution: what the session changed in the probability of success.

They are interchangeable: a group of comparable trajectories in, one number per session out. Here is the one that needs
no rollouts, no scoring and no ground truth. The definition of contribution is the source's (arXiv 2610.22174); how it
is estimated here is this project's own (mosaic.md, section 4.2, E2).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from mosaic.credit.evidence import SessionEvidence, trajectory_evidence
from mosaic.records import Group


class ContributionEstimator(Protocol):
    """What every estimator offers."""

    @property
    def source(self) -> str:
        """Name of the estimator, recorded beside each of its numbers."""

    def contributions(self, group: Group) -> Mapping[str, float]:
        """Return the contribution of each session by its id; a session that is left out is unknown.

        Every trajectory of `group` has a finite reward and may be compared with the others.
        """


@dataclass(frozen=True, slots=True)
class GroupStatistics:
    """Contribution from who found what: a key that good trajectories have and bad ones lack is worth something (E2).

    With n of the G trajectories having key e, and p imagined trajectories at the mean reward R̄ on either side,

        lift(e) = (sum of R with e + p R̄) / (n + p) - (sum of R without e + p R̄) / (G - n + p)

    and a session's contribution is the sum over the keys that it was the first of its trajectory to find. It is zero
    when all rewards are equal, and noisy for G <= 8, hence the shrinkage p. Unknown when the group shows no evidence
    at all.
    """

    shrinkage: float = 1.0
    """p, in trajectories, > 0."""
    source: str = "group"

    def __post_init__(self) -> None:
        """Without shrinkage, a key that all have or none lack would divide by zero."""
        if not self.shrinkage > 0:
            raise ValueError(f"GroupStatistics: shrinkage = {self.shrinkage!r} must be > 0; 1 is the usual value")

    def contributions(self, group: Group) -> dict[str, float]:
        """Return the sum of lifts of each session's new keys, by session id."""
        evidence = [trajectory_evidence(trajectory) for trajectory in group.trajectories]
        rewards = [trajectory.reward or 0.0 for trajectory in group.trajectories]
        lift = self.lifts(evidence, rewards)
        if not lift:
            return {}
        sessions = [item for of_trajectory in evidence for item in of_trajectory.items()]
        # fsum: a set has no order. Rounding: noise just above zero would keep the exploration gate shut.
        return {sid: round(math.fsum(lift[key] for key in found.new), 12) for sid, found in sessions}

    def lifts(self, evidence: list[dict[str, SessionEvidence]], rewards: list[float]) -> dict[str, float]:
        """Return the lift of every key, given the evidence by session and the reward of each trajectory."""
        holders: dict[str, list[float]] = {}
        for of_trajectory, reward in zip(evidence, rewards, strict=True):
            for key in {key for found in of_trajectory.values() for key in found.new}:
                holders.setdefault(key, []).append(reward)
        return {key: self._lift(held, rewards) for key, held in holders.items()}

    def _lift(self, held: list[float], rewards: list[float]) -> float:
        """The formula above, in terms of how far the holders are above the mean (the rest are as far below it)."""
        count, held_count = len(rewards), len(held)
        above = (count * math.fsum(held) - held_count * math.fsum(rewards)) / count
        weight = 1 / (held_count + self.shrinkage) + 1 / (count - held_count + self.shrinkage)
        return above * weight
