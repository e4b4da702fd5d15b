"""Requests that carry on from what was said before: retries, extensions of a chain, and histories that were edited."""

import re
from collections.abc import Sequence
from dataclasses import replace

from mosaic.capture import CallStatus
from mosaic.lineage import canonical, phrases
from mosaic.lineage.model import Placement, Rung, Why
from mosaic.lineage.placing import UNANCHORED, inside, newest, opening, undecided
from mosaic.lineage.request import Request
from mosaic.lineage.state import End, Mark, Pool, Sent, Session, Summary, Written
from mosaic.records import SessionKind

MIN_TEXT = 12
"""Shortest reply, in characters, that is recognised by its text alone."""
QUOTE = 240
"""Characters of a text by which a quote of it is recognised."""
LOOK_BACK = 3
"""Newest assistant texts in which emitted ids and texts are looked for."""
NEWEST_IDS = 8
"""Newest tool-call ids by which it is told whether a history is tied to a trajectory."""
_ID = re.compile(r"[\w.:-]{6,}")


def argument_key(text: str) -> int:
    """Where the tool calls are found that had exactly this argument."""
    return hash(("argument", text))


def task_key(text: str) -> int:
    """Where the roots are found that opened with this text."""
    return hash(("task", text))


def end_key(chain: int) -> int:
    """Where a call is found that ends a chain."""
    return hash(("end", chain))


def gap_key(chain: int, ids: tuple[str, ...]) -> int:
    """Where the calls are found that went on from a reply which was not known then; `ids` are of its tool calls."""
    return hash(("gap", chain, ids))


def id_key(tool_call_id: str) -> int:
    """Where the calls are found that emitted an id."""
    return hash(("id", tool_call_id))


def opening_key(chain: int) -> int:
    """Where the sessions are found that opened with exactly this."""
    return hash(("opening", chain))


def reply_key(text: str) -> int:
    """Where the calls are found that said a text."""
    return hash(("reply", text))


def retry(pool: Pool, request: Request) -> Placement | None:
    """The same request again, with the SDK's own retry count or after a failure: no new sample."""
    earlier = [m for m in pool.find(request.digest) if isinstance(m, Sent)]
    if not earlier:
        return None
    same = [m for m in earlier if same_agent(request, pool.sessions[m.session_id])]
    if len({pool.sessions[m.session_id].trajectory_id for m in same}) != 1:
        return None
    sent = same[-1]
    # Without the operator's word, the framework's or emitted ids, the first call of another attempt is the same.
    sure = request.call.trajectory_id is not None or request.claims.agent is not None or bool(request.ids)
    # A call that was cut may be recorded after the retry that followed it.
    cut = request.call.status is not CallStatus.OK and (sure or sent.retries > 0)
    if request.call.retry_count == 0 and not cut and (sent.ended_well or not sure):
        return None
    evidence = {"retry_of": sent.call_id, "retry_count": request.call.retry_count, "failed": not sent.ended_well}
    session = pool.sessions[sent.session_id]
    why = Why(Rung.RETRY, 0.97 if sure else UNANCHORED, evidence)
    placed = inside(request, session, sent.parent_call_id, why, auxiliary=None)
    return replace(placed, retry_of=sent.call_id)


def late(pool: Pool, request: Request) -> Placement | None:
    """A call that arrives after one that went on from it: another worker's, or one that waited in a journal."""
    for reply in request.replies:
        for mark in pool.find(gap_key(reply.end, reply.ids)):
            session = pool.sessions[mark.session_id]
            if _claims_another(request, session):
                continue
            before = next(
                (
                    e
                    for k in range(len(request.items) - 1, -1, -1)
                    for e in pool.find(end_key(request.chain[k]))
                    if e.session_id == mark.session_id
                ),
                None,
            )
            parent = before.call_id if before is not None else None
            return inside(request, session, parent, Why(Rung.PREFIX, 0.97, {"late": True, "before": mark.call_id}))
    return None


def extension(pool: Pool, request: Request) -> Placement | None:
    """The longest prefix of the request that ends with a reply of ours."""
    for k in range(len(request.items) - 1, -1, -1):
        if request.items[k].sampled and (ends := pool.find(end_key(request.chain[k]))):
            return _extended(pool, request, ends, k)
    return None


