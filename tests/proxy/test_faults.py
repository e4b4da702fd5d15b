"""Everything that breaks between a client and an engine, on every wire: what the client gets, what the row says.

Each test stands for a kind of fault that was reported against another proxy. The engine here sends raw bytes.
"""

import asyncio
import contextlib
import gc
import gzip
import itertools
import json
import os
import socket
import threading
import zlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from adapters.wires.sse import EventSplitter
from adapters.wires.wire import WIRES, Context, Wire
from mosaic.capture import CallStatus, CapturedCall
from mosaic.records import Call
from mosaic.settings import OtherModel
from mosaic.store import Store
from mosaic.store.checking import check
from proxy.access import trajectory_key
from proxy.spool import waiting_calls
from proxy.trace import Origin, Trace, captured
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Fault, ScriptedEngine, Turn
from tests.engine.raw import End, RawEngine, Reply, Step, chunked, event_stream, head, whole
from tests.engine.scripted import answer_to
from tests.proxy.test_recorder import start

Json = dict[str, Any]

HI = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, Json] = {
    "chat/completions": {"model": "policy", "messages": HI},
    "completions": {"model": "policy", "prompt": "Hi"},
    "responses": {"model": "policy", "input": "Hi"},
    "messages": {"model": "policy", "max_tokens": 99, "messages": HI},
}
PATHS = list(BODIES)
ASKED = {"logprobs": True, "return_token_ids": True, "stream_options": {"include_usage": True}, "messages": HI}
TEXT = "Grüße, 世界 👩‍🔬 — a longer text"


def wire_stream(path: str, turn: Turn) -> bytes:
    """What the engine streams when a client of the wire at `path` is answered."""
    return answer_to({**ASKED, "stream": True}, turn) if path != "completions" else legacy_stream(turn)


def wire_whole(path: str, turn: Turn) -> bytes:
    """The same in one piece."""
    return answer_to(ASKED, turn) if path != "completions" else legacy_whole(turn)


def legacy_choice(ids: Sequence[int], text: str, finish: str | None) -> Json:
    logprobs = {"token_logprobs": [-0.5] * len(ids), "tokens": [str(i) for i in ids], "text_offset": [0] * len(ids)}
    choice = {"index": 0, "text": text, "finish_reason": finish, "logprobs": logprobs, "token_ids": list(ids)}
    return {**choice, "prompt_token_ids": None}


def legacy_usage(turn: Turn) -> Json:
    return {"prompt_tokens": 2, "completion_tokens": len(turn.content), "total_tokens": 2 + len(turn.content)}


def legacy_whole(turn: Turn) -> bytes:
    choice = {**legacy_choice(range(len(turn.content)), turn.content, "stop"), "prompt_token_ids": [72, 105]}
    body = {"id": "cmpl-1", "object": "text_completion", "model": "policy", "choices": [choice]}
    return json.dumps({**body, "usage": legacy_usage(turn)}).encode()


def legacy_stream(turn: Turn) -> bytes:
    base = {"id": "cmpl-1", "object": "text_completion", "model": "policy"}
    letters = list(enumerate(turn.content))
    chunks = [legacy_choice([at], letter, None) for at, letter in letters]
    chunks[0]["prompt_token_ids"], chunks[-1]["finish_reason"] = [72, 105], "stop"
    events: list[Json] = [{**base, "choices": [chunk]} for chunk in chunks]
    events.append({**base, "choices": [], "usage": legacy_usage(turn)})
    return b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]\n\n"


def replying(*steps: Step) -> Reply:
    return lambda _: steps


def in_turn(*answers: Sequence[Step]) -> Reply:
    """One answer per request, in this order."""
    left = iter(answers)
    return lambda _: next(left)


@asynccontextmanager
async def before(start_proxy: ProxyFactory, reply: Reply, **settings: Any) -> AsyncIterator[tuple[Proxy, RawEngine]]:
    """A proxy before an engine that sends raw bytes."""
    engine = RawEngine(reply)
    async with engine.serve() as url, start_proxy(lambda _: Turn(), **{"upstream": url, **settings}) as proxy:
        yield proxy, engine


async def post(
    proxy: Proxy, path: str, body: Json | bytes | None = None, headers: dict[str, str] | None = None, **fields: Any
) -> tuple[int, bytes]:
    """The status and body of one call of run-1; `fields` are added to the wire's plain request."""
    data = body if isinstance(body, bytes) else json.dumps({**(body or BODIES[path]), **fields}).encode()
    url, sent = f"{proxy.url}/t/run-1/v1/{path}", {"content-type": "application/json", **(headers or {})}
    async with (
        aiohttp.ClientSession() as client,
        client.post(url, data=data, headers=sent, allow_redirects=False) as response,
    ):
        return response.status, await response.read()


def rows(proxy: Proxy) -> list[Json]:
    """All recorded calls in their order; nothing in the store is damaged."""
    assert check(proxy.store.database, deep=True) == []
    with proxy.store.engine.connect() as connection:
        return [dict(r) for r in connection.exec_driver_sql("select * from v_calls order by seq").mappings()]


async def row(proxy: Proxy) -> Json:
    """The only recorded call."""
    await until(lambda: rows(proxy))
    (found,) = rows(proxy)
    return found


async def talk(proxy: Proxy, raw: bytes, seconds: float = 10) -> bytes:
    """Send bytes, and read until the proxy closes."""
    host, port = proxy.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw)
    try:
        return await asyncio.wait_for(reader.read(), seconds)
    finally:
        writer.close()


def request_bytes(target: str, body: bytes, *lines: str, method: str = "POST") -> bytes:
    """A request that asks for the connection to be closed."""
    first = [f"{method} {target} HTTP/1.1", *([] if any(x.lower().startswith("host:") for x in lines) else ["host: a"])]
    rest = ["connection: close", f"content-length: {len(body)}", "content-type: application/json", *lines, "", ""]
    return "\r\n".join(first + rest).encode() + body


def contents(folder: Path) -> list[bytes]:
    """What the files in a folder and below hold."""
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


def data_events(body: bytes) -> list[Any]:
    """The JSON of a stream's events, `[DONE]` as None."""
    found = []
    for event in body.split(b"\n\n"):
        for line in event.split(b"\n"):
            if line.startswith(b"data:"):
                text = line[5:].strip()
                with contextlib.suppress(ValueError):
                    found.append(None if text == b"[DONE]" else json.loads(text))
    return found


def text_in(path: str, stream: bytes) -> str:
    """The text that a client of a wire reads out of its stream."""
    found = ""
    for event in data_events(stream):
        if not isinstance(event, dict):
            continue
        if path == "chat/completions":
            found += "".join((c.get("delta") or {}).get("content") or "" for c in event.get("choices") or ())
        elif path == "completions":
            found += "".join(c.get("text") or "" for c in event.get("choices") or ())
        elif event.get("type") == "response.output_text.delta":
            found += event["delta"]
        elif event.get("type") == "content_block_delta":
            found += event["delta"].get("text", "")
    return found


def error_ends(path: str, stream: bytes) -> bool:
    """Whether the stream ends with the wire's own error event, and only one, and not as a whole answer would."""
    events = data_events(stream)
    if path in ("chat/completions", "completions"):
        return "message" in events[-1]["error"] and None not in events and sum("error" in e for e in events) == 1
    kinds = [e["type"] for e in events]
    if path == "responses":
        return kinds[-1] == "response.failed" and kinds.count("response.failed") == 1 and kinds.count("error") == 1
    return kinds[-1] == "error" and kinds.count("error") == 1 and "message_stop" not in kinds


# The engine dies.


