"""From a recorded group to the input of the credit rules: count, estimate, and name what cannot be compared.

This is the only place of the package that looks at calls and their messages; what it decides is this project's own
(mosaic.md, sections 4.1 and 4.2).
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from mosaic.credit.comparison import drop_reason
from mosaic.credit.estimate import ContributionEstimator, Estimate
from mosaic.credit.estimators import GroupStatistics
from mosaic.credit.evidence import SessionEvidence, trajectory_evidence
from mosaic.credit.model import CallInput, DropReason, GroupInput, SessionInput, TrajectoryInput
from mosaic.records import Call, Group, Session, Trajectory, TrajectoryState

EXCLUDED = {
    TrajectoryState.OPEN: DropReason.OPEN,
    TrajectoryState.FAILED: DropReason.FAILED,
    TrajectoryState.TRUNCATED: DropReason.TRUNCATED,
    TrajectoryState.UNSCORABLE: DropReason.UNSCORABLE,
}
"""States in which a reward, if there is one, says nothing. A trained trajectory stays as something to compare with; it
is the caller's duty not to train it again."""


def group_input(
    group: Group,
    estimator: ContributionEstimator | None = None,
    call_gains: Mapping[str, tuple[float, ...]] = MappingProxyType({}),
) -> GroupInput:
    """Return what the rules need to know of a recorded group; the estimator is `GroupStatistics` by default.

    `call_gains`, by call id, are for rules of finer granularity (`information_gain.call_gains`).

    The estimator sees only trajectories that can be compared. A session of auxiliary calls only (a title, a probe) is
    the framework's doing and no session here.
    """
    estimator = estimator or GroupStatistics()
    inputs = [_trajectory_input(trajectory, call_gains) for trajectory in group.trajectories]
    pairs = zip(group.trajectories, inputs, strict=True)
    comparable = [t for t, given in pairs if drop_reason(given.exclusion, given.reward, given.tokens) is None]
    known = estimator.contributions(replace(group, trajectories=tuple(comparable)))
    filled = tuple(_with_contributions(given, known) for given in inputs)
    return GroupInput(task_key=group.task_key, trajectories=filled)


def _with_contributions(given: TrajectoryInput, known: Mapping[str, Estimate]) -> TrajectoryInput:
    return replace(given, sessions=tuple(_with_contribution(s, known.get(s.session_id)) for s in given.sessions))


def _with_contribution(session: SessionInput, estimate: Estimate | None) -> SessionInput:
    if estimate is None:
        return session
    return replace(session, contribution=estimate.value, contribution_source=estimate.source)


def _trajectory_input(trajectory: Trajectory, call_gains: Mapping[str, tuple[float, ...]]) -> TrajectoryInput:
    evidence = trajectory_evidence(trajectory)
    return TrajectoryInput(
        trajectory_id=trajectory.trajectory_id,
        reward=trajectory.reward,
        sessions=tuple(
            _session_input(session, evidence[session.session_id], call_gains)
            for session in trajectory.sessions
            if not _only_auxiliary(session)
        ),
        exclusion=EXCLUDED.get(trajectory.state),
    )


def _session_input(
    session: Session, evidence: SessionEvidence, call_gains: Mapping[str, tuple[float, ...]]
) -> SessionInput:
    trainable = [call for call in session.calls if _trainable_tokens(call)]
    return SessionInput(
        session_id=session.session_id,
        kind=session.kind,
        parent_session_id=session.parent_session_id,
        opened_by_call_id=session.opened_by_call_id,
        last_call_id=trainable[-1].call_id if trainable else None,
        tokens=sum(_trainable_tokens(call) for call in trainable),
        exploration=evidence.exploration,
        calls=tuple(
            CallInput(call_id=call.call_id, tokens=_trainable_tokens(call), gains=call_gains.get(call.call_id, ()))
            for call in trainable
        ),
        effective=_has_output(session),
    )


def _only_auxiliary(session: Session) -> bool:
    return bool(session.calls) and all(call.auxiliary is not None for call in session.calls)


def _trainable_tokens(call: Call) -> int:
    if not call.exact or call.auxiliary is not None:
        return 0
    return sum(len(sample.ids_T) for sample in call.samples)


def _has_output(session: Session) -> bool:
    """Whether the session's last task call brought text or a tool call."""
    calls = [call for call in session.calls if call.auxiliary is None]
    samples = calls[-1].samples if calls else ()
    return any(sample.message.get("content") or sample.message.get("tool_calls") for sample in samples)
