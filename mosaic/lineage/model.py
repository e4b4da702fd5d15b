"""What lineage decides: where a call stands, why, and how sure that is.

Once a call is placed nobody changes them; they are not `frozen` only because that makes an `__init__` three times as
slow.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mosaic.records import SessionKind

LINK_THRESHOLD = 0.6
"""Below this score no link is made; what spoke for one is kept as a rival, for review."""


class Rung(StrEnum):
    """The kind of evidence that decided."""

    PREFIX = "prefix"
    """The request repeats an earlier request and its reply."""
    RETRY = "retry"
    """The request is an earlier one again, and the SDK or a failure says so."""
    ECHO = "echo"
    """The request carries tool-call ids or texts that the policy emitted, in a history that was edited."""
    SUMMARY = "summary"
    """The request opens with a text that the policy wrote as a summary."""
    ARGUMENT = "argument"
    """The request's first user text is an argument of a tool call of the policy."""
    RESULT = "result"
    """The parent's tool result, or a notification, carried the child's last text."""
    QUOTE = "quote"
    """The request quotes a session's history as text."""
    CLAIM = "claim"
    """The framework's own ids say so."""
    PATTERN = "pattern"
    """The request reads like one of the calls that frameworks make for themselves."""
    NONE = "none"
    """Nothing was found: a new root."""


class Ending(StrEnum):
    """Why a session is believed to be over."""

    ANSWERED = "answered"
    """Its newest reply calls no tool."""
    SUCCEEDED = "succeeded"
    """Another session goes on from it: after a compaction or a handoff."""
    RETURNED = "returned"
    """Its parent has seen its result."""


@dataclass(slots=True)
class Why:
    """The evidence for a decision."""

    rung: Rung
    score: float
    """In [0, 1]."""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    rivals: tuple[Mapping[str, Any], ...] = ()
    """Others that the evidence allowed: session, call."""


@dataclass(slots=True)
class Link:
    """How a session opened and why we believe so."""

    session_id: str
    kind: SessionKind
    parent_session_id: str | None
    parent_call_id: str | None
    """Call of the parent whose sampled tokens opened the session."""
    rung: Rung
    score: float
    """In [0, 1]; 1 for a root that is certainly one."""
    evidence: Mapping[str, Any]
    rivals: tuple[Mapping[str, Any], ...] = ()
    """Other parents that the evidence allowed: session, call, score."""


@dataclass(slots=True)
class Placement:
    """Where one call stands."""

    call_id: str
    trajectory_id: str
    session_id: str
    parent_call_id: str | None
    """The call that this one extends; None when it opens its session."""
    auxiliary: str | None
    """Why the call serves the framework and not the task, or None."""
    position: int
    """Order of opening of the session inside its trajectory, from 0."""
    opened: Link | None
    """The link of the session when this call opened it."""
    why: Why
    """The evidence for standing here."""
    relinked: tuple[Link, ...] = ()
    """Links of earlier sessions that this call's evidence changed."""
    confirmed: tuple[str, ...] = ()
    """Calls that turned out to have written the summary that this session opens with: they serve the task after all."""
    ended: Mapping[str, Ending | None] = field(default_factory=dict)
    """Sessions whose end this call changed: how each ended, or None for one that is open again."""
    rolled_over: tuple[str, ...] = ()
    """Trajectories that are over, for the only agent of their client has begun another."""
    names_task: bool = False
    """True for the call whose first user text is the task of its trajectory."""
    retry_of: str | None = None
    """The earlier call that this one repeats."""
