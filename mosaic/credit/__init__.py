"""Credit: turns the rewards of a batch into one advantage per session.

    recorded group --group_input--> GroupInput --assign(batch, rule)--> GroupCredit

Pure numpy: no I/O, no torch, no randomness. The trajectory is the unit of the baseline, however many sessions it
became, and with one session per trajectory the `mosaic` rule equals GRPO exactly.
"""

from mosaic.credit.assign import assign
from mosaic.credit.estimate import Blend, Calibration, ContributionEstimator, Estimate, Known, blend, calibrate
from mosaic.credit.estimators import GroupStatistics
from mosaic.credit.evidence import SessionEvidence, trajectory_evidence
from mosaic.credit.inputs import group_input
from mosaic.credit.model import (
    CallInput,
    DropReason,
    Gate,
    GroupCredit,
    GroupInput,
    SessionCredit,
    SessionInput,
    SpanCredit,
    SpanRole,
    TrajectoryCredit,
    TrajectoryInput,
)
from mosaic.credit.settings import (
    RULES,
    Baseline,
    CreditSettings,
    Granularity,
    LossMean,
    Renorm,
    Single,
    SpawnSpan,
    rule_settings,
)

__all__ = [
    "RULES",
    "Baseline",
    "Blend",
    "Calibration",
    "CallInput",
    "ContributionEstimator",
    "CreditSettings",
    "DropReason",
    "Estimate",
    "Gate",
    "Granularity",
    "GroupCredit",
    "GroupInput",
    "GroupStatistics",
    "Known",
    "LossMean",
    "Renorm",
    "SessionCredit",
    "SessionEvidence",
    "SessionInput",
    "Single",
    "SpanCredit",
    "SpanRole",
    "SpawnSpan",
    "TrajectoryCredit",
    "TrajectoryInput",
    "assign",
    "blend",
    "calibrate",
    "group_input",
    "rule_settings",
    "trajectory_evidence",
]
