"""Messages requests, and the chat bodies that they become."""

import copy

import pytest

from adapters.wires import messages
from mosaic.errors import RequestError
from tests.adapters.messages_builders import (
    ASKED,
    Json,
    assistant,
    call,
    chat_of,
    result,
    text,
    tool_use,
    user,
)


def test_a_request_keeps_its_sampling_fields_and_loses_what_only_anthropic_serves() -> None:
    body = {
        **ASKED,
        "stream": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop_sequences": ["END"],
        "min_p": 0.1,
        "seed": 3,
        "chat_template_kwargs": {"enable_thinking": False, "nested": {"a": [1]}},
        "a_field_of_tomorrow": {"x": 1},
        "metadata": {"user_id": "u"},
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "betas": ["x"],
        "cache_control": {"type": "ephemeral"},
    }
    assert messages.to_chat(body) == {
        "model": "policy",
        "max_tokens": 64,
        "stream": True,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop": ["END"],
        "min_p": 0.1,
        "seed": 3,
        "chat_template_kwargs": {"enable_thinking": False, "nested": {"a": [1]}},
        "a_field_of_tomorrow": {"x": 1},
        "messages": [{"role": "user", "content": "Hi"}],
    }


def test_translating_changes_nothing_of_the_request() -> None:
    body = {**ASKED, "messages": [user("a", result("t", [text("r")])), assistant(tool_use("t", "f", a=1))]}
    before = copy.deepcopy(body)
    messages.to_chat(body)
    assert body == before


def test_system_text_leads_and_stands_where_the_client_put_it() -> None:
    blocks = [
        text("x-anthropic-billing-header: cc_version=2;"),
        text("You are"),
        {**text("an agent."), "cache_control": {}},
    ]
    inside = {"role": "system", "content": [text("It is Monday.")], "output_config": {"effort": "low"}}
    assert chat_of(user("Hi"), inside, user("Go"), system=blocks) == [
        {"role": "system", "content": "You are\nan agent."},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "It is Monday."},
        {"role": "user", "content": "Go"},
    ]
    assert chat_of(user("Hi"), system="S")[0] == {"role": "system", "content": "S"}
    assert chat_of(user("Hi"), system=blocks[:1]) == [{"role": "user", "content": "Hi"}]


def test_one_text_block_is_a_string_and_several_are_parts() -> None:
    assert chat_of({"role": "user", "content": "a"}) == chat_of(user({**text("a"), "cache_control": {}}))
    assert chat_of(user("a", "b")) == [{"role": "user", "content": [text("a"), text("b")]}]
    assert chat_of({"role": "user", "content": []}) == [{"role": "user", "content": ""}]


def test_tool_results_come_in_order_before_what_else_the_user_says() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAA"}}
    url = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    found = chat_of(
        user("first", result("t2", "two"), result("t1", [text("one"), image, text("more")]), url, result("t3", None))
    )
    assert found == [
        {"role": "tool", "tool_call_id": "t2", "content": "two"},
        {"role": "tool", "tool_call_id": "t1", "content": "one\n[image]\nmore"},
        {"role": "tool", "tool_call_id": "t3", "content": ""},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAA"}},
                text("first"),
                {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
            ],
        },
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("no such file", "Error: no such file"),
        ("Error: gone", "Error: gone"),
        ("<tool_use_error>x", "<tool_use_error>x"),
    ],
)
def test_a_failed_tool_is_told_as_such_once(given: str, said: str) -> None:
    assert chat_of(user(result("t", given, is_error=True)))[0]["content"] == said
    assert chat_of(user(result("t", given, is_error=False)))[0]["content"] == given


def test_an_assistant_turn_becomes_one_message_however_it_was_cut() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "opaque"}
    blocks = [thinking, redacted, text("a"), text("b"), tool_use("t1", "f", z=1, a="é/"), tool_use("t2", "g")]
    expected = {
        "role": "assistant",
        "content": "ab",
        "reasoning": "hm",
        "tool_calls": [call("t1", "f", '{"z":1,"a":"é/"}'), call("t2", "g", "{}")],
    }
    assert chat_of(user("q"), assistant(*blocks))[1:] == [expected]
    assert chat_of(user("q"), *(assistant(b) for b in blocks))[1:] == [expected]
    assert chat_of(user("q"), assistant(tool_use("t", "f")))[1]["content"] is None


