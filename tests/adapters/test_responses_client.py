"""The openai client and an agent of Codex's kind on the Responses wire."""

from typing import Any

import httpx2
import openai
import pytest

from adapters.wires import responses
from adapters.wires.responses import Shown, error_body, to_chat
from tests.adapters.responses_builders import (
    CREW,
    LOOK,
    PATCH,
    TOOLS,
    Json,
    as_codex_sends,
    check_order,
    deltas_of,
    items_as_sdk,
    loose,
    part,
    read,
    reply,
    results_of,
    sampled,
    shown_stream,
    shown_whole,
    sse,
    stream_of,
    whole_answer,
)


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
