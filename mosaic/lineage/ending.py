"""When a session is over: nothing goes on from it, as far as is known. Every end is provisional: a call re-opens it.

The fourth way to end, silence, needs a clock and is the store's to see.
"""

from mosaic.lineage.confirming import last_of
from mosaic.lineage.model import Ending, Placement, Rung
from mosaic.lineage.request import Request
from mosaic.lineage.state import Pool, Session
from mosaic.records import SessionKind


def endings(pool: Pool, request: Request, placement: Placement) -> dict[str, Ending | None]:
    """The sessions whose end this call changes, and how each ended; None for one that is open again."""
    changed: dict[str, Ending | None] = {}
    session = pool.sessions[placement.session_id]
    if placement.auxiliary is not None:
        if session.head_call_id is None and session.ended is None:
            _end(pool, session, Ending.ANSWERED, changed)
    elif request.ok and session.head_call_id == placement.call_id:
        _end(pool, session, Ending.ANSWERED if request.answered_in_text else None, changed)
    opened = placement.opened if placement.auxiliary is None else None
    if opened is not None and opened.kind in (SessionKind.COMPACTION, SessionKind.HANDOFF):
        before = pool.sessions.get(opened.parent_session_id or "")
        if before is not None:
            before.successor = session.session_id
            _end(pool, before, Ending.SUCCEEDED, changed)
    for link in placement.relinked:
        if link.rung is Rung.RESULT and link.session_id in pool.sessions:
            _end(pool, last_of(pool, pool.sessions[link.session_id]), Ending.RETURNED, changed)
    return changed


def rolled_over(pool: Pool, placement: Placement) -> tuple[str, ...]:
    """The trajectory that is over because the one agent that there is has begun another."""
    if placement.opened is None or placement.position > 0 or placement.auxiliary is not None:
        return ()
    over = tuple(done for done in pool.done if done != placement.trajectory_id)
    if len(over) != 1:
        return ()  # none has ended, or several agents are at work
    pool.done.pop(over[0])
    return over


def _end(pool: Pool, session: Session, ending: Ending | None, changed: dict[str, Ending | None]) -> None:
    if session.ended is not ending:
        pool.ends(session, ending)
        changed[session.session_id] = ending
