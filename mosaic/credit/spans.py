"""Decision spans: calls whose tokens carry another advantage than their session's.

Tokens that create a session would carry the wrong credit if they only inherited that of the session they stand in.
This is this project's own design (mosaic.md, section 4.6; HiPER's switch advantage is the precedent). A span is all
sampled tokens of one call, so whoever builds training sequences needs nothing but the call's id. A fork creates no
span: the framework branched, no token asked for it.
"""

from collections.abc import Mapping, Sequence, Set

from mosaic.credit.model import SessionInput, SpanCredit, SpanRole, TrajectoryInput
from mosaic.credit.session_tree import CONTINUING
from mosaic.credit.settings import CreditSettings, SpawnSpan
from mosaic.records import SessionKind


def span_credits(
    trajectory: TrajectoryInput,
    outcome: float,
    usage: float,
    session_advantage: Mapping[str, float],
    settings: CreditSettings,
) -> tuple[SpanCredit, ...]:
    """Return the spans of a trajectory, at most one per call: a handoff goes before a spawn, a spawn before the answer.

    A handoff carries the successor's advantage, an answer the trajectory's, a spawn the trajectory's (with a share of
    its usage) or its children's mean. `outcome` and `usage` are the parts of the trajectory's advantage.
    """
    spans: dict[str, SpanCredit] = {}
    for call_id, opened in _opened(trajectory.sessions, CONTINUING).items():
        spans[call_id] = _span(call_id, SpanRole.HANDOFF, opened, _mean(opened, session_advantage))
    for call_id, opened in _opened(trajectory.sessions, {SessionKind.SPAWN}).items():
        children = settings.spawn_span is SpawnSpan.CHILDREN
        value = _mean(opened, session_advantage) if children else outcome + settings.spawn_usage * usage
        spans.setdefault(call_id, _span(call_id, SpanRole.SPAWN, opened, value))
    answer = _answer_call(trajectory.sessions)
    if answer is not None:
        spans.setdefault(answer, _span(answer, SpanRole.ANSWER, (), outcome + usage))
    return tuple(spans.values())


def call_spans(call_advantage: Mapping[str, float], taken: Set[str]) -> tuple[SpanCredit, ...]:
    """Return the calls with an advantage of their own, unless they are decision spans already."""
    rows = ((call_id, value) for call_id, value in call_advantage.items() if call_id not in taken)
    return tuple(_span(call_id, SpanRole.CALL, (), value) for call_id, value in rows)


def _opened(sessions: Sequence[SessionInput], kinds: Set[SessionKind]) -> dict[str, list[SessionInput]]:
    """The sessions of these kinds by the call that opened them."""
    opened: dict[str, list[SessionInput]] = {}
    for session in sessions:
        if session.kind in kinds and session.opened_by_call_id is not None:
            opened.setdefault(session.opened_by_call_id, []).append(session)
    return opened


def _span(call_id: str, role: SpanRole, opened: Sequence[SessionInput], advantage: float) -> SpanCredit:
    first = opened[0].session_id if opened else None
    return SpanCredit(call_id=call_id, role=role, opened_session_id=first, advantage=advantage)


def _mean(sessions: Sequence[SessionInput], session_advantage: Mapping[str, float]) -> float:
    return sum(session_advantage[session.session_id] for session in sessions) / len(sessions)


def _answer_call(sessions: Sequence[SessionInput]) -> str | None:
    """The last trainable call of the session that ends the root's chain; of two successors, the later one counts."""
    chain: set[str] = set()
    answer: str | None = None
    for session in sessions:
        continues = session.kind in CONTINUING and session.parent_session_id in chain
        if not chain or continues:
            chain.add(session.session_id)
            answer = session.last_call_id
    return answer
