"""Places calls one at a time, in the order in which they ended.

The ladder, strongest evidence first: the request is a retry; it repeats an earlier request and its reply (prefix); it
quotes a session's history without extending it (the call that writes a summary); its first user text is an argument of
an open tool call (spawn); it opens with a summary that the policy wrote (compaction); it carries emitted tool-call
ids in an edited history (echo); its first user text contains such an argument; otherwise it is a new root. When a tool
result comes back with a child's last text, the child's link is confirmed; siblings that guessed wrongly are swapped.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from mosaic.capture import CallStatus, CapturedCall
from mosaic.lineage.canonical import Item, chain, collapse, items, system_text
from mosaic.lineage.model import LINK_THRESHOLD, Link, Placement, Rung
from mosaic.lineage.state import End, OpenCall, Pool, Reply, SessionState
from mosaic.records import SessionKind

MIN_SUMMARY = 12
"""Shortest reply, in characters, that can be recognised again as a summary."""
MIN_ARGUMENT = 8
"""Shortest tool argument that can be recognised inside a longer user text."""
MIN_QUOTES = 3
"""Strings of one session that a request must quote to count as a transcript of it; a tool-call id is worth as many."""
MAX_QUOTABLE = 64
"""Newest strings of a session by which a transcript of it is recognised."""


@dataclass(frozen=True, slots=True)
class _Why:
    """The evidence for a link."""

    rung: Rung
    score: float
    evidence: Mapping[str, object]
    rivals: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class _Request:
    """A call with everything that placing it needs, computed once."""

    call: CapturedCall
    items: list[Item]
    chain: list[bytes]
    system: str
    digest: bytes

    @property
    def first_user(self) -> str:
        return next((i.text for i in self.items if i.role == "user"), "")

    @property
    def user_text(self) -> str:
        """What the request tells the model outside of tool results."""
        return "\n".join(i.text for i in self.items if i.role in ("user", "assistant"))


class Lineage:
    """Incremental lineage over any number of trajectories."""

    def __init__(self) -> None:
        self._pools: dict[str, Pool] = {}

    def forget(self, pool_key: str) -> None:
        """Drop what is remembered of a pool, so that it is restored from the store when next needed."""
        self._pools.pop(pool_key, None)

    def trajectories(self, pool_key: str) -> set[str]:
        """The trajectories of a pool."""
        pool = self._pools.get(pool_key)
        return set() if pool is None else set(pool.trajectory_sessions)

    def forget_oldest(self, limit: int) -> list[str]:
        """Forget the pools that got no call for longest until `limit` are left; returns those forgotten."""
        forgotten = list(self._pools)[: max(0, len(self._pools) - limit)]
        for key in forgotten:
            del self._pools[key]
        return forgotten

    def place(self, call: CapturedCall) -> Placement:
        """Where `call` stands. Calls must come in the order in which they ended."""
        key = pool_key(call)
        pool = self._pools.pop(key, None) or Pool()
        self._pools[key] = pool  # now the most recent one
        request = _request(call)
        placement = (
            _retry(pool, request)
            or _extension(pool, request)
            or _summariser(pool, request)
            or _spawn(pool, request, exact=True)
            or _compaction(pool, request)
            or _echo(pool, request)
            or _spawn(pool, request, exact=False)
            or _root(pool, request)
        )
        _remember(pool, request, placement)
        return placement

    def restore(self, call: CapturedCall, placement: Placement) -> None:
        """Take in a call that was placed before (by an earlier process, or by another), as it was placed.

        `placement.opened` carries the link in force when the call opened its session. Calls come in the order in which
        they were placed; where older ones are missing, what depended on them is not known.
        """
        key = pool_key(call)
        pool = self._pools.pop(key, None) or Pool()
        self._pools[key] = pool
        request = _request(call)
        if placement.session_id not in pool.sessions:
            _restore_session(pool, request, placement)
        session = pool.sessions[placement.session_id]
        if placement.opened is None:
            for item in request.items:
                if item.role == "result":
                    pool.open_calls.pop((session.session_id, item.tool_call_id or ""), None)
        _remember(pool, request, placement)


def pool_key(call: CapturedCall) -> str:
    """Calls that may be related share a pool: the operator's trajectory, else the client."""
    return f"t:{call.trajectory_id}" if call.trajectory_id is not None else f"c:{call.client}"


def _request(call: CapturedCall) -> _Request:
    found = items(call.messages)
    hashes = chain(found)
    system = system_text(call.messages)
    whole = hashlib.blake2b(b"|".join(hashes[-1:]) + system.encode("utf-8", "surrogatepass"), digest_size=16)
    whole.update("\0".join(sorted(call.tool_names)).encode())
    return _Request(call, found, hashes, system, whole.digest())


