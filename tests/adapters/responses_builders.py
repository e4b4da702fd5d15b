"""What the tests of the Responses wire are made of: an engine's answers, whole and in pieces."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from openai.types.responses import Response

from adapters.wires.responses import Shown
from adapters.wires.responses_tools import InputReader, arguments_of

Json = dict[str, Any]

LOOK: Json = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
PATCH: Json = {"type": "custom", "name": "patch", "description": "Changes files."}
CREW: Json = {"type": "namespace", "name": "crew", "description": "", "tools": [{**LOOK, "name": "send"}, PATCH]}
TOOLS = [LOOK, PATCH, CREW]
REQUEST: Json = {"model": "policy", "input": "Hi", "tools": TOOLS}


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


names = st.sampled_from(["look", "patch", "crew__send", "crew__patch", "not_offered"])


texts = st.text(st.characters(codec="utf-8"), max_size=12)


@st.composite
def replies(draw: st.DrawFn) -> Json:
    calls = draw(st.lists(st.tuples(names, arguments_texts), max_size=3))
    return reply(draw(st.none() | texts), reasoning=draw(st.none() | texts), calls=calls)


arguments_texts = st.one_of(
    texts,
    texts.map(arguments_of),
    texts.map(lambda text: json.dumps({"input": text})),
    st.dictionaries(texts, texts, max_size=2).map(json.dumps),
)


def results_of(output: list[Json]) -> list[Json]:
    return [
        {"type": f"{item['type']}_output", "call_id": item["call_id"], "output": "done"}
        for item in output
        if item["type"].endswith("_call")
    ]


def as_codex_sends(item: Json) -> Json:
    """Codex drops the open content of reasoning."""
    return {**item, "content": None} if item["type"] == "reasoning" else item


def loose(message: Json) -> Json:
    """A message with the input of custom tools parsed: only there JSON may be spaced differently."""
    calls = [
        {**call, "function": {**call["function"], "arguments": parsed_arguments(call["function"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


def parsed_arguments(function: Json) -> object:
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


def part(text: str) -> list[Json]:
    return [{"type": "input_text", "text": text}]
