"""The Responses API to and from chat: what the openai client reads, what goes upstream, and that history only grows."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response

from adapters.wires import responses
from adapters.wires.responses import Shown, error_body, error_event, left_out, to_chat
from adapters.wires.responses_tools import InputReader, arguments_of
from mosaic.errors import RequestError

Json = dict[str, Any]

LOOK: Json = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
PATCH: Json = {"type": "custom", "name": "patch", "description": "Changes files."}
CREW: Json = {"type": "namespace", "name": "crew", "description": "", "tools": [{**LOOK, "name": "send"}, PATCH]}
TOOLS = [LOOK, PATCH, CREW]
REQUEST: Json = {"model": "policy", "input": "Hi", "tools": TOOLS}


# ---- an engine's answer, whole and in pieces


def tool_id(at: int) -> str:
    """An id that is unique already."""
    return f"call_{at:02}{'1a' * 11}"


def reply(content: str | None = None, *, reasoning: str | None = None, calls: Sequence[tuple[str, str]] = ()) -> Json:
    message: Json = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": tool_id(at), "type": "function", "function": {"name": name, "arguments": arguments}}
            for at, (name, arguments) in enumerate(calls)
        ]
    return message


USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 5,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 3},
    "completion_tokens_details": {"reasoning_tokens": 2},
}


def whole_answer(message: Json, finish: str = "stop", **choice: Any) -> bytes:
    one = {"index": 0, "message": message, "finish_reason": finish, "logprobs": None, "token_ids": [1], **choice}
    return json.dumps({"id": "chatcmpl-1", "model": "policy", "choices": [one], "usage": USAGE}).encode()


def sse(chunk: object) -> bytes:
    return b"data: " + (chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()) + b"\n\n"


def deltas_of(message: Json) -> Iterator[Json]:
    """The deltas of a reply, in the order in which vLLM sends them, each text whole."""
    yield {"role": "assistant", "content": ""}
    for key in ("reasoning", "content"):
        if message.get(key):
            yield {key: message[key]}
    for at, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        head = {"index": at, "id": call["id"], "type": "function", "function": {"name": name, "arguments": ""}}
        yield {"tool_calls": [head]}
        yield {"tool_calls": [{"index": at, "function": {"arguments": arguments}}]}


def stream_of(deltas: Iterable[Json], finish: str = "stop", usage: bool = True) -> list[bytes]:
    chunks: list[Json] = [{"model": "policy", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"model": "policy", "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    if usage:
        chunks.append({"model": "policy", "choices": [], "usage": USAGE})
    return [*map(sse, chunks), sse(b"[DONE]")]


def shown_stream(body: Mapping[str, Any], events: Iterable[bytes], call_id: str = "call-1") -> bytes:
    shown = Shown(body, call_id, 12.5)
    return shown.opening() + b"".join(shown.event(event) for event in events)


def shown_whole(body: Mapping[str, Any], message: Json, finish: str = "stop", call_id: str = "call-1") -> Json:
    return dict(json.loads(Shown(body, call_id, 12.5).whole(whole_answer(message, finish))))


def read(stream: bytes) -> list[Json]:
    """The client's events; each must name in `event:` what it is."""
    events = []
    for raw in stream.decode().split("\n\n")[:-1]:
        name, data = raw.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


TEXT_FIELDS = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.reasoning_summary_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}


def check_order(events: list[Json]) -> Json:
    """The rules of the wire that hold for every stream; returns the last response."""
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    final: Json = events[-1]["response"]
    items: dict[int, Json] = {}
    texts: dict[int, str] = {}
    done: dict[int, Json] = {}
    for event in events[2:-1]:
        at = event["output_index"]
        kind, _, last = event["type"].rpartition(".")
        assert at not in done, "an item that has ended says nothing more"
        if event["type"] == "response.output_item.added":
            assert at == len(items), "items begin in order, without gaps"
            items[at] = event["item"]
            texts[at] = ""
        elif event["type"] == "response.output_item.done":
            assert {k: event["item"][k] for k in ("id", "type")} == {k: items[at][k] for k in ("id", "type")}
            done[at] = event["item"]
        else:
            assert event["item_id"] == items[at]["id"]
            if last == "delta":
                texts[at] += event["delta"]
            elif kind in TEXT_FIELDS:
                assert event[TEXT_FIELDS[kind]] == texts[at]
    assert final["output"] == [done[at] for at in sorted(items)]
    return final


