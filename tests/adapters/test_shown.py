"""Taking the prompt's ids out of an answer unread gives what reading them and taking them out gives."""

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
