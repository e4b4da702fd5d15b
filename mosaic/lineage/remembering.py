"""What is noted of a call once it is placed, so that later requests find it."""

import re
import string
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any

from mosaic.lineage import canonical, phrases
from mosaic.lineage.canonical import Item, words
from mosaic.lineage.continuing import (
    MIN_TEXT,
    QUOTE,
    argument_key,
    end_key,
    gap_key,
    id_key,
    opening_key,
    reply_key,
    task_key,
)
from mosaic.lineage.model import Placement, Rung
from mosaic.lineage.request import Reply, Request, contains
from mosaic.lineage.state import (
    IN_TEXT,
    MAX_OPEN,
    Argument,
    End,
    Mark,
    Mention,
    OpenCall,
    Pool,
    Said,
    Sent,
    Session,
    Summary,
    Written,
)
from mosaic.records import SessionKind

MAX_ARGUMENT = 4000
"""Characters of a tool argument that are remembered."""
MIN_ARGUMENT = 8
"""Shortest tool argument that counts."""
MAX_SUMMARIES = 32
"""Summaries of one session that are remembered."""
MAX_SUMMARY = 40_000
"""Characters of a summary that are remembered."""
MIN_TOLD = 60
"""Shortest argument, in characters, by which an agent may hand over what it knows."""
MAX_DEPTH = 3
"""Tags inside tags in which a summary is looked for."""
MIN_LINE = 60
"""Shortest line, in characters, that is remembered so."""
MAX_LINES = 2
"""Lines of one reply that are remembered so: the first that are long enough."""
MAX_SPOKEN = 4
"""Texts of one reply without tool calls that may be arguments of calls that it makes in text."""
_EDGES = string.punctuation + string.whitespace
_QUOTED = re.compile(r'"((?:[^"\\]|\\.){30,})"')
_ENCLOSED = re.compile(r"<([A-Za-z_][\w-]*)>([^<>]{30,})</\1>")
_TAGGED = re.compile(r"<([A-Za-z_][\w-]*)>(.*?)</\1>", re.DOTALL)


def remember(pool: Pool, request: Request, placement: Placement) -> None:
    """Note where a call stands and what was said in it."""
    call, session = request.call, pool.sessions[placement.session_id]
    sent = Sent(session.session_id, call.call_id, placement.parent_call_id, request.ok, call.retry_count)
    pool.put(request.digest, sent)
    session.updated_at = max(session.updated_at, call.ended_at)
    if not request.ok:
        return
    if placement.auxiliary is None:
        if session.head_call_id is None:
            pool.pending.pop(session.session_id, None)
            if session.link.kind is SessionKind.ROOT:
                pool.put(task_key(request.first_user), Mark(session.session_id, call.call_id))
        if "late" not in placement.why.evidence:
            session.anew = request.fresh if session.head_call_id is not None else None
            session.head_call_id = call.call_id
            pool.newest[session.trajectory_id] = session.session_id
            session.tools, session.system = request.tools, request.system_words
        _note_gap(pool, request, session)
        told = _new_items(request)
        if placement.opened is not None:
            pool.put(opening_key(request.chain[-1] if request.chain else 0), Mark(session.session_id, call.call_id))
            told += [i for i in request.items[: len(request.items) - len(told)] if i.role == "user"][:1]
        _note_quotes(pool, session, call.call_id, told, sampled=False)
    else:
        session.served.add(placement.auxiliary)
        if placement.opened is not None and placement.opened.kind is SessionKind.HANDOFF:
            above = pool.sessions.get(placement.opened.parent_session_id or "")
            if above is not None:
                above.shown.append(session.session_id)
    if placement.opened is not None and placement.opened.kind is SessionKind.COMPACTION:
        for tool_call_id in request.ids:  # what was kept of the session before is this one's from now on
            pool.put(id_key(tool_call_id), Mark(session.session_id, call.call_id))
    for reply in request.replies:
        _note_reply(pool, request, session, placement, reply)


def _note_gap(pool: Pool, request: Request, session: Session) -> None:
    """Note the reply that a request goes on from, when nobody knows it yet and it can be told from others'."""
    end, ids = request.newest_turn
    if end and (ids or request.call.trajectory_id is not None) and not pool.find(end_key(end)):
        pool.put(gap_key(end, ids), Mark(session.session_id, request.call.call_id))


def _new_items(request: Request) -> list[Item]:
    """What was said since the model spoke last."""
    found: list[Item] = []
    for item in reversed(request.items):
        if item.sampled:
            break
        found.append(item)
    return found


def _note_reply(pool: Pool, request: Request, session: Session, placement: Placement, reply: Reply) -> None:
    call_id, auxiliary, said = request.call.call_id, placement.auxiliary, reply.items
    pool.put(end_key(reply.end), End(session.session_id, call_id, auxiliary))
    calls = [i for i in said if i.role == "call"]
    for item in calls:
        _note_call(pool, session, call_id, item, request.harnesses.hands_over)
    text = " ".join(i.text for i in said if i.role == "assistant")
    repeats = _repeats(request, [text] if text else [t for item in calls for _, t in item.strings])
    if len(text) >= MIN_TEXT and not repeats:
        pool.put(reply_key(text), Mark(session.session_id, call_id))
    if text and not calls and not request.tools:
        _note_spoken(pool, request, session, canonical.text_of(request.call.choices[0].message.get("content")))
    if session.head_call_id in (call_id, None):
        last = [t for _, t in calls[-1].strings] if calls else [text]
        session.last_said = tuple(t[:MAX_ARGUMENT] for t in last if t)
        session.repeats = repeats
    if auxiliary is None and session.head_call_id == call_id and not repeats:
        _note_quotes(pool, session, call_id, [i for i in said if i.role == "assistant"], sampled=True)
    elif auxiliary in ("summary", "side") and text and not calls:
        part = placement.why.rung is Rung.QUOTE and _tells_a_part(request, session, placement.why.evidence)
        text = canonical.text_of(request.call.choices[0].message.get("content"))[:MAX_SUMMARY]
        summary = Summary(
            call_id, (), placement.parent_call_id, placement.why.score, part, asked=auxiliary == "summary"
        )
        _note_summary(pool, session, summary, text)