def dying(path: str, *end: Step, framing: str = "close") -> Reply:
    """An engine that sends the first half of a stream, cut within an event, and then ends."""
    stream = wire_stream(path, Turn(TEXT))
    part = stream[: len(stream) // 2 - 7]
    if framing == "chunked":
        top = head("content-type: text/event-stream", "transfer-encoding: chunked")
        return replying(top, chunked(part), *end)
    return replying(event_stream(), part, *end)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("end", [End.RESET, End.FIN, End.HALF])
async def test_an_engine_that_dies_mid_stream_is_an_error_on_every_wire_and_a_failed_call_with_what_it_said(
    start_proxy: ProxyFactory, path: str, end: End
) -> None:
    framing = "chunked" if path in ("completions", "messages") else "close"
    async with before(start_proxy, dying(path, End.PAUSE, end, framing=framing)) as (proxy, engine):
        asking = asyncio.ensure_future(post(proxy, path, stream=True))
        await engine.reached.wait()
        await asyncio.sleep(0.02)  # a reset may overtake what was not read yet
        engine.go.set()
        status, got = await asking
        assert status == 200
        assert error_ends(path, got), got
        assert text_in(path, got)
        assert TEXT.startswith(text_in(path, got))
        found = await row(proxy)
        assert (found["status"], found["inexact_reason"], found["exact"]) == ("failed", "call_failed", 0)
        assert found["error"]
        assert found["sampled_tokens"] > 0
        assert found["reply"]
        assert TEXT.startswith(found["reply"].rstrip("\ufffd"))
        assert len(engine.requests) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_a_last_event_without_its_blank_line_ends_the_stream_all_the_same(
    start_proxy: ProxyFactory, path: str
) -> None:
    whole_stream = wire_stream(path, Turn(TEXT))
    async with before(start_proxy, replying(event_stream(), whole_stream, End.FIN)) as (proxy, _):
        _, good = await post(proxy, path, stream=True)
    async with before(start_proxy, replying(event_stream(), whole_stream.rstrip(b"\n"), End.FIN)) as (proxy, _):
        _, got = await post(proxy, path, stream=True)
        assert got.count(b"[DONE]") == good.count(b"[DONE]") == (path in ("chat/completions", "completions"))
        assert len(data_events(got)) == len(data_events(good))
        found = [call for s in proxy.store.trajectories() for call in calls_of(proxy, s.trajectory_id)]
        assert [call.exact for call in found] == [True, True]


def calls_of(proxy: Proxy, trajectory_id: str) -> list[Call]:
    return [call for session in proxy.store.trajectory(trajectory_id).sessions for call in session.calls]


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_whose_last_event_is_missing_is_no_success(start_proxy: ProxyFactory, path: str) -> None:
    stream = wire_stream(path, Turn(TEXT)).removesuffix(b"data: [DONE]\n\n")
    async with before(start_proxy, replying(event_stream(), stream, End.FIN)) as (proxy, _):
        _, got = await post(proxy, path, stream=True)
        assert error_ends(path, got), got
        assert (await row(proxy))["status"] == "failed"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "done",
    [
        False,
        True,
    ],
)
async def test_an_error_within_a_stream_is_told_once_and_never_as_a_success(
    start_proxy: ProxyFactory, path: str, done: bool
) -> None:
    stream = wire_stream(path, Turn(TEXT))
    events = list(EventSplitter().feed(stream))[:3]
    tail = b'data: {"error": {"message": "engine died", "code": 500}}\n\n' + (b"data: [DONE]\n\n" if done else b"")
    async with before(start_proxy, replying(event_stream(), b"".join(events) + tail, End.FIN)) as (proxy, _):
        _, got = await post(proxy, path, stream=True)
        assert b"engine died" in got
        told = b"".join(e for e in EventSplitter().feed(got) if e.strip() != b"data: [DONE]")
        assert error_ends(path, told), got
        found = await row(proxy)
        assert (found["status"], found["error"]) == ("failed", "engine: engine died")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", [End.RESET, End.FIN])
async def test_a_connection_that_breaks_after_the_request_is_never_tried_again(
    start_proxy: ProxyFactory, path: str, stream: bool, end: End
) -> None:
    """The engine may have begun to work: a second request would be a second sample."""
    async with before(start_proxy, replying(end)) as (proxy, engine):
        status, got = await post(proxy, path, stream=stream)
        assert status == 502
        assert "message" in json.loads(got)["error"]
        assert len(engine.requests) == 1
        found = await row(proxy)
        assert (found["status"], found["http_status"]) == ("failed", 502)


async def test_the_sdks_do_not_repeat_by_themselves_what_the_engine_may_have_done(start_proxy: ProxyFactory) -> None:
    async with before(start_proxy, replying(End.RESET)) as (proxy, engine):
        asking = openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="k", max_retries=3)
        async with asking:
            with pytest.raises(openai.InternalServerError):
                await asking.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Hi"}])
            with pytest.raises(openai.InternalServerError):
                await asking.responses.create(model="policy", input="Hi", stream=True)
        async with anthropic.AsyncAnthropic(base_url=proxy.url, api_key="k", max_retries=3) as claude:
            with pytest.raises(anthropic.InternalServerError):
                await claude.messages.create(model="policy", max_tokens=9, messages=[{"role": "user", "content": "Hi"}])
        assert len(engine.requests) == 3


@pytest.mark.parametrize("path", PATHS)
async def test_a_connection_kept_alive_that_breaks_is_not_tried_again_either(
    start_proxy: ProxyFactory, path: str
) -> None:
    """aiohttp repeats some requests by itself when a pooled connection turns out to be dead."""
    reply = in_turn([whole(wire_whole(path, Turn("Hi")))], [End.RESET])
    async with before(start_proxy, reply) as (proxy, engine):
        assert [(await post(proxy, path))[0] for _ in range(2)] == [200, 502]
        assert len(engine.requests) == 2
        assert [r["status"] for r in rows(proxy)] == ["ok", "failed"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_answer_that_is_cut_is_a_502_and_a_failed_call(start_proxy: ProxyFactory, path: str) -> None:
    cut = whole(wire_whole(path, Turn(TEXT)))[:-20]
    async with before(start_proxy, replying(cut, End.FIN)) as (proxy, engine):
        status, got = await post(proxy, path)
        assert status == 502
        assert "message" in json.loads(got)["error"]
        assert (await row(proxy))["status"] == "failed"
        assert len(engine.requests) == 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "raw",
    [
        b"SSH-2.0-OpenSSH\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: abc\r\n\r\n",
        head("transfer-encoding: chunked", "content-type: application/json") + b"zz\r\n",
        whole(b"<html>not the engine</html>", status="404 Not Found", kind="text/html"),
        whole(b"", status="500 Internal Server Error"),
        whole(b'{"error": null}', status="500 Internal Server Error"),
        whole(b"\xff\xfe", status="418 Teapot"),
    ],
)
async def test_an_answer_that_is_not_the_engines_is_an_error_in_the_wires_shape_and_a_row(
    start_proxy: ProxyFactory, path: str, raw: bytes
) -> None:
    async with before(start_proxy, replying(raw, End.FIN)) as (proxy, _):
        status, got = await post(proxy, path)
        assert 400 <= status < 600
        if WIRES[path].translated:
            assert "message" in json.loads(got)["error"]
        found = await row(proxy)
        assert (found["status"], found["http_status"]) == ("failed", status)


# The client leaves.


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("point", ["before headers", "before the first chunk", "mid-stream", "whole"])
async def test_a_client_that_leaves_at_any_point_is_heard_of_by_the_engine_and_recorded(
    start_proxy: ProxyFactory, path: str, point: str
) -> None:
    part = wire_stream(path, Turn(TEXT))[:-400]
    steps: dict[str, list[Step]] = {
        "before headers": [End.HANG],
        "before the first chunk": [event_stream(), End.HANG],
        "mid-stream": [event_stream(), part, End.HANG],
        "whole": [head("content-type: application/json", "content-length: 9999") + b'{"choices"', End.HANG],
    }
    async with before(start_proxy, replying(*steps[point])) as (proxy, engine):
        asking = asyncio.ensure_future(post(proxy, path, stream=point != "whole"))
        await engine.reached.wait()
        await asyncio.sleep(0.02)
        asking.cancel()
        await asyncio.wait_for(engine.left.wait(), 0.2)
        found = await row(proxy)
        assert (found["status"], found["inexact_reason"]) == ("aborted", "call_aborted")
        assert "client left" in found["error"]
        assert (found["sampled_tokens"] > 0) == (point == "mid-stream")
        if point == "mid-stream":
            assert TEXT.startswith(found["reply"].rstrip("\ufffd"))