def items_as_sdk(response: Json) -> Json:
    """The response as the openai package reads it; raises where it is not one."""
    return Response.model_validate(response).model_dump(by_alias=True)


# ---- golden


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


# ---- any division of the deltas


names = st.sampled_from(["look", "patch", "crew__send", "crew__patch", "not_offered"])
texts = st.text(st.characters(codec="utf-8"), max_size=12)
arguments_texts = st.one_of(
    texts,
    texts.map(arguments_of),
    texts.map(lambda text: json.dumps({"input": text})),
    st.dictionaries(texts, texts, max_size=2).map(json.dumps),
)


@st.composite
def replies(draw: st.DrawFn) -> Json:
    calls = draw(st.lists(st.tuples(names, arguments_texts), max_size=3))
    return reply(draw(st.none() | texts), reasoning=draw(st.none() | texts), calls=calls)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def divided(draw: st.DrawFn, message: Json) -> list[Json]:
    """The deltas of a reply: texts in pieces, and the arguments of its calls interleaved."""
    deltas: list[Json] = []
    waiting: dict[int, list[Json]] = {}
    for delta in deltas_of(message):
        for key, value in delta.items():
            if key == "tool_calls":
                [call] = value
                queue = waiting.setdefault(call["index"], [])
                if "id" in call:
                    queue.append(delta)
                for piece in draw(cut(call["function"]["arguments"])):
                    queue.append({"tool_calls": [{"index": call["index"], "function": {"arguments": piece}}]})
            elif key != "role":
                deltas += [{key: piece} for piece in draw(cut(value))]
    # A call's first delta comes after the first deltas of those before it.
    for at in sorted(waiting):
        deltas.append(waiting[at].pop(0))
        for _ in range(draw(st.integers(0, 3))):
            if queue := waiting[draw(st.integers(0, at))]:
                deltas.append(queue.pop(0))
    while left := [at for at, queue in waiting.items() if queue]:
        deltas.append(waiting[draw(st.sampled_from(left))].pop(0))
    return deltas


@given(st.data(), replies(), st.sampled_from(["stop", "length", "tool_calls"]), st.booleans())
def test_however_a_reply_is_divided_the_response_is_that_of_the_whole(
    data: st.DataObject, message: Json, finish: str, summary: bool
) -> None:
    body = {**REQUEST, "reasoning": {"summary": "auto"} if summary else None}
    final = check_order(read(shown_stream(body, stream_of(data.draw(divided(message)), finish))))
    assert final == shown_whole(body, message, finish)
    items_as_sdk(final)


@given(st.data(), replies())
def test_deltas_in_no_order_at_all_lose_nothing(data: st.DataObject, message: Json) -> None:
    deltas = data.draw(divided(message).flatmap(st.permutations))
    first: dict[int, Json] = {}
    for delta in deltas:  # Only that a call's first piece comes first.
        for call in delta.get("tool_calls", ()):
            first.setdefault(call["index"], call)
    heads = {c["index"]: c for d in deltas for c in d.get("tool_calls", ()) if "id" in c}
    if any("id" not in call for call in first.values()):
        deltas = [{"tool_calls": [heads[at]]} for at in heads] + [
            d for d in deltas if not any("id" in c for c in d.get("tool_calls", ()))
        ]
    final = check_order(read(shown_stream(REQUEST, stream_of(deltas))))
    [said] = to_chat({**REQUEST, "input": [*final["output"], {"role": "user", "content": "?"}]})["messages"][:-1]
    assert (said["content"] or "") == "".join(d.get("content", "") for d in deltas)
    assert said.get("reasoning_content", "") == "".join(d.get("reasoning", "") for d in deltas)
    assert len(said.get("tool_calls", ())) == len(message.get("tool_calls", ()))


