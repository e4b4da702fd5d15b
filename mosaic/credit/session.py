"""The session level: how the parts of a trajectory's advantage are shared out among its sessions.

That each session's advantage follows its marginal contribution, and that a gate takes exploration instead when every
session of a failed trajectory failed to help, keeping the direction, is the source's (arXiv 2610.22174). The formulas
and numbers are this project's own (mosaic.md, sections 4.3 and 4.4). Outcome and usage are shared out apart: a slow
success praises the sessions that brought it about and blames those that made it slow. A factor is never negative, so no
session is pushed against either part; and, before renormalisation, at most 1, so a useless extra session of a success
cannot raise the others. (Graded rewards allow a success below the mean: there, its only session, if useful, is pushed
down a little less once it is not the only one.)
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mosaic.credit.comparison import Comparison, FloatArray
from mosaic.credit.model import Gate, SessionInput, TrajectoryInput
from mosaic.credit.settings import CreditSettings, Granularity, LossMean, Renorm


@dataclass(frozen=True, slots=True)
class SessionLevel:
    """How the sessions of one trajectory share one part of its advantage."""

    gate: Gate
    factor_K: FloatArray
    calls: Mapping[str, float] = field(default_factory=dict)
    """Factor of a call relative to its session's, by call id, where it differs."""


def gate(trajectory: TrajectoryInput, settings: CreditSettings) -> Gate:
    """Return what shapes the sessions: exploration if the trajectory failed and no known contribution exceeds tau.

    When no contribution is known, nothing is known to have failed, and the gate stays with contribution.
    """
    known_K = _known(session.contribution for session in trajectory.sessions)
    known_K = known_K[~np.isnan(known_K)]
    failed = trajectory.reward is not None and trajectory.reward < settings.success_reward
    helpless = len(known_K) > 0 and float(known_K.max()) <= settings.tau
    return Gate.EXPLORATION if failed and helpless else Gate.CONTRIBUTION


def session_levels(group: Comparison, part_G: FloatArray, settings: CreditSettings) -> list[SessionLevel]:
    """Return, per trajectory of the group, the gate and its sessions' factors on one part of the advantage, in [0, 1].

    A session whose value is unknown, and the only session of a trajectory, have factor 1.
    """
    sessions = [session for trajectory in group.trajectories for session in trajectory.sessions]
    scale = {
        Gate.CONTRIBUTION: _full_value(_known(session.contribution for session in sessions), settings),
        Gate.EXPLORATION: _full_value(_known(session.exploration for session in sessions), settings),
    }
    gains = [gain for session in sessions for call in session.calls for gain in call.gains]
    call_scale = _full_value(_known(gains), settings)
    strength = {Gate.CONTRIBUTION: settings.gamma, Gate.EXPLORATION: settings.gamma_f}
    levels = []
    for trajectory, part in zip(group.trajectories, part_G, strict=True):
        chosen = gate(trajectory, settings)
        value_K = _known(s.contribution if chosen is Gate.CONTRIBUTION else s.exploration for s in trajectory.sessions)
        share_K = np.clip(value_K, 0, scale[chosen]) / scale[chosen]
        lost_K = strength[chosen] * (1 - share_K if part > 0 else share_K)
        alone = len(trajectory.sessions) == 1
        factor_K = np.where(np.isnan(value_K) | alone, 1.0, 1 - lost_K)
        calls = call_factors(trajectory, part, call_scale, settings) if chosen is Gate.CONTRIBUTION else {}
        levels.append(SessionLevel(chosen, factor_K, calls))
    return levels


def call_factors(trajectory: TrajectoryInput, part: float, scale: float, settings: CreditSettings) -> dict[str, float]:
    """Return, per call with a known gain, its factor relative to its session's, in [0, 1].

    As for sessions: a call without gain loses `gamma_call` of a positive part, one with full gain is spared that
    much of a negative one. A call with several numbers (one per tool result) has the mean of their factors.
    """
    if settings.granularity is Granularity.SESSION:
        return {}
    factors = {}
    for call in (call for session in trajectory.sessions for call in session.calls if call.gains):
        share = np.clip(np.array(call.gains), 0, scale) / scale
        lost = settings.gamma_call * (1 - share if part > 0 else share)
        factors[call.call_id] = float(1 - lost.mean())
    return factors


def mean_factor(trajectory: TrajectoryInput, level: SessionLevel, settings: CreditSettings) -> float:
    """Return the mean factor under the weights of the loss: by trained tokens, or equal for each session that has any.

    The calls of decision spans (handoff, spawn, answer) are counted as if they carried their session's advantage.
    """
    token_K = np.array([session.tokens for session in trajectory.sessions], dtype=np.float64)
    weight_K = token_K if settings.loss_mean is LossMean.TRAJECTORY else (token_K > 0).astype(np.float64)
    inner_K = np.array([_mean_of_calls(session, level.calls) for session in trajectory.sessions])
    return float((weight_K * level.factor_K * inner_K).sum() / weight_K.sum())


def _mean_of_calls(session: SessionInput, factors: Mapping[str, float]) -> float:
    tokens = sum(call.tokens for call in session.calls)
    if not tokens or not factors:
        return 1.0
    return sum(call.tokens * factors.get(call.call_id, 1.0) for call in session.calls) / tokens


def renormalisation(
    part: Sequence[FloatArray], mean: Sequence[FloatArray], settings: CreditSettings
) -> list[FloatArray]:
    """Return, per group, what to multiply the factors of each trajectory with, shape (G,).

    `part` and `mean` hold one part of the advantages and the mean factors of the trajectories of each group. The result
    makes the positive and the negative mass of that part what it would be without shaping, over the batch (default) or
    the group. Own design: over a group with a single success, it would pay that success for padding (mosaic.md, section
    4.4).
    """
    if settings.renorm is Renorm.OFF:
        return [np.ones_like(part_G) for part_G in part]
    if settings.renorm is Renorm.GROUP:
        return [_conserving(part_G, mean_G) for part_G, mean_G in zip(part, mean, strict=True)]
    empty = np.empty(0)
    scale_N = _conserving(np.concatenate([empty, *part]), np.concatenate([empty, *mean]))
    ends = np.cumsum([len(part_G) for part_G in part], dtype=np.int64)
    return np.split(scale_N, ends)[: len(part)]


def _conserving(part_N: FloatArray, mean_N: FloatArray) -> FloatArray:
    scale_N = np.ones_like(part_N)
    for side_N in (part_N > 0, part_N < 0):
        shaped = float((part_N * mean_N)[side_N].sum())
        if shaped != 0:  # A full gamma without any contribution leaves no mass to rescale.
            scale_N[side_N] = float(part_N[side_N].sum()) / shaped
    return scale_N


def _known(values: Iterable[float | None]) -> FloatArray:
    """The values as an array in which everything unknown or not finite is NaN."""
    value_K: NDArray[np.float64] = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    return np.where(np.isfinite(value_K), value_K, np.nan)


def _full_value(value_K: FloatArray, settings: CreditSettings) -> float:
    """What counts as full contribution: a high quantile of the positive values, so that one outlier sets no scale."""
    positive_K = value_K[value_K > 0]
    return max(settings.s_min, float(np.quantile(positive_K, settings.scale_quantile)) if len(positive_K) else 0.0)