@pytest.mark.parametrize("path", ["embeddings", "messages/count_tokens"])
async def test_a_client_that_leaves_an_untranslated_request_is_heard_of_too(
    start_proxy: ProxyFactory, path: str
) -> None:
    async with before(start_proxy, replying(End.HANG)) as (proxy, engine):
        asking = asyncio.ensure_future(post(proxy, path, BODIES["messages"]))
        await engine.reached.wait()
        asking.cancel()
        await asyncio.wait_for(engine.left.wait(), 0.5)


# Odd chunks.

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


NULL_ERROR = "`\"error\": null` in a chunk is taken for an error: use `parsed.get('error') is not None`"


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


def opened(wire: Wire, path: str, **fields: Any) -> Any:
    body = {**BODIES[path], **fields}
    return wire.open(json.dumps(body).encode(), body, Context("call-1", 1e9))


def record_of(path: str, body: bytes, pieces: Sequence[bytes], *, stream: bool = True) -> CapturedCall:
    origin = Origin("call-1", WIRES[path].name, None, "lineage", "client", None, 0, True, {}, 1e9)
    timed = tuple((1e9 + at, piece) for at, piece in enumerate(pieces))
    return captured(Trace(origin, body, timed, stream, CallStatus.OK, 200, None, 2e9))


FUZZ = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


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


# What the client asked for reaches the engine, and no more comes back.

OURS = {
    "chat/completions": b',"logprobs":true,"return_token_ids":true}',
    "completions": b',"logprobs":0,"return_token_ids":true}',
}
USAGE = b',"stream_options":{"include_usage":true}}'
PARAMETER = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda n: n not in {"model", "messages", "prompt", "stream", "echo", "stream_options", "n", *ASKED}
)
VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
SPACED = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])


WRITTEN = st.tuples(SPACED, st.booleans(), st.sampled_from(["", " ", "\r\n"]))
"""(separators, whether only ASCII is used, what follows the body)"""


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("stream", [False, True])
@settings(max_examples=200, deadline=None)
@given(unknown=st.dictionaries(PARAMETER, VALUE, max_size=4), written=WRITTEN)
def test_unknown_parameters_reach_the_engine_byte_for_byte_before_our_own_fields(
    path: str, stream: bool, unknown: Json, written: tuple[tuple[str, str], bool, str]
) -> None:
    separators, only_ascii, tail = written
    template = {"enable_thinking": False, "deep": [unknown]}
    body = {**BODIES[path], **unknown, "chat_template_kwargs": template, "stream": stream}
    try:
        raw = (json.dumps(body, separators=separators, ensure_ascii=only_ascii) + tail).encode()
        parsed = orjson.loads(raw)
    except (UnicodeEncodeError, orjson.JSONDecodeError):
        return  # a lone surrogate is no text, and the engine would refuse it as well
    sent = WIRES[path].open(raw, parsed, Context("call-1", 1e9)).sent
    ours = OURS[path][:-1] + USAGE if stream else OURS[path]
    assert sent == raw.rstrip()[:-1] + ours


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_nested_and_unknown_parameters_arrive_over_real_sockets(
    start_proxy: ProxyFactory, path: str, stream: bool
) -> None:
    reply = replying(event_stream(), wire_stream(path, Turn("Hi")), End.FIN)
    if not stream:
        reply = replying(whole(wire_whole(path, Turn("Hi"))))
    kwargs = {"enable_thinking": False, "ünknown": [{"deep": 1.0}, None, "\u00e9"]}
    odd = {"chat_template_kwargs": kwargs, "guided_json": {"a": {"b": []}}, "top_k": 7, "min_p": 0.05}
    async with before(start_proxy, reply) as (proxy, engine):
        raw = json.dumps({**BODIES[path], **odd, "stream": stream}, indent=1).encode()
        assert (await post(proxy, path, raw))[0] == 200
        (request,) = engine.requests
        sent = json.loads(request.body)
        assert {name: sent.get(name) for name in odd} == odd
        if not WIRES[path].translated:
            assert request.body == raw[:-1] + (OURS[path][:-1] + USAGE if stream else OURS[path])
        assert request.all("content-length") == [str(len(request.body))]
        assert len(request.all("host")) == 1


BIG = 2**64 + 1


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"logprobs": 1}),
        ("completions", {"logprobs": 1}),
        ("chat/completions", {"return_token_ids": True, "seed": BIG}),
        ("chat/completions", {"model": "other", "seed": BIG}),
        ("completions", {"model": "other", "seed": BIG}),
    ],
)
async def test_values_survive_where_the_body_cannot_go_on_as_it_came(
    start_proxy: ProxyFactory, path: str, fields: Json
) -> None:
    async with before(start_proxy, replying(whole(wire_whole(path, Turn("Hi"))))) as (proxy, engine):
        assert (await post(proxy, path, **{"nested": {"a": [1.5, "é"]}, **fields}))[0] == 200
        sent = json.loads(engine.requests[0].body)
        assert {name: sent[name] for name in fields if name != "model"} == {
            name: value for name, value in fields.items() if name != "model"
        }
        assert sent["nested"] == {"a": [1.5, "é"]}


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
@pytest.mark.parametrize("stream", [False, True])
async def test_streams_logprobs_ids_and_usage_are_shown_as_asked_and_recorded_always(
    start_proxy: ProxyFactory, path: str, stream: bool
) -> None:
    reply = replying(event_stream(), wire_stream(path, Turn("Hi there")), End.FIN)
    if not stream:
        reply = replying(whole(wire_whole(path, Turn("Hi there"))))
    async with before(start_proxy, reply) as (proxy, _):
        for logprobs, ids, usage in itertools.product([False, True], repeat=3):
            wish: Json = {"logprobs": 1} if logprobs else {}
            wish |= {"return_token_ids": True} if ids else {}
            wish |= {"stream_options": {"include_usage": True}} if stream and usage else {}
            _, got = await post(proxy, path, stream=stream, **wish)
            shown = data_events(got) if stream else [json.loads(got)]
            choices = [choice for event in shown if event for choice in event["choices"]]
            assert any(choice.get("token_ids") for choice in choices) == ids
            assert (b'"logprob"' in got or b'"token_logprobs"' in got) == logprobs
            assert sum(bool(event and event.get("usage")) for event in shown) == (usage or not stream)
        assert [r["exact"] for r in rows(proxy)] == [1] * 8


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [False, True])
async def test_tool_calls_come_whole_with_and_without_logprobs(
    start_proxy: ProxyFactory, stream: bool, logprobs: bool
) -> None:
    """Large arguments of calls in parallel, their pieces interleaved, and nothing of one in the other."""
    large = [json.dumps({"file": f"{at}.py", "content": f"<{at}> ü\n" * 2000}) for at in range(3)]
    assert all(10_000 < len(text) < 30_000 for text in large)
    calls = [
        {"id": f"call_{at}", "type": "function", "function": {"name": f"write_{at}", "arguments": ""}}
        for at in range(3)
    ]
    base = {"id": "x", "object": "chat.completion.chunk", "model": "policy"}
    deltas: list[Json] = [{"tool_calls": [{"index": at, **call}]} for at, call in enumerate(calls)]
    for begin in range(0, max(map(len, large)), 997):
        deltas += [
            {"tool_calls": [{"index": at, "function": {"arguments": text[begin : begin + 997]}}]}
            for at, text in enumerate(large) if text[begin : begin + 997]
        ]  # fmt: skip
    entries = [{"token": "t", "logprob": -0.5, "bytes": None, "top_logprobs": []}]
    chunks: list[Json] = [
        {
            **base,
            "choices": [
                {"index": 0, "delta": d, "token_ids": [at], "logprobs": {"content": entries}, "finish_reason": None}
            ],
        }
        for at, d in enumerate(deltas)
    ]
    chunks[0]["prompt_token_ids"], chunks[-1]["choices"][0]["finish_reason"] = [1, 2], "tool_calls"
    counted = {"prompt_tokens": 2, "completion_tokens": len(chunks), "total_tokens": 2 + len(chunks)}
    chunks.append({**base, "choices": [], "usage": counted})
    events = b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"
    full = [{**c, "function": {"name": f"write_{at}", "arguments": large[at]}} for at, c in enumerate(calls)]
    ids, lps = list(range(len(deltas))), {"content": entries * len(deltas)}
    answer = {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "prompt_token_ids": [1, 2],
        "usage": counted,
    }
    answer["choices"] = [{"index": 0, "message": {"role": "assistant", "content": None, "tool_calls": full},
                          "finish_reason": "tool_calls", "token_ids": ids, "logprobs": lps}]  # fmt: skip
    reply = replying(event_stream(), events, End.FIN) if stream else replying(whole(json.dumps(answer).encode()))
    want = [(f"write_{at}", json.loads(text)) for at, text in enumerate(large)]
    async with before(start_proxy, reply) as (proxy, _):
        url = f"{proxy.url}/t/run-1"
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="a", max_retries=0) as client:
            tools: Any = [{"type": "function", "function": {"name": f"write_{at}"}} for at in range(3)]
            asked: Any = {"model": "policy", "messages": HI, "tools": tools, **({"logprobs": True} if logprobs else {})}
            if stream:
                async with client.chat.completions.stream(**asked) as streaming:
                    said = await streaming.get_final_completion()
            else:
                said = await client.chat.completions.create(**asked)
            assert bool(said.choices[0].logprobs and said.choices[0].logprobs.content) == logprobs
            got: Any = said.choices[0].message.tool_calls
            assert [(c.function.name, json.loads(c.function.arguments)) for c in got] == want
            flat: Any = [{"type": "function", "name": f"write_{at}", "parameters": {}} for at in range(3)]
            response = await stream_or_create(client.responses, stream, model="policy", input="Hi", tools=flat)
            assert [(i.name, json.loads(i.arguments)) for i in response.output] == want
        async with anthropic.AsyncAnthropic(base_url=url, api_key="a", max_retries=0) as claude:
            known: Any = [{"name": f"write_{at}", "input_schema": {"type": "object"}} for at in range(3)]
            message = await stream_or_create(claude.messages, stream, model="m", max_tokens=9, messages=HI, tools=known)
            assert [(b.name, b.input) for b in message.content] == want
        assert [r["exact"] for r in rows(proxy)] == [1, 1, 1]
        for r in rows(proxy):
            kept = json.loads(r["reply_tool_calls"])
            assert [(c["function"]["name"], json.loads(c["function"]["arguments"])) for c in kept] == want


