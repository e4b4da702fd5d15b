"""A trajectory as a picture in time: one lane a session, one block a call, and how the sessions descend. Pure.

Waiting is cut short: a stretch in which no call runs takes at most `GAP` of the picture's width.
"""

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from mosaic.store.browsing import SessionLine
from mosaic.store.call_browsing import CallLine
from mosaic.store.codec import dump

WIDTH = 1000.0
"""Of the picture, in its own units."""
LANE = 22
"""Height of a lane."""
GAP = 0.02
"""Largest share of the busy time that a stretch without calls takes."""
ASKED_CHARACTERS = 160
"""Of a tool call's arguments, in a line."""
NARROWEST = 1.5
"""Width of the smallest block that can be seen."""


@dataclass(frozen=True, slots=True)
class Block:
    """One call, or several that would not be told apart."""

    x: float
    width: float
    call_id: str
    mark: str
    """`ok`, `failed` (any other end), `inexact` or `auxiliary`."""
    calls: int


@dataclass(slots=True)
class Lane:
    """One session."""

    session: SessionLine
    depth: int
    """How many sessions stand above it."""
    y: int
    blocks: list[Block] = field(default_factory=list)
    calls: list[CallLine] = field(default_factory=list)
    opened_x: float | None = None
    """Where its parent's call ended that opened it; None for a root."""
    parent_y: int | None = None
    advantage_width: float = 0.0
    """Share of the largest advantage, 0 to 1."""


@dataclass(frozen=True, slots=True)
class TrajectoryView:
    """The whole."""

    lanes: Sequence[Lane]
    height: int
    started_at: float | None
    busy_s: float
    """Seconds in which a call ran."""
    wall_s: float
    """Seconds from the first call's start to the last one's end."""
    largest_advantage: float
    trained: bool
    """Whether a job has trained any of the sessions."""


class Axis:
    """Maps times to the picture's width."""

    def __init__(self, spans: Sequence[tuple[float, float]]) -> None:
        busy: list[list[float]] = []
        for start, end in sorted(spans):
            if busy and start <= busy[-1][1]:
                busy[-1][1] = max(busy[-1][1], end)
            else:
                busy.append([start, max(start, end)])
        self.busy_s = sum(end - start for start, end in busy)
        longest = GAP * _at_least(self.busy_s)
        self._times: list[float] = []
        self._places: list[float] = []
        at = 0.0
        for number, (start, end) in enumerate(busy):
            if number:
                at += min(start - busy[number - 1][1], longest)
            self._times += [start, end]
            self._places += [at, at + (end - start)]
            at = self._places[-1]
        self._whole = _at_least(at)

    def x(self, when: float) -> float:
        """Where a time stands, 0 to `WIDTH`."""
        right = bisect_right(self._times, when)
        if right == 0 or not self._times:
            return 0.0
        if right == len(self._times):
            return WIDTH * self._places[-1] / self._whole
        t0, t1 = self._times[right - 1], self._times[right]
        p0, p1 = self._places[right - 1], self._places[right]
        share = (when - t0) / (t1 - t0) if t1 > t0 else 0.0
        return WIDTH * (p0 + share * (p1 - p0)) / self._whole


def _at_least(seconds: float) -> float:
    """A second where there is as good as no time, which cannot be divided by."""
    return seconds if seconds > 1e-6 else 1.0


def trajectory_view(sessions: Sequence[SessionLine], calls: Sequence[CallLine]) -> TrajectoryView:
    """Lanes in tree order: a session stands below its parent, before its parent's next child."""
    axis = Axis([(call.started_at, call.ended_at) for call in calls])
    largest = max([abs(s.advantage) for s in sessions if s.advantage is not None], default=0.0)
    lanes = {s.session_id: Lane(s, depth, LANE * at) for at, (s, depth) in enumerate(_in_tree(sessions))}
    ended = {call.call_id: call.ended_at for call in calls}
    for call in calls:
        if call.session_id in lanes:
            _add(lanes[call.session_id], call, axis)
    for lane in lanes.values():
        parent = lanes.get(lane.session.parent_session_id or "")
        if parent is not None:
            lane.parent_y = parent.y
            lane.opened_x = axis.x(ended.get(lane.session.opened_by_call_id or "", lane.session.created_at))
        if largest and lane.session.advantage is not None:
            lane.advantage_width = abs(lane.session.advantage) / largest
    first = min((call.started_at for call in calls), default=None)
    wall = max(call.ended_at for call in calls) - first if first is not None else 0.0
    trained = any(s.trained_by is not None for s in sessions)
    return TrajectoryView(list(lanes.values()), LANE * len(lanes), first, axis.busy_s, wall, largest, trained)


