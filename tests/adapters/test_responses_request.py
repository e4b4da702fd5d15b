"""What of a Responses request goes upstream."""

import pytest

from adapters.wires.responses import left_out, to_chat
from mosaic.errors import RequestError
from tests.adapters.responses_builders import CREW, LOOK, PATCH, REQUEST, TOOLS, Json, reply, shown_whole


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