async def stream_or_create(resource: Any, stream: bool, **asked: Any) -> Any:
    if not stream:
        return await resource.create(**asked)
    async with resource.stream(**asked) as events:
        return await (events.get_final_message if hasattr(events, "get_final_message") else events.get_final_response)()


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_passes_under_the_name_that_the_engine_and_the_client_use(
    start_proxy: ProxyFactory, name: str, stream: bool
) -> None:
    answer = json.loads(wire_whole("chat/completions", Turn("Done")))
    answer["choices"][0]["message"][name] = "Let me think"
    events = data_events(wire_stream("chat/completions", Turn("Done")))
    for at, piece in enumerate(("Let me ", "think")):
        events.insert(1 + at, {"choices": [{"index": 0, "delta": {name: piece}, "finish_reason": None}]})
    sse = b"".join(b"data: " + (json.dumps(e).encode() if e else b"[DONE]") + b"\n\n" for e in events)
    reply = replying(event_stream(), sse, End.FIN) if stream else replying(whole(json.dumps(answer).encode()))
    async with before(start_proxy, reply) as (proxy, engine):
        first = [*HI, {"role": "assistant", "content": "Done", name: "Let me think"}, {"role": "user", "content": "On"}]
        for messages in (HI, first):
            _, got = await post(proxy, "chat/completions", messages=messages, stream=stream)
            shown = data_events(got) if stream else [json.loads(got)]
            parts = [c.get("delta") or c.get("message") for e in shown if e for c in e["choices"]]
            assert "".join(part.get(name) or "" for part in parts) == "Let me think"
        assert json.loads(engine.requests[1].body)["messages"] == first
        (session,) = proxy.store.trajectory("run-1").sessions
        assert [c.samples[0].message[name] for c in session.calls] == ["Let me think"] * 2
        for path in ("responses", "messages"):
            _, got = await post(
                proxy, path, stream=stream, **({"reasoning": {"summary": "auto"}} if path == "responses" else {})
            )
            assert b"Let me think" in got or b"Let me " in got


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_three_choices_of_one_stream_stay_three_whatever_way_their_chunks_interleave(
    start_proxy: ProxyFactory, path: str
) -> None:
    texts = ["first ü", "the second one", "3"]
    base = {"id": "x", "model": "policy"}
    chunks: list[Json] = []
    for at in range(max(map(len, texts))):
        for index in (2, 0, 1):
            if letter := texts[index][at : at + 1]:
                finish = "stop" if at == len(texts[index]) - 1 else None
                legacy = {**legacy_choice([at], letter, finish), "index": index}
                entry = {"content": [{"token": "t", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
                chat = {
                    "index": index,
                    "delta": {"content": letter},
                    "finish_reason": finish,
                    "token_ids": [at],
                    "logprobs": entry,
                }
                chunks.append({**base, "choices": [chat if path == "chat/completions" else legacy]})
    chunks[0]["prompt_token_ids"] = chunks[0]["choices"][0]["prompt_token_ids"] = [72, 105]
    chunks.append({**base, "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": sum(map(len, texts))}})
    events = b"".join(b"data: " + json.dumps(c).encode() + b"\n\n" for c in chunks) + b"data: [DONE]\n\n"
    async with before(start_proxy, replying(event_stream(), events, End.FIN)) as (proxy, _):
        _, got = await post(proxy, path, stream=True, n=3)
        for index, text in enumerate(texts):
            parts = [c for e in data_events(got) if e for c in e["choices"] if c["index"] == index]
            assert "".join(c["delta"]["content"] if "delta" in c else c["text"] for c in parts) == text
        (session,) = proxy.store.trajectory("run-1").sessions
        (call,) = session.calls
        assert call.exact
        assert [(s.index, s.message["content"], len(s.ids_T)) for s in call.samples] == [
            (index, text, len(text)) for index, text in enumerate(texts)
        ]


# Bytes.


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60, deadline=None)
@given(cuts=st.lists(st.integers(1, 300), max_size=40), one_by_one=st.booleans())
@example(cuts=[], one_by_one=True)
def test_any_division_of_a_stream_gives_the_client_the_same_bytes_and_the_store_the_same_record(
    path: str, cuts: list[int], one_by_one: bool
) -> None:
    stream = wire_stream(path, Turn(TEXT, n=1 if path != "chat/completions" else 2))
    sizes = [1] * len(stream) if one_by_one else [*cuts, len(stream)]
    pieces, at = list[bytes](), 0
    for size in sizes:
        pieces.append(stream[at : at + size])
        at += size
    assert b"".join(pieces) == stream
    shown, kept = shown_and_kept(path, [piece for piece in pieces if piece])
    plain_shown, plain_kept = shown_and_kept(path, [stream])
    assert shown == plain_shown
    assert kept.exact
    for name in ("messages", "params", "usage", "inexact_reason"):
        assert getattr(kept, name) == getattr(plain_kept, name)
    assert kept.prompt_ids_P.tolist() == plain_kept.prompt_ids_P.tolist()
    for one, other in zip(kept.choices, plain_kept.choices, strict=True):
        assert (one.index, one.message, one.finish_reason) == (other.index, other.message, other.finish_reason)
        assert one.ids_T.tolist() == other.ids_T.tolist()
        assert one.logprobs_T.tolist() == other.logprobs_T.tolist()


def shown_and_kept(path: str, pieces: list[bytes]) -> tuple[bytes, CapturedCall]:
    made, splitter = opened(WIRES[path], path, stream=True), EventSplitter()
    shown = made.shown.opening()
    for piece in pieces:
        for event in splitter.feed(piece):
            shown += made.shown.event(event)
    return shown, record_of(path, made.recorded, pieces)


@pytest.mark.parametrize("path", PATHS)
async def test_one_byte_at_a_time_in_both_directions_changes_nothing(start_proxy: ProxyFactory, path: str) -> None:
    stream = wire_stream(path, Turn(TEXT))
    steps: list[Step] = [event_stream(), *(stream[at : at + 1] for at in range(len(stream))), End.FIN]
    async with before(start_proxy, lambda _: steps) as (proxy, engine):
        body = json.dumps({**BODIES[path], "stream": True, "user": "ü世"}, ensure_ascii=False).encode()
        raw = request_bytes(f"/t/run-1/v1/{path}", body)
        host, port = proxy.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(raw)):
            writer.write(raw[at : at + 1])
            await asyncio.sleep(0)
        got = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        assert text_in(path, dechunked(got)) == TEXT
        found = await row(proxy)
        assert (found["status"], found["exact"], found["reply"]) == ("ok", 1, TEXT)
        assert WIRES[path].translated or json.loads(engine.requests[0].body)["user"] == "ü世"


