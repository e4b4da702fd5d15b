"""Calls, sessions, trajectories and groups as values: what the store hands to credit and training.

The words are those of DESIGN.md §1. Everything here is immutable and free of I/O; arrays are read-only by convention.
Token arrays carry their dimension as a suffix: `_P` prompt tokens, `_T` sampled tokens.
This module must never import anything of the other packages, a socket or a database.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Message = Mapping[str, Any]
"""One chat message as it stood on the wire (OpenAI chat form)."""

IdArray = NDArray[np.int32]
LogprobArray = NDArray[np.float32]

MAX_REWARD = 1e6
"""Largest reward, up or down: the differences and squares of any within it are exact enough to compare."""


class SessionKind(StrEnum):
    """How a session opened."""

    ROOT = "root"
    COMPACTION = "compaction"
    SPAWN = "spawn"
    HANDOFF = "handoff"
    FORK = "fork"


class TrajectoryState(StrEnum):
    """Where a trajectory stands; unscored, failed and truncated are all different from reward 0."""

    OPEN = "open"
    CLOSED = "closed"
    SCORED = "scored"
    UNSCORABLE = "unscorable"
    FAILED = "failed"
    TRUNCATED = "truncated"
    TRAINED = "trained"


class JobState(StrEnum):
    """How far a training job has come. Whatever is not settled is taken up again by the next one."""

    SELECTED = "selected"
    """Its trajectories are chosen."""
    CREDITED = "credited"
    """Their advantages are known."""
    TRAINED = "trained"
    """Its checkpoint is written; the engines may be anywhere between the old weights and the new."""
    VERIFIED = "verified"
    """The new weights are live, and are the checkpoint's; the gate has not spoken yet."""
    PUBLISHED = "published"
    FAILED = "failed"
    SKIPPED = "skipped"
    """There was nothing to learn from."""
    IMPORTED = "imported"
    """Of another database; only its name is known."""


UNSETTLED = (JobState.SELECTED, JobState.CREDITED, JobState.TRAINED, JobState.VERIFIED)
"""States that a job does not end in."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One choice of a call: what the policy sampled."""

    index: int
    """Index of the choice in the reply (0 unless n > 1)."""
    ids_T: IdArray
    """Sampled token ids, in order, as the engine reported them."""
    logprobs_T: LogprobArray
    """Natural-log probability of each sampled token under the engine at sampling time."""
    message: Message
    """The assistant message of this choice."""
    finish_reason: str | None
    """As on the wire; None when the call was cut."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request through the proxy and its answer."""

    call_id: str
    prompt_ids_P: IdArray
    """Prompt token ids exactly as the engine saw them; empty when the call is not exact."""
    samples: tuple[Sample, ...]
    """One per choice, in order; empty when nothing usable was sampled."""
    messages: tuple[Message, ...]
    """The request's messages."""
    policy_version: int
    """Version whose weights sampled the first token."""
    policy_version_end: int
    """Version whose weights sampled the last token; differs when a swap fell inside the call."""
    exact: bool
    """True when ids, logprobs and usage all came from the engine and agree. Only exact calls are trained."""
    auxiliary: str | None
    """Why the call serves the framework and not the task (for example `title`), or None for a task call."""
    started_at: float
    """Unix seconds when the request arrived."""


@dataclass(frozen=True, slots=True)
class Session:
    """One continuous context: a chain of calls, in order of their start."""

    session_id: str
    kind: SessionKind
    parent_session_id: str | None
    """The session that this one continues or serves; None for a root."""
    opened_by_call_id: str | None
    """The parent's call whose sampled tokens created this session (spawn or summary); None for a root."""
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One attempt at one task: a tree of sessions with at most one final reward."""

    trajectory_id: str
    task_key: str
    reward: float | None
    """The final reward in force, or None while there is none."""
    state: TrajectoryState
    sessions: tuple[Session, ...]
    """In order of opening; the first is the root."""


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one task that are compared with each other."""

    task_key: str
    trajectories: tuple[Trajectory, ...]
