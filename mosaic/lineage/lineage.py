"""Places calls one at a time, in the order in which they ended.

The ladder, strongest evidence first: the request is a retry; it repeats an earlier request and its reply (prefix); it
carries ids or texts that the policy emitted, in a history that was edited (echo); it opens with an argument of a tool
call (spawn), with a summary that the policy wrote (compaction) or as its framework's ids say (claim); it quotes a
session (summary call, handoff); otherwise it is a new root. Claims are checked against content. When a result or a
notification comes back with a child's last text, the child's link is confirmed; siblings that guessed wrongly are
swapped.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

from mosaic.capture import CapturedCall
from mosaic.lineage.confirming import around, confirm, heard, obeyed, take_back
from mosaic.lineage.continuing import echo, extension, late, retry
from mosaic.lineage.ending import endings, rolled_over
from mosaic.lineage.harness import Harness, Harnesses
from mosaic.lineage.model import Link, Placement, Rung
from mosaic.lineage.opening import claim, opened
from mosaic.lineage.placing import state_of
from mosaic.lineage.quoting import await_session
from mosaic.lineage.remembering import remember
from mosaic.lineage.request import Request
from mosaic.lineage.state import Pool, Session
from mosaic.records import SessionKind

MAX_SESSIONS = 50_000
"""Sessions that are remembered over all pools; of more, those that got no call for longest are forgotten."""
MAX_MARKS = 2_000_000
"""Marks that are remembered over all sessions, about 300 bytes each; beyond, the same."""
IDLE_S = 24 * 3600.0
"""Seconds without a call after which a session is forgotten."""


_LADDER: tuple[Callable[[Pool, Request], Placement | None], ...] = (retry, late, extension, echo, opened)


class Lineage:
    """Incremental lineage over any number of trajectories."""

    def __init__(
        self, harnesses: Sequence[Harness] = (), max_sessions: int = MAX_SESSIONS, max_marks: int = MAX_MARKS
    ) -> None:
        self._harnesses = Harnesses(harnesses)
        self._max_sessions, self._max_marks = max_sessions, max_marks
        # Ordered: the first of a plain dict is found only behind all the places that were given up before it.
        self._pools: OrderedDict[str, Pool] = OrderedDict()
        self._recent: OrderedDict[tuple[str, str], float] = OrderedDict()
        """(Pool, session) -> when its newest call ended; the longest silent first."""
        self._marks = 0

    def forget(self, pool_key: str) -> None:
        """Drop what is remembered of a pool, so that it is restored from the store when next needed."""
        if (pool := self._pools.pop(pool_key, None)) is not None:
            self._marks -= pool.size
            for session_id in pool.sessions:
                self._recent.pop((pool_key, session_id), None)

    def trajectories(self, pool_key: str) -> set[str]:
        """The trajectories of a pool."""
        pool = self._pools.get(pool_key)
        return set() if pool is None else set(pool.trajectories)

    def forget_oldest(self, limit: int) -> list[str]:
        """Forget the pools that got no call for longest until `limit` are left; returns those forgotten."""
        forgotten = list(islice(self._pools, max(0, len(self._pools) - limit)))
        for key in forgotten:
            self.forget(key)
        return forgotten

    def place(self, call: CapturedCall) -> Placement:
        """Where `call` stands. Calls must come in the order in which they ended."""
        pool, request = self._pool(call), Request(call, self._harnesses)
        before = pool.size
        placement = _placed(pool, request)
        session = pool.sessions[placement.session_id]
        if placement.auxiliary is not None:  # kept also where the tag is taken back: it restores what was known then
            evidence = {**placement.why.evidence, "serves": placement.auxiliary}
            placement = replace(placement, why=replace(placement.why, evidence=evidence))
        else:
            placement = _told(pool, request, session, placement)
        remember(pool, request, placement)
        ended = endings(pool, request, placement)
        over = rolled_over(pool, placement) if call.trajectory_id is None else ()
        placement.ended, placement.rolled_over = ended, over
        self._marks += pool.size - before
        self._touch(pool_key(call), session.session_id, call.ended_at)
        return placement

    def restore(self, call: CapturedCall, placement: Placement) -> None:
        """Take in a call that was placed before (by an earlier process, or by another), as it was placed.

        `placement.opened` carries the link in force when the call opened its session. Calls come in the order in which
        they were placed; where older ones are missing, what depended on them is not known.
        """
        pool, request = self._pool(call), Request(call, self._harnesses)
        before = pool.size
        if placement.session_id not in pool.sessions:
            _restore_session(pool, request, placement)
        session = pool.sessions[placement.session_id]
        root = placement.opened is not None and placement.opened.kind is SessionKind.ROOT
        if placement.auxiliary is not None and session.head_call_id is None and root:
            await_session(pool, request, session.session_id)
        if placement.opened is None and placement.auxiliary is None and session.calls:
            placement.relinked = confirm(pool, request, session)
        for call_id in placement.confirmed:
            for other in pool.sessions.values():
                for summary in other.summaries:
                    summary.used |= summary.call_id == call_id
        for call_id in placement.why.evidence.get("confirms", ()):
            for other in around(pool, session):
                take_back(other, call_id)
        remember(pool, request, placement)
        endings(pool, request, placement)
        rolled_over(pool, placement)
        self._marks += pool.size - before
        self._touch(pool_key(call), session.session_id, call.ended_at)

    def _pool(self, call: CapturedCall) -> Pool:
        key = pool_key(call)
        pool = self._pools.get(key)
        if pool is None:
            pool = self._pools[key] = Pool()
        self._pools.move_to_end(key)
        return pool

    def _touch(self, key: str, session_id: str, now: float) -> None:
        """Note that a session got a call, and forget those that got none for long."""
        newest = key, session_id
        self._recent[newest] = now
        self._recent.move_to_end(newest)
        while True:
            oldest, silent_since = next(iter(self._recent.items()))
            room = len(self._recent) <= self._max_sessions and (
                self._marks <= self._max_marks or len(self._recent) == 1
            )
            if room and silent_since >= now - IDLE_S:
                return
            del self._recent[oldest]
            pool = self._pools[oldest[0]]
            before = pool.size
            pool.drop(oldest[1])
            self._marks += pool.size - before


def pool_key(call: CapturedCall) -> str:
    """Calls that may be related share a pool: the operator's trajectory, else the client."""
    return f"t:{call.trajectory_id}" if call.trajectory_id is not None else f"c:{call.client}"