def _retry(pool: Pool, request: _Request) -> Placement | None:
    """The same request again, with the SDK's own retry count or after a failure in the same attempt: no new sample."""
    earlier = pool.requests.get(request.digest)
    if not earlier:
        return None
    call_id, session_id, ended_well, retries = earlier[-1]
    named = request.call.trajectory_id is not None
    # A call that was cut may be recorded after the retry that followed it.
    cut = request.call.status is not CallStatus.OK and (named or retries > 0)
    if request.call.retry_count == 0 and not cut and (ended_well or not named):
        return None
    session = pool.sessions[session_id]
    return _inside(request, session, pool.parents.get(call_id), None)


def _extension(pool: Pool, request: _Request) -> Placement | None:
    """The longest prefix of the request that ends with a reply of ours."""
    for k in range(len(request.items) - 1, -1, -1):
        if request.items[k].sampled and (ends := pool.ends.get(request.chain[k])):
            end = _the_one(pool, request, ends, k)
            return None if end is None else _extend(pool, request, end, k)
    return None


def _the_one(pool: Pool, request: _Request, ends: list[End], k: int) -> End | None:
    """Of the calls that said the same, the one that the request extends; None when nothing tells them apart."""
    item = request.items[k]
    if item.role == "call" and (emitters := pool.emitted_ids.get(item.tool_call_id or "")):
        known = {e.call_id for e in emitters}
        ends = [e for e in ends if e.call_id in known]
    if len({pool.sessions[e.session_id].trajectory_id for e in ends}) > 1:
        return None
    heads = [e for e in ends if pool.sessions[e.session_id].head_call_id == e.call_id]
    return next(iter(reversed(heads or ends)), None)


def _extend(pool: Pool, request: _Request, end: End, k: int) -> Placement:
    session = pool.sessions[end.session_id]
    if _drops_tools(request, session):
        return _inside(request, session, end.call_id, "summary")
    evidence = {"items": k + 1, "of": len(request.items)}
    other_agent = request.call.tool_names != session.tools and request.system != session.system
    if other_agent and request.call.tool_names:
        return _open(pool, request, SessionKind.HANDOFF, end, _Why(Rung.PREFIX, 0.9, evidence))
    if request.call.status is not CallStatus.OK:
        return _inside(request, session, end.call_id, None)  # it said nothing that anything could go on from
    if session.head_call_id != end.call_id and _newest_emitter(pool, request) != session.head_call_id:
        return _open(pool, request, SessionKind.FORK, end, _Why(Rung.PREFIX, 0.95, evidence))
    return _inside(request, session, end.call_id, None, _confirm(pool, request, session))


def _compaction(pool: Pool, request: _Request) -> Placement | None:
    """The request opens with a summary that the policy wrote."""
    text = request.user_text
    # Without the operator's word that it is one attempt, only what was asked for as a summary counts: any other reply
    # may be quoted by an attempt of its own.
    named = request.call.trajectory_id is not None
    candidates = (r for r in pool.replies.values() if len(r.text) >= MIN_SUMMARY and (named or r.summarises))
    known = [r for r in candidates if r.text in text]
    if not known:
        return None
    best = max(known, key=lambda r: (r.summarises, len(r.text)))
    score = 0.95 if best.summarises else 0.8
    rivals = tuple({"session": r.session_id, "call": r.call_id} for r in known if r.session_id != best.session_id)
    evidence = {"summary_characters": len(best.text), "summary_call": best.call_id}
    why = _Why(Rung.SUMMARY, score, evidence, rivals)
    placed = _open(pool, request, SessionKind.COMPACTION, End(best.call_id, best.session_id), why)
    return replace(placed, confirmed_summary=best.call_id)


def _summariser(pool: Pool, request: _Request) -> Placement | None:
    """The request offers no tools and quotes one session's history as text, extending none: it serves that session."""
    if request.call.tool_names or any(i.sampled for i in request.items):
        return None
    text = request.user_text
    quoted = {s.session_id: sum(q in text for q in s.quotable) for s in pool.sessions.values()}
    for tool_call_id, ends in pool.emitted_ids.items():
        if len(ends) == 1 and tool_call_id in text:
            quoted[ends[0].session_id] += MIN_QUOTES
    best = max(quoted, key=lambda s: quoted[s], default=None)
    if best is None or quoted[best] < MIN_QUOTES:
        return None
    session = pool.sessions[best]
    return _inside(request, session, session.head_call_id, "summary")


def _drops_tools(request: _Request, session: SessionState) -> bool:
    """True for a request that carries a session's history without the tools that the session has."""
    return bool(session.tools) and not request.call.tool_names


