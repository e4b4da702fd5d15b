"""How a decision becomes a placement: a call inside a session, or one that opens a session."""

from collections.abc import Sequence
from dataclasses import replace

from mosaic.lineage.model import LINK_THRESHOLD, Link, Placement, Rung, Why
from mosaic.lineage.request import Request
from mosaic.lineage.state import Mark, Pool, Session
from mosaic.records import SessionKind

DISPUTED = 0.8
"""Highest score of a decision that the framework's own ids contradict."""
UNANCHORED = 0.88
"""Highest score of a link into another trajectory's calls that no emitted id, and no word of the operator, speaks for:
texts alone may be those of another attempt at the same, and ids of the framework may be shared by several."""
FIRST_USER = 4000
"""Characters that are remembered of a session's first user text."""


def inside(
    request: Request, session: Session, parent_call_id: str | None, why: Why, *, auxiliary: str | None = None
) -> Placement:
    """The call belongs to a session that is there."""
    return Placement(
        call_id=request.call.call_id,
        trajectory_id=session.trajectory_id,
        session_id=session.session_id,
        parent_call_id=parent_call_id,
        auxiliary=auxiliary,
        position=session.position,
        opened=None,
        why=checked(request, session, why),
        names_task=auxiliary is None and session.head_call_id is None and session.link.kind is SessionKind.ROOT,
    )


def opening(pool: Pool, request: Request, kind: SessionKind, parent: Mark | None, why: Why) -> Placement:
    """The call opens a session, under `parent`'s call; below the threshold as a root, with the parent as a rival."""
    call = request.call
    above = pool.sessions[parent.session_id] if parent else None
    if above is not None:
        why = checked(request, above, why) if kind is not SessionKind.SPAWN else why
        if why.score < LINK_THRESHOLD and parent is not None:
            return undecided(pool, request, why, [parent])
    trajectory_id = above.trajectory_id if above else own_trajectory(request)
    position = pool.trajectories.get(trajectory_id, 0)
    link = Link(
        session_id=f"s-{call.call_id}",
        kind=kind,
        parent_session_id=parent.session_id if parent else None,
        parent_call_id=parent.call_id if parent else None,
        rung=why.rung,
        score=why.score,
        evidence=why.evidence,
        rivals=why.rivals,
    )
    pool.add(state_of(request, trajectory_id, link, position))
    names_task = position == 0
    return Placement(
        call.call_id, trajectory_id, link.session_id, None, None, position, link, why, names_task=names_task
    )


def undecided(pool: Pool, request: Request, why: Why, candidates: Sequence[Mark]) -> Placement:
    """A root of its own: what spoke for another place is not enough, and is kept for review."""
    rivals = {(m.session_id, m.call_id): None for m in candidates}
    found = tuple({"session": s, "call": c, "score": round(why.score, 2)} for s, c in rivals)
    evidence = {**why.evidence, "undecided": why.rung.value}
    return opening(pool, request, SessionKind.ROOT, None, Why(Rung.NONE, 0.0, evidence, (*found, *why.rivals)[:8]))


def root(pool: Pool, request: Request) -> Placement:
    """Nothing that is known has to do with it."""
    alone = own_trajectory(request) not in pool.trajectories
    return opening(pool, request, SessionKind.ROOT, None, Why(Rung.NONE, 1.0 if alone else 0.0, {"first": alone}))


def newest(session: Session) -> Mark:
    """The call of a session that another one goes on from: its newest, or, where none serves the task, its first."""
    return Mark(session.session_id, session.head_call_id or session.session_id.removeprefix("s-"))


def own_trajectory(request: Request) -> str:
    """The trajectory of a call that belongs to no earlier one: the operator's, or one named after the call."""
    return request.call.trajectory_id or f"tr-{request.call.call_id.removeprefix('call-')}"


def checked(request: Request, session: Session, why: Why) -> Why:
    """The evidence, with what the framework's own ids say about it."""
    mine, theirs = request.claims, session.claims
    if mine.agent is None or theirs.agent is None:
        return why
    if mine.agent == theirs.agent:
        return replace(why, evidence={**why.evidence, "claims": "agree"})
    return replace(why, score=min(why.score, DISPUTED), evidence={**why.evidence, "claims": "contradict"})


def state_of(request: Request, trajectory_id: str, link: Link, position: int) -> Session:
    """A session that opens with a request."""
    return Session(
        session_id=link.session_id,
        trajectory_id=trajectory_id,
        link=link,
        position=position,
        tools=request.tools,
        system=request.system_words,
        claims=request.claims,
        head_call_id=None,
        updated_at=request.call.ended_at,
        first_user=request.first_user[:FIRST_USER],
        first_item=request.first_item,
    )