@given(st.data(), st.text(max_size=30) | texts.map(arguments_of))
def test_a_custom_tools_input_reads_the_same_in_any_pieces(data: st.DataObject, raw: str) -> None:
    at_once, in_pieces = InputReader(), InputReader()
    told = [at_once.feed(raw), "".join(in_pieces.feed(piece) for piece in data.draw(cut(raw)))]
    assert at_once.text() == in_pieces.text()
    assert all(at_once.text().startswith(text) for text in told)


@given(st.data(), st.text(max_size=30), st.booleans())
def test_a_custom_tools_input_survives_its_way_through_arguments(
    data: st.DataObject, text: str, ascii_only: bool
) -> None:
    raw = json.dumps({"input": text}, ensure_ascii=ascii_only)
    scalar = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    reader = InputReader()
    told = "".join(reader.feed(piece) for piece in data.draw(cut(raw)))
    assert told == reader.text()
    if ascii_only or text == scalar:
        assert told == scalar


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (r'{"input": "a\d+\u00e9\u12"}', "a\\d+é\\u12"),
        ('{"input":"two\nlines', "two\nlines"),
        ('{"other": 1, "input": "x"}', "x"),
        ('{"other": 1}', '{"other": 1}'),
        ("*** plain", "*** plain"),
        ('{"input": 5}', '{"input": 5}'),
        (r'{"input": "\ud83d\ude00"}', "😀"),
        (r'{"input": "\ud83d!"}', "\ufffd!"),
    ],
)
def test_a_custom_tools_input_is_taken_as_it_stands_where_it_is_not_valid(raw: str, text: str) -> None:
    reader = InputReader()
    for letter in raw:
        reader.feed(letter)
    assert reader.text() == text


# ---- history only grows


user_items = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, texts),
    st.builds(
        lambda parts: {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": p} for p in parts],
        },
        st.lists(texts, min_size=1, max_size=2),
    ),
    st.just({"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Mind this."}]}),
    st.just({"type": "web_search_call", "id": "ws_1", "status": "completed"}),
)


def results_of(output: list[Json]) -> list[Json]:
    return [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "done"}
        for item in output
        if item["type"].endswith("_call")
    ]


def without_ids(item: Json) -> Json:
    return {key: value for key, value in item.items() if key not in ("id", "status")}


def as_codex_sends(item: Json) -> Json:
    """Codex drops the open content of reasoning."""
    return {**item, "content": None} if item["type"] == "reasoning" else item


