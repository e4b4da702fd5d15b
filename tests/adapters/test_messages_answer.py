"""Chat answers, whole and streamed, as the `anthropic` client itself understands them."""

from typing import Any

import anthropic
import orjson
import pytest

from adapters.wires import messages
from adapters.wires.messages_request import arguments_of
from adapters.wires.sse import data_of
from tests.adapters.messages_builders import (
    ASKED,
    DONE,
    Json,
    answer,
    ask,
    assert_valid_order,
    call,
    chunk,
    deltas_of,
    events_of,
    follow,
    plain,
    reply,
    shown,
    stream,
    whole,
)

FIRST, SECOND = f"call_{'1a' * 12}", f"call_{'2b' * 12}"
"""Ids that are unique already."""
ANSWERS = [
    (reply("Hello"), "stop", None, "end_turn"),
    (reply("Hello", tool_calls=[]), "stop", None, "end_turn"),
    (reply("Hel"), "length", None, "max_tokens"),
    (reply("Hel"), "stop", "END", "stop_sequence"),
    (reply("Hel"), "stop", 151645, "end_turn"),
    (reply("Hel"), "content_filter", None, "refusal"),
    (reply(None, call(FIRST, "f", '{"a":1}')), "tool_calls", None, "tool_use"),
    (
        reply("I call", call(FIRST, "f", "{}"), call(SECOND, "g", '{"b":[1,{"c":"}"}]}'), reasoning="hm"),
        "stop",
        None,
        "tool_use",
    ),
    (reply(None, call(FIRST, "f", '{"a":1}')), "stop", "END", "tool_use"),
    (reply("done", reasoning_content="older name"), "stop", None, "end_turn"),
    (reply(""), "stop", None, "end_turn"),
    (reply(None, call(FIRST, "f", "")), "tool_calls", None, "tool_use"),
    (reply(None, call(FIRST, "f", "no object")), "tool_calls", None, "tool_use"),
    (reply(None, call(FIRST, "f", '{"a":1} and more')), "tool_calls", None, "tool_use"),
]


@pytest.mark.parametrize(("message", "finish", "stop", "reason"), ANSWERS)
def test_an_answer_is_the_same_message_whole_and_streamed(message: Json, finish: str, stop: Any, reason: str) -> None:
    body = messages.Shown(ASKED, "c1").whole(answer(message, finish, stop))
    asked = ask(body)
    assert asked.stop_reason == reason
    assert asked.stop_sequence == (stop if reason == "stop_sequence" else None)
    assert (asked.id, asked.model) == ("msg_c1", "policy")
    usage = asked.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (3, 6, 4)
    sent = shown(stream(deltas_of(message), finish, stop))
    assert_valid_order(sent)
    assert plain(follow(sent)) == plain(asked)


def test_a_call_that_was_cut_short_is_never_shown_as_one_to_run() -> None:
    for finish, stop, reason in (("length", None, "max_tokens"), ("stop", "END", "stop_sequence")):
        cut = reply(None, call(FIRST, "f", '{"path": "/tm'))
        assert whole(answer(cut, finish, stop))["stop_reason"] == reason
        assert whole(answer(cut, finish, stop))["content"][0]["input"] == {}
        sent = shown(stream(deltas_of(cut), finish, stop))
        assert_valid_order(sent)
        assert follow(sent).stop_reason == reason


def test_arguments_reach_a_whole_answer_to_the_letter() -> None:
    arguments = '{"big":123456789012345678901234567890,"e":1e5,"same":1,"same":2,"u":"\\u00e9\\/"}'
    body = messages.Shown(ASKED, "c1").whole(answer(reply(None, call(FIRST, "f", arguments)), "tool_calls"))
    assert b'"input":' + arguments.encode() in body


