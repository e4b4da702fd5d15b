"""The one way in: the groups of a batch and the name of a rule give one advantage per session.

Pure and deterministic: no randomness, no I/O, the same input gives the same output. The whole batch comes in one call,
as renormalisation and batch baselines look across its groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mosaic.credit.comparison import Comparison, FloatArray, compare
from mosaic.credit.model import DropReason, GroupCredit, GroupInput, SessionCredit, TrajectoryCredit, TrajectoryInput
from mosaic.credit.session import SessionLevel, mean_factor, renormalisation, session_levels
from mosaic.credit.settings import CreditSettings, Single, rule_settings
from mosaic.credit.spans import call_spans, span_credits
from mosaic.credit.trajectory import TrajectoryLevel, trajectory_levels


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a trajectory's advantage, and how its sessions share it."""

    value: float
    level: SessionLevel


def assign(groups: Sequence[GroupInput], rule: str | CreditSettings = "mosaic") -> list[GroupCredit]:
    """Return the credit of every group of a batch, in order.

    `rule` is a name of `RULES` or its settings. The baselines are those of GRPO (arXiv 2402.03300), Dr. GRPO
    (2503.20783), RLOO (2402.14740) and REINFORCE++ (2501.03262). `mosaic` follows the idea of arXiv 2610.22174 with
    formulas and constants of this project (mosaic.md, section 4). Raises ValueError, with the names, for an unknown
    rule.
    """
    settings = rule_settings(rule)
    compared = [compare(group) for group in groups]
    levels = trajectory_levels(compared, settings)
    outcome = _shaped(compared, [level.outcome_G for level in levels], settings)
    usage = _shaped(compared, [level.usage_G for level in levels], settings)
    rows = zip(compared, levels, outcome, usage, strict=True)
    return [_group_credit(group, level, pair, settings) for group, level, *pair in rows]


def _shaped(
    groups: Sequence[Comparison], part: Sequence[FloatArray], settings: CreditSettings
) -> list[list[SessionLevel]]:
    """How the sessions share one part of the advantages, renormalised; per group and trajectory."""
    levels = [session_levels(group, part_G, settings) for group, part_G in zip(groups, part, strict=True)]
    means = [_mean_factors(group, rows, settings) for group, rows in zip(groups, levels, strict=True)]
    scales = renormalisation(part, means, settings)
    return [
        [replace(row, factor_K=row.factor_K * scale) for row, scale in zip(rows, scale_G, strict=True)]
        for rows, scale_G in zip(levels, scales, strict=True)
    ]


def _mean_factors(group: Comparison, rows: Sequence[SessionLevel], settings: CreditSettings) -> FloatArray:
    pairs = zip(group.trajectories, rows, strict=True)
    return np.array([mean_factor(trajectory, row, settings) for trajectory, row in pairs], dtype=np.float64)


def _group_credit(
    group: Comparison, level: TrajectoryLevel, shaped: Sequence[Sequence[SessionLevel]], settings: CreditSettings
) -> GroupCredit:
    columns = zip(
        group.trajectories,
        level.outcome_G.tolist(),
        level.usage_G.tolist(),
        level.rank_G.tolist(),
        *shaped,
        strict=True,
    )
    return GroupCredit(
        task_key=group.task_key,
        trajectories=tuple(
            _trajectory_credit(trajectory, rank, (_Part(outcome, of_outcome), _Part(usage, of_usage)), settings)
            for trajectory, outcome, usage, rank, of_outcome, of_usage in columns
        ),
        dropped=group.dropped,
        drop_reason=_group_reason(level.advantage_G, settings),
    )


def _trajectory_credit(
    trajectory: TrajectoryInput, rank: float, parts: tuple[_Part, _Part], settings: CreditSettings
) -> TrajectoryCredit:
    outcome, usage = parts
    sessions = _session_credits(trajectory, outcome, usage)
    by_session = {session.session_id: session.advantage for session in sessions}
    spans = span_credits(trajectory, outcome.value, usage.value, by_session, settings)
    own = call_spans(_call_advantages(trajectory, parts), {span.call_id for span in spans})
    return TrajectoryCredit(
        trajectory_id=trajectory.trajectory_id,
        advantage=outcome.value + usage.value,
        usage=usage.value,
        usage_rank=rank,
        sessions=sessions,
        spans=(*spans, *own),
    )


def _session_credits(trajectory: TrajectoryInput, outcome: _Part, usage: _Part) -> tuple[SessionCredit, ...]:
    factors = zip(outcome.level.factor_K.tolist(), usage.level.factor_K.tolist(), strict=True)
    return tuple(
        SessionCredit(
            session_id=session.session_id,
            advantage=outcome.value * factor + usage.value * usage_factor,
            factor=factor,
            usage_factor=usage_factor,
            contribution=session.contribution,
            source=session.contribution_source,
            gate=outcome.level.gate,
        )
        for session, (factor, usage_factor) in zip(trajectory.sessions, factors, strict=True)
    )


def _call_advantages(trajectory: TrajectoryInput, parts: tuple[_Part, _Part]) -> dict[str, float]:
    """The advantage of each call with a factor of its own."""
    return {
        call.call_id: sum(p.value * float(p.level.factor_K[k]) * p.level.calls[call.call_id] for p in parts)
        for k, session in enumerate(trajectory.sessions)
        for call in session.calls
        if call.call_id in parts[0].level.calls
    }


def _group_reason(advantage_G: FloatArray, settings: CreditSettings) -> DropReason | None:
    if len(advantage_G) < (1 if settings.single is Single.BATCH else 2):
        return DropReason.TOO_FEW
    return None if advantage_G.any() else DropReason.NO_CONTRAST
