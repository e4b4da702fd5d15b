"""The Messages wire as a whole: conversations of many turns, any division of a stream, anything odd."""

import copy
from contextlib import suppress
from typing import Any

import orjson
import pytest
from anthropic.types import Message, MessageTokensCount
from hypothesis import given
from hypothesis import strategies as st

from adapters.wires import messages
from mosaic.errors import EngineError, RequestError
from tests.adapters.messages_builders import (
    ASKED,
    SAID,
    VALUES,
    Json,
    answer,
    assert_valid_order,
    chat_of,
    divided,
    events_of,
    follow,
    plain,
    replies,
    result,
    shown,
    stream,
    text,
    user,
    whole,
)


def test_tokens_are_counted_over_what_would_be_sent() -> None:
    body = {**ASKED, "system": "S", "tools": [{"name": "f", "input_schema": {}}], "chat_template_kwargs": {"a": 1}}
    chat = messages.to_chat(body)
    assert messages.count_tokens_body(body) == {
        "messages": chat["messages"],
        "tools": chat["tools"],
        "chat_template_kwargs": {"a": 1},
        "add_generation_prompt": True,
    }
    counted = messages.count_tokens_answer(b'{"count":17,"max_model_len":64,"tokens":[1]}')
    assert MessageTokensCount.model_validate_json(counted).input_tokens == 17
    with pytest.raises(EngineError):
        messages.count_tokens_answer(b"{}")


@given(divided())
def test_any_division_of_an_answer_gives_the_whole_message(case: tuple[Json, list[Json]]) -> None:
    message, deltas = case
    finish = "tool_calls" if "tool_calls" in message else "stop"
    sent = shown(stream(deltas, finish))
    assert_valid_order(sent)
    assert plain(follow(sent)) == plain(Message.model_validate(whole(answer(message, finish))))


@given(divided(), st.randoms(use_true_random=False))
def test_deltas_in_any_order_lose_nothing_that_comes_back(case: tuple[Json, list[Json]], random: Any) -> None:
    """Text after a call's begin, or between its pieces, makes another block; the chat message stays the same."""
    message, deltas = case
    lanes = [[d for d in deltas if key in d] for key in ("reasoning", "content", "tool_calls")]
    mixed: list[Json] = []
    while any(lanes):
        mixed.append(random.choice([lane for lane in lanes if lane]).pop(0))
    sent = shown(stream(mixed))
    assert_valid_order(sent)
    echoed = {"role": "assistant", "content": [b.to_dict() for b in follow(sent).content]}
    assert chat_of(user("q"), echoed, user("next"))[1] == message


def users(ids: list[str]) -> st.SearchStrategy[list[Json]]:
    """What comes after a reply: results of its calls in any order, then text or a picture, then maybe a system note."""
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    inner = SAID | st.lists(SAID.map(text) | st.just(image), max_size=2)
    results = st.tuples(*(st.builds(result, st.just(id), inner) for id in ids)).flatmap(st.permutations)
    more = st.lists(SAID.map(text) | st.just(image), min_size=0 if ids else 1, max_size=2)
    note = st.lists(SAID.map(lambda s: {"role": "system", "content": [text(s)]}), max_size=1)
    return st.builds(lambda r, m, n: [{"role": "user", "content": [*r, *m]}, *n], results, more, note)


def marked(conversation: list[Json]) -> list[Json]:
    """A conversation as Claude Code sends it: the newest block carries `cache_control`, lone old texts are strings."""
    sent = copy.deepcopy(conversation)
    sent[-1]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    for message in sent[:-1]:
        if len(message["content"]) == 1 and message["content"][0]["type"] == "text":
            message["content"] = message["content"][0]["text"]
    return sent


@given(st.data())
def test_the_next_request_begins_with_this_one_and_its_reply_byte_for_byte(data: st.DataObject) -> None:
    conversation: list[Json] = data.draw(users([]))
    system = data.draw(st.none() | SAID | st.lists(SAID.map(text), max_size=2))
    before: list[Json] | None = None
    for _ in range(3):
        body = {**ASKED, "system": system, "messages": marked(conversation)}
        chat = messages.to_chat(body)["messages"]
        if before is not None:
            assert orjson.dumps(chat[: len(before)]) == orjson.dumps(before)
        if data.draw(st.booleans(), "streamed"):
            message, deltas = data.draw(divided())
            content = [b.to_dict() for b in follow(shown(stream(deltas))).content]
        else:
            message = data.draw(replies())
            content = whole(answer(message))["content"]
        before = [*chat, in_order(message)]
        ids = [c["id"] for c in message.get("tool_calls", ())]
        conversation = [*conversation, {"role": "assistant", "content": content}, *data.draw(users(ids))]


def in_order(message: Json) -> Json:
    return {k: message[k] for k in ("role", "content", "reasoning", "tool_calls") if k in message}


TYPES = st.sampled_from(
    [
        "text",
        "image",
        "document",
        "thinking",
        "tool_use",
        "tool_result",
        "search_result",
        "tool_reference",
        "base64",
        "url",
        "content",
        "file",
    ]
)
FIELDS = ("text", "source", "content", "input", "id", "name", "tool_use_id", "thinking", "data", "url", "title")


def blocks(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects that look like content blocks, with anything in their fields, and lists of them."""
    block = st.fixed_dictionaries({"type": TYPES | VALUES}, optional=dict.fromkeys(FIELDS, inner | SAID))
    return block | st.lists(block, max_size=3)


@given(st.recursive(VALUES, blocks, max_leaves=8))
def test_no_request_whatever_breaks_the_translation(odd: Any) -> None:
    for role in ("user", "assistant", "system"):
        assert_refused_or_served({"messages": [{"role": role, "content": odd}]})
    for name in ("messages", "system", "tools", "tool_choice", "output_config", "n"):
        assert_refused_or_served({"tools": [{"name": "f"}], name: odd})


def assert_refused_or_served(fields: Json) -> None:
    with suppress(RequestError):
        orjson.dumps(messages.to_chat({**ASKED, **fields}))


KEYS = st.sampled_from(["choices", "delta", "tool_calls", "error", "usage", "message", "function", "index", "content"])


@given(st.recursive(VALUES, lambda inner: st.dictionaries(KEYS, inner) | st.lists(inner, max_size=2)))
def test_no_answer_whatever_breaks_the_stream(odd: Any) -> None:
    data = orjson.dumps(odd)
    sent = shown([*stream([{"content": "a"}])[:2], b"data: " + data + b"\n\n", *stream([])[1:]])
    assert events_of(sent)[-1][0] in ("message_stop", "error")
    assert orjson.loads(messages.Shown(ASKED, "c1").whole(data))["type"] in ("message", "error")
