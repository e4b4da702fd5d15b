"""What lineage remembers of the calls that it has placed: sessions, and the marks that find them again.

A pool holds the sessions that may be related: those of one operator-given trajectory, or, without one, those of one
client. Nothing is ever linked across pools. Every mark belongs to a session and goes with it, so that a pool holds no
more than its sessions do, and each session no more than `MAX_MARKS`.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from mosaic.lineage.harness import Claims
from mosaic.lineage.model import Ending, Link

MAX_MARKS = 4096
"""Marks of one session; the oldest are forgotten beyond."""
MAX_ALIKE = 64
"""Marks under one key, and sessions of one claim: the newest of those that say the same."""
IN_TEXT = ""
"""The tool of a call that was made in text."""
MAX_SHOWN = 8
"""Sessions that a session was shown to and that are remembered as such: what they say comes back at once or never."""
MAX_OPEN = 64
"""Tool calls of one session that may still be the origin of a subagent."""


@dataclass(slots=True)
class Mark:
    """A place in a session that a later request may point to."""

    session_id: str
    call_id: str
    key: int = field(init=False, default=0)
    """Where it was put."""


@dataclass(slots=True)
class End(Mark):
    """A reply, with all that was said before it."""

    auxiliary: str | None
    """What the call did for the framework."""


@dataclass(slots=True)
class Sent(Mark):
    """A request as it was sent: a later one that is the same may be a retry."""

    parent_call_id: str | None
    ended_well: bool
    retries: int


@dataclass(slots=True)
class Mention(Mark):
    """A text that may come back inside another, found by its first (or last) words."""

    length: int
    """In words."""
    digest: int
    """Of its words."""
    back: int
    """Words between its begin and those by which it is found."""
    sampled: bool
    """True for what the policy said."""


@dataclass(slots=True)
class Said(Mention):
    """A text that the policy said."""

    opening: int
    """Hash of its first words, by which it is told from others that begin alike when its end was changed."""


@dataclass(slots=True)
class OpenCall(Mark):
    """A tool call of the policy: the origin of a subagent, maybe."""

    tool_call_id: str
    """Of a call that was made in text, one of ours."""
    tool: str
    closed: bool = False
    """True once its result came back; that of a background task comes before the task begins."""
    claimed_by: str | None = None
    """The session that is believed to have come from it."""


@dataclass(slots=True)
class Argument(Mention):
    """A text argument of a tool call."""

    call: OpenCall
    name: str
    text: str
    """Collapsed; cut where it is very long."""


@dataclass(slots=True)
class Written(Mention):
    """A part of a reply without tool calls, in particular of a summary."""


@dataclass(slots=True)
class Summary:
    """What was written beside the conversation, and may be a summary of it."""

    call_id: str
    cores: tuple[str, ...]
    """Its words, and those inside its outer tags, each as one text."""
    after: str | None
    """The call that it went on from."""
    score: float
    """How sure it is that the call that wrote it belongs to the session."""
    part: bool
    """True when it tells only a part of its session, such as one tool call."""
    asked: bool
    """True when a summary was asked for; else what was written may be anything."""
    used: bool = False


@dataclass(slots=True)
class Session:
    """A session that may still be extended."""

    session_id: str
    trajectory_id: str
    link: Link
    position: int
    tools: frozenset[str]
    system: frozenset[str]
    """The words that its system text opens with."""
    claims: Claims
    head_call_id: str | None
    """The newest call of the chain; None while there are auxiliary calls only."""
    updated_at: float
    first_user: str = ""
    """The first user text (cut): in a root, the task."""
    first_item: int = 0
    """Hash of the first thing said in it."""
    pending: str = ""
    """Of a session that has auxiliary calls only: all that they quote, as words."""
    last_said: tuple[str, ...] = ()
    """The newest reply, as a parent would be given it: its text, or the texts in its last call's arguments."""
    repeats: bool = False
    """True when the newest reply stands in its own prompt, as an example may: others are told it too."""
    ended: Ending | None = None
    """How it ended, as far as is known; None while it is open."""
    successor: str | None = None
    """The session that goes on from it after a compaction or a handoff."""
    claimed: OpenCall | None = None
    """For a spawned session: the tool call that is believed to have opened it."""
    children: list[str] = field(default_factory=list)
    """Sessions that were spawned from it and are not confirmed yet."""
    shown: deque[str] = field(default_factory=lambda: deque(maxlen=MAX_SHOWN))
    """Sessions taken for the framework's that were shown what it said, the newest last."""
    served: set[str] = field(default_factory=set)
    """The kinds of auxiliary calls that it has had."""
    summaries: list[Summary] = field(default_factory=list)
    calls: dict[str, OpenCall] = field(default_factory=dict)
    """Tool-call id -> the call."""
    marks: deque[Mark] = field(default_factory=deque)


