"""What each estimator of a session's contribution would say in the simulation, as an array (S, N, K).

`information_gain` is a proxy of scoring by a policy: the success probability, distorted and noisy in logits. `group`
runs the estimator of the package itself, on evidence keys: a needed fact, or the page of a topic without one.
"""

from collections.abc import Callable

import numpy as np

from benchmarks.credit.environment import (
    ATTEMPTS,
    Draws,
    Episodes,
    Floats,
    Setting,
    leave_one_out,
    nothing_found,
    sigmoid,
    success,
    without_each,
)
from mosaic.credit import GroupStatistics, SessionEvidence

SLOPE, NOISE = 0.7, 0.3
"""A policy's own confidence: less steep than the truth, and noisy, in logits."""

VARIANCE = 0.03
"""Squared error of these scores' differences, measured on the tuning seeds."""

Estimator = Callable[[Episodes, Draws], Floats]


def _scored(p: Floats, draws: Draws) -> Floats:
    """One noise per element, each seed's from its own generator; seeds stand on the first axis."""
    logit = np.log(p / (1 - p))
    return sigmoid(SLOPE * logit + NOISE * draws.normal(*p.shape[1:]))


def information_gain(episodes: Episodes, draws: Draws) -> Floats:
    """Chain: difference of successive scores. Fork: leave-one-out at the join."""
    if episodes.setting is Setting.CHAIN:
        start_SN = _scored(nothing_found(episodes), draws)
        value_SNK = _scored(success(episodes, episodes.used_SNK), draws)
        before = np.concatenate([start_SN[..., None], value_SNK[..., :-1]], -1)
        gain_SNK: Floats = value_SNK - before
        return gain_SNK
    whole_SN = _scored(success(episodes, episodes.used_SNK)[..., -1], draws)
    rest_KSN = success(episodes, without_each(episodes))[..., -1]
    return whole_SN[..., None] - np.stack([_scored(rest_SN, draws) for rest_SN in rest_KSN], 2)


def group(episodes: Episodes, draws: Draws) -> Floats:  # noqa: ARG001 - estimators share one form
    """Group statistics over what was found."""
    return _group(episodes)[0]


def blended(episodes: Episodes, draws: Draws) -> Floats:
    """Both of them, weighed by precision."""
    by_score = information_gain(episodes, draws)
    by_group, variance = _group(episodes)
    weight = VARIANCE / (VARIANCE + variance)
    return np.where(weight > 0, (1 - weight) * by_score + weight * by_group, by_score)


def _group(episodes: Episodes) -> tuple[Floats, Floats]:
    """Values and variances."""
    seeds, count = episodes.reward_SN.shape
    values_SNK, variance_SNK = np.zeros(episodes.used_SNK.shape), np.full(episodes.used_SNK.shape, np.inf)
    estimator = GroupStatistics()
    for s in range(seeds):
        for first in range(0, count, ATTEMPTS):
            members = range(first, first + ATTEMPTS)
            evidence = [_evidence(episodes, s, n) for n in members]
            rewards = episodes.reward_SN[s, first : first + ATTEMPTS].tolist()
            lift, noise = estimator.lifts(evidence, rewards), estimator.noise(rewards)
            for n, found in zip(members, evidence, strict=True):
                for k, of_session in found.items():
                    values_SNK[s, n, int(k)] = sum(lift[key] for key in of_session.new)
                    variance_SNK[s, n, int(k)] = noise
    return values_SNK, variance_SNK


def _evidence(episodes: Episodes, s: int, n: int) -> dict[str, SessionEvidence]:
    seen: set[str] = set()
    found = {}
    topics, hits = episodes.topic_SNK[s, n].tolist(), episodes.found_SNK[s, n].tolist()
    for k in np.flatnonzero(episodes.used_SNK[s, n]).tolist():
        key = f"fact {topics[k]}" if hits[k] else f"page {topics[k]}"
        found[str(k)] = SessionEvidence(frozenset({key}), frozenset({key} - seen))
        seen.add(key)
    return found


def replay(episodes: Episodes, draws: Draws) -> Floats:  # noqa: ARG001
    """The truth itself, as replays without end would give it."""
    return leave_one_out(episodes)
