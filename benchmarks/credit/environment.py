"""The tabular environment of the credit simulation: sessions that look for facts, with exact contributions.

A task needs one to three of eight topics (the number is visible); each topic shows a cue. A session picks a topic and a
strategy, and may find a needed fact. `chain`: after each session the policy stops or compacts, and each held fact
survives a compaction with .99. `fork`: the root chooses how many subagents look, and their reports are merged. The
success probability follows from the facts that are missing at the end and from the sessions that brought nothing.

Array suffixes: `_S` seeds, `_N` trajectories of a step (tasks x attempts), `_K` sessions, `_F` topics, `_P` parameters.
A policy is a row of `theta_SP`; seeds share nothing, they only run side by side. There is no language model in it.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

TOPICS = 8
MAX_SESSIONS = 8
"""Sessions that look for facts; a fork's root comes on top."""
TASKS, ATTEMPTS = 8, 8
CUE_NEEDED, CUE_OTHER = 0.85, 0.20
FIND = np.array([0.9, 0.35])
"""Probability to find a needed fact, per strategy."""
SUCCESS = np.array([0.97, 0.35, 0.10, 0.02])
"""Probability of success by the number of missing facts."""
WASTE = 0.97
"""Factor on it per session that brought nothing new."""
SURVIVAL = 0.99
"""Probability that a held fact survives a compaction."""

W_CUE, W_VISITED, STRATEGY, STOP, COUNT = 0, 1, 2, slice(3, 7), slice(7, 7 + 3 * MAX_SESSIONS)
PARAMETERS = COUNT.stop
"""Parameters of the policy: topic weights, strategy logit, stop logits by missing facts, fork sizes by need."""


class Setting(StrEnum):
    """How sessions come about."""

    CHAIN = "chain"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class Episodes:
    """What happened in one step of every seed."""

    setting: Setting
    need_SNF: Bools
    topic_SNK: Ints
    strategy_SNK: Ints
    found_SNK: Bools
    """The session found the needed fact of its topic (whether or not it was known already)."""
    used_SNK: Bools
    """The session took place."""
    survives_SNKF: Bools
    """What of each fact a compaction after session k keeps; all of it in a fork."""
    features_SNKF2: Floats
    """Cue and visited, per topic, when session k chose."""
    topic_probs_SNKF: Floats
    missing_SNK: Ints
    """Facts missing when session k had ended."""
    reward_SN: Floats

    @property
    def sessions_SN(self) -> Ints:
        """Sessions of each trajectory, a fork's root included."""
        counts: Ints = self.used_SNK.sum(-1) + (self.setting is Setting.FORK)
        return counts


def sigmoid(x: Floats) -> Floats:
    """The logistic function."""
    value: Floats = 1 / (1 + np.exp(-x))
    return value


def softmax(x: Floats) -> Floats:
    """Over the last axis."""
    raised = np.exp(x - x.max(-1, keepdims=True))
    value: Floats = raised / raised.sum(-1, keepdims=True)
    return value


class Draws:
    """Uniform numbers for all seeds at once, each seed from a generator of its own."""

    def __init__(self, seeds: list[int]) -> None:
        self._rngs = [np.random.default_rng(seed) for seed in seeds]

    def uniform(self, *shape: int) -> Floats:
        """Shape (S, *shape)."""
        return np.stack([rng.random(shape) for rng in self._rngs])

    def normal(self, *shape: int) -> Floats:
        """Standard normal, shape (S, *shape)."""
        return np.stack([rng.standard_normal(shape) for rng in self._rngs])


def _choose(probs: Floats, u: Floats) -> Ints:
    """One index per row of the last axis."""
    chosen: Ints = (probs.cumsum(-1) < u[..., None]).sum(-1).clip(max=probs.shape[-1] - 1)
    return chosen


def _tasks(draws: Draws, tasks: int) -> tuple[Bools, Bools]:
    """Needs and cues, the same for all attempts at a task."""
    order = draws.uniform(tasks, TOPICS).argsort(-1).argsort(-1)
    amount = 1 + (3 * draws.uniform(tasks)).astype(np.int64)
    need = order < amount[..., None]
    cue = draws.uniform(tasks, TOPICS) < np.where(need, CUE_NEEDED, CUE_OTHER)
    return need.repeat(ATTEMPTS, 1), cue.repeat(ATTEMPTS, 1)


