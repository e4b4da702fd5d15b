"""What goes into a credit rule and what comes out of it: plain immutable values, no arithmetic.

A `GroupInput` holds what the rules need to know of one task's trajectories; `inputs.group_input` builds it from a
recorded group. A `GroupCredit` holds one advantage per session and the few calls whose tokens carry another one
(`SpanCredit`). What was left out is named with a `DropReason`, never silently absent. This module must never import
anything but `mosaic.records`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from mosaic.records import SessionKind


class DropReason(StrEnum):
    """Why a trajectory, or a whole group, gives no training signal. The values are names of counters."""

    OPEN = "open"
    """The attempt is still running."""
    FAILED = "failed"
    """The infrastructure broke, which says nothing about the policy."""
    TRUNCATED = "truncated"
    """A hard limit cut the attempt (over-length masking)."""
    UNSCORABLE = "unscorable"
    """No reward can ever be given."""
    UNSCORED = "unscored"
    """No reward yet."""
    REWARD_NOT_FINITE = "reward_not_finite"
    """The reward is NaN or infinite."""
    NO_TOKENS = "no_trainable_tokens"
    """Not one sampled token can be trained."""
    TOO_FEW = "too_few_to_compare"
    """The group has fewer than two comparable trajectories, and the rule has no baseline for that."""
    NO_CONTRAST = "no_contrast"
    """Every advantage of the group is zero."""


class Gate(StrEnum):
    """Which value shaped the sessions of a trajectory."""

    CONTRIBUTION = "contribution"
    EXPLORATION = "exploration"


class SpanRole(StrEnum):
    """What the tokens of a decision span do."""

    HANDOFF = "handoff"
    """They hand the work over to a successor: a compaction summary or a handoff."""
    SPAWN = "spawn"
    """They start a subagent."""
    ANSWER = "answer"
    """They end the trajectory."""
    CALL = "call"
    """They are one call of a session whose credit is given call by call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallInput:
    """What a rule of finer granularity needs to know of one call with trainable tokens."""

    call_id: str
    tokens: int
    """Trainable sampled tokens, > 0."""
    gains: tuple[float, ...] = ()
    """What the call gained, or what each of its tool results did; empty when unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInput:
    """What a credit rule needs to know of one session."""

    session_id: str
    kind: SessionKind = SessionKind.ROOT
    parent_session_id: str | None = None
    """The session that this one continues or serves; None for a root."""
    opened_by_call_id: str | None = None
    """The parent's call whose sampled tokens created this session; None when no sampled token did."""
    last_call_id: str | None = None
    """The session's last call with trainable tokens; None when it has none."""
    tokens: int
    """Trainable sampled tokens, >= 0. A session without any still counts as a session."""
    contribution: float | None = None
    """Change in success probability that the session made; None (or NaN) when unknown."""
    contribution_source: str = "none"
    """The estimator that gave `contribution`."""
    exploration: float = 0.0
    """Share, in [0, 1], of the session's evidence that no earlier session of the trajectory had found."""
    calls: tuple[CallInput, ...] = ()
    """Its calls with trainable tokens, in order; needed only by rules of finer granularity."""
    effective: bool = True
    """False when the session produced nothing, so that it must not count as effort in a failure (C2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryInput:
    """What a credit rule needs to know of one trajectory."""

    trajectory_id: str
    reward: float | None
    """The final reward, or None while there is none."""
    sessions: tuple[SessionInput, ...]
    """Every session of the task in order of opening, those without trainable tokens included."""
    exclusion: DropReason | None = None
    """Why the trajectory must not be compared although it may have a reward; None when nothing speaks against it."""

    @property
    def tokens(self) -> int:
        """Trainable sampled tokens of all sessions."""
        return sum(session.tokens for session in self.sessions)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInput:
    """The trajectories of one task that are compared with each other."""

    task_key: str
    trajectories: tuple[TrajectoryInput, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCredit:
    """The credit of one session: `advantage` = outcome of the trajectory x `factor` + its usage x `usage_factor`."""

    session_id: str
    advantage: float
    factor: float
    """The session's share of the outcome after renormalisation, >= 0; 1 is an unshaped session."""
    usage_factor: float
    """The same of the usage."""
    contribution: float | None
    """As it was given, whether or not the gate let it through; None when unknown."""
    source: str
    """The estimator that gave `contribution`."""
    gate: Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanCredit:
    """The advantage of every sampled token of one call, in place of its session's."""

    call_id: str
    role: SpanRole
    opened_session_id: str | None
    """The session that the call created; the first of several; None where it created none."""
    advantage: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryCredit:
    """The credit of one trajectory and of all its sessions."""

    trajectory_id: str
    advantage: float
    """Outcome and usage together."""
    usage: float
    """The part of it that comes from the number of sessions."""
    usage_rank: float
    """Rank of its session count among trajectories of like reward, in [0, 1]: 0 fewest, 1 most, 0.5 all alike."""
    sessions: tuple[SessionCredit, ...]
    spans: tuple[SpanCredit, ...]
    """At most one per call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupCredit:
    """The credit of one group."""

    task_key: str
    trajectories: tuple[TrajectoryCredit, ...]
    """The trajectories that were compared, in the order in which they came in."""
    dropped: Mapping[str, DropReason]
    """Every other trajectory by id, with the reason; they took no part in any mean."""
    drop_reason: DropReason | None
    """Why the whole group has no signal (all its advantages are 0), or None."""
