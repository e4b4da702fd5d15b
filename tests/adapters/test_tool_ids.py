"""Ids of tool calls: what a client is shown and what is recorded are one, whatever the engine gives and however."""

import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.wires.sse import EventSplitter
from adapters.wires.tool_ids import unique_tool_id, unmarked
from adapters.wires.wire import WIRES, Context
from mosaic.capture import CallStatus
from proxy.trace import Origin, Trace, captured

Json = dict[str, Any]

HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, Json] = {
    "chat/completions": {"model": "policy", "messages": HI, "stream": True},
    "responses": {"model": "policy", "input": "Hi", "stream": True},
    "messages": {"model": "policy", "max_tokens": 9, "messages": HI, "stream": True},
}
COUNTED = st.sampled_from(["functions.bash:0", "functions.bash:1", "call_1", "call_2", "0", "tool-0"])
RANDOM = st.uuids().flatmap(
    lambda u: st.sampled_from([f"chatcmpl-tool-{u.hex}", f"call_{u.hex[:24]}", f"toolu_{u.hex}", str(u)])
)
GIVEN = st.none() | st.just("") | COUNTED | RANDOM


@st.composite
def tool_streams(draw: st.DrawFn, choices: int) -> list[Json]:
    """Chunks with parallel calls of one or more choices, their deltas interleaved, their ids said once or again."""
    queues: list[list[tuple[int, Json]]] = []
    for choice in range(draw(st.integers(1, choices))):
        for index in range(draw(st.integers(1, 3))):
            tool_id = draw(GIVEN)
            head = {"index": index, "id": tool_id, "type": "function", "function": {"name": "bash", "arguments": ""}}
            again = {"id": tool_id} if draw(st.booleans()) else {}
            rest = [{"index": index, **again, "function": {"arguments": part}} for part in ('{"a":', "1}")]
            queues.append([(choice, head), *((choice, part) for part in rest)])
    chunks: list[Json] = []
    while queues := [queue for queue in queues if queue]:
        taken = [queue.pop(0) for queue in queues[: draw(st.integers(1, len(queues)))]]
        for choice in sorted({choice for choice, _ in taken}):
            parts = [part for its, part in taken if its == choice]
            chunks.append({"choices": [{"index": choice, "delta": {"tool_calls": parts}}]})
        queues = draw(st.permutations(queues))
    return chunks


def stream_of(chunks: list[Json]) -> bytes:
    return b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"


def divided(stream: bytes, sizes: list[int]) -> Iterator[bytes]:
    at = 0
    for size in [*sizes, len(stream)]:
        yield stream[at : at + size]
        at += size


def shown_ids(path: str, call_id: str, pieces: list[bytes]) -> dict[tuple[int, int], str]:
    """(choice, place) -> the id that a client reads out of the stream; translated wires tell calls as they begin."""
    body = BODIES[path]
    shown = WIRES[path].open(orjson.dumps(body), body, Context(call_id, 1e9)).shown
    splitter, sent = EventSplitter(), shown.opening()
    for piece in pieces:
        sent += b"".join(shown.event(event) for event in splitter.feed(piece))
    found: dict[tuple[int, int], str] = {}
    for line in sent.split(b"\n"):
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if path == "chat/completions":
            for choice in event.get("choices") or ():
                for call in choice["delta"]["tool_calls"]:
                    if call.get("id"):
                        assert found.setdefault((choice["index"], call["index"]), call["id"]) == call["id"]
        elif event["type"] == "content_block_start":
            found[0, len(found)] = event["content_block"]["id"]
        elif event["type"] == "response.output_item.done":
            found[0, len(found)] = event["item"]["call_id"]
    return found


def recorded_ids(path: str, call_id: str, pieces: list[bytes]) -> dict[tuple[int, int], str]:
    """The same out of the record."""
    body = BODIES[path]
    opened = WIRES[path].open(orjson.dumps(body), body, Context(call_id, 1e9))
    origin = Origin(call_id, WIRES[path].name, None, "lineage", "c", None, 0, True, {}, 1e9)
    answer = tuple((1e9, piece) for piece in pieces)
    call = captured(Trace(origin, opened.recorded, answer, True, CallStatus.OK, 200, None, 1e9))
    return {
        (choice.index, at): tool["id"]
        for choice in call.choices
        for at, tool in enumerate(choice.message["tool_calls"])
        if tool.get("id")
    }


