"""Splicing, as a property: whatever was said, a history that the template retokenises keeps the sampled ids."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from adapters.exact.memory import BYTES_A_STEP, Memory
from adapters.exact.splicing import Step, align, boundary, ids_of
from mosaic.records import IdArray
from tests.engine.scripted import END
from tests.engine.tokens import rendered_ids, text_of

SAID = st.text(st.characters(codec="utf-8", exclude_characters="<>[]"), min_size=1, max_size=12)
TURNS = st.lists(st.tuples(SAID, st.one_of(st.just(""), SAID), SAID), min_size=1, max_size=6)
"""(what the user says, reasoning, reply) in turn."""


def array(ids: list[int]) -> IdArray:
    return np.asarray(ids, np.int32)


def history(turns: list[tuple[str, str, str]], *, reasons: bool) -> str:
    """The rendering of what was said, up to the last user's words and the next reply."""
    text = ""
    for user, reasoning, reply in turns:
        thought = f"<think>{reasoning}</think>\n" if reasoning and reasons else ""
        text += f"<|user|>{user}<|end|>\n<|assistant|>{thought}{reply}<|end|>\n"
    return f"{text}<|user|>go on<|end|>\n<|assistant|>"


def sampled(turns: list[tuple[str, str, str]]) -> Step:
    """The chain of what was given and sampled: bytes, which no rendering gives back."""
    step: Step | None = None
    for number, (user, reasoning, reply) in enumerate(turns):
        told = f"{'' if number == 0 else chr(10)}<|user|>{user}<|end|>\n<|assistant|>"
        spoken = (f"<think>{reasoning}</think>\n" if reasoning else "") + reply
        ids = [*spoken.encode(), END]
        step = Step(step, array(rendered_ids(told)[0]), array(ids), reasoning, told, text_of(ids))
    assert step is not None
    return step


@given(TURNS, st.booleans())
def test_any_history_that_is_retokenised_or_lacks_reasoning_is_one_sequence(
    turns: list[tuple[str, str, str]], reasons: bool
) -> None:
    steps = sampled(turns).steps()
    text = history(turns, reasons=reasons)
    found = align(text, steps, keep=True)
    assert (found.steps, found.reason) == (len(turns), None)
    assert text[found.at :] == "\n<|user|>go on<|end|>\n<|assistant|>"
    ids, offsets = rendered_ids(text)
    number = boundary(offsets, found.at)
    assert number is not None
    assert text_of(ids[:number]) == text[: found.at]
    spliced = [*ids_of(steps).tolist(), *ids[number:]]
    assert text_of(spliced) == history(turns, reasons=True)


@given(TURNS, st.data())
def test_a_reply_that_was_edited_ends_what_agrees(turns: list[tuple[str, str, str]], data: st.DataObject) -> None:
    edited = data.draw(st.integers(0, len(turns) - 1))
    changed = [(u, r, f"{p} not" if at == edited else p) for at, (u, r, p) in enumerate(turns)]
    found = align(history(changed, reasons=True), sampled(turns).steps(), keep=True)
    assert (found.steps, found.reason) == (edited, "text_differs")


@given(TURNS)
def test_dropped_reasoning_ends_what_agrees_where_it_is_not_kept(turns: list[tuple[str, str, str]]) -> None:
    found = align(history(turns, reasons=False), sampled(turns).steps(), keep=False)
    first = next((at for at, (_, reasoning, _) in enumerate(turns) if reasoning), None)
    if first is None:
        assert found.reason is None
    else:
        assert (found.steps, found.reason) == (first, "reasoning_dropped")


def test_a_boundary_inside_a_token_is_none() -> None:
    assert boundary([(0, 2), (2, 5)], 3) is None
    assert boundary([(0, 2), (2, 5)], 2) == 1
    assert boundary([(0, 2), (2, 5)], 5) == 2


def message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


ASKED = [message("user", "Well?")]


def step_of(*ids: int, parent: Step | None = None) -> Step:
    return Step(parent, array([1, 2]), array(list(ids)), "")


def test_a_reply_is_found_in_its_own_trajectory_alone() -> None:
    memory, step = Memory(10**6), step_of(3)
    memory.keep("t:a", ASKED, message("assistant", "Yes."), step)
    later = [*ASKED, {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}, message("user", "And?")]
    assert memory.find("t:a", later).step is step
    assert memory.find("t:a", later).reason is None
    assert memory.find("t:b", later).reason == "not_remembered"
    assert memory.find("t:a", ASKED).reason is None


def test_replies_that_said_the_same_with_other_ids_cannot_be_told_apart() -> None:
    memory = Memory(10**6)
    later = [*ASKED, message("assistant", "Yes."), message("user", "And?")]
    memory.keep("t:a", ASKED, message("assistant", "Yes."), step_of(3))
    memory.keep("t:a", ASKED, message("assistant", "Yes."), step_of(3))
    assert memory.find("t:a", later).step is not None
    memory.keep("t:a", ASKED, message("assistant", "Yes."), step_of(4, 5))
    assert memory.find("t:a", later).reason == "ambiguous"


def test_an_earlier_reply_is_found_when_a_later_one_was_edited() -> None:
    memory, first = Memory(10**6), step_of(3)
    memory.keep("t:a", ASKED, message("assistant", "Yes."), first)
    later = [*ASKED, message("assistant", "Yes."), message("user", "And?"), message("assistant", "edited")]
    found = memory.find("t:a", later)
    assert (found.step, found.reason) == (first, "not_remembered")


def test_the_oldest_go_first_and_a_reply_before_what_it_continues() -> None:
    memory = Memory(3 * (BYTES_A_STEP + 100))
    history = [*ASKED, message("assistant", "one")]
    parent = step_of(3)
    memory.keep("t:a", ASKED, message("assistant", "one"), parent)
    memory.keep("t:a", [*history, *ASKED], message("assistant", "two"), step_of(4, parent=parent))
    for number in range(2):
        memory.keep("t:b", [message("user", str(number))], message("assistant", "other"), step_of(5))
    assert memory.find("t:a", [*history, *ASKED, message("assistant", "two")]).step is parent
