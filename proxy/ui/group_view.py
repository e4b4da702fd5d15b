"""The attempts at one task side by side, with the advantage that each credit rule would give. Pure.

Every rule sees this group alone: what renormalises or centres over a batch takes the group for the batch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from mosaic.credit import (
    RULES,
    Granularity,
    GroupCredit,
    GroupInput,
    SessionInput,
    TrajectoryCredit,
    assign,
    group_input,
)
from mosaic.records import Group, Trajectory

SHOWN_RULES = tuple(
    name for name, rule in RULES.items() if name != "broadcast" and rule.granularity is Granularity.SESSION
)
"""All but the second name of `grpo`, and but those that differ from `mosaic` inside a session only."""
FULL_RULE = "mosaic"
"""The rule whose sessions are shown one by one."""


@dataclass(frozen=True, slots=True)
class SessionWorth:
    """What the full rule gives one session."""

    session_id: str
    position: int
    kind: str
    tokens: int
    contribution: float | None
    factor: float
    advantage: float


@dataclass(frozen=True, slots=True)
class AttemptView:
    """One attempt."""

    trajectory_id: str
    state: str
    reward: float | None
    sessions: int
    calls: int
    tokens: int
    """Trainable sampled tokens."""
    dropped: str | None
    """Why it is compared with none; None when it is."""
    advantages: Mapping[str, float]
    """Rule -> advantage of the trajectory; empty when it was dropped."""
    worth: Sequence[SessionWorth]


@dataclass(frozen=True, slots=True)
class GroupView:
    """The group."""

    task_key: str
    text: str
    version: int | None
    """The policy version of the attempts; None for all."""
    versions: Sequence[int]
    """Those under which the task was attempted."""
    rules: Sequence[str]
    no_signal: Mapping[str, str]
    """Rule -> why the whole group gives it no signal."""
    mean_reward: float | None
    largest: float
    """Largest advantage by size, at least 1: the scale of the bars."""
    attempts: Sequence[AttemptView]


@dataclass(frozen=True, slots=True)
class Task:
    """What is attempted, and which of the attempts are looked at."""

    task_key: str
    text: str
    version: int | None
    versions: Sequence[int]


def group_view(task: Task, trajectories: Sequence[Trajectory]) -> GroupView:
    """What the rules make of these attempts."""
    given = group_input(Group(task.task_key, tuple(trajectories)))
    credits = {rule: assign([given], rule)[0] for rule in SHOWN_RULES}
    attempts = [_attempt(one, given, credits) for one in trajectories]
    rewards = [one.reward for one in trajectories if one.reward is not None]
    sizes = [abs(value) for one in attempts for value in one.advantages.values()]
    reasons = {rule: credit.drop_reason.value for rule, credit in credits.items() if credit.drop_reason is not None}
    return GroupView(
        task_key=task.task_key,
        text=task.text,
        version=task.version,
        versions=task.versions,
        rules=SHOWN_RULES,
        no_signal=reasons,
        mean_reward=fmean(rewards) if rewards else None,
        largest=max([1.0, *sizes]),
        attempts=attempts,
    )


def _attempt(trajectory: Trajectory, given: GroupInput, credits: Mapping[str, GroupCredit]) -> AttemptView:
    its_id = trajectory.trajectory_id
    of_rule = {rule: {t.trajectory_id: t for t in credit.trajectories} for rule, credit in credits.items()}
    known = {one.trajectory_id: one for one in given.trajectories}[its_id]
    dropped = credits[FULL_RULE].dropped.get(its_id)
    return AttemptView(
        trajectory_id=its_id,
        state=trajectory.state.value,
        reward=trajectory.reward,
        sessions=len(known.sessions),
        calls=sum(len(session.calls) for session in trajectory.sessions),
        tokens=known.tokens,
        dropped=None if dropped is None else dropped.value,
        advantages={rule: found[its_id].advantage for rule, found in of_rule.items() if its_id in found},
        worth=_worth(trajectory, known.sessions, of_rule[FULL_RULE].get(its_id)),
    )


def _worth(
    trajectory: Trajectory, known: Sequence[SessionInput], credit: TrajectoryCredit | None
) -> list[SessionWorth]:
    if credit is None:
        return []
    positions = {session.session_id: at for at, session in enumerate(trajectory.sessions)}
    pairs = zip(known, credit.sessions, strict=True)
    return [
        SessionWorth(
            session_id=session.session_id,
            position=positions[session.session_id],
            kind=session.kind.value,
            tokens=session.tokens,
            contribution=given.contribution,
            factor=given.factor,
            advantage=given.advantage,
        )
        for session, given in pairs
    ]