def _extended(pool: Pool, request: Request, ends: Sequence[Mark], k: int) -> Placement:  # noqa: PLR0911 - a ladder
    evidence = {"items": k + 1, "of": len(request.items)}
    found = _narrowed(pool, request, ends, k)
    if len({pool.sessions[e.session_id].trajectory_id for e in found}) > 1:
        return undecided(pool, request, Why(Rung.PREFIX, 0.5, evidence), found)
    heads = [e for e in found if pool.sessions[e.session_id].head_call_id == e.call_id]
    end = (heads or found)[-1]
    session = pool.sessions[end.session_id]
    # Without tool-call ids, the same words may be those of another attempt.
    anchored = _anchored(pool, request, session)
    most = 0.99 if anchored else UNANCHORED
    emitter = _newest_emitter(pool, request, k) or _newer_text(pool, request, session, k)
    if emitter is not None and emitter.session_id != end.session_id:
        return _edited(pool, request, emitter, {**evidence, "echo": "newer"})
    asked = request.asked(k)
    if isinstance(end, End) and end.auxiliary == "summary" and _goes_on(request, session, asked):
        return inside(request, session, end.call_id, Why(Rung.PREFIX, most, {**evidence, "confirms": (end.call_id,)}))
    begun = _begun_by(pool, request, session, k)
    if begun is not None and (serves := _serves(request, pool.sessions[begun.session_id], begun, asked)):
        why = Why(Rung.PREFIX, min(0.95, most), {**evidence, "of": "opening"})
        return inside(request, pool.sessions[begun.session_id], begun.call_id, why, auxiliary=serves)
    if serves := _serves(request, session, end, asked):
        return inside(request, session, end.call_id, Why(Rung.PREFIX, min(0.95, most), evidence), auxiliary=serves)
    if _other_agent(request, session):
        kind = SessionKind.HANDOFF if request.items[-1].role == "result" else SessionKind.FORK
        return opening(pool, request, kind, end, Why(Rung.PREFIX, min(0.9, most), {**evidence, "agent": "other"}))
    if not request.ok:
        return inside(
            request, session, end.call_id, Why(Rung.PREFIX, min(0.97, most), evidence)
        )  # nothing can go on from it
    if _claims_another(request, session):
        return opening(pool, request, SessionKind.FORK, end, Why(Rung.PREFIX, min(0.9, most), evidence))
    if session.head_call_id not in (end.call_id, None) and (emitter or end).call_id != session.head_call_id:
        if compacted := compacts(pool, request, session):
            return compacted
        return opening(pool, request, SessionKind.FORK, end, Why(Rung.PREFIX, min(0.95, most), evidence))
    return inside(request, session, end.call_id, Why(Rung.PREFIX, most, evidence))


def _begun_by(pool: Pool, request: Request, session: Session, k: int) -> Mark | None:
    """The opening call of another session of the same agent that the request holds beyond item `k`: of one that was
    handed `session`'s history."""
    for j in range(len(request.items) - 1, k, -1):
        for mark in pool.find(opening_key(request.chain[j])):
            other = pool.sessions[mark.session_id]
            if (
                other is not session
                and other.trajectory_id == session.trajectory_id
                and request.same_agent(other.system, other.tools)
            ):
                return mark
    return None


def _newer_text(pool: Pool, request: Request, session: Session, k: int) -> Mark | None:
    """The session's newest call, when its text stands beyond item `k`: what was between has been edited."""
    said = [i.text for i in request.items[k + 1 :] if i.role == "assistant" and len(i.text) >= MIN_TEXT]
    marks = (mark for text in reversed(said) for mark in pool.find(reply_key(text)))
    return next((m for m in marks if m.call_id == session.head_call_id), None)


def _narrowed(pool: Pool, request: Request, ends: Sequence[Mark], k: int) -> Sequence[Mark]:
    """Of the calls that said the same, those that the request can go on from: its ids and claims tell."""
    ends = [e for e in ends if _same_trajectory(request, pool.sessions[e.session_id])] or ends
    if len(ends) > 1:
        at = k
        while at >= 0 and request.items[at].role == "call":
            known = {e.call_id for e in pool.find(id_key(request.items[at].tool_call_id or ""))}
            ends = [e for e in ends if e.call_id in known] or ends if known else ends
            at -= 1
    if len(ends) > 1:
        ends = [e for e in ends if same_agent(request, pool.sessions[e.session_id])] or ends
    if len(ends) > 1 and request.ids:  # ids further up in the history
        sessions = {m.session_id for i in request.ids for m in pool.find(id_key(i))}
        ends = [e for e in ends if e.session_id in sessions] or ends
    return ends


def _serves(request: Request, session: Session, end: Mark, asked: str) -> str | None:
    """The kind of auxiliary call, when a request that extends a session is one."""
    drops_tools = bool(session.tools) and not request.tools
    in_text = request.answered_in_text or not request.ok
    if in_text and asked and (drops_tools or request.harnesses.asks_for_summary(asked)):
        return "summary"
    if request.claims.kind == "compaction" or (in_text and drops_tools and not request.same_system(session.system)):
        return "summary"
    if isinstance(end, End) and end.auxiliary is not None:
        return end.auxiliary  # goes on from a call that serves the framework
    if asked and request.other_agent(session.system, session.tools):
        return request.harnesses.auxiliary(request.system_text, asked)
    return request.harnesses.aside(asked) if asked else None