def loose(message: Json) -> Json:
    """A message with the input of custom tools parsed: only there JSON may be spaced differently."""
    calls = [
        {**call, "function": {**call["function"], "arguments": _parsed(call["function"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def _parsed(function: Json) -> object:
    custom = function["name"] in ("patch", "crew__patch")
    reader = InputReader()
    return (reader.feed(function["arguments"]), reader.text())[1] if custom else function["arguments"]


def sampled(message: Json) -> Json:
    """The engine's reply as a message of the next prompt."""
    calls = message.get("tool_calls")
    told: Json = {"role": "assistant", "content": message["content"] or (None if calls else "")}
    if message.get("reasoning"):
        told["reasoning_content"] = message["reasoning"]
    return {**told, "tool_calls": calls} if calls else told


def custom_input_is_text(message: Json) -> Json:
    """Arguments of custom tools in the shape that the tool's schema demands."""
    for call in message.get("tool_calls", ()):
        if call["function"]["name"] in ("patch", "crew__patch"):
            reader = InputReader()
            reader.feed(call["function"]["arguments"])
            call["function"]["arguments"] = json.dumps({"input": reader.text()})
    return message


@given(
    st.lists(st.tuples(st.lists(user_items, max_size=2), replies().map(custom_input_is_text)), min_size=1, max_size=4),
    st.sampled_from(["as it is", "codex", "codex without summaries", "interleaved"]),
    st.booleans(),
)
def test_the_next_request_begins_with_this_one_and_its_reply(
    turns: list[tuple[list[Json], Json]], way: str, instructed: bool
) -> None:
    body: Json = {**REQUEST, "input": [{"role": "user", "content": "Start."}]}
    if instructed:
        body["instructions"] = "Be short."
    if way.startswith("codex"):
        body["include"] = ["reasoning.encrypted_content"]
        body["reasoning"] = {"summary": "auto" if way == "codex" else None}
    previous: list[Json] = []
    for at, (new, message) in enumerate(turns):
        chat = to_chat(body)
        output = shown_whole(body, message, call_id=f"call-{at}")["output"]
        results = results_of(output)
        echoed = [as_codex_sends(item) for item in output] if way.startswith("codex") else output
        if way == "interleaved":
            for result in results:
                place = next(i for i, item in enumerate(echoed) if item.get("call_id") == result["call_id"])
                echoed = [*echoed[: place + 1], result, *echoed[place + 1 :]]
            results = []
        following = [*results, *new]
        grown = to_chat({**body, "input": [*body["input"], *echoed, *following]})
        expected = [*chat["messages"], sampled(message)]
        begins = [loose(m) for m in grown["messages"][: len(expected)]]
        assert begins == [loose(m) for m in expected]
        if way != "interleaved":
            previous = [m for m in chat["messages"] if m["role"] != "system"] + [message]
            referring = {**body, "input": following, "previous_response_id": f"resp_call-{at}"}
            by_reference = to_chat(referring, previous)["messages"]
            assert [loose(m) for m in by_reference] == [loose(m) for m in grown["messages"]]
        body = {**body, "input": [*body["input"], *echoed, *following]}


@given(replies().map(custom_input_is_text))
def test_a_reply_is_one_message_also_without_our_ids(message: Json) -> None:
    output = [without_ids(item) for item in shown_whole(REQUEST, message)["output"]]
    body = {**REQUEST, "input": [{"role": "user", "content": "Hi"}, *output, {"role": "user", "content": "?"}]}
    assert loose(to_chat(body)["messages"][1]) == loose(sampled(message))


def test_replies_that_follow_each_other_are_not_one_message() -> None:
    first = shown_whole(REQUEST, reply("One."), call_id="call-1")["output"]
    second = shown_whole(REQUEST, reply("Two.", reasoning="Hm."), call_id="call-2")["output"]
    for items in ([*first, *second], [without_ids(i) for i in [*first, *second]]):
        messages = to_chat({**REQUEST, "input": items})["messages"]
        assert [m["content"] for m in messages] == ["One.", "Two."]


def test_arguments_are_never_serialised_again() -> None:
    odd = '{"b" :1,\n "a":1.0, "e": "\\u00e9"}'
    [message] = to_chat({**REQUEST, "input": shown_whole(REQUEST, reply(calls=[("look", odd)]))["output"]})["messages"]
    assert message["tool_calls"][0]["function"]["arguments"] == odd


# ---- what goes upstream


def test_a_request_in_full() -> None:
    body = {
        "model": "policy",
        "instructions": "Be short.",
        "input": [
            {"role": "developer", "content": "Mind this."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is it?"},
                    {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
                ],
            },
            {"type": "reasoning", "id": "rs_x", "summary": [], "encrypted_content": "from somebody else"},
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
            {"type": "function_call", "call_id": "c1", "name": "send", "namespace": "crew", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "sent"}]},
        ],
        "tools": [*TOOLS, {"type": "web_search"}, {"type": "local_shell"}, {"type": "mcp", "server_label": "x"}],
        "tool_choice": {"type": "custom", "name": "patch"},
        "parallel_tool_calls": False,
        "max_output_tokens": 9,
        "temperature": 0.3,
        "top_p": 0.9,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}, "verbosity": "low"},
        "reasoning": {"effort": "low", "summary": "auto"},
        "stream": True,
        "store": False,
        "metadata": {},
        "include": [],
        "prompt_cache_key": "k",
        "service_tier": "auto",
        "truncation": "auto",
        "user": "u",
        "client_metadata": {"x": "y"},
        "chat_template_kwargs": {"enable_thinking": {"deep": [1, None]}},
        "top_k": 5,
        "from_next_year": {"nested": [{"x": 1}]},
    }
    chat = to_chat(body)
    tools = chat.pop("tools")
    assert chat.pop("messages") == [
        {"role": "system", "content": "Be short."},
        {"role": "developer", "content": "Mind this."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is it?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
            ],
        },
        {
            "role": "assistant",
            "content": "No.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "crew__send", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sent"},
    ]
    assert [tool["function"]["name"] for tool in tools] == ["look", "patch", "crew__send", "crew__patch"]
    assert tools[1]["function"]["parameters"]["required"] == ["input"]
    assert chat == {
        "model": "policy",
        "tool_choice": {"type": "function", "function": {"name": "patch"}},
        "parallel_tool_calls": False,
        "max_completion_tokens": 9,
        "temperature": 0.3,
        "top_p": 0.9,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}, "strict": True}},
        "reasoning_effort": "low",
        "stream": True,
        "stream_options": {"include_usage": True},
        "chat_template_kwargs": {"enable_thinking": {"deep": [1, None]}},
        "top_k": 5,
        "from_next_year": {"nested": [{"x": 1}]},
    }
    assert left_out(body) == ("tool:web_search", "tool:local_shell", "tool:mcp")