def dechunked(raw: bytes) -> bytes:
    """The body of a raw response in chunks."""
    _, _, rest = raw.partition(b"\r\n\r\n")
    found = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        found, rest = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return found


def encoded(name: str, body: bytes) -> bytes:
    if name == "gzip":
        return gzip.compress(body)
    if name == "deflate":
        return zlib.compress(body)
    return body


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("coding", ["identity", "gzip", "deflate"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_compressed_answer_reaches_the_client_plain_and_with_its_right_length(
    start_proxy: ProxyFactory, path: str, coding: str, stream: bool
) -> None:
    named = f"content-encoding: {coding}"
    if stream:
        packed = encoded(coding, wire_stream(path, Turn(TEXT)))
        reply = replying(event_stream(named), packed[:70], packed[70:], End.FIN)
    else:
        reply = replying(whole(encoded(coding, wire_whole(path, Turn(TEXT))), named))
    async with before(start_proxy, reply) as (proxy, engine):
        body = json.dumps({**BODIES[path], "stream": stream}).encode()
        raw = await talk(proxy, request_bytes(f"/t/run-1/v1/{path}", body, "accept-encoding: gzip, br"))
        top, _, rest = raw.partition(b"\r\n\r\n")
        assert b"content-encoding" not in top.lower()
        if stream:
            assert text_in(path, dechunked(raw)) == TEXT
        else:
            assert f"content-length: {len(rest)}".encode() in top.lower()
            assert "Grüße" in json.dumps(json.loads(rest), ensure_ascii=False)
        assert engine.requests[0].all("accept-encoding") == ["identity"]
        assert (await row(proxy))["exact"] == 1


@pytest.mark.parametrize(
    "coding",
    ["gzip", "br", "zstd", "compress", "nonsense"],
)
async def test_a_coding_that_cannot_be_read_is_an_error_and_never_passed_on_as_plain(
    start_proxy: ProxyFactory, coding: str
) -> None:
    reply = replying(whole(b"\x28\xb5\x2f\xfd not what it says", f"content-encoding: {coding}"))
    async with before(start_proxy, reply) as (proxy, _):
        status, got = await post(proxy, "chat/completions")
        assert status == 502, got
        assert "message" in json.loads(got)["error"]
        assert (await row(proxy))["status"] == "failed"


# Headers.

FORBIDDEN = {
    "connection": "keep-alive, x-hop",
    "keep-alive": "timeout=5",
    "proxy-authorization": "Basic c2VjcmV0LXNlY3JldA==",
    "proxy-authenticate": "Basic",
    "te": "trailers",
    "trailer": "x-checksum",
    "upgrade": "h2c",
    "authorization": "Bearer secret-secret",
    "x-api-key": "secret-secret",
    "api-key": "secret-secret",
    "cookie": "session=secret-secret",
    "x-goog-api-key": "secret-secret",
    "x-amz-security-token": "secret-secret",
}
PASSED = {
    "openai-organization": "org-1",
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "a,b",
    "x-request-id": "r-1",
    "user-agent": "agent/1",
    "x-stainless-lang": "python",
    "accept": "application/json",
}


async def test_the_engine_gets_the_clients_headers_but_none_of_its_connection_or_its_credentials(
    start_proxy: ProxyFactory,
) -> None:
    settings = {"upstream_api_key": "engine-key"}
    async with before(start_proxy, replying(whole(wire_whole("chat", Turn("Hi")))), **settings) as (proxy, engine):
        body = json.dumps(BODIES["chat/completions"]).encode()
        lines = [f"{name}: {value}" for name, value in {**FORBIDDEN, **PASSED}.items() if name != "connection"]
        raw = await talk(proxy, request_bytes("/v1/chat/completions", body, *lines))
        assert raw.startswith(b"HTTP/1.1 200")
        (request,) = engine.requests
        names = [name for name, _ in request.headers]
        assert len(names) == len(set(names))
        assert "secret" not in str(request.headers)
        assert "c2VjcmV0" not in str(request.headers)
        assert request.all("authorization") == ["Bearer engine-key"]
        assert not {"keep-alive", "te", "trailer", "upgrade", "proxy-authenticate"} & set(names)
        assert {name: request.all(name) for name in PASSED} == {name: [value] for name, value in PASSED.items()}
        assert request.all("host") == [proxy.settings.upstream.removeprefix("http://").removesuffix("/v1")]


async def test_what_the_connection_header_names_stays_on_that_connection(start_proxy: ProxyFactory) -> None:
    top = whole(wire_whole("chat", Turn("Hi")), "connection: x-hop-back", "x-hop-back: 1")
    async with before(start_proxy, replying(top)) as (proxy, engine):
        async with aiohttp.ClientSession() as client:
            sent = {"connection": "keep-alive, x-hop", "x-hop": "1"}
            url = f"{proxy.url}/v1/chat/completions"
            async with client.post(url, json=BODIES["chat/completions"], headers=sent) as response:
                assert "x-hop-back" not in response.headers
        assert engine.requests[0].all("x-hop") == []


async def test_a_header_that_is_repeated_goes_on_with_all_its_values(start_proxy: ProxyFactory) -> None:
    async with before(start_proxy, replying(whole(wire_whole("chat", Turn("Hi"))))) as (proxy, engine):
        body = json.dumps(BODIES["chat/completions"]).encode()
        await talk(proxy, request_bytes("/v1/chat/completions", body, "anthropic-beta: a", "anthropic-beta: b"))
        assert ",".join(engine.requests[0].all("anthropic-beta")).replace(" ", "") == "a,b"


@pytest.mark.parametrize(
    ("path", "asked", "goes_on"),
    [
        ("chat/completions", "api-version=2026-01-01&a=%20b&a=c", "?api-version=2026-01-01&a=%20b&a=c"),
        ("completions", "beta=true", "?beta=true"),
        ("messages", "beta=true", ""),
        ("messages", "beta=true&api-version=1", "?api-version=1"),
        ("responses", "api-version=1", "?api-version=1"),
        ("chat/completions", "key=secret&api%5fkey=secret&access_token=secret", ""),
        ("embeddings", "api-version=1", "?api-version=1"),
        ("chat/completions", "", ""),
    ],
)
async def test_a_query_string_goes_on_without_credentials_and_what_only_the_clients_wire_knows(
    start_proxy: ProxyFactory, path: str, asked: str, goes_on: str
) -> None:
    async with before(start_proxy, replying(whole(wire_whole(path, Turn("Hi"))))) as (proxy, engine):
        assert (await post(proxy, f"{path}?{asked}", BODIES.get(path, {"model": "policy", "input": "a"})))[0] == 200
        target = "chat/completions" if path in ("messages", "responses") else path
        assert engine.requests[0].line == f"POST /v1/{target}{goes_on}"


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ("plain task 7", "plain task 7"),
        ("größe", "größe"),
        ("gr%C3%B6%C3%9Fe", "größe"),
        ("UTF-8''gr%C3%B6%C3%9Fe", "größe"),
        (b"gr\xf6\xdfe", "größe"),
        ("100%", "100%"),
        ("%ff%fe", "%ff%fe"),
        ("a%00b", "a%00b"),
    ],
)
async def test_a_tasks_key_in_any_script_is_understood(start_proxy: ProxyFactory, given: str | bytes, key: str) -> None:
    async with before(start_proxy, replying(whole(wire_whole("chat", Turn("Hi"))))) as (proxy, _):
        line = b"x-mosaic-task: " + (given if isinstance(given, bytes) else given.encode())
        top, _, body = request_bytes("/v1/chat/completions", json.dumps(BODIES["chat/completions"]).encode()).partition(
            b"\r\n\r\n"
        )
        assert (await talk(proxy, top + b"\r\n" + line + b"\r\n\r\n" + body)).startswith(b"HTTP/1.1 200")
        await row(proxy)
        with proxy.store.engine.connect() as connection:
            assert connection.exec_driver_sql("select task_key from tasks").scalars().all() == [key]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_gets_the_engines_headers_once_and_none_of_its_connection(
    start_proxy: ProxyFactory, stream: bool
) -> None:
    odd = ["server: engine/1", "date: Thu, 01 Jan 1970 00:00:00 GMT", "keep-alive: timeout=5", "x-request-id: r-2"]
    odd += ["openai-processing-ms: 7", "set-cookie: a=1", "set-cookie: b=2", "upgrade: h2c", "x-odd: gr\u00fc\u00df"]
    if stream:
        data = wire_stream("chat", Turn("Hi"))
        top = head("content-type: text/event-stream", "transfer-encoding: chunked", *odd)
        reply = replying(top, chunked(data), chunked(b""))
    else:
        reply = replying(whole(wire_whole("chat", Turn("Hi")), *odd))
    async with before(start_proxy, reply) as (proxy, _):
        body = json.dumps({**BODIES["chat/completions"], "stream": stream}).encode()
        raw = await talk(proxy, request_bytes("/v1/chat/completions", body))
        lines = raw.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
        names = [line.partition(b":")[0].lower().decode() for line in lines]
        for once in ("server", "date", "content-type", "x-request-id", "openai-processing-ms", "x-mosaic-call-id"):
            assert names.count(once) == 1, (once, lines)
        assert names.count("content-length") + names.count("transfer-encoding") == 1
        assert not {"keep-alive", "upgrade", "set-cookie"} & set(names)
        assert "grüß".encode() in raw


