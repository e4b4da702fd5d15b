"""History only grows, also over ids that are not ours."""

import json

from hypothesis import given
from hypothesis import strategies as st

from adapters.wires.responses import to_chat
from adapters.wires.responses_tools import InputReader
from tests.adapters.responses_builders import (
    REQUEST,
    Json,
    as_codex_sends,
    loose,
    replies,
    reply,
    results_of,
    sampled,
    shown_whole,
    texts,
)

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


def without_ids(item: Json) -> Json:
    return {key: value for key, value in item.items() if key not in ("id", "status")}


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