def test_without_tools_nothing_is_said_of_them() -> None:
    chat = to_chat({"input": "Hi", "tools": [], "tool_choice": "auto", "parallel_tool_calls": True})
    assert chat == {"messages": [{"role": "user", "content": "Hi"}]}


def test_a_choice_of_what_was_left_out_forces_nothing() -> None:
    body = {**REQUEST, "tools": [LOOK, {"type": "web_search"}], "tool_choice": {"type": "web_search"}}
    assert to_chat(body)["tool_choice"] == "auto"
    assert shown_whole(body, reply("."))["tool_choice"] == "auto"


def test_allowed_tools_are_the_only_ones() -> None:
    choice = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]}
    chat = to_chat({**REQUEST, "tool_choice": choice})
    assert ([t["function"]["name"] for t in chat["tools"]], chat["tool_choice"]) == (["look"], "required")


def test_a_grammar_is_told_to_the_model() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: WORD"}
    [tool] = to_chat({**REQUEST, "tools": [{**PATCH, "format": form}]})["tools"]
    assert tool["function"]["description"].startswith("Changes files.")
    assert "start: WORD" in tool["function"]["description"]


@pytest.mark.parametrize("kind", ["local_shell_call", "web_search_call", "mcp_list_tools", "from_next_year", None])
def test_unknown_items_are_left_out_and_counted(kind: str | None) -> None:
    body = {**REQUEST, "input": [{"type": kind, "id": "x"}, {"role": "user", "content": "Hi"}]}
    assert to_chat(body)["messages"] == [{"role": "user", "content": "Hi"}]
    assert left_out(body) == (f"item:{kind}",)


