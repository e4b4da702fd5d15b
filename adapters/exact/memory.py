"""What was sampled lately, found again by the conversation that it was said in.

A reply is remembered under a hash of the messages before it and itself, in a form in which frameworks' harmless
rewrites disappear (`mosaic.lineage.canonical`), with its tool-call ids, and apart for every trajectory (or client,
where none is named). Finding a reply is a hint, not a proof: texts are compared before its ids are used. Bounded
in bytes; the least recently used go first, a reply before those that it continues.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from adapters.exact.splicing import Step, begins_with, ids_of
from mosaic.lineage.canonical import items, system_text
from mosaic.records import Message

BYTES_A_TOKEN = 12
"""What a token takes: its id, and its text once that is needed."""
BYTES_A_STEP = 600
"""What a step takes besides."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is known of a request's history."""

    step: Step | None
    """The newest of its replies that is remembered."""
    reason: str | None
    """Why that is not its last reply; None when it is, or when it has none."""


class Memory:
    """The replies of one proxy process. Used by one thread."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._steps: OrderedDict[bytes, Step | None] = OrderedDict()
        """None where replies with other ids said the same, so that none can be told to be the one."""

    def find(self, keys: Sequence[bytes]) -> Found:
        """The newest reply that is remembered of a conversation (`keys_of`)."""
        reason = None
        for key in reversed(keys):
            step = self._steps.get(key)
            if step is not None:
                self._touch(step)
                return Found(step, reason)
            reason = reason or ("ambiguous" if key in self._steps else "not_remembered")
        return Found(None, reason)

    def keep(self, key: bytes | None, step: Step) -> None:
        """Remember what was sampled as a reply (`key_of`)."""
        size = _size(step)
        if key is None or size > self._max_bytes:
            return  # nothing that could be found again
        if key in self._steps:
            known = self._steps[key]
            if known is not None and not _same(known, step):
                self._forget(key)
                self._steps[key] = None
                self._bytes += _size(None)
            return
        step.key = key
        self._steps[key] = step
        self._bytes += size
        self._touch(step)
        while self._bytes > self._max_bytes:
            self._forget(next(iter(self._steps)))

    def _touch(self, step: Step | None) -> None:
        while step is not None:
            if self._steps.get(step.key) is step:
                self._steps.move_to_end(step.key)
            step = step.parent

    def _forget(self, key: bytes) -> None:
        self._bytes -= _size(self._steps.pop(key))


def _size(step: Step | None) -> int:
    if step is None:
        return BYTES_A_STEP
    return BYTES_A_STEP + BYTES_A_TOKEN * (len(step.told_ids) + len(step.sampled_ids))


def _same(one: Step, other: Step) -> bool:
    first, second = ids_of(one.steps()), ids_of(other.steps())
    return len(first) == len(second) and begins_with(first, second)


Known = dict[tuple[bytes, int], bytes]
"""(key of what was said before, identity of a message) -> key with it. Of use while the messages live."""


def key_of(scope: str, messages: Sequence[Message], reply: Message, known: Known | None = None) -> bytes | None:
    """Under what a reply to `messages` is remembered; None when it says nothing."""
    return keys_of(scope, [*messages, reply], known)[-1] if items([reply]) else None


def keys_of(scope: str, messages: Iterable[Message], known: Known | None = None) -> list[bytes]:
    """A hash for every assistant message, of all that was said up to and with it.

    `known` saves the work of hashing messages again that many conversations share as the same objects.
    """
    state = _digest(b"", scope)
    keys = []
    for message in messages:
        found = None if known is None else known.get((state, id(message)))
        if found is None:
            said = [f"\2{item.role}\0{item.text}\0{item.tool_call_id or ''}\1" for item in items([message])]
            found = _digest(state, f"{''.join(said)}\3{system_text([message])}\1")
            if known is not None:
                known[state, id(message)] = found
        state = found
        if message.get("role") == "assistant":
            keys.append(state)
    return keys


def _digest(before: bytes, said: str) -> bytes:
    return hashlib.blake2b(before + said.encode("utf-8", "surrogatepass"), digest_size=16).digest()