def _in_tree(sessions: Sequence[SessionLine]) -> list[tuple[SessionLine, int]]:
    children: dict[str | None, list[SessionLine]] = {}
    known = {session.session_id for session in sessions}
    for session in sessions:
        parent = session.parent_session_id if session.parent_session_id in known else None
        children.setdefault(None if parent == session.session_id else parent, []).append(session)
    found: list[tuple[SessionLine, int]] = []
    pending = [(session, 0) for session in reversed(children.get(None, []))]
    while pending:
        session, depth = pending.pop()
        found.append((session, depth))
        pending += [(child, depth + 1) for child in reversed(children.pop(session.session_id, []))]
    return found


def _add(lane: Lane, call: CallLine, axis: Axis) -> None:
    lane.calls.append(call)
    x = axis.x(call.started_at)
    width = max(axis.x(call.ended_at) - x, NARROWEST)
    mark = mark_of(call)
    last = lane.blocks[-1] if lane.blocks else None
    if last is not None and x < last.x + last.width and last.mark == mark and width < 2 * NARROWEST:
        merged = max(x + width - last.x, last.width)
        lane.blocks[-1] = Block(last.x, merged, last.call_id, mark, last.calls + 1)
    else:
        lane.blocks.append(Block(x, width, call.call_id, mark, 1))


def mark_of(call: CallLine) -> str:
    """What a call's colour says."""
    if call.status != "ok":
        return "failed"
    if call.auxiliary is not None:
        return "auxiliary"
    return "ok" if call.exact else "inexact"


_CUT_CONTENT = re.compile(r'"content":\s*("(?:[^"\\]|\\.)*)')
_TOOL = re.compile(r'"name":\s*"([^"\\]{1,80})"')


@dataclass(frozen=True, slots=True)
class Gist:
    """A reply in a few words."""

    text: str
    tools: Sequence[tuple[str, str]]
    """(name, what it is asked, where that can be told)."""


def gist(head: str | None) -> Gist:
    """A reply's text and the tools that it calls, from the first characters of its body."""
    if not head:
        return Gist("", ())
    try:
        body = orjson.loads(head)
    except orjson.JSONDecodeError:
        return Gist(_cut_text(head), tuple((name, "") for name in _TOOL.findall(head)))
    if not isinstance(body, dict):
        return Gist("", ())
    calls = body.get("tool_calls")
    tools = [_asked(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    return Gist(text_of(body.get("content")), tuple(tools))


def _asked(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call.get("function")
    if not isinstance(function, dict):
        return str(call.get("type", "?")), ""
    arguments = function.get("arguments")
    try:
        given = orjson.loads(arguments) if isinstance(arguments, str) else arguments
    except orjson.JSONDecodeError:
        given = arguments
    said = ", ".join(map(text_of, given.values())) if isinstance(given, dict) else text_of(given)
    return str(function.get("name")), said[:ASKED_CHARACTERS]


def _cut_text(head: str) -> str:
    found = _CUT_CONTENT.search(head)
    if found is None:
        return ""
    text = re.sub(r"\\(u[0-9a-fA-F]{0,3})?$", "", found[1])
    try:
        return str(orjson.loads(text + '"'))
    except orjson.JSONDecodeError:
        return text.lstrip('"')


def text_of(content: object) -> str:
    """The text of a message's content, whatever its form; what is no text is named."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return dump(content).decode()
    parts = []
    for part in content:
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            parts.append(part["text"])
        elif isinstance(part, Mapping):
            parts.append(f"[{part.get('type', 'part')}]")
        else:
            parts.append(str(part))
    return "\n".join(parts)