def test_unknown_parts_go_on_as_they_are() -> None:
    part = {"type": "from_next_year", "x": [1]}
    body = {**REQUEST, "input": [{"role": "user", "content": [part, {"type": "input_text", "text": "Hi"}]}]}
    assert to_chat(body)["messages"][0]["content"] == [part, {"type": "text", "text": "Hi"}]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"input": None}, "`input`"),
        ({"input": 5}, "`input`"),
        ({"input": []}, "`input`"),
        ({"input": ["Hi"]}, "`input[0]`"),
        ({"input": [{"role": "user", "content": 5}]}, "`input[0].content`"),
        ({"input": [{"role": "user", "content": ["Hi"]}]}, "`input[0].content`"),
        ({"input": [{"role": 5, "content": "Hi"}]}, "`input[0].role`"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "image_url"),
        ({"input": [{"type": "function_call", "name": "a", "arguments": "{}"}]}, "`input[0].call_id`"),
        ({"input": [{"type": "function_call", "name": "a", "call_id": "c", "arguments": {}}]}, "`input[0].arguments`"),
        ({"input": [{"type": "custom_tool_call", "name": "a", "call_id": "c"}]}, "`input[0].input`"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "`input[0].call_id`"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "`input[0].output`"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "`input[0]`"),
        ({"instructions": 5}, "`instructions`"),
        ({"tools": {}}, "`tools`"),
        ({"tools": [{"type": "function"}]}, "`tools[0].name`"),
        ({"tools": [{**CREW, "tools": [{"type": "function"}]}]}, "`tools[0].tools[0].name`"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "`text.format.schema`"),
        ({"text": {"format": 5}}, "`text.format`"),
        ({"text": 5}, "`text`"),
        ({"reasoning": "low"}, "`reasoning`"),
        ({"include": "x"}, "`include`"),
        ({"conversation": "conv_1"}, "`conversation`"),
        ({"prompt": {"id": "p"}}, "`prompt`"),
        ({"n": 2}, "`n`"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(change: Json, named: str) -> None:
    with pytest.raises(RequestError) as caught:
        to_chat({**REQUEST, **change})
    assert named in str(caught.value)
    assert caught.value.status == 400


# ---- failures


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


# ---- the openai client


def client_of(content: bytes, kind: str, status: int = 200) -> openai.OpenAI:
    def answer(_request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(status, headers={"content-type": kind}, content=content)

    transport = httpx2.MockTransport(answer)
    http = httpx2.Client(transport=transport)
    return openai.OpenAI(api_key="k", base_url="http://engine/v1", http_client=http, max_retries=0)


CREATE: Any = {"model": "policy", "input": "Hi", "tools": TOOLS, "reasoning": {"summary": "auto"}}
MESSAGE = reply("Yes.", reasoning="Hm.", calls=[("look", "{}"), ("crew__patch", '{"input": "a"}')])


def test_the_client_reads_a_whole_response() -> None:
    body = Shown(CREATE, "call-1", 1).whole(whole_answer(MESSAGE))
    with client_of(body, "application/json") as client:
        response = client.responses.create(**CREATE)
    assert response.output_text == "Yes."
    assert [item.type for item in response.output] == ["reasoning", "message", "function_call", "custom_tool_call"]


def test_the_client_reads_a_stream_with_pings_to_the_same_response() -> None:
    sent = responses.PING + shown_stream(CREATE, stream_of(deltas_of(MESSAGE))) + responses.PING
    with client_of(sent, "text/event-stream") as client:
        events = list(client.responses.create(**CREATE, stream=True))
    final = events[-1]
    assert final.type == "response.completed"
    assert final.response.to_dict() == shown_whole(CREATE, MESSAGE)
    for event in events:
        type(event).model_validate(event.to_dict())


def test_the_clients_own_accumulator_comes_to_the_same_response() -> None:
    sent = shown_stream(CREATE, stream_of(deltas_of(MESSAGE)))
    with client_of(sent, "text/event-stream") as client, client.responses.stream(**CREATE) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == "Yes."
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "custom_tool_call"]
    assert items_as_sdk(final.to_dict())["usage"] == items_as_sdk(shown_whole(CREATE, MESSAGE))["usage"]


def test_the_client_accumulates_interleaved_calls() -> None:
    def piece(at: int, text: str, **head: Any) -> Json:
        return {"tool_calls": [{"index": at, "function": {"arguments": text, **head.pop("function", {})}, **head}]}

    deltas = [
        piece(0, "", id="a", function={"name": "look"}),
        piece(0, '{"x"'),
        piece(1, "", id="b", function={"name": "look"}),
        piece(1, '{"y"'),
        piece(0, ": 1}"),
        piece(1, ": 2}"),
    ]
    sent = shown_stream(CREATE, stream_of(deltas, "tool_calls"))
    with client_of(sent, "text/event-stream") as client, client.responses.stream(**CREATE) as stream:
        seen = [(e.output_index, e.snapshot) for e in stream if e.type == "response.function_call_arguments.delta"]
    assert seen == [(0, '{"x"'), (1, '{"y"'), (0, '{"x": 1}'), (1, '{"y": 2}')]


def test_the_client_raises_what_went_wrong() -> None:
    shown = Shown(CREATE, "call-1", 1)
    sent = shown.opening() + shown.event(sse({"choices": [{"index": 0, "delta": {"content": "Half"}}]}))
    sent += shown.failed("the engine left", "server_error")
    with client_of(sent, "text/event-stream") as client, pytest.raises(openai.APIError, match="the engine left"):
        list(client.responses.create(**CREATE, stream=True))
    refused = error_body(400, "too long", "context_length_exceeded")
    refusing = client_of(refused, "application/json", 400)
    with refusing as client, pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**CREATE)
    assert caught.value.code == "context_length_exceeded"


