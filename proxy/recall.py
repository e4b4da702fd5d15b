"""Exact mode's memory of what this process did not sample, or sampled before it was restarted: read from the store.

Asked only for a reply that is not remembered in a trajectory that is named, and each row is read once. What the store
cannot tell in time is not remembered: a call never fails for it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import structlog

from adapters.exact.memory import Known, Memory, key_of, keys_of
from adapters.exact.splicing import Step, begins_with, ids_of
from adapters.wires.tool_ids import unmarked_message
from mosaic.errors import StoreError
from mosaic.records import Call, IdArray, Message
from mosaic.store import Store
from mosaic.store.recent import Recent
from proxy.lookups import Lookups

TRAJECTORIES = 10_000
"""Trajectories of which is known how far they were read."""
AGAIN_S = 10.0
"""Seconds for which a store that did not answer is not asked."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Said:
    """One stored call, as the memory needs it."""

    before: Sequence[bytes]
    """Keys of the replies in its prompt."""
    prompt_ids_P: IdArray
    replies: Sequence[tuple[bytes | None, IdArray, str]]
    """(key, sampled ids, reasoning) of each choice."""


class Recall:
    """Fills a memory from the store. Used by one event loop."""

    def __init__(self, store: Store, lookups: Lookups, memory: Memory) -> None:
        self._store = store
        self._lookups = lookups
        self._memory = memory
        self._read: Recent[str, int] = Recent(TRAJECTORIES)
        """Trajectory -> row up to which it was read."""
        self._again_at = 0.0
        """Time before which the store is not asked: it did not answer."""

    async def fill(self, trajectory_id: str, scope: str) -> None:
        """Remember under `scope` what the store has of a trajectory and was not read before."""
        after = self._read.get(trajectory_id) or 0
        if time.monotonic() < self._again_at:
            return
        try:
            said, last = await self._lookups.ask(partial(self._said, trajectory_id, scope, after))
        except StoreError as error:
            log.warning("what was sampled could not be read", trajectory=trajectory_id, error=repr(error))
            self._again_at = time.monotonic() + AGAIN_S
            return
        self._read.update({trajectory_id: last})
        wholes: dict[Step, IdArray] = {}
        for one in said:
            self._remember(one, wholes)

    def _said(self, trajectory_id: str, scope: str, after: int) -> tuple[list[_Said], int]:
        calls, last = self._store.sampled(trajectory_id, after)
        reading = _Reading(scope)
        return [reading.said(call) for call in calls], last

    def _remember(self, said: _Said, wholes: dict[Step, IdArray]) -> None:
        parent = self._memory.find(said.before).step
        while parent is not None and not begins_with(said.prompt_ids_P, _whole(parent, wholes)):
            parent = parent.parent
        start = 0 if parent is None else len(_whole(parent, wholes))
        for key, ids_T, reasoning in said.replies:
            # A copy: else it would keep the whole prompt.
            step = Step(parent, said.prompt_ids_P[start:].copy(), ids_T, reasoning)
            wholes[step] = np.concatenate([said.prompt_ids_P, ids_T])
            self._memory.keep(key, step)


def _whole(step: Step, wholes: dict[Step, IdArray]) -> IdArray:
    """All ids of a context, put together once."""
    if step not in wholes:
        wholes[step] = ids_of(step.steps())
    return wholes[step]


class _Reading:
    """Reads calls of one trajectory, which share their messages: each message once."""

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._told: dict[int, tuple[Message, Message]] = {}
        """Identity of a message -> itself, so that it lives, and as the engine was told it."""
        self._known: Known = {}

    def said(self, call: Call) -> _Said:
        messages = [self._as_told(message) for message in call.messages]
        replies = [(self._as_told(sample.message), sample.ids_T) for sample in call.samples]
        return _Said(
            keys_of(self._scope, messages, self._known),
            call.prompt_ids_P,
            [
                (key_of(self._scope, messages, reply, self._known), ids_T, reasoning_of(reply))
                for reply, ids_T in replies
            ],
        )

    def _as_told(self, message: Message) -> Message:
        if id(message) not in self._told:
            self._told[id(message)] = message, unmarked_message(message)
        return self._told[id(message)][1]


def reasoning_of(reply: Message) -> str:
    """The reasoning that was parsed out of a reply, under either of its names; may be empty."""
    found = reply.get("reasoning") or reply.get("reasoning_content")
    return found if isinstance(found, str) else ""
