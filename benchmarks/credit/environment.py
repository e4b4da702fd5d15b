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
Bits = NDArray[np.uint8]

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

BIT = (1 << np.arange(TOPICS)).astype(np.uint8)
SIZE = np.array([bits.bit_count() for bits in range(2**TOPICS)])
"""Topics in a set."""
WASTED = WASTE ** np.arange(MAX_SESSIONS + 1)

W_CUE, W_VISITED, STRATEGY, STOP, COUNT = 0, 1, 2, slice(3, 7), slice(7, 7 + 3 * MAX_SESSIONS)
PARAMETERS = COUNT.stop
"""Parameters of the policy: topic weights, strategy logit, stop logits by missing facts, fork sizes by need."""


class Setting(StrEnum):
    """How sessions come about."""

    CHAIN = "chain"
    FORK = "fork"


@dataclass(frozen=True, slots=True)
class Episodes:
    """What happened in one step of every seed. Sets of topics are bits of a byte."""

    setting: Setting
    need_SN: Bits
    """Topics that the task needs."""
    topic_SNK: Ints
    strategy_SNK: Ints
    found_SNK: Bools
    """The session found the needed fact of its topic (whether or not it was known already)."""
    used_SNK: Bools
    """The session took place."""
    kept_SNK: Bits
    """Topics whose facts a compaction after session k keeps; all of them in a fork."""
    score_SNK2: Floats
    """Gradient of the log-probability of the chosen topic with respect to the weights of cue and visited."""
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


def _bits(flags: Bools) -> Bits:
    packed: Bits = np.packbits(flags, axis=-1, bitorder="little")[..., 0]
    return packed


def _tasks(draws: Draws, tasks: int) -> tuple[Bits, Floats]:
    """Needs, and cues (S, N, F); the same for all attempts at a task."""
    order = draws.uniform(tasks, TOPICS).argsort(-1).argsort(-1)
    amount = 1 + (3 * draws.uniform(tasks)).astype(np.int64)
    need = order < amount[..., None]
    cue = draws.uniform(tasks, TOPICS) < np.where(need, CUE_NEEDED, CUE_OTHER)
    return _bits(need).repeat(ATTEMPTS, 1), cue.repeat(ATTEMPTS, 1).astype(np.float64)


def play(setting: Setting, theta_SP: Floats, draws: Draws, tasks: int = TASKS) -> Episodes:
    """One step: `ATTEMPTS` attempts at each of `tasks` tasks, per seed."""
    need_SN, cue_SNF = _tasks(draws, tasks)
    shape = need_SN.shape[1]
    uniform = draws.uniform(5, MAX_SESSIONS, shape)
    kept_SNK = _bits(draws.uniform(shape, MAX_SESSIONS, TOPICS) < (SURVIVAL if setting is Setting.CHAIN else 2))
    active_SN = np.ones(need_SN.shape, dtype=np.bool_)
    planned_SN = _planned(theta_SP, need_SN, uniform[:, 4, 0])
    held_SN, visited_SNF = np.zeros_like(need_SN), np.zeros_like(cue_SNF)
    rows: list[tuple[NDArray[np.generic], ...]] = []
    for k in range(MAX_SESSIONS):
        if setting is Setting.FORK:
            active_SN = k < planned_SN
        topic, score = _topic(theta_SP, cue_SNF, visited_SNF, uniform[:, 0, k])
        strategy = (uniform[:, 1, k] >= sigmoid(theta_SP[:, None, STRATEGY])).astype(np.int64)
        needed = (need_SN & BIT[topic]) != 0
        found = needed & active_SN & (uniform[:, 2, k] < FIND[strategy])
        held_SN = held_SN | np.where(found, BIT[topic], 0).astype(np.uint8)
        np.put_along_axis(visited_SNF, topic[..., None], 1.0, -1)
        missing = SIZE[need_SN & ~held_SN]
        rows.append((topic, strategy, found, active_SN, score, missing))
        stop = uniform[:, 3, k] < sigmoid(np.take_along_axis(theta_SP[:, STOP], missing, 1))
        active_SN = active_SN & ~stop
        held_SN = held_SN & kept_SNK[..., k]
    topic_, strategy_, found_, used_, score_, missing_ = (np.stack(column, 2) for column in zip(*rows, strict=True))
    episodes = Episodes(
        setting, need_SN, topic_, strategy_, found_, used_, kept_SNK, score_, missing_, np.zeros(need_SN.shape)
    )
    p_SN = success(episodes, used_)[..., -1]
    return replace(episodes, reward_SN=(draws.uniform(shape) < p_SN).astype(np.float64))


def _topic(theta_SP: Floats, cue_SNF: Floats, visited_SNF: Floats, u_SN: Floats) -> tuple[Ints, Floats]:
    """The chosen topic, and the gradient of its log-probability."""
    probs = softmax(cue_SNF * theta_SP[:, W_CUE, None, None] + visited_SNF * theta_SP[:, W_VISITED, None, None])
    topic = _choose(probs, u_SN)
    scores = [
        np.take_along_axis(feature, topic[..., None], -1)[..., 0] - (feature * probs).sum(-1)
        for feature in (cue_SNF, visited_SNF)
    ]
    return topic, np.stack(scores, -1)


def _planned(theta_SP: Floats, need_SN: Bits, u_SN: Floats) -> Ints:
    """Subagents that a fork's root starts."""
    table = softmax(theta_SP[:, COUNT].reshape(len(theta_SP), 3, MAX_SESSIONS))
    return 1 + _choose(np.stack([table[s][SIZE[need_SN[s]] - 1] for s in range(len(table))]), u_SN)


def success(episodes: Episodes, mask_SNK: Bools) -> Floats:
    """Success probability after session k when only the sessions of the mask take place; shape of the mask.

    The mask may have axes before (S, N, K). After a compaction, if one follows; sessions that did not take place change
    nothing.
    """
    brought_SNK = np.where(episodes.found_SNK, BIT[episodes.topic_SNK], 0).astype(np.uint8)
    kept_SNK = episodes.kept_SNK.copy()
    kept_SNK[..., :-1][~episodes.used_SNK[..., 1:]] = 255
    held = np.zeros(mask_SNK.shape[:-1], dtype=np.uint8)
    useless = np.zeros(mask_SNK.shape[:-1], dtype=np.int64)
    after = np.empty(mask_SNK.shape)
    for k in range(MAX_SESSIONS):
        mask = mask_SNK[..., k]
        hit = np.where(mask, brought_SNK[..., k], 0).astype(np.uint8)
        useless += mask & ((hit & ~held) == 0)
        held |= hit
        if k + 1 < MAX_SESSIONS:
            held &= kept_SNK[..., k]
        after[..., k] = SUCCESS[SIZE[episodes.need_SN & ~held]] * WASTED[useless]
    return after


def nothing_found(episodes: Episodes) -> Floats:
    """Success probability without any session, shape (S, N)."""
    value: Floats = SUCCESS[SIZE[episodes.need_SN]]
    return value


def without_each(episodes: Episodes) -> Bools:
    """The sessions that took place but for each one in turn, shape (K, S, N, K)."""
    return episodes.used_SNK & ~np.eye(MAX_SESSIONS, dtype=np.bool_)[:, None, None]


def leave_one_out(episodes: Episodes) -> Floats:
    """The truth: success probability with all sessions minus that without session k, shape (S, N, K)."""
    whole_SN = success(episodes, episodes.used_SNK)[..., -1]
    return whole_SN[..., None] - np.moveaxis(success(episodes, without_each(episodes))[..., -1], 0, -1)
