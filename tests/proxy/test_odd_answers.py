"""Chunks and answers that make no sense: nothing ends by them, neither the client's stream nor the record."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adapters.wires.sse import EventSplitter
from adapters.wires.wire import WIRES
from mosaic.store import Store
from tests.conftest import ProxyFactory
from tests.engine import Turn
from tests.engine.raw import End, Step, event_stream
from tests.proxy.faults import (
    PATHS,
    TEXT,
    before,
    data_events,
    in_turn,
    opened,
    post,
    record_of,
    replying,
    row,
    rows,
    text_in,
    wire_stream,
)

EDGES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=5),
    st.sampled_from([2**31, 2**63, -1, 1e308, "", "\0", "[DONE]"]),
)  # fmt: skip


NAMES = st.sampled_from(
    [
        "choices",
        "index",
        "delta",
        "message",
        "text",
        "content",
        "role",
        "tool_calls",
        "function",
        "name",
        "arguments",
        "id",
        "token_ids",
        "prompt_token_ids",
        "logprobs",
        "logprob",
        "token_logprobs",
        "usage",
        "finish_reason",
        "prompt_tokens",
        "completion_tokens",
        "reasoning",
        "error",
        "model",
        "prompt_tokens_details",
        "cached_tokens",
    ]
)


JSON = st.recursive(EDGES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4))


ODD = [
    b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n',  # neither role nor id
    b'data: {"id": "x", "object": "chat.completion.chunk"}\n\n',  # no choices
    b'data: {"id": "x", "choices": null}\n\n',
    b'data: {"id": "x", "choices": []}\n\n',
    b'data: {"choices": [{"index": 0}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": null, "text": null}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"tool_calls": [null]}}]}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"tool_calls": []}, "text": ""}]}\n\n',
    b'data: {"choices": [nonsense\n\n',
    b"data: null\n\n",
    b"data: 7\n\n",
    b'data: "error"\n\n',
    b"data:\n\n",
    b"data: \xff\xfe\n\n",
    b": a comment\n\n",
    b"event: odd\nid: 7\nretry: 100\n\n",
    b"\n\n",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("first", [False, True])
async def test_an_odd_chunk_ends_nothing_and_the_rest_of_the_answer_is_whole(
    start_proxy: ProxyFactory, path: str, first: bool
) -> None:
    plain = list(EventSplitter().feed(wire_stream(path, Turn(TEXT))))
    at = 0 if first else 3
    streams = [b"".join([*plain[:at], odd, *plain[at:]]) for odd in ODD]
    answers: list[list[Step]] = [[event_stream(), stream, End.FIN] for stream in streams]
    reply = in_turn(*answers)
    async with before(start_proxy, reply) as (proxy, _):
        for odd in ODD:
            status, got = await post(proxy, path, stream=True)
            assert status == 200, odd
            # What is left out must not have taken anything of the answer with it.
            said = text_in(path, got)
            assert TEXT in (said, *(said[:at] + said[at + 1 :] for at in range(len(said)) if said[at] == "a")), odd
            if WIRES[path].translated:
                assert data_events(got)[-1]["type"] in ("message_stop", "response.completed"), odd
            else:
                assert got.endswith(b"data: [DONE]\n\n"), odd
                assert odd in got or (data_events(odd) and data_events(odd)[0] in data_events(got)), odd
        assert [r["status"] for r in rows(proxy)] == ["ok"] * len(ODD)


@pytest.mark.parametrize("path", PATHS)
async def test_a_chunk_that_says_there_is_no_error_is_none(start_proxy: ProxyFactory, path: str) -> None:
    events = [
        b"data: " + json.dumps({**event, "error": None}).encode() + b"\n\n" if event else b"data: [DONE]\n\n"
        for event in data_events(wire_stream(path, Turn(TEXT)))
    ]
    async with before(start_proxy, replying(event_stream(), b"".join(events), End.FIN)) as (proxy, _):
        _, got = await post(proxy, path, stream=True)
        assert text_in(path, got) == TEXT
        found = await row(proxy)
        assert (found["status"], found["exact"]) == ("ok", 1)


CHOICES = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "index": EDGES,
            **dict.fromkeys(["delta", "text", "token_ids", "logprobs", "finish_reason", "message"], JSON),
        },
    ),
    max_size=3,
)
CHUNKS = JSON | st.fixed_dictionaries({"choices": CHOICES}, optional={"usage": JSON, "prompt_token_ids": JSON})


FUZZ = settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    "path",
    [
        "chat/completions",
        "completions",
        "responses",
        "messages",
    ],
)
@FUZZ
@given(chunks=st.lists(CHUNKS, min_size=1, max_size=3))
@example(chunks=[{"choices": [{"finish_reason": [None]}]}])
@example(chunks=[{"choices": []}, {"choices": [], "usage": True}])
def test_no_chunk_whatever_it_holds_breaks_the_clients_stream_or_the_record(path: str, chunks: list[Any]) -> None:
    stream = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    made = opened(WIRES[path], path, stream=True)
    shown = made.shown.opening() + b"".join(made.shown.event(e) for e in EventSplitter().feed(stream))
    assert made.shown.done
    assert isinstance(shown, bytes)
    kept = record_of(path, made.recorded, [stream])
    # Nothing of what cannot be trained may look as if it could.
    assert not kept.exact or len(kept.prompt_ids_P)


@pytest.mark.parametrize("path", PATHS)
@FUZZ
@given(answer=CHUNKS)
def test_no_whole_answer_whatever_it_holds_breaks_the_clients_or_the_record(path: str, answer: Any) -> None:
    body = json.dumps(answer).encode()
    made = opened(WIRES[path], path)
    assert json.loads(made.shown.whole(body)) is not None or answer is None
    kept = record_of(path, made.recorded, [body], stream=False)
    assert not kept.exact or len(kept.prompt_ids_P)


@pytest.mark.parametrize("path", PATHS)
def test_no_chunk_whatever_it_holds_is_refused_by_the_store(tmp_path: Path, path: str) -> None:
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    numbers = iter(range(10**6))

    @settings(FUZZ, max_examples=60)
    @given(chunks=st.lists(CHUNKS, min_size=1, max_size=3))
    @example(chunks=[{"choices": [{"token_ids": [[]]}]}])
    @example(chunks=[{"choices": [{"index": 2**63}]}])
    @example(chunks=[{"choices": [], "prompt_token_ids": True}])
    def check_it(chunks: list[Any]) -> None:
        number = next(numbers)
        stream = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
        kept = record_of(path, opened(WIRES[path], path, stream=True).recorded, [stream])
        store.record([replace(kept, call_id=f"call-{number}", trajectory_id=f"run-{number}")])
        assert store.trajectory(f"run-{number}").sessions

    try:
        check_it()
    finally:
        store.close()


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_names_ids_and_comments_of_events_stay_with_them(start_proxy: ProxyFactory, path: str) -> None:
    whole = wire_stream(path, Turn(TEXT))
    sent = whole.replace(b"data: ", b"event: message\nid: 7\n: a comment\ndata: ", 1)
    async with before(start_proxy, replying(event_stream(), sent, End.FIN)) as (proxy, _):
        status, seen = await post(proxy, path, stream=True)
        assert status == 200
        assert seen.startswith(b"event: message\nid: 7\n: a comment\ndata: {")
        assert seen.count(b"event: ") == 1
        assert text_in(path, seen) == TEXT
        assert (await row(proxy))["exact"] == 1