def _goes_on(request: Request, session: Session, asked: str) -> bool:
    """Whether a session goes on from a summary as if it had been any other answer: its user had asked for it."""
    same = request.ok and request.same_agent(session.system, session.tools)
    return same and request.claims.kind != "compaction" and not request.harnesses.asks_for_summary(asked)


def echo(pool: Pool, request: Request) -> Placement | None:
    """Tool-call ids or texts that we emitted, in a history that was edited."""
    emitter = _newest_emitter(pool, request)
    if emitter is not None:
        return _edited(pool, request, emitter, {"echo": "id"})
    said = [i.text for i in request.items if i.role == "assistant" and len(i.text) >= MIN_TEXT][-LOOK_BACK:]
    for text in reversed(said):
        found = [e for e in pool.find(reply_key(text)) if _same_trajectory(request, pool.sessions[e.session_id])]
        found = [e for e in found if same_agent(request, pool.sessions[e.session_id])] or found
        if len({pool.sessions[e.session_id].trajectory_id for e in found}) > 1:
            return undecided(pool, request, Why(Rung.ECHO, 0.5, {"echo": "text"}), found)
        if found:
            return _edited(pool, request, found[-1], {"echo": "text", "characters": len(text)})
    return _altered(pool, request)


def _altered(pool: Pool, request: Request) -> Placement | None:
    """Texts that we emitted and that were cut, or had a tool's result added: they begin as they did. Or what was an
    argument of a call stands there as what the agent said."""
    said = [m for m in request.call.messages if m.get("role") == "assistant"][-LOOK_BACK:]
    for message in reversed(said):
        text = canonical.text_of(message.get("content"))
        marks = phrases.beginning(pool, canonical.words(text[:QUOTE])) or pool.find(
            argument_key(canonical.collapse(text))
        )
        found = [m for m in marks if same_agent(request, pool.sessions[m.session_id])]
        alike = [m for m in found if pool.sessions[m.session_id].first_item == request.first_item] or found
        if len({pool.sessions[m.session_id].trajectory_id for m in alike}) > 1:
            return undecided(pool, request, Why(Rung.ECHO, 0.5, {"echo": "text"}), alike)
        if alike:
            return _edited(pool, request, alike[-1], {"echo": "text", "altered": True})
    return None


def _edited(pool: Pool, request: Request, emitter: Mark, evidence: dict[str, object]) -> Placement:
    session = pool.sessions[emitter.session_id]
    score = 0.95 if evidence["echo"] != "text" else 0.85 if request.first_item == session.first_item else 0.75
    if compacted := compacts(pool, request, session):
        return compacted
    asked = request.newest_asked
    drops_tools = bool(session.tools) and not request.tools
    if asked and (drops_tools or request.harnesses.asks_for_summary(asked)) and request.answered_in_text:
        why = Why(Rung.ECHO, score, evidence)
        return inside(request, session, session.head_call_id, why, auxiliary="summary")
    if _other_agent(request, session):
        kind = SessionKind.HANDOFF if request.items[-1].role == "result" else SessionKind.FORK
        return opening(pool, request, kind, emitter, Why(Rung.ECHO, min(score, 0.85), evidence))
    if request.tools and _begins_anew(pool, request, session):
        parent = Mark(session.session_id, session.head_call_id or emitter.call_id)
        return opening(pool, request, SessionKind.COMPACTION, parent, Why(Rung.ECHO, 0.75, {**evidence, "cut": True}))
    why = Why(Rung.ECHO, score, {**evidence, "edited": True})
    return inside(request, session, session.head_call_id, why)


def _begins_anew(pool: Pool, request: Request, session: Session) -> bool:
    """Whether older rounds are gone and a text that the session has never held stands in their place: a summary that
    nobody asked of us, or one whose place is not known."""
    if request.first_item == session.first_item or all(i in request.ids for i in session.calls):
        return False
    opening_text = canonical.words(request.first_user)
    known = phrases.found_in(pool, opening_text) if len(opening_text) >= phrases.ANCHOR else [None]
    return not any(mark is None or mark.session_id == session.session_id for mark in known)


def _other_agent(request: Request, session: Session) -> bool:
    """Whether another agent goes on with a session's history: it has other tools and words, or was handed over to."""
    if request.other_agent(session.system, session.tools):
        return True
    newest = next((i for i in reversed(request.items) if i.sampled), None)
    handed = newest is not None and newest.role == "call" and request.harnesses.hands_over(newest.name)
    return handed and request.items[-1].role == "result" and request.system_words != session.system


