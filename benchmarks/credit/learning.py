"""Learning in the simulation: episodes, contributions, the package's own `assign`, one gradient step per batch.

Decisions take the advantages that their tokens would: topic and strategy the session's, stopping and the fork's size
the answer's, compacting and spawning their span's. The loss is the trainer's default, the mean over each trajectory's
decisions and then over trajectories.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.credit.environment import (
    ATTEMPTS,
    COUNT,
    MAX_SESSIONS,
    PARAMETERS,
    SIZE,
    STOP,
    STRATEGY,
    Draws,
    Episodes,
    Floats,
    Setting,
    leave_one_out,
    play,
    sigmoid,
    softmax,
    success,
)
from benchmarks.credit.methods import Method
from mosaic.credit import CreditSettings, GroupInput, SessionInput, TrajectoryInput, assign
from mosaic.records import SessionKind

STEPS = 200
RATE = 4.0
"""Step size of plain gradient ascent."""


@dataclass(frozen=True, slots=True)
class Curves:
    """Per seed and step: means over the trajectories of the step."""

    success_ST: Floats
    """Success probability, not the drawn outcome."""
    sessions_ST: Floats
    utility_ST: Floats
    """Mean true contribution per session that looked for facts."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """What each decision gets."""

    session_SNK: Floats
    decision_SNK: Floats
    """Stopping or compacting after session k."""
    root_SN: Floats
    """The size of a fork."""


def learn(setting: Setting, method: Method, seeds: Sequence[int], steps: int = STEPS) -> tuple[Curves, Floats]:
    """Train from a uniform policy; the curves, and the final parameters (S, P)."""
    theta_SP = np.zeros((len(seeds), PARAMETERS))
    draws, noise = Draws(list(seeds)), Draws([seed + 1_000_000 for seed in seeds])
    rows = []
    for _ in range(steps):
        episodes = play(setting, theta_SP, draws)
        given = method.estimator(episodes, noise) if method.estimator else None
        theta_SP = theta_SP + RATE * gradient(theta_SP, episodes, advantages(episodes, given, method.rule))
        rows.append(_measured(episodes))
    return Curves(*(np.stack(column, 1) for column in zip(*rows, strict=True))), theta_SP


def _measured(episodes: Episodes) -> tuple[Floats, Floats, Floats]:
    utility = (leave_one_out(episodes) * episodes.used_SNK).sum((1, 2)) / episodes.used_SNK.sum((1, 2))
    probability_SN = success(episodes, episodes.used_SNK)[..., -1]
    return probability_SN.mean(1), episodes.sessions_SN.mean(1), utility


def advantages(episodes: Episodes, given_SNK: Floats | None, rule: CreditSettings) -> Advantages:
    """What the package makes of the episodes; a batch is one seed's step."""
    shape = episodes.used_SNK.shape
    session, decision, root = np.zeros(shape), np.zeros(shape), np.zeros(shape[:2])
    for s in range(shape[0]):
        credits = assign(groups(episodes, given_SNK, s), rule)
        for n, trajectory in enumerate(t for credit in credits for t in credit.trajectories):
            spans = {span.call_id: span.advantage for span in trajectory.spans}
            for row in trajectory.sessions:
                if row.session_id == "root":
                    root[s, n] = spans.get("root", row.advantage)
                else:
                    k = int(row.session_id)
                    session[s, n, k] = row.advantage
                    decision[s, n, k] = spans.get(row.session_id, row.advantage)
    return Advantages(session, decision, root)


def groups(episodes: Episodes, given_SNK: Floats | None, s: int) -> list[GroupInput]:
    """The groups of one seed's step; a session's last decision is the call of its name."""
    amount = episodes.used_SNK.shape[1]
    rows = [_trajectory(episodes, None if given_SNK is None else given_SNK[s, n], s, n) for n in range(amount)]
    starts = range(0, amount, ATTEMPTS)
    return [GroupInput(task_key=str(i), trajectories=tuple(rows[i : i + ATTEMPTS])) for i in starts]