class Pool:
    """Sessions that may be related, and the ways to find them."""

    def __init__(self) -> None:
        self.sessions: dict[str, Session] = {}
        self.trajectories: dict[str, int] = {}
        """Trajectory -> number of sessions opened."""
        self.pending: dict[str, None] = {}
        """Sessions that have auxiliary calls only."""
        self.newest: dict[str, str] = {}
        """Trajectory -> the session in which the task's newest call stands."""
        self.size = 0
        """Marks that it holds."""
        self.done: dict[str, None] = {}
        """Trajectories whose sessions have all ended."""
        self.running: dict[str, None] = {}
        """Trajectories with a session that has not ended, the newest last."""
        self._live: dict[str, int] = {}
        """Trajectory -> number of its sessions that are remembered."""
        self._open: dict[str, int] = {}
        """Trajectory -> number of these that have not ended."""
        self._marks: dict[int, Mark | list[Mark]] = {}
        """Key -> the one mark under it, or those that there are."""
        self._agents: dict[tuple[str, str], list[str]] = {}
        """(What is claimed, value) -> the newest sessions, oldest first."""

    def put(self, key: int, mark: Mark) -> None:
        """Remember a mark, which is in no other place, for as long as its session is remembered."""
        session = self.sessions[mark.session_id]
        mark.key = key
        alike = self._marks.get(key)
        if alike is None:
            self._marks[key] = mark
        elif isinstance(alike, list):
            if len(alike) >= MAX_ALIKE:
                del alike[0]
            alike.append(mark)
        else:
            self._marks[key] = [alike, mark]
        session.marks.append(mark)
        self.size += 1
        if len(session.marks) > MAX_MARKS:
            self._remove(session.marks.popleft())

    def find(self, key: int) -> Sequence[Mark]:
        """The marks under a key, oldest first."""
        found = self._marks.get(key, _NOTHING)
        return (found,) if isinstance(found, Mark) else found

    def add(self, session: Session) -> None:
        """Take in a session."""
        self.sessions[session.session_id] = session
        self._live[session.trajectory_id] = self._live.get(session.trajectory_id, 0) + 1
        self._count_open(session.trajectory_id, 1)
        known = self.trajectories.get(session.trajectory_id, 0)
        self.trajectories[session.trajectory_id] = max(known, session.position + 1)
        for claim in _claimed(session.claims):
            alike = self._agents.setdefault(claim, [])
            if len(alike) >= MAX_ALIKE:
                del alike[0]
            alike.append(session.session_id)

    def ends(self, session: Session, ending: Ending | None) -> None:
        """A session has ended in another way than it had, or is open again."""
        self._count_open(session.trajectory_id, int(ending is None) - int(session.ended is None))
        session.ended = ending

    def _count_open(self, trajectory_id: str, by: int) -> None:
        self._open[trajectory_id] = self._open.get(trajectory_id, 0) + by
        if self._open[trajectory_id]:
            self.done.pop(trajectory_id, None)
            self.running[trajectory_id] = None
        elif by:
            self.running.pop(trajectory_id, None)
            self.done[trajectory_id] = None

    def of_agent(self, what: str, value: str | None) -> list[Session]:
        """The newest sessions that claim to be of an agent (or of a trajectory), oldest first."""
        found = self._agents.get((what, value), ()) if value is not None else ()
        return [self.sessions[session_id] for session_id in found]

    def drop(self, session_id: str) -> None:
        """Forget a session with all that points to it."""
        session = self.sessions.pop(session_id)
        self.pending.pop(session_id, None)
        for mark in session.marks:
            self._remove(mark)
        for claim in _claimed(session.claims):
            others = [other for other in self._agents[claim] if other != session_id]
            self._agents[claim] = others
            if not others:
                del self._agents[claim]
        if session.ended is None:
            self._count_open(session.trajectory_id, -1)
        self._live[session.trajectory_id] -= 1
        if not self._live[session.trajectory_id]:
            del self._live[session.trajectory_id], self._open[session.trajectory_id]
            del self.trajectories[session.trajectory_id]
            self.done.pop(session.trajectory_id, None)
            self.running.pop(session.trajectory_id, None)
            self.newest.pop(session.trajectory_id, None)

    def _remove(self, mark: Mark) -> None:
        self.size -= 1
        alike = self._marks.get(mark.key)
        if isinstance(alike, list):
            self._marks[mark.key] = [other for other in alike if other is not mark]
            alike = self._marks[mark.key]
        if alike is mark or alike == []:
            del self._marks[mark.key]


_NOTHING: Sequence[Mark] = ()


def _claimed(claims: Claims) -> list[tuple[str, str]]:
    found = [("agent", claims.agent), ("trajectory", claims.trajectory)]
    return [(what, value) for what, value in found if value is not None]
