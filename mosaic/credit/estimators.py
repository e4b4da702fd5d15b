"""The contribution that needs no rollouts, no scoring and no ground truth: who found what, over a group.

What a contribution is, is the source's (arXiv 2610.22174); how it is estimated here is this project's own (mosaic.md,
section 4.2, E2).
"""

import math
from dataclasses import dataclass

from mosaic.credit.estimate import Estimate
from mosaic.credit.evidence import SessionEvidence, trajectory_evidence
from mosaic.records import Group


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

    def __post_init__(self) -> None:
        """Without shrinkage, a key that all have or none lack would divide by zero."""
        if not self.shrinkage > 0:
            raise ValueError(f"GroupStatistics: shrinkage = {self.shrinkage!r} must be > 0; 1 is the usual value")

    def contributions(self, group: Group) -> dict[str, Estimate]:
        """Return the sum of lifts of each session's new keys, by session id.

        Its variance is that of as many differences of means (at least one), and infinite when all rewards are equal.
        """
        evidence = [trajectory_evidence(trajectory) for trajectory in group.trajectories]
        rewards = [trajectory.reward or 0.0 for trajectory in group.trajectories]
        lift = self.lifts(evidence, rewards)
        if not lift:
            return {}
        noise = self.noise(rewards)
        sessions = [item for of_trajectory in evidence for item in of_trajectory.items()]
        # fsum: a set has no order. Rounding: noise just above zero would keep the exploration gate shut.
        return {
            sid: Estimate(round(math.fsum(lift[key] for key in found.new), 12), noise * max(len(found.new), 1), "group")
            for sid, found in sessions
        }

    def noise(self, rewards: list[float]) -> float:
        """Variance of the lift of a key that half the trajectories have."""
        count, mean = len(rewards), math.fsum(rewards) / len(rewards)
        spread = math.fsum((reward - mean) ** 2 for reward in rewards) / count
        return spread * 2 / (count / 2 + self.shrinkage) if max(rewards) > min(rewards) else math.inf

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
