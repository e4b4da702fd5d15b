"""Taking ids and logprobs out of an answer unread gives what reading them and taking them out gives."""

import json
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from adapters.wires.chat import Shown, Wanted

NAMES = st.sampled_from(["prompt_token_ids", "choices", "x", '"prompt_token_ids":[1]'])
LEAVES = st.none() | st.integers(0, 9) | st.sampled_from(["", "]", "[", '"', "prompt_token_ids"])
IDS = st.lists(st.integers(0, 200_000), max_size=4)
VALUES = st.recursive(
    LEAVES | IDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3)
)
ANSWERS = st.dictionaries(NAMES.filter(lambda name: name != "choices"), VALUES, max_size=4)
NOTHING = Wanted(logprobs=False, token_ids=False, stream=False, stream_usage=False)


@pytest.mark.parametrize("spaced", [False, True])
@given(answer=ANSWERS)
@example(answer={"prompt_token_ids": [1, 2]})
@example(answer={"prompt_token_ids": ["]", '"']})
@example(answer={"prompt_token_ids": None, "x": {"prompt_token_ids": [1]}})
@example(answer={"prompt_token_ids": [1], "x": {"prompt_token_ids": [1]}})
@example(answer={"x": [{"prompt_token_ids": [1]}]})
def test_only_an_answers_own_prompt_ids_are_taken_out(spaced: bool, answer: dict[str, Any]) -> None:
    body = json.dumps(answer).encode() if spaced else orjson.dumps(answer)
    shown = {name: None if name == "prompt_token_ids" else value for name, value in answer.items()}
    assert orjson.loads(Shown(NOTHING, "call-1").whole(body)) == shown
    event = Shown(NOTHING, "call-1").event(b"data: " + body + b"\n\n")
    assert orjson.loads(event.removeprefix(b"data: ")) == shown


TOKENS = st.sampled_from(["a", "]}", '"', '"logprobs":{"content":[{', ',"top_logprobs":[]}]}', "\\"])
ENTRIES = st.fixed_dictionaries(
    {"token": TOKENS, "logprob": st.floats(-9, 0), "bytes": st.none() | st.just([97]), "top_logprobs": st.just([])}
)
ODD = st.fixed_dictionaries({"top_logprobs": st.lists(ENTRIES, max_size=1), "token": TOKENS})
LOGPROBS = st.none() | st.fixed_dictionaries(
    {"content": st.none() | st.lists(ENTRIES | ODD, max_size=3)}, optional={"refusal": st.none()}
)
CHOICES = st.lists(
    st.fixed_dictionaries(
        {"message": st.fixed_dictionaries({"content": TOKENS}, optional={"logprobs": LOGPROBS})},
        optional={"logprobs": LOGPROBS | st.just("cut"), "finish_reason": st.just("stop")},
    ),
    max_size=3,
)


ENTRY = {"token": "a", "logprob": -1.0, "bytes": None, "top_logprobs": []}


@pytest.mark.parametrize("spaced", [False, True])
@given(choices=CHOICES, beside=LOGPROBS)
@example(choices=[{"logprobs": {"content": [{**ENTRY, "top_logprobs": [ENTRY]}, ENTRY]}}], beside=None)
@example(choices=[{"logprobs": "cut"}], beside={"content": [ENTRY]})
@example(choices=[{"logprobs": {"content": [ENTRY]}, "message": {"x": [ENTRY]}}], beside=None)
@example(choices=[{"logprobs": {"content": [ENTRY], "refusal": None}, "message": {"x": [ENTRY]}}], beside=None)
def test_only_the_choices_own_logprobs_are_taken_out(spaced: bool, choices: list[dict[str, Any]], beside: Any) -> None:
    answer = {"x": {"logprobs": beside}, "choices": choices, "y": {"logprobs": beside}}
    body = json.dumps(answer).encode() if spaced else orjson.dumps(answer)
    shown = answer | {
        "choices": [{name: None if name == "logprobs" else value for name, value in c.items()} for c in choices]
    }
    assert orjson.loads(Shown(NOTHING, "call-1").whole(body)) == shown
    asked = Wanted(logprobs=True, token_ids=True, stream=False, stream_usage=False)
    assert orjson.loads(Shown(asked, "call-1").whole(body)) == answer


def test_an_answer_that_is_cut_anywhere_passes_as_it_is() -> None:
    choice = {"index": 0, "message": {"content": "a"}, "logprobs": {"content": [ENTRY]}, "token_ids": [1]}
    body = orjson.dumps({"prompt_token_ids": [1, 2], "choices": [choice, choice]})
    for end in range(len(body)):
        assert Shown(NOTHING, "call-1").whole(body[:end]) == body[:end]