async def test_a_cookie_of_the_engine_is_not_sent_with_anothers_call(start_proxy: ProxyFactory) -> None:
    engine = RawEngine(replying(whole(wire_whole("chat", Turn("Hi")), "set-cookie: who=first; Path=/")))
    async with engine.serve() as url:
        named = url.replace("127.0.0.1", "localhost")
        async with start_proxy(lambda _: Turn(), upstream=named) as proxy:
            for _ in range(2):
                await post(proxy, "chat/completions")
            assert [r.all("cookie") for r in engine.requests] == [[], []]


@pytest.mark.parametrize(
    "lines",
    [
        ["transfer-encoding: chunked", "content-length: 5"],
        ["content-length: 5", "content-length: 6"],
        ["content-length: -1"],
        ["transfer-encoding: chunked, identity"],
    ],
)
async def test_a_request_of_two_lengths_is_refused_and_never_sent_on(
    start_proxy: ProxyFactory, lines: list[str]
) -> None:
    async with before(start_proxy, replying(whole(b"{}"))) as (proxy, engine):
        top = "\r\n".join(["POST /v1/chat/completions HTTP/1.1", "host: a", *lines, "", ""]).encode()
        raw = await talk(proxy, top + b"0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        assert raw.startswith(b"HTTP/1.1 400"), raw
        assert b'"policy"' not in raw
        assert engine.requests == []


# Where a call goes is ours to say.


@pytest.mark.parametrize("path", PATHS)
async def test_a_redirect_of_the_engine_is_not_followed(start_proxy: ProxyFactory, path: str) -> None:
    elsewhere = RawEngine(replying(whole(b"{}")))
    async with elsewhere.serve() as other:
        for status in ("301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"):
            reply = replying(whole(b"", f"location: {other}/{path}", status=status))
            async with before(start_proxy, reply) as (proxy, _):
                assert (await post(proxy, path))[0] == 502
    assert elsewhere.connections == 0


async def test_a_redirect_of_the_engine_is_not_passed_on_either(start_proxy: ProxyFactory) -> None:
    """A client that follows it, as openai's does, would go to the engine itself."""
    reply = replying(whole(b"", "location: http://127.0.0.1:9/v1/chat/completions", status="307 Temporary Redirect"))
    async with before(start_proxy, reply) as (proxy, _), aiohttp.ClientSession() as client:
        asking = client.post(f"{proxy.url}/v1/chat/completions", json=BODIES["chat/completions"], allow_redirects=False)
        async with asking as response:
            assert response.status == 502
            assert "location" not in response.headers


async def test_a_redirect_of_the_engines_list_of_models_is_not_followed(start_proxy: ProxyFactory) -> None:
    elsewhere = RawEngine(replying(whole(b"{}")))
    async with elsewhere.serve() as other:
        engine = RawEngine(replying(whole(wire_whole("chat", Turn("Hi")))))
        engine.models = whole(b"", f"location: {other}/models", status="302 Found")
        async with engine.serve() as url, start_proxy(lambda _: Turn(), upstream=url) as proxy:
            await post(proxy, "chat/completions")
    assert elsewhere.connections == 0


TARGETS = [
    "http://{other}/v1/chat/completions",
    "//{other}/v1/chat/completions",
    "/v1//{other}/v1/chat/completions",
    "/v1/chat/completions/../../../pause",
    "/v1/chat/completions/%2e%2e/%2e%2e/pause",
    "/v1/%2e%2e/pause",
    "/v1/..%2fpause",
    "/v1/chat%2fcompletions",
    "/v1/chat/completions%00",
    "/v1/chat/completions%0d%0ax-evil:1",
    "/v1/chat/completions;/pause",
    "/v1/chat/completions?url=http://{other}/",
    "/v1/chat/completions#@{other}",
    "/t/../v1/chat/completions",
    "/t/..%2f..%2fpause/v1/chat/completions",
    "/t/a%0ab/v1/chat/completions",
    "/v1/http://{other}/chat/completions",
    "/v1/@{other}/chat/completions",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/v1/models/../../collective_rpc",
    "/V1/chat/completions",
    "/v1\\..\\pause",
]


async def test_nothing_in_a_request_moves_it_to_another_host_or_to_the_engines_administration(
    start_proxy: ProxyFactory,
) -> None:
    elsewhere = RawEngine(replying(whole(b"{}")))
    async with elsewhere.serve() as url:
        other = url.removeprefix("http://").removesuffix("/v1")
        async with before(start_proxy, replying(whole(wire_whole("chat", Turn("Hi"))))) as (proxy, engine):
            places = dict.fromkeys(("api_base", "base_url", "upstream", "url", "endpoint", "target"), url)
            routing = ["x-forwarded-host", "x-forwarded-server", "forwarded", "x-original-url", "x-rewrite-url"]
            routing += ["x-upstream", "x-target-url", "x-llm-base-url", "x-portkey-custom-host", "x-real-ip"]
            lines = [f"{name}: {other}" for name in routing]
            body = json.dumps({**BODIES["chat/completions"], **places, "litellm_params": places}).encode()
            for target in TARGETS:
                for method in ("POST", "GET", "PUT"):
                    raw = request_bytes(target.format(other=other), body, f"host: {other}", *lines, method=method)
                    answer = await talk(proxy, raw)
                    assert answer[9:10] in b"24", (target, answer)
            assert {r.line.partition("?")[0] for r in engine.requests} == {"POST /v1/chat/completions"}
            mine = proxy.settings.upstream.removeprefix("http://").removesuffix("/v1")
            assert {tuple(r.all("host")) for r in engine.requests} == {(mine,)}
    assert elsewhere.connections == 0


# Keep-alives, retries, limits.


@pytest.mark.parametrize("path", PATHS)
async def test_a_quiet_stream_is_kept_open_and_what_keeps_it_open_is_never_recorded(
    start_proxy: ProxyFactory, path: str
) -> None:
    stream = wire_stream(path, Turn(TEXT))
    cut = len(stream) // 3
    steps: list[Step] = [event_stream(), stream[:cut], End.PAUSE, stream[cut:], End.FIN]
    async with before(start_proxy, lambda _: steps, ping_s=0.02) as (proxy, engine):
        asking = asyncio.ensure_future(post(proxy, path, stream=True))
        await engine.reached.wait()
        await asyncio.sleep(0.15)
        engine.go.set()
        _, got = await asking
        assert got.count(b"ping") >= 3
        assert text_in(path, got) == TEXT
        found = await row(proxy)
        assert (found["exact"], found["reply"]) == (1, TEXT)
        kept = b"".join(contents(proxy.settings.spool))
        assert b"ping" not in kept


@pytest.mark.parametrize("path", PATHS)
async def test_a_retry_of_an_sdk_is_the_same_turn_and_a_repeated_body_is_not(
    start_proxy: ProxyFactory, path: str
) -> None:
    good = [whole(wire_whole(path, Turn("Hi")))]
    async with before(start_proxy, in_turn([End.RESET], good, good)) as (proxy, engine):
        for count in (0, 1):
            await post(proxy, path, headers={"x-stainless-retry-count": str(count)})
        (session,) = proxy.store.trajectory("run-1").sessions
        assert len(engine.requests) == 2
        assert [(c.exact) for c in session.calls] == [False, True]
        await post(proxy, path, headers={"x-stainless-retry-count": "0"})
        assert len(proxy.store.trajectory("run-1").sessions) == 2


async def test_a_client_that_reads_nothing_holds_the_engine_back(start_proxy: ProxyFactory) -> None:
    """What is not taken waits in the engine and in the kernel, not here."""
    event = b'data: {"choices": [{"index": 0, "delta": {"content": "' + b"x" * 60_000 + b'"}}]}\n\n'
    steps: list[Step] = [event_stream(), *[event] * 1500, b"data: [DONE]\n\n", End.FIN]
    async with before(start_proxy, lambda _: steps) as (proxy, engine):
        host, port = proxy.url.removeprefix("http://").split(":")
        with socket.socket() as raw:
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**16)
            raw.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(raw, (host, int(port)))
            body = json.dumps({**BODIES["chat/completions"], "stream": True}).encode()
            await loop.sock_sendall(raw, request_bytes("/v1/chat/completions", body))
            sent = -1
            while sent != engine.sent or sent < 1000:
                sent = engine.sent
                await asyncio.sleep(0.3)
            assert sent < 40 * 2**20 < len(event) * 1500
            assert await loop.sock_recv(raw, 2**16)
        await until(lambda: rows(proxy))
        assert (await row(proxy))["status"] == "aborted"


