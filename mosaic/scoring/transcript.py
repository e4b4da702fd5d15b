"""A trajectory as others can read it: JSON for functions and commands, text within a token budget for a judge.

A session is shown as its last call's messages and reply: they hold all that came before. Auxiliary calls are left out.
"""

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

from mosaic.lineage.canonical import text_of
from mosaic.records import Call, Message, Session, Trajectory

BYTES_PER_TOKEN = 3
"""UTF-8 bytes that are taken for one token: English has four or more, so that the budget rather holds too little."""


def as_json(trajectory: Trajectory) -> dict[str, Any]:
    """What a scorer gets: ids, task, and each session with its messages in order."""
    return {
        "trajectory_id": trajectory.trajectory_id,
        "task_key": trajectory.task_key,
        "task": task_of(trajectory),
        "state": trajectory.state.value,
        "sessions": [
            {
                "session_id": session.session_id,
                "kind": session.kind.value,
                "parent_session_id": session.parent_session_id,
                "calls": len(session.calls),
                "messages": list(_messages(session)),
            }
            for session in trajectory.sessions
        ],
    }


def task_of(trajectory: Trajectory) -> str:
    """The first user message."""
    messages = (m for session in trajectory.sessions for m in _messages(session))
    return next((text_of(m.get("content")) for m in messages if m.get("role") == "user"), "")


def render(trajectory: Trajectory, max_tokens: int) -> str:
    """The trajectory as text of at most `max_tokens` (as estimated by `BYTES_PER_TOKEN`).

    What does not fit is left out in the middle, and said: the beginning has the task, the end the outcome. The session
    that ended last comes last.
    """
    room = max_tokens * BYTES_PER_TOKEN
    blocks = list(_blocks(trajectory))
    if sum(_size(block) for block in blocks) <= room:
        return "".join(blocks)
    most = room // 4
    head = _cut(blocks[0], most)
    room -= _size(head) + _size(_left_out(len(blocks)))
    kept: list[str] = []
    for block in reversed(blocks[1:]):
        shown = _cut(block, most)
        if _size(shown) > room:
            break
        room -= _size(shown)
        kept.insert(0, shown)
    missing = len(blocks) - 1 - len(kept)
    whole = head + (_left_out(missing) if missing else "") + "".join(kept)
    return _cut(whole, max_tokens * BYTES_PER_TOKEN)


def tokens_of(text: str) -> int:
    """The estimate that `render` keeps to."""
    return math.ceil(_size(text) / BYTES_PER_TOKEN)


def _blocks(trajectory: Trajectory) -> Iterator[str]:
    """Messages as text, session by session."""
    told = [session for session in trajectory.sessions if _last(session) is not None]
    several = len(told) > 1
    for session in sorted(told, key=lambda s: s.calls[-1].started_at):
        if several:
            yield f"== session {session.session_id} ({session.kind.value}) ==\n"
        for message in _messages(session):
            yield f"[{message.get('role', '?')}] {_text(message)}\n"


def _last(session: Session) -> Call | None:
    calls = [call for call in session.calls if call.auxiliary is None]
    return calls[-1] if calls else None


def _messages(session: Session) -> Sequence[Message]:
    call = _last(session)
    if call is None:
        return ()
    return (*call.messages, *(sample.message for sample in call.samples[:1]))


def _text(message: Message) -> str:
    calls = message.get("tool_calls")
    said = [text_of(message.get("content"))]
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, dict) else None
        said.append("calls " + json.dumps(function if function is not None else call, ensure_ascii=False))
    return "\n".join(part for part in said if part)


def _cut(text: str, most: int) -> str:
    """The text in at most so many bytes, without its middle if need be."""
    if _size(text) <= most:
        return text
    mark = " [...] "
    half = max(0, most - len(mark)) // 2
    raw = text.encode("utf-8", "replace")
    ends = raw[:half].decode("utf-8", "ignore"), raw[len(raw) - half :].decode("utf-8", "ignore")
    return (ends[0] + mark + ends[1])[: max(most, 0)] if most < len(mark) else ends[0] + mark + ends[1]


def _left_out(messages: int) -> str:
    return f"[... {messages} messages left out ...]\n"


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
