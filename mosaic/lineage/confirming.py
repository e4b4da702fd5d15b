"""Late confirmation: a result or a notification that carries a child's last text tells whose child it is."""

from collections.abc import Iterator
from dataclasses import replace

from mosaic.lineage import canonical
from mosaic.lineage.continuing import reply_key
from mosaic.lineage.model import Link, Rung
from mosaic.lineage.request import Request, contains
from mosaic.lineage.state import OpenCall, Pool, Session


def confirm(pool: Pool, request: Request, parent: Session) -> tuple[Link, ...]:
    """Close the tool calls whose results came back, and bind the children whose last text came with them."""
    results = [i for i in request.items if i.role == "result"]
    changed: dict[str, Link] = {}
    for item in results:
        call = parent.calls.get(item.tool_call_id or "")
        if call is not None:
            call.closed = True
    if not parent.children:
        return ()
    for item in results:
        call = parent.calls.get(item.tool_call_id or "")
        if call is not None:
            _bind_fitting(pool, parent, call, item.text, changed)
    told = [i.text for i in request.items if i.role == "user"]
    for text in [*told[1:], *canonical.reminders(request.call.messages)]:
        for child in _children(pool, parent):
            if child.claimed is not None and _fits(child, text):
                named = next((c for i, c in parent.calls.items() if i in text), child.claimed)
                changed.update({link.session_id: link for link in _bind(pool, child, named, sure=True)})
    return tuple(changed.values())


def _children(pool: Pool, parent: Session) -> list[Session]:
    return [pool.sessions[s] for s in parent.children if s in pool.sessions]


def _bind_fitting(pool: Pool, parent: Session, call: OpenCall, text: str, changed: dict[str, Link]) -> None:
    fitting = [c for c in _children(pool, parent) if _fits(c, text)]
    if not fitting:
        return
    child = next((c for c in fitting if c.claimed is call), fitting[0])
    changed.update({link.session_id: link for link in _bind(pool, child, call, sure=len(fitting) == 1)})


def _fits(child: Session, text: str) -> bool:
    collapsed = canonical.collapse(text)
    for said in child.last_said:
        if said == collapsed or (len(said) >= 8 and (said in collapsed or contains(canonical.words(text), said))):
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
        score=_score(pool, child, call) if sure else child.link.score,
        evidence={**child.link.evidence, "tool_call": call.tool_call_id},
    )
    parent = pool.sessions[call.session_id]
    if child.session_id in parent.children:
        parent.children.remove(child.session_id)
    yield child.link


def _score(pool: Pool, child: Session, call: OpenCall) -> float:
    """How sure a confirmed link is: less where another attempt has a child that says the same or was asked the same."""
    if child.link.rivals and any(
        pool.sessions[r["session"]].trajectory_id != child.trajectory_id
        for r in child.link.rivals
        if r.get("session") in pool.sessions
    ):
        return child.link.score
    said = [m for text in child.last_said for m in pool.find(reply_key(text))]
    if any(pool.sessions[m.session_id].trajectory_id != child.trajectory_id for m in said):
        return child.link.score
    return 0.99
