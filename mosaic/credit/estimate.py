"""Estimates of a session's contribution: the form they share, their blend, and how far they agree with the truth.

A contribution is the change in the probability of success that a session made (the source's definition, arXiv
2610.22174). Weighing several estimates by their precision, and fitting an estimator to replays, is this project's own
(mosaic.md, section 4.2). Zero means "nothing", so a fit scales and never shifts.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mosaic.credit.comparison import FloatArray
from mosaic.records import Group


@dataclass(frozen=True, slots=True)
class Estimate:
    """One number for one session."""

    value: float
    """Change in the expected reward that the session made."""
    variance: float
    """Expected squared error of `value`; infinite when it says nothing, >= 0."""
    source: str
    """The estimator; several are joined by `+`."""


class ContributionEstimator(Protocol):
    """What every estimator offers."""

    def contributions(self, group: Group) -> Mapping[str, Estimate]:
        """Return the contribution of each session by its id; a session that is left out is unknown.

        Every trajectory of `group` has a finite reward and may be compared with the others.
        """


@dataclass(frozen=True, slots=True)
class Known:
    """Contributions that were estimated before (scored by an engine, or replayed), looked up by session id."""

    estimates: Mapping[str, Estimate]

    def contributions(self, group: Group) -> dict[str, Estimate]:
        """Return those of the group's sessions."""
        sessions = (session.session_id for t in group.trajectories for session in t.sessions)
        return {sid: self.estimates[sid] for sid in sessions if sid in self.estimates}


@dataclass(frozen=True, slots=True)
class Blend:
    """Several estimators, weighed per session by the precision (1/variance) of what each of them says."""

    estimators: tuple[ContributionEstimator, ...]

    def contributions(self, group: Group) -> dict[str, Estimate]:
        """Return one estimate for every session that at least one estimator knows."""
        found: dict[str, list[Estimate]] = {}
        for estimator in self.estimators:
            for session_id, estimate in estimator.contributions(group).items():
                found.setdefault(session_id, []).append(estimate)
        return {session_id: blend(estimates) for session_id, estimates in found.items()}


def blend(estimates: Sequence[Estimate]) -> Estimate:
    """Return the precision-weighted mean of at least one estimate.

    One without any error stands for itself; those that say nothing count only when there is no other.
    """
    certain = [e for e in estimates if e.variance == 0]
    telling = certain or [e for e in estimates if math.isfinite(e.variance) and math.isfinite(e.value)]
    if not telling:
        return estimates[0]
    weights = [1.0 if certain else 1 / e.variance for e in telling]
    total = math.fsum(weights)
    value = math.fsum(w * e.value for w, e in zip(weights, telling, strict=True)) / total
    return Estimate(value, 0.0 if certain else 1 / total, "+".join(dict.fromkeys(e.source for e in telling)))


@dataclass(frozen=True, slots=True)
class Calibration:
    """How an estimator compares with replayed contributions; `apply` corrects it."""

    slope: float
    """Truth per unit of the estimate, >= 0: the least-squares line through zero."""
    variance: float
    """Mean squared error of the corrected estimate."""
    spearman: float
    """Rank correlation over all compared sessions; 0 when undefined."""
    sessions: int
    """Sessions compared."""

    def apply(self, estimates: Mapping[str, Estimate]) -> dict[str, Estimate]:
        """Return the estimates in units of the truth, with the error that was seen."""
        return {
            session_id: Estimate(self.slope * e.value, self.variance, e.source) for session_id, e in estimates.items()
        }


def calibrate(estimates: Mapping[str, Estimate], truth: Mapping[str, Estimate]) -> Calibration | None:
    """Fit an estimator to the truth over the sessions that both know; None with fewer than three of them."""
    shared = [sid for sid in estimates if sid in truth and math.isfinite(estimates[sid].value)]
    if len(shared) < 3:
        return None
    guess_K = np.array([estimates[sid].value for sid in shared])
    truth_K = np.array([truth[sid].value for sid in shared])
    square = float(guess_K @ guess_K)
    slope = max(float(guess_K @ truth_K) / square, 0.0) if square else 0.0
    error = float(np.mean((truth_K - slope * guess_K) ** 2))
    return Calibration(slope, error, spearman(guess_K, truth_K), len(shared))


def spearman(a_K: FloatArray, b_K: FloatArray) -> float:
    """Return the rank correlation of two equally long arrays, ties averaged; 0 when either is constant."""
    return pearson(ranks(a_K), ranks(b_K))


def pearson(a_K: FloatArray, b_K: FloatArray) -> float:
    """Return the linear correlation; 0 when either is constant or there are fewer than two values."""
    if len(a_K) < 2 or np.ptp(a_K) == 0 or np.ptp(b_K) == 0:
        return 0.0
    a_K, b_K = a_K - a_K.mean(), b_K - b_K.mean()
    norm = float(np.sqrt((a_K @ a_K) * (b_K @ b_K)))
    return float(a_K @ b_K) / norm if norm else 0.0


def ranks(value_K: FloatArray) -> FloatArray:
    """Return average-tie ranks from 0."""
    fewer_K = (value_K[None, :] < value_K[:, None]).sum(axis=1)
    alike_K = (value_K[None, :] == value_K[:, None]).sum(axis=1)
    rank_K: FloatArray = fewer_K + (alike_K - 1) / 2
    return rank_K
