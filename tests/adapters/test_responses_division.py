"""Any division of the engine's deltas gives the same response."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.wires.responses import to_chat
from adapters.wires.responses_tools import InputReader, arguments_of
from tests.adapters.responses_builders import (
    REQUEST,
    Json,
    check_order,
    deltas_of,
    items_as_sdk,
    read,
    replies,
    shown_stream,
    shown_whole,
    stream_of,
    texts,
)


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
        ("[" * 2000, "[" * 2000),
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
