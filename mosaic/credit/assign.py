"""The one way in: the groups of a batch and the name of a rule give one advantage per session.

Pure and deterministic: no randomness, no I/O, the same input gives the same output. The whole batch comes in one call,
as renormalisation and batch baselines look across its groups.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from mosaic.credit.comparison import Comparison, FloatArray, compare
from mosaic.credit.model import DropReason, GroupCredit, GroupInput, SessionCredit, TrajectoryCredit, TrajectoryInput
from mosaic.credit.session import SessionLevel, mean_factor, renormalisation, session_levels
from mosaic.credit.settings import CreditSettings, Single, rule_settings
from mosaic.credit.spans import call_spans, span_credits
from mosaic.credit.trajectory import TrajectoryLevel, trajectory_levels


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
    shaped = [session_levels(group, level.advantage_G, settings) for group, level in zip(compared, levels, strict=True)]
    scales = renormalisation(
        [level.advantage_G for level in levels],
        [_mean_factors(group, rows, settings) for group, rows in zip(compared, shaped, strict=True)],
        settings,
    )
    results = []
    for group, level, rows, scale_G in zip(compared, levels, shaped, scales, strict=True):
        scaled = [replace(row, factor_K=row.factor_K * scale) for row, scale in zip(rows, scale_G, strict=True)]
        results.append(_group_credit(group, level, scaled, settings))
    return results


def _mean_factors(group: Comparison, rows: Sequence[SessionLevel], settings: CreditSettings) -> FloatArray:
    pairs = zip(group.trajectories, rows, strict=True)
    return np.array([mean_factor(trajectory, row, settings) for trajectory, row in pairs], dtype=np.float64)


def _group_credit(
    group: Comparison, level: TrajectoryLevel, rows: Sequence[SessionLevel], settings: CreditSettings
) -> GroupCredit:
    trajectories = []
    columns = zip(group.trajectories, level.advantage_G.tolist(), level.rank_G.tolist(), rows, strict=True)
    for trajectory, advantage, rank, row in columns:
        sessions = _session_credits(trajectory, advantage, row)
        by_session = {session.session_id: session.advantage for session in sessions}
        spans = span_credits(trajectory, advantage, by_session, settings)
        trajectories.append(
            TrajectoryCredit(
                trajectory_id=trajectory.trajectory_id,
                advantage=advantage,
                usage_rank=rank,
                sessions=sessions,
                spans=(*spans, *call_spans(trajectory, by_session, row.calls, {span.call_id for span in spans})),
            )
        )
    return GroupCredit(
        task_key=group.task_key,
        trajectories=tuple(trajectories),
        dropped=group.dropped,
        drop_reason=_group_reason(level.advantage_G, settings),
    )


def _session_credits(trajectory: TrajectoryInput, advantage: float, row: SessionLevel) -> tuple[SessionCredit, ...]:
    return tuple(
        SessionCredit(
            session_id=session.session_id,
            advantage=advantage * factor,
            factor=factor,
            contribution=session.contribution,
            source=session.contribution_source,
            gate=row.gate,
        )
        for session, factor in zip(trajectory.sessions, row.factor_K.tolist(), strict=True)
    )


def _group_reason(advantage_G: FloatArray, settings: CreditSettings) -> DropReason | None:
    if len(advantage_G) < (1 if settings.single is Single.BATCH else 2):
        return DropReason.TOO_FEW
    return None if advantage_G.any() else DropReason.NO_CONTRAST