def _echo(pool: Pool, request: _Request) -> Placement | None:
    """Tool-call ids that we emitted, in a history that was edited: the same session goes on."""
    emitter = _newest_emitter(pool, request)
    if emitter is None:
        return None
    session = pool.sessions[pool.placed[emitter]]
    auxiliary = "summary" if _drops_tools(request, session) else None
    return _inside(request, session, session.head_call_id, auxiliary, _confirm(pool, request, session))


def _newest_emitter(pool: Pool, request: _Request) -> str | None:
    """The call that emitted the newest tool-call id in the request's history, if only one call emitted that id."""
    for item in reversed(request.items):
        if item.role == "call" and item.tool_call_id in pool.emitted_ids:
            ends = pool.emitted_ids[item.tool_call_id]
            return ends[0].call_id if len(ends) == 1 else None
    return None


def _spawn(pool: Pool, request: _Request, *, exact: bool) -> Placement | None:
    """The first user text is (or, unless `exact`, contains) an argument of a tool call that is still open."""
    if any(i.sampled for i in request.items):
        return None
    scored = sorted(_spawn_candidates(pool, request.first_user), key=lambda c: c[0], reverse=True)
    if not scored or (exact and not scored[0][0][0]):
        return None
    rank, call = scored[0]
    parents = {c.session_id for r, c in scored if r[:2] == rank[:2]}
    score = (0.95 if exact else 0.8) if len(parents) == 1 else 0.5
    rivals = tuple({"session": c.session_id, "call": c.call_id, "tool_call": c.tool_call_id} for _, c in scored[1:])
    if score < LINK_THRESHOLD:
        return _root(pool, request, rivals)
    call.claimed_by = request.call.call_id
    evidence = {"tool_call": call.tool_call_id, "exact": exact}
    why = _Why(Rung.ARGUMENT, score, evidence, rivals)
    placed = _open(pool, request, SessionKind.SPAWN, End(call.call_id, call.session_id), why)
    pool.sessions[placed.session_id].claimed = call.tool_call_id
    return placed


def _spawn_candidates(pool: Pool, text: str) -> Iterator[tuple[tuple[int, int, int], OpenCall]]:
    """Open calls with a matching argument, each with its rank: exact, unclaimed, length of the argument.

    An agent that passes its own task on (as a search query, say) has spawned nothing: another attempt at that task
    would look like its child.
    """
    for call in pool.open_calls.values():
        own_task = pool.sessions[call.session_id].first_user
        for argument in call.arguments:
            exact = argument == text
            if len(argument) >= MIN_ARGUMENT and argument != own_task and (exact or argument in text):
                yield (int(exact), int(call.claimed_by is None), len(argument)), call


def _root(pool: Pool, request: _Request, rivals: tuple[dict[str, str], ...] = ()) -> Placement:
    alone = _own_trajectory(request) not in pool.trajectory_sessions
    score = 1.0 if alone and not rivals else 0.0
    return _open(pool, request, SessionKind.ROOT, None, _Why(Rung.NONE, score, {"first": alone}, rivals))


def _own_trajectory(request: _Request) -> str:
    """The trajectory of a call that belongs to no earlier one: the operator's, or one named after the call."""
    return request.call.trajectory_id or f"tr-{request.call.call_id.removeprefix('call-')[:16]}"


def _open(pool: Pool, request: _Request, kind: SessionKind, parent: End | None, why: _Why) -> Placement:
    """Open a session with this call; `parent` is the call that it descends from."""
    call = request.call
    trajectory_id = pool.sessions[parent.session_id].trajectory_id if parent else _own_trajectory(request)
    position = pool.trajectory_sessions.get(trajectory_id, 0)
    pool.trajectory_sessions[trajectory_id] = position + 1
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
    pool.sessions[link.session_id] = _state(request, trajectory_id, link, position)
    return Placement(call.call_id, trajectory_id, link.session_id, None, None, position, link)


def _restore_session(pool: Pool, request: _Request, placement: Placement) -> None:
    """The session that a restored call opened, or of which it is the oldest call that is known."""
    call, link = request.call, placement.opened
    if link is None:
        link = Link(placement.session_id, SessionKind.ROOT, None, None, Rung.NONE, 0.0, {"restored": True})
    state = _state(request, placement.trajectory_id, link, placement.position)
    claimed = link.evidence.get("tool_call")
    if isinstance(claimed, str):
        state.claimed = claimed
        if (opener := pool.open_calls.get((link.parent_session_id or "", claimed))) is not None:
            opener.claimed_by = call.call_id
    pool.sessions[link.session_id] = state
    known = pool.trajectory_sessions.get(placement.trajectory_id, 0)
    pool.trajectory_sessions[placement.trajectory_id] = max(known, placement.position + 1)


