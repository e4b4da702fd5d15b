"""Where in a rendering the part ends that was sampled before, and the prompt that has the sampled ids in its place.

The engine's template turns messages into a text and that into ids. A text that the policy sampled may become other ids
than it sampled (retokenised), or other text (re-serialised, cut, without its reasoning). Here texts are compared, never
tokenised: all ids come from the engine, as it sampled them or as it rendered them. JSON in a reply agrees where it has
the same value, however it is written: clients and templates write the arguments of tool calls anew.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from mosaic.records import IdArray

_MARKER = r"(?:</?[^<>\s]+>|\[/?[A-Z_]+\])"
_CLOSING = re.compile(rf"\s*{_MARKER}?\s*")
"""What closes reasoning, with the space around it."""
_OPENED = re.compile(rf"{_MARKER}\s*\Z")
"""What a generation prompt may open reasoning with."""
_MARKERS = re.compile(rf"\s*(?:{_MARKER}\s*)*")
"""What a template may write in place of reasoning."""
MAX_MARKERS = 100
"""Characters that it may take."""
MAX_STARTS = 50
"""Brackets before a difference at which JSON is looked for that holds it."""
_BRACKET = re.compile(r"[\[{]")
_JSON = json.JSONDecoder()


@dataclass(slots=True, eq=False)
class Step:
    """What one call added to its context: the ids that the engine was given, then those that it sampled."""

    parent: "Step | None"
    """The step before; None for the first of a context."""
    told_ids: IdArray
    """Given after the parent's sampled ids."""
    sampled_ids: IdArray
    reasoning: str
    """The reasoning as it was parsed out of the sampled text; may be empty."""
    told: str | None = None
    """Text of `told_ids`, special tokens included; None until it is needed."""
    sampled: str | None = None
    """Text of `sampled_ids`; None until it is needed."""
    key: bytes = b""
    """Under which it is remembered."""

    def steps(self) -> "list[Step]":
        """All steps of the context, the first one first."""
        found: list[Step] = []
        step: Step | None = self
        while step is not None:
            found.append(step)
            step = step.parent
        return found[::-1]


@dataclass(frozen=True, slots=True)
class Alignment:
    """How far a rendering agrees with what was sampled."""

    steps: int
    """So many steps agree."""
    at: int
    """Characters of the rendering that they take."""
    reason: str | None
    """Why the next step does not agree; None when all do."""


def ids_of(steps: Sequence[Step]) -> IdArray:
    """All ids of a context: given and sampled."""
    parts = [ids for step in steps for ids in (step.told_ids, step.sampled_ids)]
    return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def begins_with(ids: IdArray, start: IdArray) -> bool:
    """Whether `start` is a prefix of `ids`."""
    return len(start) <= len(ids) and bool((ids[: len(start)] == start).all())


def align(text: str, steps: Sequence[Step], *, keep: bool) -> Alignment:
    """Find what was said so far in a rendering. Every step must have its texts.

    With `keep`, a reply whose reasoning the rendering lacks agrees where all else of it does.
    """
    at = 0
    for number, step in enumerate(steps):
        found = _end_of(text, at, step, keep=keep)
        if isinstance(found, str):
            return Alignment(number, at, found)
        at = found
    return Alignment(len(steps), at, None)


def _end_of(text: str, at: int, step: Step, *, keep: bool) -> int | str:
    """Where the step ends that begins at `at`, or why it does not stand there."""
    told, sampled = step.told or "", step.sampled or ""
    end = _end_of_reply(text, at + len(told), sampled) if text.startswith(told, at) else None
    if end is not None:
        return end
    end = _end_without_reasoning(text, at, step)
    if end is None:
        return "text_differs"
    return end if keep else "reasoning_dropped"


def _end_without_reasoning(text: str, at: int, step: Step) -> int | None:
    sampled, told = step.sampled or "", step.told or ""
    start = _start_of(step.reasoning, sampled)
    if start is None:
        return None
    after = sampled[start + len(step.reasoning) :]
    rest = _CLOSING.sub("", after, count=1)
    if not text.startswith(told, at):
        told = _OPENED.sub("", told)
    if not rest or not text.startswith(told, at):
        return None
    at += len(told)
    head = rest[: _bracket(rest) + 1] or rest
    found = text.find(head, at, at + MAX_MARKERS + len(head))
    return _end_of_reply(text, found, rest) if found >= 0 and _MARKERS.fullmatch(text, at, found) else None


def _bracket(text: str) -> int:
    """Where JSON may begin first; -1 where it cannot."""
    found = _BRACKET.search(text)
    return -1 if found is None else found.start()


def _end_of_reply(text: str, at: int, said: str) -> int | None:
    """Where a reply ends that begins at `at`, or None; JSON in it may be written otherwise."""
    done = 0
    while not text.startswith(said[done:], at):
        pairs = enumerate(zip(said[done:], text[at:], strict=False))
        differs = next((number for number, (one, other) in pairs if one != other), None)
        ends = None if differs is None else _ends_of_json(said, done, text, at, differs)
        if ends is None:
            return None
        done, at = ends
    return at + len(said) - done


def _ends_of_json(said: str, done: int, text: str, at: int, differs: int) -> tuple[int, int] | None:
    """Where the value ends, in both, that holds the first difference, `differs` characters on; None for other values.

    The outermost value counts that is JSON in both.
    """
    for bracket in islice(_BRACKET.finditer(said, done, done + differs), MAX_STARTS):
        start = bracket.start()
        try:
            value, end = _JSON.raw_decode(said, start)
            if end <= done + differs:
                continue
            other, end_in_text = _JSON.raw_decode(text, at + start - done)
        except (ValueError, RecursionError):
            continue
        # As texts: for Python, true is 1 and 1 is 1.0.
        return (end, end_in_text) if json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True) else None
    return None


def _start_of(reasoning: str, sampled: str) -> int | None:
    """Where reasoning stands: after what opens it (in which a short one may stand as well, as "h" in "<think>")."""
    start = sampled.find(reasoning, 0, MAX_MARKERS + len(reasoning)) if reasoning else -1
    while start >= 0 and not _MARKERS.fullmatch(sampled, 0, start):
        start = sampled.find(reasoning, start + 1, MAX_MARKERS + len(reasoning))
    return start if start >= 0 else None


def boundary(offsets: Sequence[Sequence[int]], at: int) -> int | None:
    """How many tokens make up the first `at` characters; None when one token lies across.

    `offsets` holds (start, end) of every token in characters, as the engine gives them.
    """
    number = bisect_left(offsets, at, key=lambda span: span[0])
    return None if number and offsets[number - 1][1] > at else number
