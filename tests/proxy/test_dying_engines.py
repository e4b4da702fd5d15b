"""An engine that dies, fails or answers what is no answer: what the client gets of it, what the row says."""

import asyncio
import json

import anthropic
import openai
import pytest

from adapters.wires.sse import EventSplitter
from adapters.wires.wire import WIRES
from mosaic.records import Call
from tests.conftest import Proxy, ProxyFactory
from tests.engine import Turn
from tests.engine.raw import End, Reply, Step, chunked, event_stream, head, whole
from tests.proxy.faults import (
    PATHS,
    TEXT,
    before,
    data_events,
    error_ends,
    in_turn,
    post,
    replying,
    row,
    rows,
    text_in,
    wire_stream,
    wire_whole,
)


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
