"""Requests whose history holds nothing that we said: they open a session, or serve the framework."""

from dataclasses import replace
from itertools import islice

from mosaic.lineage import phrases
from mosaic.lineage.canonical import words
from mosaic.lineage.continuing import argument_key, compacts, same_agent, task_key
from mosaic.lineage.model import LINK_THRESHOLD, Placement, Rung, Why
from mosaic.lineage.placing import UNANCHORED, inside, newest, opening, root, undecided
from mosaic.lineage.quoting import carries, pending, recast, told_again, transcript
from mosaic.lineage.request import Request, contains
from mosaic.lineage.state import MAX_ALIKE, Argument, Mark, Mention, OpenCall, Pool, Written
from mosaic.records import SessionKind

BARE = 40
"""Longest text, in characters, of a probe that offers tools; anything longer is a task."""


def opened(pool: Pool, request: Request) -> Placement:
    """Where a request stands that goes on from nothing."""
    hits = [h for h in phrases.found_in(pool, request.told) if _possible(pool, request, h)] if pool.sessions else []
    served = _auxiliary(pool, request, hits) if request.fresh else None
    if not pool.sessions:  # nothing that the other rungs could find
        return served or _stray(pool, request) or root(pool, request)
    return (
        served
        or _spawn(pool, request, _exact(pool, request), exact=True)
        or _compaction(pool, request, hits)
        or told_again(pool, request, hits)
        or transcript(pool, request, hits)
        or _claimed(pool, request)
        or carries(pool, request, hits)
        or _spawn(pool, request, [h for h in hits if isinstance(h, Argument)], exact=False)
        or recast(pool, request, hits)
        or _stray(pool, request)
        or _awaited(pool, request)
        or root(pool, request)
    )


def _possible(pool: Pool, request: Request, mark: Mark) -> bool:
    mine, theirs = request.claims.trajectory, pool.sessions[mark.session_id].claims.trajectory
    return mine is None or theirs is None or mine == theirs


def _exact(pool: Pool, request: Request) -> list[Argument]:
    texts = dict.fromkeys([request.first_user, *request.blocks[-8:]] if request.fresh else [])
    if request.system_text and request.fresh:
        texts[request.system_text] = None
    found = [m for text in texts if text for m in pool.find(argument_key(text))]
    return [m for m in found if isinstance(m, Argument) and _possible(pool, request, m)]


def _spawn(pool: Pool, request: Request, found: list[Argument], *, exact: bool) -> Placement | None:
    """The first user text is, or contains, an argument of a tool call."""
    if not request.fresh:
        return None
    scored = [(_plausible(pool, request, a, exact), a) for a in found]
    scored = [(score, a) for score, a in scored if score > 0]
    by_claim = [(s, a) for s, a in scored if pool.sessions[a.session_id].claims.agent == request.claims.parent]
    named = bool(by_claim) and request.claims.parent is not None
    scored = by_claim if named else scored
    if not scored:
        return None
    rank = {id(a): _rank(a, score) for score, a in scored}
    scored.sort(key=lambda s: rank[id(s[1])])
    score, best = scored[-1]
    evidence = {"tool_call": best.call.tool_call_id, "tool": best.call.tool, "exact": exact}
    others = {a.call.tool_call_id: a for _, a in scored if a.call is not best.call}
    rivals = tuple({"session": a.session_id, "call": a.call_id, "tool_call": i} for i, a in list(others.items())[-8:])
    alike = [a for _, a in scored if a.digest == best.digest]
    elsewhere = {pool.sessions[a.session_id].trajectory_id for a in alike}
    waiting = {pool.sessions[a.session_id].trajectory_id for a in alike if a.call.claimed_by is None}
    if len(elsewhere) > 1 and len(waiting) != 1:
        return undecided(pool, request, Why(Rung.ARGUMENT, 0.5, evidence), list(alike))
    if len(elsewhere) > 1:  # all the others have their child, as far as is known
        score = min(score, 0.7)
    elif named:
        score = 0.97
    if score < LINK_THRESHOLD:
        if exact or request.call.trajectory_id is not None:
            return undecided(pool, request, Why(Rung.ARGUMENT, score, evidence), list(alike))
        return None
    placed = opening(pool, request, SessionKind.SPAWN, best, Why(Rung.ARGUMENT, score, evidence, rivals))
    claim(pool, placed.session_id, best.call)
    return placed


