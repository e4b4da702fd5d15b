"""Requests that hold what a session said, or all that was said in it, in a history of their own."""

from collections import Counter
from dataclasses import replace

import orjson

from mosaic.lineage import canonical, phrases
from mosaic.lineage.canonical import words
from mosaic.lineage.confirming import last_of
from mosaic.lineage.continuing import claimed, id_key
from mosaic.lineage.model import Placement, Rung, Why
from mosaic.lineage.placing import UNANCHORED, inside, newest, opening, undecided
from mosaic.lineage.request import Request, contains
from mosaic.lineage.state import IN_TEXT, Argument, Mark, Mention, Pool, Said, Session
from mosaic.records import SessionKind

MIN_QUOTES = 3
"""Texts of one session that a request must quote to count as a transcript of it; a tool-call id is worth as many."""
NEARLY = 0.8
"""Share of the most quotes from which another attempt may be meant as well."""
SAME_FORM = 0.85
"""Share of the words of system texts in common from which an agent asks in the same form as it did."""
BRIEF = 160
"""Characters of an answer below which it may be a verdict."""
BEGIN = 8
"""Words in which two prompts of one agent begin alike."""
MIN_TOLD = 4
"""Fewest words of an opening by which it is known again."""
MAX_PENDING = 4000
"""Words of an auxiliary call that are remembered while its session is not there."""


def told_again(pool: Pool, request: Request, hits: list[Mention]) -> Placement | None:
    """An agent whose whole history is told anew in one message, which begins as it did at first, or tells all that it
    told then, and holds the newest reply."""
    if not request.fresh:
        return None
    said = [h for h in hits if h.sampled]
    heads = {h.session_id for h in said if h.call_id == pool.sessions[h.session_id].head_call_id}
    several = {i for i in heads if len({h.call_id for h in said if h.session_id == i}) > 1}
    found = [s for i in heads if _told_alike(request, s := pool.sessions[i], several=i in several)]
    if not found:
        return None
    if len({s.trajectory_id for s in found}) > 1:
        marks = [newest(s) for s in found]
        return undecided(pool, request, Why(Rung.QUOTE, 0.5, {"told": "again"}), marks)
    session = max(found, key=lambda s: s.position)
    score = 0.9 if request.call.trajectory_id is not None else 0.8
    return inside(request, session, session.head_call_id, Why(Rung.QUOTE, score, {"told": "again"}))


def _told_alike(request: Request, session: Session, *, several: bool) -> bool:
    """Whether a request of the same agent opens as a session did, or tells `several` of its replies under one text."""
    same = request.same_agent(session.system, session.tools) and request.same_system(session.system, SAME_FORM)
    if not same or session.repeats:
        return False
    if several and session.system:
        return True
    first = words(session.first_user)
    if len(first) >= MIN_TOLD and first[:BEGIN] == words(request.first_user[: 40 * BEGIN])[:BEGIN]:
        return True
    return session.ended is None and len(set(first).intersection(request.told)) >= NEARLY * len(set(first))


def transcript(pool: Pool, request: Request, hits: list[Mention]) -> Placement | None:
    """The request offers no tools and quotes one session's history, extending none: it serves that session."""
    if request.tools:
        return None
    quoted, named = _quoted(pool, request, hits)
    # What only a user or a tool said may have been said to another.
    spoken = {h.session_id for h in hits if h.sampled} | named
    if not spoken and request.surely_asks_for_summary:  # of the begin of a session, in which little was said yet
        spoken = set(quoted)
    quoted, named = _by_agent(pool, quoted, named, spoken)
    if mine := [s for s in quoted if claimed(request, pool.sessions[s])]:
        quoted = Counter({s: quoted[s] for s in mine})
    most = max(quoted.values(), default=0)
    if most < (1 if request.asks_for_summary else MIN_QUOTES):
        return None
    # Without an id, nearly as much of another attempt is as good: the one that said more may just be further on.
    enough = most if any(quoted[s] == most for s in named) or mine else NEARLY * most
    best = [pool.sessions[s] for s, n in sorted(quoted.items(), key=lambda item: item[1]) if n >= enough]
    kind = request.harnesses.auxiliary(request.system_text, request.newest_asked)
    kind = kind or ("summary" if request.asks_for_summary else "side")
    if len({s.trajectory_id for s in best}) > 1:
        marks = [newest(s) for s in best]
        return pending(pool, request, kind, undecided(pool, request, Why(Rung.QUOTE, 0.5, {}), marks))
    session = best[-1]
    others = tuple({"session": s, "quotes": n} for s, n in quoted.items() if 2 * n > most and s != session.session_id)
    sure = session.session_id in named or request.call.trajectory_id is not None
    score = 0.95 if sure else 0.7 if most < 2 else 0.75 if others or most < MIN_QUOTES else UNANCHORED
    rounds = {h.call_id for h in hits if h.session_id == session.session_id and h.sampled}
    why = Why(Rung.QUOTE, score, {"quotes": most, "rounds": len(rounds)}, others[:8])
    if kind == "side" and not _serves(request, session):
        parent = newest(session)
        return opening(pool, request, SessionKind.HANDOFF, parent, replace(why, score=min(score, 0.8)))
    return inside(request, session, session.head_call_id, why, auxiliary=kind)


