"""What is noted of a call once it is placed, so that later requests find it."""

import re

from mosaic.lineage import canonical, phrases
from mosaic.lineage.canonical import Item, words
from mosaic.lineage.continuing import MIN_TEXT, end_key, id_key, reply_key
from mosaic.lineage.model import Placement
from mosaic.lineage.opening import argument_key, task_key
from mosaic.lineage.request import Request
from mosaic.lineage.state import MAX_OPEN, Argument, End, Mark, Mention, OpenCall, Pool, Sent, Session, Summary, Written
from mosaic.records import SessionKind

MAX_ARGUMENT = 4000
"""Characters of a tool argument that are remembered."""
MIN_ARGUMENT = 8
"""Shortest tool argument that counts."""
QUOTE = 240
"""Characters of a text by which a quote of it is recognised."""
MAX_SUMMARY = 40_000
"""Characters of a summary that are remembered."""
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
        session.head_call_id = call.call_id
        session.tools, session.system = request.tools, request.system_words
        _note_quotes(pool, session, call.call_id, _new_items(request), sampled=False)
    else:
        session.served.add(placement.auxiliary)
    for choice in call.choices:
        _note_choice(pool, request, session, placement.auxiliary, canonical.items([choice.message]))


def _new_items(request: Request) -> list[Item]:
    """What was said since the model spoke last."""
    found: list[Item] = []
    for item in reversed(request.items):
        if item.sampled:
            break
        found.append(item)
    return found


def _note_choice(pool: Pool, request: Request, session: Session, auxiliary: str | None, said: list[Item]) -> None:
    call_id = request.call.call_id
    if said:
        whole = canonical.joined([*request.items, *said])
        pool.put(end_key(canonical.chain(whole)[-1]), End(session.session_id, call_id, auxiliary))
    calls = [i for i in said if i.role == "call"]
    for item in calls:
        _note_call(pool, session, call_id, item)
    text = " ".join(i.text for i in said if i.role == "assistant")
    if len(text) >= MIN_TEXT:
        pool.put(reply_key(text), Mark(session.session_id, call_id))
    if auxiliary is None:
        last = [t for _, t in calls[-1].strings] if calls else [text]
        session.last_said = tuple(t[:MAX_ARGUMENT] for t in last if t)
        _note_quotes(pool, session, call_id, [i for i in said if i.role == "assistant"], sampled=True)
    elif auxiliary in ("summary", "side") and text and not calls:
        _note_summary(pool, session, call_id, request.call.choices[0].message.get("content"))


def _note_call(pool: Pool, session: Session, call_id: str, item: Item) -> None:
    if item.tool_call_id is None:
        return
    pool.put(id_key(item.tool_call_id), Mark(session.session_id, call_id))
    opened = OpenCall(session.session_id, call_id, item.tool_call_id, item.name)
    session.calls[item.tool_call_id] = opened
    if len(session.calls) > MAX_OPEN:
        del session.calls[next(iter(session.calls))]
    for name, text in item.strings:
        if len(text) < MIN_ARGUMENT:
            continue
        found = words(text[:MAX_ARGUMENT])
        length, digest = phrases.measure(found)
        for key, back in [(argument_key(text), 0), *phrases.keys(found, also_by_end=True)]:
            values = (session.session_id, call_id, length, digest, back, True)
            pool.put(key, Argument(*values, call=opened, name=name, text=text[:MAX_ARGUMENT]))


def _note_quotes(pool: Pool, session: Session, call_id: str, said: list[Item], *, sampled: bool) -> None:
    for item in said:
        found = words(item.text[:QUOTE])
        if len(item.text) > QUOTE:
            found = found[:-1]  # may be cut
        length, digest = phrases.measure(found)
        for key, back in phrases.keys(found):
            pool.put(key, Mention(session.session_id, call_id, length, digest, back, sampled))


def _note_summary(pool: Pool, session: Session, call_id: str, content: object) -> None:
    text = canonical.text_of(content)[:MAX_SUMMARY]
    texts = [text, *(inner for _, inner in _TAGGED.findall(text))]
    cores = [found for found in map(words, texts) if len(found) >= phrases.SHORT]
    session.summaries.append(Summary(call_id, tuple(" ".join(found) for found in cores)))
    for found in cores:
        length, digest = phrases.measure(found)
        for key, back in phrases.keys(found):
            pool.put(key, Written(session.session_id, call_id, length, digest, back, True))