def test_documents_search_results_and_what_is_unknown_become_text() -> None:
    found = chat_of(
        user(
            {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
            {"type": "document", "source": {"type": "content", "content": [text("inner")]}},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "AA"}},
            {"type": "search_result", "title": "S", "source": "https://s", "content": [text("hit")]},
            {"type": "block_of_tomorrow", "payload": 1},
            {"type": "image", "source": {"type": "file", "file_id": "f"}},
        )
    )
    assert [p["text"] for p in found[0]["content"]] == [
        "T",
        "D",
        "inner",
        "[document (application/pdf) cannot be shown here]",
        "S\nhttps://s",
        "hit",
        "[block_of_tomorrow cannot be shown here]",
        "[image of an uploaded file cannot be shown here]",
    ]
    assert chat_of(
        user("q"), assistant(text("a"), {"type": "server_tool_use", "id": "s", "name": "web_search"}), user("r")
    )[1] == {
        "role": "assistant",
        "content": "a",
    }
    assert chat_of(user(result("t", [{"type": "tool_reference", "tool_name": "Read"}])))[0]["content"] == "Tool: Read"


def test_tools_with_a_schema_are_offered_and_those_of_anthropic_left_out() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {}}, "required": ["b"]}
    tools = [
        {"name": "f", "description": "d", "input_schema": schema, "cache_control": {}},
        {"type": "custom", "name": "g", "input_schema": {"type": "object"}, "strict": True},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
        {"type": "toolset_of_tomorrow"},
    ]
    chat = messages.to_chat({**ASKED, "tools": tools})
    assert [t["function"] for t in chat["tools"]] == [
        {"name": "f", "description": "d", "parameters": schema},
        {"name": "g", "parameters": {"type": "object"}, "strict": True},
    ]
    assert "tool_choice" not in chat
    assert (
        not {"tools", "tool_choice"}
        & messages.to_chat({**ASKED, "tools": tools[2:], "tool_choice": {"type": "any"}}).keys()
    )


@pytest.mark.parametrize(
    ("choice", "chat"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "tool", "name": "f"}, {"tool_choice": {"type": "function", "function": {"name": "f"}}}),
        ({"type": "auto", "disable_parallel_tool_use": True}, {"tool_choice": "auto", "parallel_tool_calls": False}),
        ({"type": "auto", "disable_parallel_tool_use": False}, {"tool_choice": "auto"}),
    ],
)
def test_tool_choice_is_translated(choice: Json, chat: Json) -> None:
    found = messages.to_chat({**ASKED, "tools": [{"name": "f", "input_schema": {}}], "tool_choice": choice})
    assert {k: v for k, v in found.items() if k in ("tool_choice", "parallel_tool_calls")} == chat


def test_structured_output_and_a_begun_reply_are_asked_of_vllm() -> None:
    config = {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    chat = messages.to_chat({**ASKED, "output_config": config})
    assert chat["response_format"]["json_schema"]["schema"] == {"type": "object"}
    begun = messages.to_chat({**ASKED, "messages": [user("q"), assistant(text("It is ("))]})
    assert (begun["add_generation_prompt"], begun["continue_final_message"]) == (False, True)
    called = messages.to_chat({**ASKED, "messages": [user("q"), assistant(text("I call"), tool_use("t", "f"))]})
    assert "continue_final_message" not in called


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"n": 2}, "n:"),
        ({"messages": []}, "messages:"),
        ({"messages": "Hi"}, "messages:"),
        ({"messages": ["Hi"]}, "messages.0:"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [user("a"), {"role": "user"}]}, "messages.1.content"),
        ({"messages": [user({"text": "x"})]}, "messages.0.content.0.type"),
        ({"messages": [user({"type": "text"})]}, "messages.0.content.0.text"),
        ({"messages": [user({"type": "tool_result"})]}, "messages.0.content.tool_use_id"),
        ({"messages": [user({"type": "image"})]}, "messages.0.content.source"),
        ({"messages": [user({"type": "document"})]}, "messages.0.content.source"),
        ({"messages": [assistant({"type": "tool_use", "name": "f"})]}, "tool_use.id"),
        ({"system": 3}, "system:"),
        ({"tools": "f"}, "tools:"),
        ({"tools": [{"input_schema": {}}]}, "tools.0.name"),
        ({"tools": [{"name": "f"}], "tool_choice": {"type": "tool", "name": "g"}}, "tool_choice.name"),
        ({"tools": [{"name": "f"}], "tool_choice": "auto"}, "tool_choice.type"),
    ],
)
def test_what_cannot_be_served_is_refused_by_the_name_of_its_field(fields: Json, named: str) -> None:
    with pytest.raises(RequestError, match=named) as refused:
        messages.to_chat({**ASKED, **fields})
    assert refused.value.status == 400
