"""Splicing, as a property: whatever was said, a history that the template retokenises keeps the sampled ids."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from adapters.exact.generate import Parsing, Stream, whole_answer
from adapters.exact.memory import BYTES_A_STEP, Found, Memory, key_of, keys_of
from adapters.exact.splicing import Alignment, Step, align, boundary, ids_of
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


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text('a{}[]"\\é, ', max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab{", max_size=3), inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(st.text("ab{", max_size=3), JSON, max_size=3)
FORMS: list[dict[str, Any]] = [{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}]


def called(*texts: str) -> str:
    return "Look [ here. " + "".join(f"<call>{text}</call>" for text in texts)


def aligned(reply: str, rendered: str, *, keep: bool = True) -> Alignment:
    step = Step(None, array([]), array([]), "", "<|assistant|>", f"{reply}<|end|>")
    return align(f"<|assistant|>{rendered}<|end|>\n<|user|>", [step], keep=keep)


@given(st.lists(ARGUMENTS, min_size=1, max_size=3), st.sampled_from(FORMS), st.sampled_from(FORMS), st.booleans())
def test_arguments_of_the_same_value_agree_however_they_are_written(
    calls: list[Any], form: dict[str, Any], other: dict[str, Any], sort: bool
) -> None:
    reply = called(*(json.dumps(call, **form) for call in calls))
    rendered = called(*(json.dumps(call, **other, sort_keys=sort) for call in calls))
    found = aligned(reply, rendered)
    assert (found.steps, found.reason) == (1, None)
    assert found.at == len(f"<|assistant|>{rendered}<|end|>")


@given(ARGUMENTS, ARGUMENTS, st.sampled_from(FORMS), st.sampled_from(FORMS))
def test_arguments_of_another_value_do_not_agree(
    one: Any, two: Any, form: dict[str, Any], other: dict[str, Any]
) -> None:
    assume(json.dumps(one, sort_keys=True) != json.dumps(two, sort_keys=True))
    found = aligned(called(json.dumps(one, **form)), called(json.dumps(two, **other)))
    assert (found.steps, found.reason) == (0, "text_differs")


@pytest.mark.parametrize("nasty", ["[" * 100_000, '{"a":' * 30_000, "{ [ " * 30_000])
def test_brackets_without_end_cost_no_time(nasty: str) -> None:
    assert aligned(f"{nasty}x", f"{nasty}y").reason == "text_differs"


def test_a_boundary_inside_a_token_is_none() -> None:
    assert boundary([(0, 2), (2, 5)], 3) is None
    assert boundary([(0, 2), (2, 5)], 2) == 1
    assert boundary([(0, 2), (2, 5)], 5) == 2


def message(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


ASKED = [message("user", "Well?")]


def find(memory: Memory, scope: str, messages: list[dict[str, Any]]) -> Found:
    return memory.find(keys_of(scope, messages))


def keep(memory: Memory, scope: str, messages: list[dict[str, Any]], reply: str, step: Step) -> None:
    memory.keep(key_of(scope, messages, message("assistant", reply)), step)


def step_of(*ids: int, parent: Step | None = None) -> Step:
    return Step(parent, array([1, 2]), array(list(ids)), "")


def test_a_reply_is_found_in_its_own_trajectory_alone() -> None:
    memory, step = Memory(10**6), step_of(3)
    keep(memory, "t:a", ASKED, "Yes.", step)
    later = [*ASKED, {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]}, message("user", "And?")]
    assert find(memory, "t:a", later).step is step
    assert find(memory, "t:a", later).reason is None
    assert find(memory, "t:b", later).reason == "not_remembered"
    assert find(memory, "t:a", ASKED).reason is None


def test_replies_that_said_the_same_with_other_ids_cannot_be_told_apart() -> None:
    memory = Memory(10**6)
    later = [*ASKED, message("assistant", "Yes."), message("user", "And?")]
    keep(memory, "t:a", ASKED, "Yes.", step_of(3))
    keep(memory, "t:a", ASKED, "Yes.", step_of(3))
    assert find(memory, "t:a", later).step is not None
    keep(memory, "t:a", ASKED, "Yes.", step_of(4, 5))
    assert find(memory, "t:a", later).reason == "ambiguous"


def test_an_earlier_reply_is_found_when_a_later_one_was_edited() -> None:
    memory, first = Memory(10**6), step_of(3)
    keep(memory, "t:a", ASKED, "Yes.", first)
    later = [*ASKED, message("assistant", "Yes."), message("user", "And?"), message("assistant", "edited")]
    found = find(memory, "t:a", later)
    assert (found.step, found.reason) == (first, "not_remembered")


def test_the_oldest_go_first_and_a_reply_before_what_it_continues() -> None:
    memory = Memory(3 * (BYTES_A_STEP + 100))
    history = [*ASKED, message("assistant", "one")]
    parent = step_of(3)
    keep(memory, "t:a", ASKED, "one", parent)
    keep(memory, "t:a", [*history, *ASKED], "two", step_of(4, parent=parent))
    for number in range(2):
        keep(memory, "t:b", [message("user", str(number))], "other", step_of(5))
    assert find(memory, "t:a", [*history, *ASKED, message("assistant", "two")]).step is parent


BODY = {"model": "policy", "messages": ASKED}


def event_of(ids: list[int], finish_reason: str | None = None) -> bytes:
    entries = [{"token_id": i, "logprob": -1.0} for i in ids]
    choice = {"index": 0, "token_ids": ids, "logprobs": {"content": entries}, "finish_reason": finish_reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"


def parts_of(stream: Stream, finish_reason: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """What is due: (how its parsing is asked for, the chunk that is made of it)."""
    made = []
    for part in stream.due():
        asked = json.loads(stream.asked(part))
        told = {"index": 0, "delta": {"content": "x"}, "finish_reason": finish_reason}
        head = {"object": "chat.completion.chunk", "created": 1, "model": "policy", "choices": [told]}
        state = {"output_token_ids": [*(asked["stream_state"] or {"output_token_ids": []})["output_token_ids"]]}
        state["output_token_ids"] += asked["generate_chunk"]["choices"][0]["token_ids"]
        chunk = stream.chunk(part, {"chunk": head, "stream_state": state})
        made.append((asked, json.loads(chunk.removeprefix(b"data: "))))
    return made


@given(st.lists(st.tuples(st.lists(st.integers(3, 99), min_size=1, max_size=40), st.booleans()), min_size=1))
def test_however_tokens_come_the_first_is_parsed_alone_and_each_once(events: list[tuple[list[int], bool]]) -> None:
    stream, made = Stream("chatcmpl-1", Parsing(BODY, [1, 2])), []
    for ids, wait in events:
        stream.feed(event_of(ids))
        made += [] if wait else parts_of(stream, "stop")
    stream.feed(event_of([END], "stop"))
    made += parts_of(stream, "stop")
    sampled = [*(i for ids, _ in events for i in ids), END]
    asked = [one["generate_chunk"]["choices"][0] for one, _ in made]
    chunks = [chunk["choices"][0] for _, chunk in made]
    assert asked[0]["token_ids"] == sampled[:1]
    assert [i for choice in asked for i in choice["token_ids"]] == sampled[:-1]  # what ended it is not shown
    assert [i for choice in chunks for i in choice["token_ids"]] == sampled
    assert [len(choice["logprobs"]["content"]) for choice in chunks] == [len(c["token_ids"]) for c in chunks]
    done = 0
    for one, choice in zip((one for one, _ in made), chunks, strict=True):
        assert (one["stream_state"] or {"output_token_ids": []})["output_token_ids"] == sampled[:done]
        done += len(choice["token_ids"])
    assert [choice["finish_reason"] for choice in chunks if choice["finish_reason"]] == ["stop"]
    assert list(stream.due()) == []


def test_a_streamed_call_that_is_cut_short_ends_so_whatever_the_parser_says() -> None:
    stream = Stream("chatcmpl-1", Parsing(BODY, [1, 2]))
    stream.feed(event_of([3, 4], "length"))
    assert [c["choices"][0]["finish_reason"] for _, c in parts_of(stream, "tool_calls")] == [None, "length"]
    stream.feed(event_of([3, 4], "stop"))
    assert [c["choices"][0]["finish_reason"] for _, c in parts_of(stream, "tool_calls")] == [None, "tool_calls"]


@pytest.mark.parametrize(
    ("tool_choice", "sampled", "told"),
    [
        ("auto", "stop", "tool_calls"),
        ("auto", "length", "tool_calls"),
        ("required", "stop", "tool_calls"),
        ("required", "length", "length"),
        ({"type": "function"}, "stop", "stop"),
    ],
)
def test_a_whole_answer_that_calls_ends_as_in_chat_completions(tool_choice: Any, sampled: str, told: str) -> None:
    generated = {"request_id": "x", "usage": {}, "choices": [{"index": 0, "token_ids": [3], "logprobs": None}]}
    said = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    parsed = {"choices": [{"index": 0, "message": said, "finish_reason": sampled}]}
    answer = json.loads(whole_answer(generated, parsed, {**BODY, "tool_choice": tool_choice}))
    assert answer["choices"][0]["finish_reason"] == told


def test_parsers_are_told_the_templates_prompt_of_whole_answers_too() -> None:
    choice = {"index": 0, "token_ids": [3, END], "finish_reason": "stop"}
    asked = Parsing(BODY, [1, 2]).whole({"prompt_token_ids": [1, 7, 2], "choices": [choice]})
    assert asked is not None
    told = json.loads(asked)
    assert told["prompt_token_ids"] == told["generate_response"]["prompt_token_ids"] == [1, 2]
