"""Answers of the Responses wire, told in the order of the real API."""

import pytest

from adapters.wires.responses import to_chat
from tests.adapters.responses_builders import (
    REQUEST,
    TOOLS,
    check_order,
    deltas_of,
    items_as_sdk,
    read,
    reply,
    shown_stream,
    shown_whole,
    sse,
    stream_of,
    tool_id,
)


def test_text_and_two_calls_are_told_in_the_order_of_the_real_api() -> None:
    message = reply("Let me see.", calls=[("look", '{"a": 1}'), ("patch", '{"input": "x\\ny"}')])
    events = read(shown_stream(REQUEST, stream_of(deltas_of(message), "tool_calls")))
    assert [(e["type"].removeprefix("response."), e.get("output_index")) for e in events] == [
        ("created", None),
        ("in_progress", None),
        ("output_item.added", 0),
        ("content_part.added", 0),
        ("output_text.delta", 0),
        ("output_text.done", 0),
        ("content_part.done", 0),
        ("output_item.done", 0),
        ("output_item.added", 1),
        ("function_call_arguments.delta", 1),
        ("output_item.added", 2),
        ("custom_tool_call_input.delta", 2),
        ("function_call_arguments.done", 1),
        ("output_item.done", 1),
        ("custom_tool_call_input.done", 2),
        ("output_item.done", 2),
        ("completed", None),
    ]
    output = check_order(events)["output"]
    assert output == [
        {
            "id": "msg_call-1_0",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
        },
        {
            "id": "fc_call-1_1",
            "type": "function_call",
            "status": "completed",
            "arguments": '{"a": 1}',
            "call_id": tool_id(0),
            "name": "look",
        },
        {
            "id": "ctc_call-1_2",
            "type": "custom_tool_call",
            "status": "completed",
            "input": "x\ny",
            "call_id": tool_id(1),
            "name": "patch",
        },
    ]


def test_reasoning_is_a_summary_only_for_who_asked_for_one() -> None:
    answer = stream_of(deltas_of(reply("Yes.", reasoning="Hm.")))
    asked = {**REQUEST, "reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}
    final = check_order(read(shown_stream(asked, answer)))
    assert final["output"][0]["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert final["output"][0]["encrypted_content"]
    plain = check_order(read(shown_stream(REQUEST, answer)))
    assert plain["output"][0]["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert "encrypted_content" not in plain["output"][0]
    names = [e["type"] for e in read(shown_stream(asked, answer))]
    assert names[2:8] == [
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
    ]


def test_an_answer_is_a_response_with_its_parameters_and_usage() -> None:
    body = {
        **REQUEST,
        "instructions": "Be short.",
        "temperature": 0.5,
        "metadata": {"a": "b"},
        "tool_choice": {"type": "function", "name": "look"},
        "tools": [*TOOLS, {"type": "web_search"}, {"type": "from_next_year", "x": 1}],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    }
    response = items_as_sdk(shown_whole(body, reply("Yes.", reasoning="Hm.", calls=[("crew__send", "{}")]), "length"))
    assert (response["id"], response["created_at"], response["model"]) == ("resp_call-1", 12, "policy")
    assert (response["instructions"], response["temperature"], response["metadata"]) == ("Be short.", 0.5, {"a": "b"})
    assert [tool["type"] for tool in response["tools"]] == ["function", "custom", "namespace"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert [item["status"] for item in response["output"]] == ["completed", "completed", "incomplete"]
    assert (response["output"][2]["namespace"], response["output"][2]["name"]) == ("crew", "send")
    assert response["usage"]["input_tokens"] == 7
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 3
    assert response["usage"]["output_tokens_details"] == {"reasoning_tokens": 2}
    assert response["usage"]["total_tokens"] == 12


@pytest.mark.parametrize("stream", [False, True])
def test_a_number_over_64_bits_is_repeated_as_it_came(stream: bool) -> None:
    body = {**REQUEST, "metadata": {"most": 10**30}}
    events = read(shown_stream(body, stream_of(deltas_of(reply("Yes."))))) if stream else []
    response = check_order(events) if stream else shown_whole(body, reply("Yes."))
    assert (response["status"], response["metadata"]) == ("completed", {"most": 10**30})


def test_a_name_in_pieces_is_one_name() -> None:
    heads = [{"index": 0, "id": tool_id(0), "function": {"name": "pat"}}, {"index": 0, "function": {"name": "ch"}}]
    deltas = [{"tool_calls": [head]} for head in heads]
    deltas.append({"tool_calls": [{"index": 0, "function": {"arguments": '{"input": "x"}'}}]})
    [item] = check_order(read(shown_stream(REQUEST, stream_of(deltas))))["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", "x")
    assert item["call_id"] == tool_id(0)


@pytest.mark.parametrize("calls", [[], None])
def test_an_empty_list_of_calls_still_gives_text(calls: object) -> None:
    message = {"role": "assistant", "content": "Text.", "tool_calls": calls}
    for response in (
        shown_whole(REQUEST, message),
        check_order(read(shown_stream(REQUEST, stream_of([{"content": "Text.", "tool_calls": calls}])))),
    ):
        assert [item["type"] for item in response["output"]] == ["message"]
        assert response["output"][0]["content"][0]["text"] == "Text."


def test_a_reply_of_nothing_is_an_empty_message() -> None:
    assert shown_whole(REQUEST, reply(""))["output"][0]["content"][0]["text"] == ""
    final = check_order(read(shown_stream(REQUEST, stream_of([]))))
    assert final["output"][0]["content"][0]["text"] == ""


def test_usage_that_the_engine_does_not_send_is_not_invented() -> None:
    assert check_order(read(shown_stream(REQUEST, stream_of([], usage=False))))["usage"] is None


def test_logprobs_are_shown_only_when_asked_for_and_only_with_the_text_they_belong_to() -> None:
    entry = {"token": "Yes", "logprob": -0.5, "bytes": None, "top_logprobs": [{"token": "No", "logprob": -1.0}]}
    choice = {"index": 0, "delta": {"content": "Yes"}, "logprobs": {"content": [entry]}}
    events = [sse({"choices": [choice]}), sse(b"[DONE]")]
    asked = {**REQUEST, "include": ["message.output_text.logprobs"], "top_logprobs": 1}
    final = check_order(read(shown_stream(asked, events)))
    [shown] = items_as_sdk(final)["output"][0]["content"][0]["logprobs"]
    assert (shown["token"], shown["logprob"], shown["top_logprobs"][0]["token"]) == ("Yes", -0.5, "No")
    assert b'logprob"' not in shown_stream(REQUEST, events)
    with_call = [
        sse({"choices": [{**choice, "delta": delta}]}) for delta in deltas_of(reply("Yes", calls=[("a", "{}")]))
    ]
    final = check_order(read(shown_stream(asked, [*with_call, sse(b"[DONE]")])))
    assert final["output"][0]["content"][0]["logprobs"] == []
    both = sse({"choices": [{**choice, "delta": {"reasoning": "Hm", "content": "Yes"}}]})
    [told] = [e for e in read(shown_stream(asked, [both])) if e["type"] == "response.output_text.delta"]
    assert told["logprobs"] == []
    assert (to_chat(asked)["logprobs"], to_chat(asked)["top_logprobs"]) == (True, 1)
    assert "logprobs" not in to_chat(REQUEST)
