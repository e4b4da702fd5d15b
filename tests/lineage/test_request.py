"""A call as lineage reads it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mosaic.capture import CallStatus, CapturedCall, Choice
from mosaic.lineage.harness import Harnesses
from mosaic.lineage.request import Request

TEXTS = st.sampled_from(["one", "two"])
TOOL_CALLS = st.sampled_from([[], [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]])
HEARD = st.fixed_dictionaries({"role": st.sampled_from(["user", "tool", "system"]), "content": TEXTS})
SPOKEN = st.fixed_dictionaries({"role": st.just("assistant"), "content": TEXTS, "tool_calls": TOOL_CALLS})


def request(messages: Sequence[Mapping[str, Any]], reply: Mapping[str, Any]) -> Request:
    choice = Choice(0, reply, "stop", np.zeros(0, np.int32), np.zeros(0, np.float32))
    call = CapturedCall(
        call_id="call-1",
        wire="chat",
        status=CallStatus.OK,
        http_status=200,
        messages=tuple(messages),
        params={},
        choices=(choice,),
        prompt_ids_P=np.zeros(0, np.int32),
        usage=None,
        inexact_reason=None,
        started_at=0.0,
        first_byte_at=None,
        ended_at=1.0,
    )
    return Request(call, Harnesses())


@given(st.lists(HEARD | SPOKEN, max_size=6), SPOKEN)
def test_a_reply_ends_where_a_request_that_repeats_it_ends(
    messages: list[dict[str, Any]], reply: dict[str, Any]
) -> None:
    [found] = request(messages, reply).replies
    assert found.end == request([*messages, reply], reply).chain[-1]
