"""Contribution by replay: what the reward becomes without the session, everything after it made anew (E3).

The pure part: which recorded calls stand before a session's output (they are answered as recorded), what replaces the
output, and what the rewards of the replays say. Whoever can drive the agent makes the replays. Removing a session is
the source's definition of contribution (arXiv 2610.22174); the placeholder, that both arms are replayed, and the
variance are this project's own (mosaic.md, section 4.2).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mosaic.credit.estimate import Estimate
from mosaic.credit.session_tree import CONTINUING, SessionTree
from mosaic.records import Call, SessionKind, Trajectory

NO_RESULT = "no result"
"""What a removed subagent reports."""


@dataclass(frozen=True, slots=True)
class Removal:
    """How to replay a trajectory with and without what one session put out."""

    session_id: str
    recorded: frozenset[str]
    """Calls that do not depend on the session's output: answered as recorded in both arms."""
    own: frozenset[str]
    """Calls that make the output: answered as recorded with the session, absent without it."""
    replaced_call_id: str
    """The one of `own` that is answered with the placeholder without the session."""
    placeholder: str


def removals(trajectory: Trajectory) -> tuple[Removal, ...]:
    """Return how to remove each session that can be: a subagent, or a session that handed over by a sampled summary.

    A subagent reports `NO_RESULT`, and all below it goes with it. A summary becomes the one that its session started
    from. The last session of the root's chain puts out nothing but the answer, and is not removed.
    """
    tree = SessionTree(trajectory)
    calls = [call for session in trajectory.sessions for call in tree.calls(session.session_id)]
    rows = []
    for session in trajectory.sessions:
        summary = _summary(trajectory, tree, session.session_id, calls)
        if summary is not None:
            later = {call.call_id for call in calls if call.started_at > summary.started_at}
            previous = next((call for call in calls if call.call_id == session.opened_by_call_id), None)
            handed_over = session.kind in CONTINUING and previous is not None and previous.samples
            text = str(previous.samples[0].message.get("content")) if previous and handed_over else NO_RESULT
            rows.append(_removal(session.session_id, calls, later, [summary], text))
        elif session.kind is SessionKind.SPAWN and tree.calls(session.session_id):
            rows.append(_without_subagent(trajectory, tree, session.session_id, calls))
    return tuple(rows)


def _summary(trajectory: Trajectory, tree: SessionTree, session_id: str, calls: Sequence[Call]) -> Call | None:
    """The call with which the session handed over to its successor."""
    following = tree.chain(session_id)[1:2]
    opened_by = {s.opened_by_call_id for s in trajectory.sessions if s.session_id in following}
    return next((call for call in calls if call.call_id in opened_by), None)


def _without_subagent(trajectory: Trajectory, tree: SessionTree, session_id: str, calls: Sequence[Call]) -> Removal:
    below, above = {session_id}, set[str | None]()
    for session in trajectory.sessions:  # parents come before their children
        below |= {session.session_id} if session.parent_session_id in below else set()
    at: str | None = session_id
    parents = {session.session_id: session.parent_session_id for session in trajectory.sessions}
    while (at := parents.get(at or "")) is not None:
        above |= set(tree.chain(at))
    own = [call for call in calls if tree.session_of(call) in below]
    ended = max(call.started_at for call in own)
    # Siblings run beside it: only those above can have read its report, in calls after its last one.
    later = {call.call_id for call in calls if tree.session_of(call) in above and call.started_at > ended}
    opened_later = {s.session_id for s in trajectory.sessions if s.opened_by_call_id in later}
    later |= {call.call_id for call in calls if tree.session_of(call) in opened_later}
    return _removal(session_id, calls, later, own, NO_RESULT)


def _removal(session_id: str, calls: Sequence[Call], later: set[str], own: Sequence[Call], text: str) -> Removal:
    of_own = frozenset(call.call_id for call in own)
    recorded = frozenset(call.call_id for call in calls) - later - of_own
    return Removal(session_id, recorded, of_own, own[0].call_id, text)


def replayed(with_session: Sequence[float], without_session: Sequence[float]) -> Estimate:
    """Return the contribution from the rewards of both arms, each with at least one replay.

    The variance is that of the difference of means, with one imagined replay at one half on either side so that a few
    equal rewards do not pass for certainty.
    """
    difference = sum(with_session) / len(with_session) - sum(without_session) / len(without_session)
    return Estimate(difference, _variance(with_session) + _variance(without_session), "replay")


def _variance(rewards: Sequence[float]) -> float:
    mean = (sum(rewards) + 0.5) / (len(rewards) + 1)
    spread = sum((reward - mean) ** 2 for reward in [*rewards, 0.5]) / (len(rewards) + 1)
    return spread / len(rewards)
