"""Late confirmation: a result or a notification that carries a child's last text tells whose child it is."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import takewhile

from mosaic.lineage import canonical, phrases
from mosaic.lineage.continuing import reply_key
from mosaic.lineage.model import Link, Rung
from mosaic.lineage.request import Request, contains
from mosaic.lineage.state import End, OpenCall, Pool, Session
from mosaic.records import SessionKind

MIN_SAID = 8
"""Shortest text, in characters, that is recognised inside a longer one."""
MAX_TOLD = 32
"""Newest user texts of a request that are looked at for notifications."""
MAX_SUCCESSORS = 100
"""Compactions of a child that are followed to its last text."""


def confirm(pool: Pool, request: Request, parent: Session) -> tuple[Link, ...]:
    """Close the tool calls whose results came back, and bind the children whose last text came with them."""
    changed: dict[str, Link] = {}
    for item in request.items:
        call = parent.calls.get(item.tool_call_id or "") if item.role == "result" else None
        if call is None or call.closed:
            continue
        call.closed = True
        if parent.children:
            _bind_fitting(pool, parent, call, item.text, changed)
    if not parent.children:
        return tuple(changed.values())
    told = [i.text for i in request.items if i.role == "user"][1:]
    for text in [*told[-MAX_TOLD:], *canonical.reminders(request.call.messages)]:
        for child in _children(pool, parent):
            if child.claimed is not None and _fits(pool, child, text):
                named = next((c for i, c in parent.calls.items() if i in text), child.claimed)
                changed.update({link.session_id: link for link in _bind(pool, child, named, sure=True)})
    return tuple(changed.values())


def heard(pool: Pool, request: Request, session: Session) -> tuple[str, ...]:
    """The calls of agents taken for the framework's whose last text `session` is told now: they serve the task."""
    if not session.shown:
        return ()
    told = [canonical.words(i.text) for i in takewhile(lambda item: not item.sampled, reversed(request.items))]
    taken: list[str] = []
    for child in [pool.sessions[s] for s in session.shown if s in pool.sessions]:
        said = [canonical.words(text) for text in child.last_said]
        if any(_reports(s, t) for s in said for t in told):
            taken += obeyed(child)
    return tuple(taken)


def _reports(said: list[str], told: list[str]) -> bool:
    """Whether a text is an agent's words, or holds them where they are too many to be another's."""
    if len(said) < phrases.LONG:
        return len(said) >= phrases.SHORT and said == told
    return contains(told, " ".join(said))


def obeyed(session: Session | None) -> tuple[str, ...]:
    """The calls of an agent taken for the framework's, from which another session of the task has opened."""
    if session is None or session.head_call_id is not None or session.link.kind is not SessionKind.HANDOFF:
        return ()
    calls = dict.fromkeys(m.call_id for m in session.marks if isinstance(m, End) and m.auxiliary is not None)
    return tuple(call_id for call_id in calls if take_back(session, call_id))


def take_back(session: Session, call_id: str) -> bool:
    """Note that a call serves the task after all, when it is a session's."""
    ends = [m for m in session.marks if isinstance(m, End) and m.call_id == call_id]
    for end in ends:
        end.auxiliary = None
    for summary in session.summaries:
        summary.used |= summary.call_id == call_id
    if ends and session.head_call_id is None:
        session.head_call_id = call_id
    return bool(ends)


def around(pool: Pool, session: Session) -> list[Session]:
    """The sessions whose calls a call of `session` may show to serve the task."""
    near = (session.session_id, session.link.parent_session_id, *session.shown)
    return [pool.sessions[s] for s in near if s in pool.sessions]


def last_of(pool: Pool, session: Session) -> Session:
    """The session in which the agent of `session` is now, after its compactions."""
    for _ in range(MAX_SUCCESSORS):
        after = pool.sessions.get(session.successor or "")
        if after is None:
            break
        session = after
    return session


def _children(pool: Pool, parent: Session) -> list[Session]:
    return [pool.sessions[s] for s in parent.children if s in pool.sessions]


def _bind_fitting(pool: Pool, parent: Session, call: OpenCall, text: str, changed: dict[str, Link]) -> None:
    fitting = [c for c in _children(pool, parent) if _fits(pool, c, text)]
    if not fitting:
        return
    child = next((c for c in fitting if c.claimed is call), fitting[0])
    if child.claimed is not None and child.claimed.tool != call.tool:
        call = child.claimed  # a tool that waits for children and gives their reports
    changed.update({link.session_id: link for link in _bind(pool, child, call, sure=len(fitting) == 1)})


def _fits(pool: Pool, child: Session, text: str) -> bool:
    collapsed = canonical.collapse(text)
    for said in last_of(pool, child).last_said:
        if said == collapsed:
            return True
        if len(said) >= MIN_SAID and (said in collapsed or contains(canonical.words(text), said)):
            return True
    return False


def _bind(pool: Pool, child: Session, call: OpenCall, *, sure: bool) -> Iterator[Link]:
    """Confirm `child` as the one that `call` spawned; a sibling that had claimed that call takes the child's."""
    sibling = pool.sessions.get(call.claimed_by or "")
    before = child.claimed
    if sibling is not None and sibling is not child:
        sibling.claimed = before
        if before is not None:
            before.claimed_by = sibling.session_id
            swapped = {**sibling.link.evidence, "tool_call": before.tool_call_id, "swapped": True}
            sibling.link = replace(sibling.link, parent_call_id=before.call_id, evidence=swapped)
            yield sibling.link
    child.claimed, call.claimed_by = call, child.session_id
    child.link = replace(
        child.link,
        parent_call_id=call.call_id,
        rung=Rung.RESULT,
        score=0.99 if sure and not _ambiguous(pool, child) else child.link.score,
        evidence={**child.link.evidence, "tool_call": call.tool_call_id},
    )
    parent = pool.sessions[call.session_id]
    if child.session_id in parent.children:
        parent.children.remove(child.session_id)
    yield child.link


def _ambiguous(pool: Pool, child: Session) -> bool:
    """Whether another attempt has a child that was asked the same or says the same."""
    known = [pool.sessions.get(rival.get("session", "")) for rival in child.link.rivals]
    said = [pool.sessions[m.session_id] for text in child.last_said for m in pool.find(reply_key(text))]
    return any(s is not None and s.trajectory_id != child.trajectory_id for s in (*known, *said))