def _state(request: _Request, trajectory_id: str, link: Link, position: int) -> SessionState:
    return SessionState(
        session_id=link.session_id,
        trajectory_id=trajectory_id,
        kind=link.kind,
        link=link,
        position=position,
        tools=request.call.tool_names,
        system=request.system,
        head_call_id=request.call.call_id,
        first_user=request.first_user,
    )


def _inside(
    request: _Request,
    session: SessionState,
    parent_call_id: str | None,
    auxiliary: str | None,
    relinked: tuple[Link, ...] = (),
) -> Placement:
    return Placement(
        call_id=request.call.call_id,
        trajectory_id=session.trajectory_id,
        session_id=session.session_id,
        parent_call_id=parent_call_id,
        auxiliary=auxiliary,
        position=session.position,
        opened=None,
        relinked=relinked,
    )


def _confirm(pool: Pool, request: _Request, parent: SessionState) -> tuple[Link, ...]:
    """Close the tool calls whose results came back, and bind the children whose last text a result carries."""
    changed: list[Link] = []
    for item in request.items:
        key = (parent.session_id, item.tool_call_id or "")
        if item.role != "result" or key not in pool.open_calls:
            continue
        opened = pool.open_calls.pop(key)
        children = [s for s in pool.sessions.values() if s.claimed is not None and s.last_text]
        fitting = [s for s in children if s.link.parent_session_id == parent.session_id and s.last_text in item.text]
        child = next((s for s in fitting if s.claimed == item.tool_call_id), fitting[0] if fitting else None)
        if child is None or child.link.rung is Rung.RESULT:
            continue
        changed.extend(_bind(pool, child, opened, len(fitting)))
    return tuple(changed)


def _bind(pool: Pool, child: SessionState, opened: OpenCall, fitting: int) -> Iterator[Link]:
    """Confirm `child` as the one that `opened` spawned; a sibling that had claimed that call takes the child's."""
    for sibling in pool.sessions.values():
        if sibling is not child and sibling.claimed == opened.tool_call_id:
            sibling.claimed = child.claimed
            swapped = {**sibling.link.evidence, "tool_call": child.claimed, "swapped": True}
            sibling.link = replace(sibling.link, parent_call_id=child.link.parent_call_id, evidence=swapped)
            yield sibling.link
    child.claimed = opened.tool_call_id
    child.link = replace(
        child.link,
        parent_call_id=opened.call_id,
        rung=Rung.RESULT,
        score=0.99 if fitting == 1 else child.link.score,
        evidence={**child.link.evidence, "tool_call": opened.tool_call_id},
    )
    yield child.link


def _remember(pool: Pool, request: _Request, placement: Placement) -> None:
    call, session = request.call, pool.sessions[placement.session_id]
    ended_well = call.status is CallStatus.OK
    pool.parents[call.call_id] = placement.parent_call_id
    pool.placed[call.call_id] = session.session_id
    pool.requests.setdefault(request.digest, []).append(
        (call.call_id, session.session_id, ended_well, call.retry_count)
    )
    if placement.confirmed_summary is not None:
        pool.replies.pop(placement.confirmed_summary, None)
    if not ended_well:
        return
    if placement.auxiliary is None:
        session.head_call_id = call.call_id
        session.tools = call.tool_names
        session.system = request.system
    for choice in call.choices:
        _remember_choice(pool, request, placement, items([choice.message]))


def _remember_choice(pool: Pool, request: _Request, placement: Placement, said: list[Item]) -> None:
    call_id, session = request.call.call_id, pool.sessions[placement.session_id]
    if said:
        pool.ends.setdefault(chain([*request.items, *said])[-1], []).append(End(call_id, session.session_id))
    calls = [i for i in said if i.role == "call"]
    for item in calls:
        if item.tool_call_id:
            pool.emitted_ids.setdefault(item.tool_call_id, []).append(End(call_id, session.session_id))
            opened = OpenCall(item.tool_call_id, call_id, session.session_id, item.arguments)
            pool.open_calls[session.session_id, item.tool_call_id] = opened
    text = collapse(" ".join(i.text for i in said if i.role == "assistant"))
    if placement.auxiliary is None:
        session.last_text = "" if calls else text
        heard = [i.text for i in request.items if i.role in ("user", "result")]
        strings = [*heard, *(i.text for i in said if i.role == "assistant"), *(a for i in calls for a in i.arguments)]
        fresh = dict.fromkeys(s for s in strings if len(s) >= MIN_ARGUMENT)
        session.quotable = list({**dict.fromkeys(session.quotable), **fresh})[-MAX_QUOTABLE:]
    if text and not calls:
        pool.replies[call_id] = Reply(call_id, session.session_id, text, placement.auxiliary == "summary")