@pytest.mark.parametrize("path", [*PATHS, "embeddings", "messages/count_tokens"])
async def test_a_body_that_is_too_large_is_a_413_in_the_wires_shape(start_proxy: ProxyFactory, path: str) -> None:
    async with before(start_proxy, replying(whole(b"{}")), max_body_bytes=100_000) as (proxy, engine):
        for _ in range(2):  # the connection, or another, serves the next request as well
            status, got = await post(proxy, path, BODIES["messages"], user="x" * 100_000)
            assert status == 413
            said = json.loads(got)
            assert "larger than 100000 bytes" in said["error"]["message"]
            assert (said.get("type"), said["error"]["type"] == "request_too_large") == (
                ("error", True) if path.startswith("messages") else (None, False)
            )
        assert engine.requests == []


async def test_a_very_large_body_is_refused_while_it_is_still_being_sent(start_proxy: ProxyFactory) -> None:
    async with before(start_proxy, replying(whole(b"{}")), max_body_bytes=1000) as (proxy, _):
        host, port = proxy.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/responses HTTP/1.1\r\nhost: a\r\ncontent-length: 999999999999\r\n\r\n" + b"x" * 5000)
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 413")
        writer.close()


async def test_a_body_that_never_ends_is_a_408(start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.routes.BODY_S", 0.1)
    async with before(start_proxy, replying(whole(b"{}"))) as (proxy, _):
        raw = request_bytes("/v1/messages", b"{")[:-1].replace(b"content-length: 1", b"content-length: 99")
        assert (await talk(proxy, raw + b"{")).startswith(b"HTTP/1.1 408")


async def test_a_body_that_never_begins_is_a_408(start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.routes.BODY_S", 0.1)
    async with before(start_proxy, replying(whole(b"{}"))) as (proxy, _):
        raw = request_bytes("/v1/messages", b"").replace(b"content-length: 0", b"content-length: 99")
        assert (await talk(proxy, raw, seconds=2)).startswith(b"HTTP/1.1 408")


ODD_VALUES: list[Any] = [5, True, 1.5, {"a": 1}, ["a", 1, None], [[]], "x", None]


@pytest.mark.parametrize("path", PATHS)
async def test_a_field_of_the_wrong_type_is_never_a_5xx(start_proxy: ProxyFactory, path: str) -> None:
    async with before(start_proxy, replying(whole(wire_whole(path, Turn("Hi"))))) as (proxy, _):
        for field in ("messages", "input", "prompt", "model", "stream", "tools", "user", "n"):
            for value in ODD_VALUES:
                status, got = await post(proxy, path, {**BODIES[path], field: value})
                assert status < 500, (field, value, got)
                assert status < 400 or "message" in json.loads(got)["error"]


@pytest.mark.parametrize(
    "path",
    [
        "chat/completions",
        "completions",
        "responses",
        "messages",
    ],
)
@pytest.mark.parametrize("value", [5, "x", ["a"]])
async def test_stream_options_of_the_wrong_type_are_never_a_5xx(
    start_proxy: ProxyFactory, path: str, value: object
) -> None:
    async with before(start_proxy, replying(whole(wire_whole(path, Turn("Hi"))))) as (proxy, _):
        status, _ = await post(proxy, path, stream_options=value)
        assert status < 500


async def test_a_failure_of_the_recorder_costs_the_client_nothing(
    start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = wire_stream("chat", Turn("Hi"))
    async with before(start_proxy, replying(event_stream(), stream, End.FIN)) as (proxy, _):

        def broken(_: Trace) -> bytes:
            raise TypeError("cannot be encoded")

        monkeypatch.setattr("proxy.recorder.encode", broken)
        _, got = await post(proxy, "chat/completions", stream=True)
        assert got.endswith(b"data: [DONE]\n\n")


# Who may.

CONTROL = ["/api/trajectories", "/api/trajectories/x/links", "/api/health", "/metrics"]
TRICKS = [
    "/api/trajectories", "/api/trajectories/", "/api//trajectories", "//api/trajectories", "/./api/trajectories",
    "/api/../api/trajectories", "/v1/../api/trajectories", "/t/x/../../api/trajectories", "/api%2ftrajectories",
    "/%61pi/trajectories", "/API/trajectories", "/api/trajectories?key=control", "/api/trajectories%00",
    "/api/trajectories;a", "/api/trajectories%20", "/api/health/..;/health", "/metrics/", "/metrics/.", "//metrics",
    "/openapi.json", "/docs", "/redoc", "/docs/oauth2-redirect", "/v1/%2e%2e/metrics", "/v1/..%2fmetrics",
    "http://127.0.0.1/api/trajectories", "http://localhost/metrics",
]  # fmt: skip
HOSTS = ["127.0.0.1", "localhost", "localhost:8080", "evil.example", "", "[::1]", "a@b"]


async def test_no_control_route_answers_without_its_key_whatever_the_path_the_method_or_the_host(
    start_proxy: ProxyFactory,
) -> None:
    async with before(start_proxy, replying(whole(b"{}")), api_keys=["control-1"], agent_keys=["agent-1"]) as (
        proxy,
        _,
    ):
        for path in TRICKS:
            for method in ("GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH", "TRACE"):
                raw = await talk(proxy, request_bytes(path, b"", "authorization: Bearer agent-1", method=method))
                status = int(raw.split(b" ", 2)[1])
                assert status in (307, 400, 401, 404, 405), (method, path, raw)
        for host in HOSTS:
            raw = await talk(proxy, request_bytes("/api/trajectories", b"", f"host: {host}", method="GET"))
            assert raw.split(b" ", 2)[1] in (b"401", b"400"), raw


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/trajectories?limit=x", b""),
        ("POST", "/api/trajectories/x/reward", b"{}"),
        ("POST", "/api/trajectories/x/reward", b"{not json"),
        ("POST", "/api/trajectories/x/end", b'{"state": "odd"}'),
        ("GET", "/api/nothing", b""),
        ("HEAD", "/api/health", b""),
        ("GET", "/api/trajectories/", b""),
    ],
)
async def test_a_request_without_a_key_learns_nothing_but_that(
    start_proxy: ProxyFactory, method: str, path: str, body: bytes
) -> None:
    async with before(start_proxy, replying(whole(b"{}")), api_keys=["control-1"]) as (proxy, _):
        raw = await talk(proxy, request_bytes(path, body, "host: evil.example", method=method))
        assert raw.startswith(b"HTTP/1.1 401"), raw
        assert b"evil.example" not in raw


@pytest.mark.parametrize("path", CONTROL)
async def test_an_agents_key_opens_no_control_route_when_it_is_the_only_kind_that_is_set(
    start_proxy: ProxyFactory, path: str
) -> None:
    async with before(start_proxy, replying(whole(b"{}")), agent_keys=["agent-1"]) as (proxy, _):
        raw = await talk(proxy, request_bytes(path, b"", "authorization: Bearer agent-1", method="GET"))
        assert raw.startswith(b"HTTP/1.1 401"), raw


async def test_a_trajectorys_key_makes_no_call_of_another_trajectory(start_proxy: ProxyFactory) -> None:
    reply = replying(whole(wire_whole("chat", Turn("Hi"))))
    async with before(start_proxy, reply, trajectory_secret="x" * 32) as (proxy, _):
        named = trajectory_key(proxy.settings, "run-7")
        await post(proxy, "chat/completions", headers={"authorization": f"Bearer {named}"})
        assert "run-1" not in [t.trajectory_id for t in proxy.store.trajectories()]


async def test_a_key_that_is_not_ascii_is_a_401(start_proxy: ProxyFactory) -> None:
    async with before(start_proxy, replying(whole(b"{}")), trajectory_secret="x" * 32) as (proxy, _):
        raw = request_bytes("/v1/chat/completions", b"{}", "authorization: Bearer mosaic-t-run-7.\u00e9")
        assert (await talk(proxy, raw)).startswith(b"HTTP/1.1 401")


async def test_credentials_in_the_engines_address_are_shown_to_nobody(start_proxy: ProxyFactory) -> None:
    address = "http://user:secret-secret@127.0.0.1:9/v1"
    async with start_proxy(lambda _: Turn(), upstream=address, engine_wait_s=0.0) as proxy:
        status, got = await post(proxy, "chat/completions")
        assert status == 503
        assert b"secret-secret" not in got
        assert "secret-secret" not in json.dumps(rows(proxy), default=str)


async def test_no_key_is_found_in_a_log_the_database_the_spool_or_the_journal(
    start_proxy: ProxyFactory, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    caplog.set_level("DEBUG")
    keys: Json = {
        "api_keys": ["control-secret-1"],
        "agent_keys": ["agent-secret-2"],
        "upstream_api_key": "engine-secret-3",
    }
    good = [whole(wire_whole("chat", Turn("Hi")))]
    reply = in_turn(good, [End.RESET], [whole(b'{"error":"no"}', status="500 X")], [End.HANG])
    keys["trajectory_secret"] = "sign-secret-4" * 2
    seen: list[bytes] = []
    async with before(start_proxy, reply, **keys) as (proxy, engine):
        named = trajectory_key(proxy.settings, "run-1")
        carried = ["agent-secret-2", "control-secret-1", named, "agent-secret-2"]
        for key in carried:
            headers = {"authorization": f"Bearer {key}", "x-api-key": key, "x-session-token": key, "cookie": key}
            asking = asyncio.ensure_future(post(proxy, "chat/completions", headers=headers))
            if len(engine.requests) == 3:
                await until(lambda: len(engine.requests) == 4)
                seen += contents(tmp_path)
                asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await post(proxy, "chat/completions", headers={"authorization": "Bearer wrong-secret-5"})
        await until(lambda: len(rows(proxy)) == 4)
        seen += contents(tmp_path)
    said = "".join(capfd.readouterr()) + caplog.text
    for secret in ("control-secret-1", "agent-secret-2", "engine-secret-3", "sign-secret-4", "wrong-secret-5", named):
        assert not any(secret.encode() in part for part in seen), secret
        assert secret not in said, secret


# Nothing is left over.


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_ends_while_the_proxy_is_being_stopped_is_whole_and_recorded(
    tmp_path: Path, path: str
) -> None:
    stream = wire_stream(path, Turn(TEXT))
    engine = RawEngine(replying(event_stream(), stream[:500], End.PAUSE, stream[500:], End.FIN))
    database = f"sqlite:///{tmp_path}/mosaic.db"
    async with engine.serve() as upstream:
        process, address = start(tmp_path, upstream, database, MOSAIC_DRAIN_S="20")
        url, body = f"{address}/v1/{path}", {**BODIES[path], "stream": True}
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
            await engine.reached.wait()
            process.terminate()
            await until(lambda: not listens(address))
            engine.go.set()
            assert text_in(path, await response.read()) == TEXT
        assert await asyncio.to_thread(process.wait, 30) == 0
    store = Store(database)
    # In the store, or in the spool where the writer was not up yet: the next start brings it in.
    assert sum(t.calls for t in store.trajectories()) + waiting_calls(tmp_path / "spool") == 1
    assert all(t.inexact_calls == 0 for t in store.trajectories())
    store.close()


def listens(address: str) -> bool:
    host, port = address.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


async def test_three_hundred_mixed_requests_leave_no_task_thread_or_descriptor(start_proxy: ProxyFactory) -> None:
    faults = [Fault.NONE, Fault.CUT_MID_STREAM, Fault.HANG_MID_STREAM, Fault.REFUSE, Fault.GARBAGE, Fault.IN_BAND_ERROR]

    def script(body: Json) -> Turn:
        return Turn("A longer text of many pieces", fault=faults[int(json.dumps(body["messages"]).split("#")[1])])

    async with start_proxy(script) as proxy:
        paths = ["chat/completions", "responses", "messages"]

        async def one(number: int) -> None:
            path, fault = paths[number % 3], number // 3 % len(faults)
            body = {**BODIES[path], "stream": number % 2 == 0 or faults[fault] is Fault.HANG_MID_STREAM}
            body["input" if path == "responses" else "messages"] = (
                f"#{fault}#{number}" if path == "responses" else [{"role": "user", "content": f"#{fault}#{number}"}]
            )
            url = f"{proxy.url}/t/run-{number}/v1/{path}"
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with asyncio.timeout(0.5 if faults[fault] is Fault.HANG_MID_STREAM else 20):
                    async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
                        await response.read()

        async def batch(numbers: range) -> None:
            await asyncio.gather(*(one(number) for number in numbers))

        await batch(range(60))
        await until(lambda: sum(t.calls for t in proxy.store.trajectories(1000)) == 60)
        before_them = await settled()
        for begin in range(60, 360, 60):
            await batch(range(begin, begin + 60))
        await until(lambda: sum(t.calls for t in proxy.store.trajectories(1000)) == 360)
        for _ in range(40):
            if all(after <= then + 3 for after, then in zip(await settled(), before_them, strict=True)):
                break
            await asyncio.sleep(0.25)
        assert all(after <= then + 3 for after, then in zip(await settled(), before_them, strict=True)), (
            before_them,
            await settled(),
        )


async def settled() -> tuple[int, int, int]:
    """(tasks, threads, descriptors) once idle connections were closed."""
    await asyncio.sleep(0.1)
    gc.collect()
    return len(asyncio.all_tasks()), threading.active_count(), len(os.listdir("/proc/self/fd"))


async def test_embeddings_go_where_the_map_of_models_says(start_proxy: ProxyFactory) -> None:
    other = ScriptedEngine(lambda _: Turn())
    async with other.serve() as url:
        models = {"text-*": OtherModel(upstream=url, model="e5")}
        async with before(start_proxy, replying(whole(b"{}")), models=models) as (proxy, engine):
            _, got = await post(proxy, "embeddings", {"model": "text-embedding", "input": "a"})
            assert engine.requests == []
            assert json.loads(got)["asked"] == {"model": "e5", "input": "a"}


@pytest.mark.parametrize("status", ["429 Busy", "503 Busy"])
async def test_a_busy_engine_says_so_to_embeddings_too(start_proxy: ProxyFactory, status: str) -> None:
    async with (
        before(start_proxy, replying(whole(b"{}", status=status))) as (proxy, _),
        aiohttp.ClientSession() as client,
        client.post(f"{proxy.url}/v1/embeddings", json={"model": "policy", "input": "a"}) as response,
    ):
        assert (response.status, response.headers["retry-after"]) == (int(status[:3]), "1")