def play(setting: Setting, theta_SP: Floats, draws: Draws, tasks: int = TASKS) -> Episodes:
    """One step: `ATTEMPTS` attempts at each of `tasks` tasks, per seed."""
    need_SNF, cue_SNF = _tasks(draws, tasks)
    shape = need_SNF.shape[1]
    uniform = draws.uniform(5, MAX_SESSIONS, shape)
    survives_SNKF = draws.uniform(shape, MAX_SESSIONS, TOPICS) < (SURVIVAL if setting is Setting.CHAIN else 2)
    active_SN = np.ones(need_SNF.shape[:2], dtype=np.bool_)
    planned_SN = _planned(theta_SP, need_SNF, uniform[:, 4, 0])
    held_SNF, visited_SNF = np.zeros_like(need_SNF), np.zeros_like(need_SNF)
    rows: list[tuple[NDArray[np.generic], ...]] = []
    for k in range(MAX_SESSIONS):
        if setting is Setting.FORK:
            active_SN = k < planned_SN
        features = np.stack([cue_SNF, visited_SNF], -1).astype(np.float64)
        probs = softmax((features * theta_SP[:, None, None, :2]).sum(-1))
        topic = _choose(probs, uniform[:, 0, k])
        strategy = (uniform[:, 1, k] >= sigmoid(theta_SP[:, None, STRATEGY])).astype(np.int64)
        hit_SNF = np.eye(TOPICS, dtype=np.bool_)[topic] & active_SN[..., None]
        found = (hit_SNF & need_SNF).any(-1) & (uniform[:, 2, k] < FIND[strategy])
        held_SNF = held_SNF | (hit_SNF & found[..., None])
        visited_SNF = visited_SNF | hit_SNF
        missing = (need_SNF & ~held_SNF).sum(-1)
        rows.append((topic, strategy, found, active_SN, features, probs, missing))
        stop = uniform[:, 3, k] < sigmoid(np.take_along_axis(theta_SP[:, STOP], missing, 1))
        active_SN = active_SN & ~stop
        held_SNF = held_SNF & survives_SNKF[:, :, k]
    topic_, strategy_, found_, used_, features_, probs_, missing_ = (np.stack(c, 2) for c in zip(*rows, strict=True))
    episodes = Episodes(
        setting,
        need_SNF,
        topic_,
        strategy_,
        found_,
        used_,
        survives_SNKF,
        features_,
        probs_,
        missing_,
        missing_[..., 0],
    )
    p_SN = success(episodes, used_)[..., -1]
    reward_SN = (draws.uniform(shape) < p_SN).astype(np.float64)
    return replace(episodes, reward_SN=reward_SN)


def _planned(theta_SP: Floats, need_SNF: Bools, u_SN: Floats) -> Ints:
    """Subagents that a fork's root starts."""
    table = softmax(theta_SP[:, COUNT].reshape(len(theta_SP), 3, MAX_SESSIONS))
    return 1 + _choose(np.stack([table[s][need_SNF[s].sum(-1) - 1] for s in range(len(table))]), u_SN)


def success(episodes: Episodes, mask_SNK: Bools) -> Floats:
    """Success probability after session k when only the sessions of the mask take place, shape (S, N, K).

    After a compaction, if one follows; sessions that did not take place change nothing.
    """
    need_SNF = episodes.need_SNF
    held_SNF = np.zeros_like(need_SNF)
    useless_SN = np.zeros(need_SNF.shape[:2])
    after = []
    for k in range(MAX_SESSIONS):
        mask_SN = mask_SNK[:, :, k]
        hit = (
            np.eye(TOPICS, dtype=np.bool_)[episodes.topic_SNK[:, :, k]]
            & (episodes.found_SNK[:, :, k] & mask_SN)[..., None]
        )
        useless_SN = useless_SN + (mask_SN & ~(hit & ~held_SNF).any(-1))
        held_SNF = held_SNF | hit
        if k + 1 < MAX_SESSIONS:
            compacts = episodes.used_SNK[:, :, k + 1]
            held_SNF = held_SNF & (episodes.survives_SNKF[:, :, k] | ~compacts[..., None])
        after.append(SUCCESS[(need_SNF & ~held_SNF).sum(-1)] * WASTE**useless_SN)
    return np.stack(after, 2)


def nothing_found(episodes: Episodes) -> Floats:
    """Success probability without any session, shape (S, N)."""
    value: Floats = SUCCESS[episodes.need_SNF.sum(-1)]
    return value


def leave_one_out(episodes: Episodes) -> Floats:
    """The truth: success probability with all sessions minus that without session k, shape (S, N, K)."""
    whole_SN = success(episodes, episodes.used_SNK)[..., -1]
    without = []
    for k in range(MAX_SESSIONS):
        mask_SNK = episodes.used_SNK.copy()
        mask_SNK[:, :, k] = False
        without.append(success(episodes, mask_SNK)[..., -1])
    return whole_SN[..., None] - np.stack(without, 2)