def _rank(argument: Argument, score: float) -> tuple[float, int, bool, bool]:
    """Surest, longest, of an unclaimed call, of one that is open."""
    return score, argument.length, argument.call.claimed_by is None, not argument.call.closed


def _plausible(pool: Pool, request: Request, argument: Argument, exact: bool) -> float:
    """How sure a spawn is by this argument alone."""
    parent = pool.sessions[argument.session_id]
    # A call that its agent waits at starts something, whatever it is called.
    waits = argument.call_id == parent.head_call_id and argument.length >= phrases.LONG
    known = waits or argument.name in request.harnesses.spawns.get(argument.call.tool, ())
    twin = request.same_agent(parent.system, parent.tools)
    again = any(
        request.same_agent(pool.sessions[m.session_id].system, pool.sessions[m.session_id].tools)
        for m in pool.find(task_key(request.first_user))
    )
    if again or (argument.text == parent.first_user and twin):
        return 0.0  # another attempt at a task that is known
    if exact:
        sure = request.call.trajectory_id is not None
        fresh = not twin and not argument.call.closed
        return (0.95 if sure else UNANCHORED) if fresh else 0.85 if known or not twin else 0.5
    told = words(request.first_user)
    if not waits and not contains(told, argument.text):
        return 0.0  # it stands in the system text, where a memory of it may be
    covered = argument.length / max(1, len(told))
    if covered >= 0.5 or (known and argument.length >= 3) or argument.length >= phrases.LONG:
        return 0.85 if not twin else 0.7 if known else 0.4
    return 0.7 if request.call.trajectory_id is not None and not twin else 0.0


def claim(pool: Pool, session_id: str, call: OpenCall) -> None:
    """Note that a session is believed to have come from a tool call."""
    session = pool.sessions[session_id]
    session.claimed = call
    call.claimed_by = session_id
    parent = pool.sessions.get(call.session_id)
    if parent is not None and session_id not in parent.children:
        parent.children.append(session_id)


def _compaction(pool: Pool, request: Request, hits: list[Mention]) -> Placement | None:
    """The request opens with a summary that the policy wrote."""
    written = [h for h in hits if isinstance(h, Written)]
    sessions = [pool.sessions[h.session_id] for h in written if h.call_id in _summaries(pool, h)]
    found = list({s.session_id: s for s in sessions}.values())
    agents = [s for s in found if s.claims.agent is not None and s.claims.agent == request.claims.agent]
    found = agents or found
    if not found:
        return None
    if len({s.trajectory_id for s in found}) > 1:
        marks = [Mark(s.session_id, s.summaries[-1].call_id) for s in found]
        placed = undecided(pool, request, Why(Rung.SUMMARY, 0.5, {}), marks)
        return placed if request.tools else pending(pool, request, "summary", placed)
    session = found[-1]
    if request.harnesses.helps_compaction(request.first_user) or (session.tools and not request.tools):
        why = Why(Rung.SUMMARY, 0.85, {"helps": session.summaries[-1].call_id})
        return inside(request, session, session.head_call_id, why, auxiliary="summary")
    return compacts(pool, request, session)


def _summaries(pool: Pool, mark: Mark) -> list[str]:
    return [s.call_id for s in pool.sessions[mark.session_id].summaries if not s.used]


