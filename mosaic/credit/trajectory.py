"""The trajectory level: one advantage per trajectory, the sum of what its reward and its number of sessions give.

That session usage enters the advantage, that fewer sessions rank higher among successes (C1) and more among failures
(C2) is the source's (arXiv 2610.22174). Every formula here is this project's own (mosaic.md, section 4.1), except the
baselines, which are their papers' (see `settings.Baseline`). The usage term is centred in each stratum, so a group's
advantages sum to zero; it is smaller than half the distance to the next stratum, so a better reward always wins. Of
two outcomes, a slow success may be pushed down; a failure is never pushed up for its effort.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mosaic.credit.comparison import Comparison, FloatArray, session_count
from mosaic.credit.settings import Baseline, CreditSettings, Single


@dataclass(frozen=True, slots=True)
class TrajectoryLevel:
    """What the trajectories of one group got."""

    outcome_G: FloatArray
    """The part of the advantage that comes from the rewards."""
    usage_G: FloatArray
    """The part that comes from the numbers of sessions."""
    rank_G: FloatArray
    """Usage ranks in [0, 1]."""

    @property
    def advantage_G(self) -> FloatArray:
        """Both parts together."""
        return self.outcome_G + self.usage_G


def strata(reward_G: FloatArray, settings: CreditSettings) -> NDArray[np.int64]:
    """Return a stratum number per trajectory, shape (G,): rewards of one bin on the same side of the success threshold.

    A bin starts at its lowest reward, not on a fixed grid, so that shifting all rewards changes nothing.
    """
    # 0.3 - 0.25 is a little less than 0.05: without the margin, graded rewards on a grid would share bins by rounding.
    width = max(settings.bin_width * (1 - 1e-9), settings.epsilon)
    label_G = np.zeros(len(reward_G), dtype=np.int64)
    label, start = 0, reward_G.min(initial=np.inf)
    for index in np.argsort(reward_G, kind="stable"):
        reward = reward_G[index]
        crosses = start < settings.success_reward <= reward
        if crosses or reward - start >= width:
            label, start = label + 1, reward
        label_G[index] = label
    return label_G


def usage_ranks(count_G: FloatArray) -> FloatArray:
    """Return the average-tie rank of each session count, scaled to [0, 1]; one half for one trajectory or all alike."""
    if len(count_G) < 2:
        return np.full(len(count_G), 0.5)
    fewer_G = (count_G[None, :] < count_G[:, None]).sum(axis=1)
    others_alike_G = (count_G[None, :] == count_G[:, None]).sum(axis=1) - 1
    ranks_G: FloatArray = (fewer_G + others_alike_G / 2) / (len(count_G) - 1)
    return ranks_G


def trajectory_levels(groups: Sequence[Comparison], settings: CreditSettings) -> list[TrajectoryLevel]:
    """Return the advantages and usage ranks of every group of the batch, in order."""
    batch_N = np.concatenate([np.empty(0), *(group.reward_G for group in groups)])
    batch_mean = float(batch_N.mean()) if len(batch_N) else 0.0
    centred = [_centred(group.reward_G, batch_mean, settings) for group in groups]
    least = 1 if settings.single is Single.BATCH else 2
    counted = [diff_G for diff_G in centred if len(diff_G) >= least]
    batch_sigma = float(np.std(np.concatenate(counted))) if counted else 0.0
    levels = []
    for group, diff_G in zip(groups, centred, strict=True):
        if len(diff_G) > 1 and float(np.ptp(group.reward_G)) <= settings.epsilon:
            levels.append(_degenerate(group, settings))
            continue
        term_G, rank_G = _usage(group, diff_G, settings)
        divisor = _divisor(group.reward_G, batch_sigma, settings)
        levels.append(TrajectoryLevel(diff_G / divisor, term_G / divisor, rank_G))
    return levels


def _centred(reward_G: FloatArray, batch_mean: float, settings: CreditSettings) -> FloatArray:
    count = len(reward_G)
    if count == 1:
        return reward_G - batch_mean if settings.single is Single.BATCH else np.zeros(1)
    diff_G = reward_G - (reward_G.mean() if count else 0.0)
    return diff_G * (count / (count - 1)) if settings.baseline is Baseline.RLOO and count else diff_G


def _divisor(reward_G: FloatArray, batch_sigma: float, settings: CreditSettings) -> float:
    """The spread of outcomes only: the usage term must not make its own divisor larger (as in FoldGRPO)."""
    if settings.baseline in (Baseline.DR_GRPO, Baseline.RLOO):
        return 1.0
    if settings.baseline is Baseline.REINFORCE_PP or len(reward_G) < 2:
        return batch_sigma + settings.epsilon
    return float(reward_G.std()) + settings.epsilon


def _ranks(group: Comparison, member_G: NDArray[np.bool_], success: bool, settings: CreditSettings) -> FloatArray:
    members = (group.trajectories[index] for index in np.flatnonzero(member_G))
    return usage_ranks(np.array([session_count(t, success, settings) for t in members], dtype=np.float64))


def _degenerate(group: Comparison, settings: CreditSettings) -> TrajectoryLevel:
    """All rewards are equal: usage alone decides, within a fixed bound and undivided."""
    success = bool(group.reward_G.min() >= settings.success_reward)
    rank_G = _ranks(group, np.ones(len(group.reward_G), dtype=np.bool_), success, settings)
    strength_f = settings.beta_f if settings.c2_all_fail else 0.0
    strength = settings.beta_s if success else -strength_f
    return TrajectoryLevel(np.zeros_like(rank_G), strength * (1 - 2 * rank_G), rank_G)


def _usage(group: Comparison, diff_G: FloatArray, settings: CreditSettings) -> tuple[FloatArray, FloatArray]:
    """The usage term, zero-sum in every stratum, and the ranks that it comes from."""
    term_G, rank_G = np.zeros_like(diff_G), np.zeros_like(diff_G)
    label_G = strata(group.reward_G, settings)
    for label in np.unique(label_G):
        member_G = label_G == label
        success = bool(group.reward_G[member_G][0] >= settings.success_reward)
        rank_G[member_G] = _ranks(group, member_G, success, settings)
        # Between nearest edges, not means: in a bin, the members' own differences already use up some of the gap.
        gap = np.abs(diff_G[member_G][:, None] - diff_G[~member_G][None, :]).min(initial=np.inf)
        # One stratum only (possible when bins hold different rewards): there is no other to stay away from.
        room = gap / 2 if np.isfinite(gap) else 0.0
        of_failures = min(abs(float(diff_G[member_G].mean())), room)
        strength = settings.alpha * room if success else -settings.alpha_f * of_failures
        term_G[member_G] = strength * (1 - 2 * rank_G[member_G])
    return term_G, rank_G
