"""How the sessions of a recorded trajectory hang together: successors, subagents, and where their reports arrive.

Pure, and read from calls and messages alone. A report is found in its parent by the id of the tool call that asked for
it; which of several tool calls of one reply was whose is told by the report's text.
"""

from collections.abc import Iterator

from mosaic.records import Call, Session, SessionKind, Trajectory

CONTINUING = frozenset({SessionKind.COMPACTION, SessionKind.HANDOFF})
"""Kinds of session that carry on their parent's work, so that the parent's end is not the answer."""


class SessionTree:
    """Looks at one trajectory; auxiliary calls are not seen."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._sessions = {session.session_id: session for session in trajectory.sessions}
        self._calls = {sid: [c for c in s.calls if c.auxiliary is None] for sid, s in self._sessions.items()}
        self._owner = {call.call_id: sid for sid, calls in self._calls.items() for call in calls}
        self._next: dict[str, str] = {}
        self._children: dict[str, list[Session]] = {}
        for session in trajectory.sessions:
            parent = session.parent_session_id
            if parent is None:
                continue
            if session.kind in CONTINUING:
                self._next[parent] = session.session_id  # of two successors the later one counts
            elif session.kind is SessionKind.SPAWN:
                self._children.setdefault(parent, []).append(session)

    def calls(self, session_id: str) -> list[Call]:
        """The session's task calls, in order."""
        return self._calls[session_id]

    def session_of(self, call: Call) -> str:
        """Id of the session that a task call belongs to."""
        return self._owner[call.call_id]

    def question(self) -> Call | None:
        """The first task call of the root."""
        return next((call for calls in self._calls.values() for call in calls), None)

    def chain(self, session_id: str) -> list[str]:
        """The session and its successors."""
        chain = [session_id]
        while chain[-1] in self._next and self._next[chain[-1]] not in chain:
            chain.append(self._next[chain[-1]])
        return chain

    def ends(self, session_id: str) -> tuple[Call | None, Call | None]:
        """The calls whose prompts show what the session started from and what it came to (its successor's first)."""
        calls = self._calls[session_id]
        following = self._calls[self._next[session_id]] if session_id in self._next else []
        return (calls[0] if calls else None), (following[0] if following else calls[-1] if calls else None)

    def handoffs(self) -> Iterator[tuple[Call, Call]]:
        """Each successor's first call, with the last call of its parent that did not write the summary."""
        for parent, session_id in self._next.items():
            opened_by = self._sessions[session_id].opened_by_call_id
            before = [call for call in self._calls.get(parent, ()) if call.call_id != opened_by]
            if before and self._calls[session_id]:
                yield self._calls[session_id][0], before[-1]

    def turns(self, session_id: str) -> Iterator[tuple[Call, Call, tuple[str, ...]]]:
        """Each call with the next one of its context, and the ids of the results that came between them."""
        calls = self._calls[session_id]
        last = self.ends(session_id)[1]
        following = [*calls[1:], *([last] if last is not None and last not in calls else [])]
        for call, after in zip(calls, following, strict=False):
            arrived = _results(after)
            yield call, after, tuple(i for i in tool_call_ids(call) if i in arrived)

    def only_delegated(self, session_id: str) -> bool:
        """Whether every tool call of the session went to a subagent."""
        opening = {child.opened_by_call_id for child in self._children.get(session_id, ())}
        return all(not tool_call_ids(call) or call.call_id in opening for call in self._calls[session_id])

    def joins(self, session_id: str) -> Iterator[tuple[Call, dict[str, str | None]]]:
        """Calls in which reports of subagents arrive: per tool call, the subagent's session if it can be told."""
        children = self._children.get(session_id, [])
        for call in self._calls[session_id]:
            own = [child for child in children if child.opened_by_call_id == call.call_id]
            asked = tool_call_ids(call)
            where = next((c for c in self._calls[session_id] if any(i in _results(c) for i in asked)), None)
            if own and where is not None:
                texts = {i: text for i, text in _results(where).items() if i in asked}
                yield where, self._reporters(own, texts)

    def _reporters(self, children: list[Session], texts: dict[str, str]) -> dict[str, str | None]:
        """The subagent behind each report: the one whose last words it holds; what is left over, in order."""
        free = {child.session_id: self._last_words(child.session_id) for child in children}
        found: dict[str, str | None] = dict.fromkeys(texts)
        for result_id, text in texts.items():
            match = next((sid for sid, words in free.items() if words and words in text), None)
            if match is not None:
                found[result_id] = match
                del free[match]
        left = iter(free)
        return {i: sid if sid is not None else next(left, None) for i, sid in found.items()}

    def _last_words(self, session_id: str) -> str:
        calls = self._calls[self.chain(session_id)[-1]]
        samples = calls[-1].samples if calls else ()
        return _text(samples[0].message.get("content")) if samples else ""


def tool_call_ids(call: Call) -> list[str]:
    """Ids of the tool calls that the policy sampled in a call."""
    return [str(t["id"]) for s in call.samples for t in s.message.get("tool_calls") or () if t.get("id")]


def _results(call: Call) -> dict[str, str]:
    """Texts of the tool results in a request, by tool-call id."""
    rows = (m for m in call.messages if m.get("role") == "tool" and m.get("tool_call_id"))
    return {str(m["tool_call_id"]): _text(m.get("content")) for m in rows}


def _text(content: object) -> str:
    if isinstance(content, list):
        content = " ".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return " ".join(content.split()) if isinstance(content, str) else ""