# ---- a coding agent of Codex's kind


def part(text: str) -> list[Json]:
    return [{"type": "input_text", "text": text}]


class CodingAgent:
    """Sends what Codex 0.171 sends: everything again, each time, with its own fields and tools."""

    def __init__(self) -> None:
        self.input: list[Json] = [
            {"type": "message", "id": "msg_00", "role": "developer", "content": part("You write code.")},
            {"type": "message", "id": "msg_01", "role": "developer", "content": part("Skills.") + part("Rights.")},
            {"type": "message", "id": "msg_02", "role": "user", "content": part("<place>here</place>")},
            {"type": "message", "id": "msg_03", "role": "user", "content": part("Make it run.")},
        ]

    def body(self, **changes: Any) -> Json:
        return {
            "model": "policy",
            "stream": True,
            "input": list(self.input),
            "tools": [LOOK, PATCH, CREW, {"type": "web_search", "external_web_access": False}],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "01a2",
            "client_metadata": {"turn_id": "01a3"},
            **changes,
        }

    def turn(self, call_id: str, message: Json, **changes: Any) -> list[Json]:
        """One turn; returns the chat messages that went upstream."""
        body = self.body(**changes)
        final = check_order(read(shown_stream(body, stream_of(deltas_of(message)), call_id)))
        output = [as_codex_sends(item) for item in final["output"]]
        self.input += [*output, *results_of(output)]
        return list(to_chat(body)["messages"])


def test_a_coding_agents_conversation_only_grows_up_to_its_compaction() -> None:
    agent = CodingAgent()
    said = [
        reply("I look.", reasoning="Where?", calls=[("look", '{"cmd": "ls"}'), ("look", '{"cmd": "pwd"}')]),
        reply(reasoning="Aha.", calls=[("patch", '{"input": "*** Begin\\n+\\u00e9"}')]),
        reply("A helper.", calls=[("crew__send", '{"message":"go"}')]),
        reply("Done."),
    ]
    sent = [agent.turn(f"call-{at}", message) for at, message in enumerate(said)]
    agent.input.append({"type": "message", "role": "user", "content": part("Summarise.")})
    sent.append(agent.turn("call-9", reply("So far so good."), tools=[]))
    for before, message, after in zip(sent, said, sent[1:], strict=False):
        expected = [*before, sampled(message)]
        assert [loose(m) for m in after[: len(expected)]] == [loose(m) for m in expected]
    assert [m["role"] for m in sent[-1]] == [
        *("developer", "developer", "user", "user"),
        *("assistant", "tool", "tool"),
        *("assistant", "tool"),
        *("assistant", "tool"),
        *("assistant", "user"),
    ]
    calls = [call["function"]["name"] for m in sent[-1] for call in m.get("tool_calls", ())]
    assert calls == ["look", "look", "patch", "crew__send"]
    helpers = [i for i in agent.input if i.get("type") == "function_call" and i.get("namespace")]
    assert [(i["namespace"], i["name"]) for i in helpers] == [("crew", "send")]
