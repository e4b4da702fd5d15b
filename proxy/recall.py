"""Exact mode's memory of what this process did not sample, or sampled before it was restarted: read from the store.

Asked only for a reply that is not remembered in a trajectory that is named, and each row is read once. What the store
cannot tell in time is not remembered: a call never fails for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from adapters.exact.memory import Memory, key_of, keys_of
from adapters.exact.splicing import Step, begins_with, ids_of
from adapters.wires.tool_ids import unmarked_message
from mosaic.errors import StoreError
from mosaic.records import Call, IdArray, Message
from mosaic.store import Store
from mosaic.store.recent import Recent
from proxy.lookups import Lookups

TRAJECTORIES = 10_000
"""Trajectories of which is known how far they were read."""

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
        self._read: Recent[str, int] = Recent(TRAJECTORIES, lambda _: 1)
        """Trajectory -> row up to which it was read."""

    async def fill(self, trajectory_id: str, scope: str) -> None:
        """Remember under `scope` what the store has of a trajectory and was not read before."""
        after = self._read.get(trajectory_id) or 0
        try:
            said, last = await self._lookups.ask(partial(self._said, trajectory_id, scope, after))
        except StoreError as error:
            log.warning("what was sampled could not be read", trajectory=trajectory_id, error=repr(error))
            return
        self._read.update({trajectory_id: last})
        for one in said:
            self._remember(one)

    def _said(self, trajectory_id: str, scope: str, after: int) -> tuple[list[_Said], int]:
        calls, last = self._store.sampled(trajectory_id, after)
        return [_said(scope, call) for call in calls], last

    def _remember(self, said: _Said) -> None:
        parent = self._memory.find(said.before).step
        while parent is not None and not begins_with(said.prompt_ids_P, ids_of(parent.steps())):
            parent = parent.parent
        told = said.prompt_ids_P[0 if parent is None else len(ids_of(parent.steps())) :]
        for key, ids_T, reasoning in said.replies:
            self._memory.keep(key, Step(parent, told, ids_T, reasoning))


def _said(scope: str, call: Call) -> _Said:
    messages = [unmarked_message(message) for message in call.messages]
    replies = [(unmarked_message(sample.message), sample.ids_T) for sample in call.samples]
    return _Said(
        keys_of(scope, messages),
        call.prompt_ids_P,
        [(key_of(scope, messages, reply), ids_T, reasoning_of(reply)) for reply, ids_T in replies],
    )


def reasoning_of(reply: Message) -> str:
    """The reasoning that was parsed out of a reply, under either of its names; may be empty."""
    found = reply.get("reasoning") or reply.get("reasoning_content")
    return found if isinstance(found, str) else ""