def compacts(pool: Pool, request: Request, session: Session) -> Placement | None:
    """The request opens a session with a summary of `session`, whose newest rounds may follow it."""
    if session.tools and not request.tools:
        return None
    open_ = [s for s in session.summaries if not s.used and (s.asked or request.same_system(session.system))]
    told = f" {' '.join([*canonical.words(request.system_text), *request.told])} " if open_ else ""
    carried = [s for s in open_ if any(f" {core} " in told for core in s.cores)]
    open_ = carried or [s for s in open_ if s.asked]
    anew = request.first_item != session.first_item
    if not carried and request.ids and anew and (stray := _stray_summary(pool, request, session)):
        evidence = {"summary_elsewhere": stray.call_id, "kept": True}
        parent = newest(session)
        return opening(pool, request, SessionKind.COMPACTION, parent, Why(Rung.SUMMARY, 0.85, evidence))
    if not open_ or (not carried and not anew):
        return None
    if carried and request.ids and all(s.part for s in carried):
        why = Why(Rung.ECHO, 0.95, {"shortened_by": [s.call_id for s in carried], "edited": True})
        return inside(request, session, session.head_call_id, why)
    return _compacted(pool, request, session, carried or open_[-1:], carried=bool(carried))


def _compacted(pool: Pool, request: Request, session: Session, used: list[Summary], *, carried: bool) -> Placement:
    """A session that goes on from `session` with summaries that the request carries, or else the newest."""
    befores = [s.after for s in used]
    used = [s for s in session.summaries if not s.used and (s in used or s.call_id in befores)]
    # Without tool-call ids or claims, the same words may be those of an attempt whose summary is not known.
    named = request.claims.agent is not None and request.claims.agent == session.claims.agent
    anchored = named or _anchored(pool, request, session)
    sure = anchored and used[-1].score > UNANCHORED
    score = 0.97 if carried and sure else UNANCHORED if carried else 0.8
    evidence = {"summary_calls": [s.call_id for s in used], "carried": carried, "kept": bool(request.ids)}
    parent = Mark(session.session_id, used[-1].call_id)
    placed = opening(pool, request, SessionKind.COMPACTION, parent, Why(Rung.SUMMARY, score, evidence))
    if placed.opened is None or placed.opened.kind is not SessionKind.COMPACTION:
        return placed
    for summary in used:
        summary.used = True
    return replace(placed, confirmed=tuple(s.call_id for s in used))


def _stray_summary(pool: Pool, request: Request, session: Session) -> Mark | None:
    """A summary that stands in the request and was written in a call that nothing links to a session."""
    for mark in phrases.found_in(pool, request.told):
        if isinstance(mark, Written) and mark.session_id in pool.pending and mark.session_id != session.session_id:
            return mark
    return None


def _newest_emitter(pool: Pool, request: Request, after: int = -1) -> Mark | None:
    """The call that emitted the newest tool-call id beyond item `after`, or the newest session that kept it.

    None where several attempts have it.
    """
    looked = 0
    for item in reversed(request.items[after + 1 :]):
        ids = [item.tool_call_id] if item.tool_call_id else []
        if item.role == "assistant" and looked < LOOK_BACK and "[" in item.text:
            looked += 1
            ids = list(reversed(_ID.findall(item.text[-4000:])))
        for tool_call_id in ids:
            if found := pool.find(id_key(tool_call_id)):
                agents = [m for m in found if same_agent(request, pool.sessions[m.session_id])] or found
                if len({pool.sessions[m.session_id].trajectory_id for m in agents}) == 1:
                    return agents[-1]
                return None
    return None


def _anchored(pool: Pool, request: Request, session: Session) -> bool:
    """Whether the operator, or an id that only this trajectory's calls emitted, ties a request to a session."""
    if request.call.trajectory_id is not None:
        return True
    for tool_call_id in request.ids[-NEWEST_IDS:]:
        emitters = {pool.sessions[m.session_id].trajectory_id for m in pool.find(id_key(tool_call_id))}
        if emitters == {session.trajectory_id}:
            return True
    return False


def same_agent(request: Request, session: Session) -> bool:
    """Whether the framework's ids allow that a request is of a session's agent."""
    mine, theirs = request.claims.agent, session.claims.agent
    return mine is None or theirs is None or mine == theirs


def claimed(request: Request, session: Session) -> bool:
    """Whether the framework's ids say that a request is of a session's agent."""
    return request.claims.agent is not None and request.claims.agent == session.claims.agent


def _same_trajectory(request: Request, session: Session) -> bool:
    mine, theirs = request.claims.trajectory, session.claims.trajectory
    return mine is None or theirs is None or mine == theirs


def _claims_another(request: Request, session: Session) -> bool:
    """Whether an agent that was never seen goes on with the history of another."""
    return not same_agent(request, session) and request.claims.agent is not None