def _claimed(pool: Pool, request: Request) -> Placement | None:
    """What the framework's ids say where content says nothing."""
    claims = request.claims
    if same := pool.of_agent("agent", claims.agent):
        session = same[-1]
        if placed := compacts(pool, request, session):
            return placed
        if claims.window is not None and session.claims.window not in (None, claims.window):
            parent = newest(session)
            return opening(pool, request, SessionKind.COMPACTION, parent, Why(Rung.CLAIM, 0.85, {"window": "new"}))
        if not request.tools and session.tools:
            kind = "summary" if request.asks_for_summary else "side"
            return inside(request, session, session.head_call_id, Why(Rung.CLAIM, 0.7), auxiliary=kind)
    if parents := pool.of_agent("agent", claims.parent):
        parent = newest(parents[-1])
        return opening(pool, request, SessionKind.SPAWN, parent, Why(Rung.CLAIM, 0.85, {"parent": claims.parent}))
    return None


def _stray(pool: Pool, request: Request) -> Placement | None:
    """A request for a summary of something that is not known: no attempt, but its answer may come back in one."""
    if request.tools or request.call.trajectory_id is not None or not request.surely_asks_for_summary:
        return None
    if len(pool.running) == 1:  # who else should have asked
        session = pool.sessions.get(pool.newest.get(next(iter(pool.running)), ""))
        if session is not None and session.tools and same_agent(request, session):
            why = Why(Rung.PATTERN, 0.65, {"kind": "summary", "only": True})
            return inside(request, session, session.head_call_id, why, auxiliary="summary")
    return _waiting(pool, request, "summary", Why(Rung.PATTERN, 0.7, {"kind": "summary"}))


def _auxiliary(pool: Pool, request: Request, hits: list[Mention]) -> Placement | None:
    """The request reads like one of the calls that frameworks make for themselves."""
    asked = request.asked()
    kind = request.harnesses.auxiliary("" if request.tools else request.system_text, asked)
    if kind is None or (request.tools and len(asked) > BARE):
        return None
    why = Why(Rung.PATTERN, 0.95 if request.call.trajectory_id is not None else UNANCHORED, {"kind": kind})
    same = pool.of_agent("agent", request.claims.agent)
    quoted = dict.fromkeys(h.session_id for h in hits)
    found = [pool.sessions[s] for s in quoted if same_agent(request, pool.sessions[s])]
    if not same:  # another attempt at the same task, which comes next, is as likely to be meant by a second one
        found = [s for s in found if kind not in s.served] or found
    if same or len({s.trajectory_id for s in found}) == 1:
        session = (same or found)[-1]
        score = why.score if same or request.call.trajectory_id is not None else LINK_THRESHOLD
        return inside(request, session, session.head_call_id, replace(why, score=score), auxiliary=kind)
    if request.call.trajectory_id is not None and pool.sessions:
        session = next(iter(pool.sessions.values()))
        return inside(request, session, session.head_call_id, why, auxiliary=kind)
    return _waiting(pool, request, kind, why)


def _waiting(pool: Pool, request: Request, kind: str, why: Why) -> Placement:
    """An auxiliary call whose session is not there (yet)."""
    return pending(pool, request, kind, opening(pool, request, SessionKind.ROOT, None, why))


def _awaited(pool: Pool, request: Request) -> Placement | None:
    """The session for which an auxiliary call (a title) came first."""
    wanted = f" {' '.join(words(request.first_user))} "
    waiting = [s for i in islice(reversed(pool.pending), MAX_ALIKE) if same_agent(request, s := pool.sessions[i])]
    by_claim = [s for s in waiting if s.claims.agent is not None and s.claims.agent == request.claims.agent]
    named = request.call.trajectory_id is not None
    found = by_claim or [s for s in waiting if named or (len(wanted) > 10 and wanted in s.pending)]
    if not found or (not by_claim and (len(found) > 1 or pool.find(task_key(request.first_user)))):
        return None
    session = found[0]  # the newest
    session.tools, session.system = request.tools, request.system_words
    session.first_user, session.first_item = request.first_user, request.first_item
    why = Why(Rung.CLAIM if by_claim else Rung.QUOTE, 0.95 if by_claim else 0.85, {"announced": True})
    return inside(request, session, None, why)