def test_a_call_without_an_id_gets_the_same_one_whole_and_streamed() -> None:
    message = reply(None, {"type": "function", "function": {"name": "f", "arguments": "{}"}})
    sent = follow(shown(stream(deltas_of(message), "tool_calls")))
    assert sent.content[0].to_dict()["id"] == whole(answer(message))["content"][0]["id"] == "call_c1_0_0"


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices":[]}', b'{"error":{"message":"boom","code":500}}'])
def test_an_answer_that_is_none_becomes_an_error(body: bytes) -> None:
    wire = messages.Shown(ASKED, "c1")
    said = orjson.loads(wire.whole(body))
    assert (said["type"], said["error"]["type"]) == ("error", "api_error")
    assert wire.error
    assert wire.error == said["error"]["message"]


def test_a_text_and_two_interleaved_calls_make_this_very_sequence() -> None:
    def part(index: int, arguments: str, **head: Any) -> Json:
        function = {"arguments": arguments, **({"name": head.pop("name")} if head else {})}
        return {"index": index, **head, "function": function}

    deltas: list[Json] = [
        {"content": "I "},
        {"content": "look."},
        {"tool_calls": [part(0, "", id=FIRST, name="Read")]},
        {"tool_calls": [part(0, '{"path":')]},
        {"tool_calls": [part(1, '{"q"', id=SECOND, name="Grep")]},
        {"tool_calls": [part(0, '"a}"'), part(1, ":1")]},
        {"tool_calls": [part(0, "}")]},
        {"tool_calls": [part(1, "}")]},
    ]
    wire = messages.Shown(ASKED, "c1")
    first = orjson.loads(data_of(chunk({"role": "assistant", "content": ""})) or b"")
    sent = wire.event(b"data: " + orjson.dumps({**first, "prompt_token_ids": list(range(9))}) + b"\n\n")
    sent += b"".join(wire.event(e) for e in stream(deltas, "tool_calls")[1:])
    start, counted = 0, {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 6}
    expected = [
        ("message_start", None),
        ("content_block_start", (0, {"type": "text", "text": ""})),
        ("content_block_delta", (0, {"type": "text_delta", "text": "I "})),
        ("content_block_delta", (0, {"type": "text_delta", "text": "look."})),
        ("content_block_stop", (0, None)),
        ("content_block_start", (1, {"type": "tool_use", "id": FIRST, "name": "Read", "input": {}})),
        ("content_block_delta", (1, {"type": "input_json_delta", "partial_json": '{"path":'})),
        ("content_block_delta", (1, {"type": "input_json_delta", "partial_json": '"a}"'})),
        ("content_block_delta", (1, {"type": "input_json_delta", "partial_json": "}"})),
        ("content_block_stop", (1, None)),
        ("content_block_start", (2, {"type": "tool_use", "id": SECOND, "name": "Grep", "input": {}})),
        ("content_block_delta", (2, {"type": "input_json_delta", "partial_json": '{"q":1'})),
        ("content_block_delta", (2, {"type": "input_json_delta", "partial_json": "}"})),
        ("content_block_stop", (2, None)),
        ("message_delta", None),
        ("message_stop", None),
    ]
    events = events_of(sent)
    found = [
        (name, (data["index"], data.get("content_block") or data.get("delta")) if "index" in data else None)
        for name, data in events
    ]
    assert found == expected
    assert events[start][1]["message"]["usage"]["input_tokens"] == 9
    assert events[-2][1] == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"input_tokens": 3, **counted, "output_tokens": 4},
    }
    assert wire.done
    assert wire.error is None


def test_each_delta_of_the_open_block_leaves_at_once() -> None:
    wire = messages.Shown(ASKED, "c1")
    assert wire.opening() == b""
    assert [n for n, _ in events_of(wire.event(chunk({"role": "assistant", "content": ""})))] == ["message_start"]
    assert b"thinking_delta" in wire.event(chunk({"reasoning": "hm"}))
    assert b"text_delta" in wire.event(chunk({"content": "a"}))
    head = {"index": 0, "id": "t", "function": {"name": "f", "arguments": ""}}
    assert b"content_block_start" in wire.event(chunk({"tool_calls": [head]}))
    assert b"input_json_delta" in wire.event(chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}))
    second = {"index": 1, "id": "u", "function": {"name": "g", "arguments": "{"}}
    assert b"content_block_start" in wire.event(chunk({"tool_calls": [second]}))
    assert not wire.done


