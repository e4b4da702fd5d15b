"""What lineage remembers of the calls that it has placed: sessions, and the indexes that find them again.

A pool holds the sessions that may be related: those of one operator-given trajectory, or, without one, those of one
client. Nothing is ever linked across pools.
"""

from dataclasses import dataclass, field

from mosaic.lineage.model import Link
from mosaic.records import SessionKind


@dataclass(slots=True)
class SessionState:
    """A session that may still be extended."""

    session_id: str
    trajectory_id: str
    kind: SessionKind
    link: Link
    position: int
    tools: frozenset[str]
    system: str
    head_call_id: str
    """The newest call of the chain."""
    last_text: str = ""
    """The newest reply's text when that reply made no calls: what a parent would be given."""
    first_user: str = ""
    """The first user text: in a root, the task."""
    claimed: str | None = None
    """For a spawned session: the tool call that is believed to have opened it."""
    quotable: list[str] = field(default_factory=list)
    """What was said in the session, newest last, for recognising transcripts of it."""


@dataclass(slots=True)
class OpenCall:
    """A tool call that the policy emitted and whose result has not come back."""

    tool_call_id: str
    call_id: str
    session_id: str
    arguments: tuple[str, ...]
    claimed_by: str | None = None


@dataclass(slots=True)
class Reply:
    """A reply without tool calls: a final answer, a child's report or a summary."""

    call_id: str
    session_id: str
    text: str
    summarises: bool
    """True when its request quoted the session's history, as summarisers do."""


@dataclass(slots=True)
class End:
    """The point after a choice of a call: a request that reaches it extends that call."""

    call_id: str
    session_id: str


@dataclass(slots=True)
class Pool:
    """Sessions that may be related, and the ways to find them."""

    sessions: dict[str, SessionState] = field(default_factory=dict)
    ends: dict[bytes, list[End]] = field(default_factory=dict)
    """Chain hash after request and reply -> the calls that ended there; several where the texts are the same."""
    emitted_ids: dict[str, list[End]] = field(default_factory=dict)
    """Tool-call id -> the calls that emitted it: one, unless the engine's ids are not unique."""
    open_calls: dict[tuple[str, str], OpenCall] = field(default_factory=dict)
    """(Session, tool-call id) -> the tool call."""
    replies: dict[str, Reply] = field(default_factory=dict)
    """Call id -> its reply without calls, until a session opens with it."""
    requests: dict[bytes, list[tuple[str, str, bool, int]]] = field(default_factory=dict)
    """Digest of a whole request -> (call, session, ended well, the SDK's retry count) of each time it was sent."""
    parents: dict[str, str | None] = field(default_factory=dict)
    """Call -> the call that it extends."""
    placed: dict[str, str] = field(default_factory=dict)
    """Call -> its session."""
    trajectory_sessions: dict[str, int] = field(default_factory=dict)
    """Trajectory -> number of sessions opened."""
