"""Failures in the words of the Responses API."""

import json

import pytest

from adapters.wires.responses import Shown, error_body, error_event
from tests.adapters.responses_builders import (
    REQUEST,
    check_order,
    deltas_of,
    read,
    reply,
    shown_stream,
    sse,
    stream_of,
    whole_answer,
)


def test_an_in_band_error_ends_the_stream_as_a_failure() -> None:
    shown = Shown(REQUEST, "call-1", 0)
    shown.event(sse({"choices": [{"index": 0, "delta": {"content": "Half"}}]}))
    sent = shown.event(sse({"error": {"message": "engine died", "code": 500}}))
    assert [e["type"] for e in read(sent)] == ["error", "response.failed"]
    failed = read(sent)[-1]["response"]
    assert (failed["id"], failed["status"]) == ("resp_call-1", "failed")
    assert failed["error"] == {"code": "server_error", "message": "engine died"}
    assert shown.event(sse(b"[DONE]")) == b""
    assert (shown.done, shown.error) == (True, "engine died")


def test_a_reply_that_the_engine_gave_up_has_failed() -> None:
    events = read(shown_stream(REQUEST, stream_of([{"content": "Half"}], "abort")))
    assert events[-1]["type"] == "response.failed"
    shown = Shown(REQUEST, "call-1", 0)
    assert json.loads(shown.whole(whole_answer(reply("Half"), "abort")))["status"] == "failed"
    assert shown.error is not None


@pytest.mark.parametrize(
    "odd",
    [
        b"data: {nonsense\n\n",
        b": comment\n\n",
        b"event: x\n\n",
        sse({}),
        sse([]),
        sse({"choices": None}),
        sse({"choices": [{}]}),
        sse({"choices": [{"index": 0, "delta": None}]}),
        sse({"choices": [{"index": 1, "delta": {"content": "another choice"}}]}),
        sse({"choices": [{"index": 0, "delta": {"content": 5, "tool_calls": [None]}}]}),
        sse({"choices": [{"index": 0, "delta": {"reasoning": ["x"]}}]}),
        sse({"choices": [], "usage": None}),
    ],
)
def test_odd_chunks_do_not_cut_the_stream(odd: bytes) -> None:
    first, *rest = stream_of(deltas_of(reply("Yes.")))
    final = check_order(read(shown_stream(REQUEST, [odd, first, odd, *rest])))
    assert final["output"][0]["content"][0]["text"] == "Yes."


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": null}]}'])
def test_an_answer_that_is_none_is_a_failed_response(body: bytes) -> None:
    shown = Shown(REQUEST, "call-1", 0)
    assert json.loads(shown.whole(body))["status"] == "failed"
    assert shown.error is not None


def test_a_stream_without_its_end_is_not_done() -> None:
    shown = Shown(REQUEST, "call-1", 0)
    for event in stream_of(deltas_of(reply("Yes.")))[:-1]:
        assert b"response.completed" not in shown.event(event)
    assert not shown.done
    assert [e["type"] for e in read(shown.failed("cut"))] == ["error", "response.failed"]


def test_errors_have_openais_shape() -> None:
    error = json.loads(error_body(400, "too long", "context_length_exceeded"))["error"]
    assert error == {
        "message": "too long",
        "type": "invalid_request_error",
        "param": None,
        "code": "context_length_exceeded",
    }
    failed = read(error_event("too long", "context_length_exceeded"))[-1]
    assert failed["type"] == "response.failed"
    assert failed["response"]["error"]["code"] == "context_length_exceeded"