def _trajectory(episodes: Episodes, value_K: Floats | None, s: int, n: int) -> TrajectoryInput:
    fork = episodes.setting is Setting.FORK
    sessions = [SessionInput(session_id="root", tokens=1, last_call_id="root", exploration=1.0)] if fork else []
    seen: set[tuple[int, bool]] = set()
    topics, found = episodes.topic_SNK[s, n].tolist(), episodes.found_SNK[s, n].tolist()
    for k in range(int(episodes.used_SNK[s, n].sum())):
        key = (topics[k], found[k])
        parent = "root" if fork else str(k - 1) if k else None
        sessions.append(
            SessionInput(
                session_id=str(k),
                kind=SessionKind.SPAWN if fork else SessionKind.COMPACTION if k else SessionKind.ROOT,
                parent_session_id=parent,
                opened_by_call_id=parent,
                last_call_id=str(k),
                tokens=2 if fork else 3,
                contribution=None if value_K is None else float(value_K[k]),
                exploration=float(key not in seen),
            )
        )
        seen.add(key)
    return TrajectoryInput(trajectory_id=str(n), reward=float(episodes.reward_SN[s, n]), sessions=tuple(sessions))


def gradient(theta_SP: Floats, episodes: Episodes, given: Advantages) -> Floats:
    """Ascent direction of the policy-gradient objective, shape (S, P)."""
    used = episodes.used_SNK
    decides = _decides(episodes)
    amount = 2 * used.sum(-1) + decides.sum(-1) + (episodes.setting is Setting.FORK)
    weight_SN = 1 / (amount * amount.shape[1])
    ascent = np.zeros_like(theta_SP)
    session = given.session_SNK * used * weight_SN[..., None]
    ascent[:, :2] = (session[..., None] * episodes.score_SNK2).sum((1, 2))
    first = sigmoid(theta_SP[:, STRATEGY])[:, None, None]
    ascent[:, STRATEGY] = (session * ((episodes.strategy_SNK == 0) - first)).sum((1, 2))
    if episodes.setting is Setting.CHAIN:
        ascent[:, STOP] = _stop_gradient(theta_SP, episodes, given.decision_SNK * decides * weight_SN[..., None])
    else:
        ascent[:, COUNT] = _count_gradient(theta_SP, episodes, given.root_SN * weight_SN)
    return ascent


def _decides(episodes: Episodes) -> np.ndarray:
    """Where the policy chose between stopping and compacting; it has no choice after the last session."""
    chain = episodes.setting is Setting.CHAIN
    decides: np.ndarray = episodes.used_SNK & (np.arange(MAX_SESSIONS) < MAX_SESSIONS - 1) & chain
    return decides


def _stop_gradient(theta_SP: Floats, episodes: Episodes, value_SNK: Floats) -> Floats:
    stopped = np.zeros_like(episodes.used_SNK)
    stopped[:, :, :-1] = ~episodes.used_SNK[:, :, 1:]
    stop_S4 = sigmoid(theta_SP[:, STOP])
    columns = []
    for missing in range(4):
        here = episodes.missing_SNK == missing
        columns.append((value_SNK * here * (stopped - stop_S4[:, missing, None, None])).sum((1, 2)))
    return np.stack(columns, 1)


def _count_gradient(theta_SP: Floats, episodes: Episodes, value_SN: Floats) -> Floats:
    table = softmax(theta_SP[:, COUNT].reshape(len(theta_SP), 3, MAX_SESSIONS))
    need_SN = SIZE[episodes.need_SN] - 1
    chosen = np.eye(MAX_SESSIONS)[episodes.used_SNK.sum(-1) - 1]
    ascent = np.zeros_like(table)
    for need in range(3):
        here = value_SN * (need_SN == need)
        ascent[:, need] = (here[..., None] * (chosen - table[:, None, need])).sum(1)
    flat: Floats = ascent.reshape(len(theta_SP), -1)
    return flat