def _quoted(pool: Pool, request: Request, hits: list[Mention]) -> tuple[Counter[str], set[str]]:
    """Session -> how much of it the request quotes; and those of which it quotes tool-call ids."""
    quoted: Counter[str] = Counter()
    whole = {h.call_id for h in hits if isinstance(h, Said)}
    for session_id, _ in dict.fromkeys(_told_of(h) for h in hits if h.call_id not in whole or not _in_text(h)):
        quoted[session_id] += 1
    named: set[str] = set()
    texts = [i.text for i in request.items if i.role == "user"]
    for word in dict.fromkeys(w for text in (request.system_text, *texts) for w in text.split()):
        found = pool.find(id_key(word.strip("\"'()[]{},:;<>")))
        if len({pool.sessions[m.session_id].trajectory_id for m in found}) == 1:
            quoted[found[-1].session_id] += MIN_QUOTES
            named.add(found[-1].session_id)
    return quoted, named


def _told_of(mark: Mention) -> tuple[str, int | str]:
    """(Session, what is quoted of it): the parts of one reply are one text."""
    return mark.session_id, mark.call_id if _in_text(mark) else mark.digest


def _in_text(mark: Mention) -> bool:
    return isinstance(mark, Argument) and mark.call.tool == IN_TEXT


def _by_agent(pool: Pool, quoted: Counter[str], named: set[str], spoken: set[str]) -> tuple[Counter[str], set[str]]:
    """The same with what is quoted of an agent's sessions before and after compactions put under the newest of them;
    without agents of whom nothing is quoted that they said."""
    groups: dict[str, list[str]] = {}
    for session_id in quoted:
        groups.setdefault(last_of(pool, pool.sessions[session_id]).session_id, []).append(session_id)
    merged: Counter[str] = Counter()
    merged_named: set[str] = set()
    for members in (found for found in groups.values() if not spoken.isdisjoint(found)):
        newest = max(members, key=lambda session_id: pool.sessions[session_id].position)
        merged[newest] = sum(quoted[session_id] for session_id in members)
        if not named.isdisjoint(members):
            merged_named.add(newest)
    return merged, merged_named


def carries(pool: Pool, request: Request, hits: list[Mention]) -> Placement | None:
    """The whole newest reply of a session stands in a new history: what it wrote down is where this one begins."""
    said = {h.session_id: h for h in hits if h.sampled and not isinstance(h, Argument)}
    found = [h for h in said.values() if _whole_reply(request, pool.sessions[h.session_id])]
    if len({pool.sessions[h.session_id].trajectory_id for h in found}) != 1:
        return None
    session = pool.sessions[found[-1].session_id]
    if not request.tools and request.asks_for_summary:
        why = Why(Rung.QUOTE, 0.75, {"reply": "whole"})
        return inside(request, session, session.head_call_id, why, auxiliary="summary")
    kind = SessionKind.COMPACTION if request.same_agent(session.system, session.tools) else SessionKind.HANDOFF
    parent = Mark(session.session_id, session.head_call_id or found[-1].call_id)
    if _serves(request, session):  # unless its words come back: then it was an agent
        placed = opening(pool, request, SessionKind.HANDOFF, parent, Why(Rung.QUOTE, 0.75, {"reply": "whole"}))
        return replace(placed, auxiliary="side")
    return opening(pool, request, kind, parent, Why(Rung.QUOTE, 0.8, {"reply": "whole"}))


def _whole_reply(request: Request, session: Session) -> bool:
    said = session.last_said[0] if len(session.last_said) == 1 else ""
    if session.ended is None or session.repeats or not contains(request.told, said):
        return False
    return len(words(said)) >= phrases.LONG or contains(request.told, session.first_user)


def recast(pool: Pool, request: Request, hits: list[Mention]) -> Placement | None:
    """Another agent is told what a session said, in a history that was written anew: a handoff."""
    said = [h for h in hits if h.sampled and not isinstance(h, Argument)]
    quoted, _ = _quoted(pool, request, hits)
    found = [pool.sessions[h.session_id] for h in said if quoted[h.session_id] >= 2]
    if not found or len({s.trajectory_id for s in found}) > 1 or not request.tools:
        return None
    session = found[-1]
    if request.same_agent(session.system, session.tools):
        return None
    parent = Mark(session.session_id, session.head_call_id or said[-1].call_id)
    evidence = {"quotes": quoted[session.session_id], "recast": True}
    return opening(pool, request, SessionKind.HANDOFF, parent, Why(Rung.QUOTE, 0.8, evidence))


def _serves(request: Request, session: Session) -> bool:
    """Whether a request that quotes a session, but does not go on from it, seems to be the framework's: it offers no
    tools where the session has some; or where that says nothing, it is answered in a few words or in JSON."""
    itself = bool(request.system_text) and request.same_agent(session.system, session.tools)
    if request.tools or itself or not request.fresh:
        return False
    texts = [canonical.text_of(choice.message.get("content")) for choice in request.call.choices]
    return bool(session.tools) or all(len(text) < BRIEF or _is_json(text) for text in texts)


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text.strip("` \n").removeprefix("json"))
    except orjson.JSONDecodeError:
        return False
    return True


def pending(pool: Pool, request: Request, kind: str, placed: Placement) -> Placement:
    """The same as an auxiliary call whose session is not there (yet)."""
    await_session(pool, request, placed.session_id)
    return replace(placed, auxiliary=kind, names_task=False)


def await_session(pool: Pool, request: Request, session_id: str) -> None:
    """Note that the session of an auxiliary call may still come."""
    pool.sessions[session_id].pending = f" {' '.join(request.told[:MAX_PENDING])} "
    pool.pending[session_id] = None