def _repeats(request: Request, said: list[str]) -> bool:
    """Whether a reply, or an argument, stands in its own prompt: as an example, which others are given too, or because
    it was said before, which is noted."""
    if request.fresh:
        return any(len(text) >= MIN_TEXT and text in request.first_user for text in said)
    return any(item.role == "assistant" and item.text in said for item in request.items)


def _note_call(pool: Pool, session: Session, call_id: str, item: Item, hands_over: Callable[[str], bool]) -> None:
    if item.tool_call_id is None:
        return
    pool.put(id_key(item.tool_call_id), Mark(session.session_id, call_id))
    opened = OpenCall(session.session_id, call_id, item.tool_call_id, item.name)
    _open(session, opened)
    longest = ""
    for name, text in item.strings:
        longest = max(longest, text, key=len)
        if len(text) >= MIN_ARGUMENT:
            _note_argument(pool, session, opened, name, text)
    if len(longest) >= MIN_TOLD and hands_over(item.name):
        _note_summary(pool, session, Summary(call_id, (), None, 1.0, part=False, asked=False), longest)


def _note_spoken(pool: Pool, request: Request, session: Session, text: str) -> None:
    """Note what a reply without tool calls puts in quotes or tags, for calls may be made in text, and its first lines;
    but nothing that it was told."""
    text, call_id = text[:MAX_SUMMARY], request.call.call_id
    spoken = [found[1] for found in islice(_QUOTED.finditer(text), MAX_SPOKEN)] if '"' in text else []
    spoken += [found[2] for found in islice(_ENCLOSED.finditer(text), MAX_SPOKEN)] if "<" in text else []
    lines = [line for line in text.splitlines() if len(line) >= MIN_LINE][:MAX_LINES] if "\n" in text else []
    session.spoken_under = hash(request.system_text)
    if not spoken and not lines:
        return
    told = "\n".join(item.text for item in request.items)
    for number, order in enumerate(_untold(spoken, told)):
        call = OpenCall(session.session_id, call_id, f"{call_id}#{number}", IN_TEXT)
        _open(session, call)
        _note_argument(pool, session, call, "", order)
    for found in map(words, _untold(lines, told)):
        length, digest = phrases.measure(found)
        for key, back in phrases.keys(found):
            pool.put(key, Mention(session.session_id, call_id, length, digest, back, sampled=True))


def _untold(texts: list[str], told: str) -> list[str]:
    collapsed = dict.fromkeys(map(canonical.collapse, texts))
    return [text for text in collapsed if text.strip(_EDGES) not in told]


def _open(session: Session, call: OpenCall) -> None:
    session.calls[call.tool_call_id] = call
    if len(session.calls) > MAX_OPEN:
        del session.calls[next(iter(session.calls))]


def _note_argument(pool: Pool, session: Session, call: OpenCall, name: str, text: str) -> None:
    found = words(text[:MAX_ARGUMENT])
    length, digest = phrases.measure(found)
    for key, back in [(argument_key(text), 0), *phrases.keys(found, also_by_end=call.tool != IN_TEXT)]:
        values = (session.session_id, call.call_id, length, digest, back, True)
        pool.put(key, Argument(*values, call=call, name=name, text=text[:MAX_ARGUMENT]))


def _note_quotes(pool: Pool, session: Session, call_id: str, said: list[Item], *, sampled: bool) -> None:
    for item in said:
        found = words(item.text[:QUOTE])
        if len(item.text) > QUOTE:
            found = found[:-1]  # may be cut
        length, digest = phrases.measure(found)
        for key, back in phrases.keys(found):
            values = (session.session_id, call_id, length, digest, back, sampled)
            pool.put(key, Said(*values, opening=phrases.opening(found)) if sampled else Mention(*values))


def _tells_a_part(request: Request, session: Session, evidence: Mapping[str, Any]) -> bool:
    """Whether a summary is of less than half of the rounds of a session, and not of its task."""
    rounds = len({call.call_id for call in session.calls.values()})
    task = words(session.first_user[:QUOTE])
    task = task if len(session.first_user) <= QUOTE else task[:-1]
    return 2 * int(evidence.get("rounds", 0)) < rounds and not contains(request.told, " ".join(task))


def _cores(text: str, depth: int = 0) -> Iterator[str]:
    """A text and what stands inside its tags, and inside theirs."""
    yield text
    if depth < MAX_DEPTH:
        for _, inner in _TAGGED.findall(text):
            yield from _cores(inner, depth + 1)


def _note_summary(pool: Pool, session: Session, summary: Summary, text: str) -> None:
    cores = [found for found in map(words, _cores(text)) if len(found) >= phrases.SHORT]
    summary.cores = tuple(" ".join(found) for found in cores)
    session.summaries.append(summary)
    if len(session.summaries) > MAX_SUMMARIES:
        del session.summaries[0]
    for found in cores:
        length, digest = phrases.measure(found)
        for key, back in phrases.keys(found):
            pool.put(key, Written(session.session_id, summary.call_id, length, digest, back, True))