def _placed(pool: Pool, request: Request) -> Placement:
    for rung in _LADDER:
        if (found := rung(pool, request)) is not None:
            return found
    raise AssertionError("the last rung places every call")


def _told(pool: Pool, request: Request, session: Session, placement: Placement) -> Placement:
    """The same with what it tells of the session's parent and children."""
    if placement.opened is None and session.calls:
        placement.relinked = confirm(pool, request, session)
    above = pool.sessions.get((placement.opened and placement.opened.parent_session_id) or "")
    went_on = placement.why.evidence.get("confirms", ())
    for call_id in went_on:
        take_back(session, call_id)
    taken = (*went_on, *heard(pool, request, session), *obeyed(above))
    if not taken:
        return placement
    why = replace(placement.why, evidence={**placement.why.evidence, "confirms": taken})
    return replace(placement, why=why, confirmed=(*placement.confirmed, *taken))


def _restore_session(pool: Pool, request: Request, placement: Placement) -> None:
    """The session that a restored call opened, or of which it is the oldest call that is known."""
    link = placement.opened
    if link is None:
        link = Link(placement.session_id, SessionKind.ROOT, None, None, Rung.NONE, 0.0, {"restored": True})
    pool.add(state_of(request, placement.trajectory_id, link, placement.position))
    tool_call_id = link.evidence.get("tool_call")
    parent = pool.sessions.get(link.parent_session_id or "")
    if parent is not None and isinstance(tool_call_id, str) and (call := parent.calls.get(tool_call_id)) is not None:
        claim(pool, link.session_id, call)
        if link.rung is Rung.RESULT:
            parent.children.remove(link.session_id)
