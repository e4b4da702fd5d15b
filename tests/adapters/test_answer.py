"""What the record keeps of an answer's numbers, whatever the engine says they are."""

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from adapters.wires import chat

SAID = st.one_of(
    st.integers(-(2**40), 2**40), st.integers(0, 2**31 - 1), st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(), st.none(), st.sampled_from(["7", "x", [], [1], 2**31 - 1, 2**31, 3.4e38, 3.5e38, -1e300]),
)  # fmt: skip


def captured(ids: list[Any], logprobs: list[Any], prompt: list[Any]) -> chat.Captured:
    """A whole answer with these numbers."""
    content = [{"logprob": logprob} for logprob in logprobs]
    said = {"role": "assistant", "content": "Hi."}
    choice = {"index": 0, "message": said, "token_ids": ids, "logprobs": {"content": content}}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
    answer = chat.Answer("call-1")
    answer.whole(orjson.dumps({"prompt_token_ids": prompt, "choices": [choice], "usage": usage}))
    return answer.captured()


def as_numpy(said: list[Any], dtype: type[np.int32 | np.float32]) -> NDArray[Any]:
    """Raises `TypeError`, `ValueError` or `OverflowError` for what is no list of numbers, or of ids."""
    with np.errstate(over="ignore"):
        array = np.asarray(said, dtype)
    if array.ndim != 1 or (dtype is np.int32 and (array < 0).any()):
        raise ValueError("no list of them")
    return array


@given(st.lists(SAID, max_size=4), st.lists(SAID, max_size=4), st.lists(SAID, max_size=4))
def test_numbers_are_kept_as_numpy_reads_them_or_the_answer_is_unreadable(
    ids: list[Any], logprobs: list[Any], prompt: list[Any]
) -> None:
    kept = captured(ids, logprobs, prompt)
    try:
        expected = [as_numpy(ids, np.int32), as_numpy(logprobs, np.float32), as_numpy(prompt, np.int32)]
    except (TypeError, ValueError, OverflowError):
        assert (kept.choices, kept.inexact_reason) == ((), "unreadable_answer")
        return
    [choice] = kept.choices
    for array, same in zip((choice.ids_T, choice.logprobs_T, kept.prompt_ids_P), expected, strict=True):
        assert array.dtype == same.dtype
        np.testing.assert_array_equal(array, same)


@pytest.mark.parametrize(
    ("logprob", "reason"), [(-3.4e38, None), (-3.5e38, "logprobs_not_finite"), (None, "logprobs_not_finite")]
)
def test_a_logprob_that_is_no_finite_float_is_not_exact(logprob: float | None, reason: str | None) -> None:
    assert captured([1], [logprob], [2]).inexact_reason == reason