def test_a_call_waits_for_its_name_and_keeps_what_came_before_it() -> None:
    early = [{"index": 0, "id": FIRST, "function": {"arguments": '{"a"'}}, {"index": 0, "function": {"name": "f"}}]
    late = [{"index": 0, "id": "other", "function": {"name": "g", "arguments": ":1}"}}]
    sent = shown(stream([{"tool_calls": early[:1]}, {"tool_calls": early[1:]}, {"tool_calls": late}], "tool_calls"))
    assert [b.to_dict() for b in follow(sent).content] == [
        {"type": "tool_use", "id": FIRST, "name": "f", "input": {"a": 1}}
    ]


def test_nothing_follows_the_end() -> None:
    wire = messages.Shown(ASKED, "c1")
    for event in stream([{"content": "a"}]):
        wire.event(event)
    assert [wire.event(chunk({"content": "b"})), wire.event(DONE)] == [b"", b""]


def test_an_engine_error_ends_the_stream_as_the_client_expects() -> None:
    events = stream([{"content": "a"}])
    error = b'data: {"error":{"message":"out of memory","type":"X","code":500}}\n\n'
    wire = messages.Shown(ASKED, "c1")
    sent = b"".join(wire.event(e) for e in [*events[:2], error, *events[2:]])
    assert (wire.error, wire.done) == ("out of memory", True)
    assert events_of(sent)[-1][0] == "error"
    with pytest.raises(anthropic.APIStatusError, match="out of memory"):
        follow(sent)


def test_a_stream_without_an_answer_is_an_error() -> None:
    wire = messages.Shown(ASKED, "c1")
    sent = wire.event(DONE)
    assert wire.done
    assert wire.error
    assert [n for n, _ in events_of(sent)] == ["error"]


@pytest.mark.parametrize(
    "odd",
    [
        b"data: garbage\n\n",
        b"data: null\n\n",
        b"data: []\n\n",
        b'data: {"surprise":1}\n\n',
        b'data: {"choices":[]}\n\n',
        b'data: {"choices":[{}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":null}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":7,"tool_calls":[null]}}]}\n\n',
        b'data: {"choices":[{"index":1,"delta":{"content":"another choice"}}]}\n\n',
        b"event: nothing\n\n",
        b": keep-alive\n\n",
        b"\n\n",
    ],
)
def test_an_odd_event_anywhere_ends_nothing(odd: bytes) -> None:
    events = stream(deltas_of(reply("Hi", call("t", "f", '{"a":1}'))), "tool_calls")
    expected = plain(follow(shown(events)))
    for at in range(len(events)):
        sent = shown([*events[:at], odd, *events[at:]])
        assert plain(follow(sent)) == expected


def test_a_ping_and_a_comment_are_skipped_by_the_client() -> None:
    sent = shown(stream([{"content": "a"}]))
    assert messages.PING == b'event: ping\ndata: {"type":"ping"}\n\n'
    assert plain(follow(messages.PING + b": quiet\n\n" + sent)) == plain(follow(sent))
    assert messages.Shown(ASKED, "c1").event(b": quiet\n\n") == b": quiet\n\n"


def test_large_arguments_in_parallel_arrive_unmixed() -> None:
    given = [{"text": letter * 20_000, "n": n} for n, letter in enumerate("abc")]
    written = [arguments_of(g) for g in given]
    deltas: list[Json] = [
        {"tool_calls": [{"index": i, "id": f"t{i}", "function": {"name": "f", "arguments": ""}}]} for i in range(3)
    ]
    for start in range(0, 20_100, 4_000):
        deltas += [
            {"tool_calls": [{"index": i, "function": {"arguments": w[start : start + 4_000]}}]}
            for i, w in enumerate(written)
        ]
    sent = shown(stream(deltas, "tool_calls"))
    assert_valid_order(sent)
    assert [b.to_dict()["input"] for b in follow(sent).content] == given