@pytest.mark.parametrize("path", BODIES)
@given(data=st.data(), sizes=st.lists(st.integers(1, 90), max_size=20))
def test_the_client_and_the_record_have_the_same_ids_and_no_two_calls_share_one(
    path: str, data: st.DataObject, sizes: list[int]
) -> None:
    stream = stream_of(data.draw(tool_streams(2 if path == "chat/completions" else 1)))
    pieces = list(divided(stream, sizes))
    shown = shown_ids(path, "call-1", pieces)
    recorded = recorded_ids(path, "call-1", pieces)
    assert sorted(shown.values()) == sorted(recorded.values())
    assert path != "chat/completions" or shown == recorded
    assert shown == shown_ids(path, "call-1", [stream])
    assert path == "chat/completions" or shown
    unique = [i for i in shown.values() if i.encode() not in stream]
    assert len(unique) == len(set(unique))
    assert not set(unique) & set(shown_ids(path, "call-2", pieces).values())


@given(given=RANDOM | st.from_regex(r"[0-9A-Z][a-z0-9A-Z]{7}[a-zA-Z]", fullmatch=True))
def test_an_id_that_is_random_already_stays_as_it_is(given: str) -> None:
    assert unique_tool_id(given, "call-1", 0, 0) == given


@given(given=COUNTED, index=st.integers(0, 9))
def test_a_counted_id_keeps_its_form_in_front_and_differs_between_calls_choices_and_places(
    given: str, index: int
) -> None:
    one = unique_tool_id(given, "call-1", 0, index)
    others = [
        unique_tool_id(given, "call-2", 0, index),
        unique_tool_id(given, "call-1", 1, index),
        unique_tool_id(given, "call-1", 0, index + 1),
    ]
    assert one.startswith(given)
    assert len(one) <= 64  # the longest that OpenAI's own API takes back
    assert len({one, *others}) == 4


@pytest.mark.parametrize("given", ["functions.bash:0", None])
@pytest.mark.parametrize("path", BODIES)
def test_a_whole_answer_has_the_ids_of_the_record(path: str, given: str | None) -> None:
    tool = {"id": given, "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [tool, tool]}
    answer = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}).encode()
    body = {**BODIES[path], "stream": False}
    opened = WIRES[path].open(orjson.dumps(body), body, Context("call-1", 1e9))
    origin = Origin("call-1", WIRES[path].name, None, "lineage", "c", None, 0, True, {}, 1e9)
    call = captured(Trace(origin, opened.recorded, ((1e9, answer),), False, CallStatus.OK, 200, None, 1e9))
    kept = [tool["id"] for tool in call.choices[0].message["tool_calls"]]
    shown = json.loads(opened.shown.whole(answer))
    ids = {
        "chat/completions": lambda: [t["id"] for t in shown["choices"][0]["message"]["tool_calls"]],
        "responses": lambda: [item["call_id"] for item in shown["output"]],
        "messages": lambda: [block["id"] for block in shown["content"]],
    }
    assert ids[path]() == kept
    assert len(set(kept)) == 2 or (given is None and path == "chat/completions")


@pytest.mark.parametrize("path", BODIES)
def test_the_engine_gets_its_own_ids_back_and_the_record_those_of_the_client(path: str) -> None:
    mine = unique_tool_id("functions.bash:0", "call-1", 0, 0)
    call = {"id": mine, "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    item = {"call_id": mine, "name": "bash", "arguments": "{}", "type": "function_call"}
    history: dict[str, Json] = {
        "chat/completions": {
            "messages": [
                {"role": "assistant", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": mine, "content": "ok"},
            ]
        },
        "responses": {"input": [item, {"type": "function_call_output", "call_id": mine, "output": "ok"}]},
        "messages": {
            "messages": [
                {"role": "assistant", "content": [{"type": "tool_use", "id": mine, "name": "bash", "input": {}}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": mine, "content": "ok"}]},
            ]
        },
    }
    body = {**BODIES[path], **history[path]}
    opened = WIRES[path].open(orjson.dumps(body), body, Context("call-2", 1e9))
    for sent, expected in ((opened.sent, "functions.bash:0"), (opened.recorded, mine)):
        asked, result = orjson.loads(sent)["messages"][-2:]
        assert expected in json.dumps(asked)
        assert expected in json.dumps(result)
        assert (mine in sent.decode()) == (expected == mine)


@given(st.binary())
def test_what_has_no_mark_is_not_touched(body: bytes) -> None:
    assert unmarked(body) == body
