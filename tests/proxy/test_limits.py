"""Keep-alives, retries, limits, and what a client gets wrong."""

import asyncio
import json
import socket
from typing import Any

import pytest

from tests.conftest import ProxyFactory, until
from tests.engine import Turn
from tests.engine.raw import End, Step, event_stream, whole
from tests.proxy.faults import (
    BODIES,
    PATHS,
    TEXT,
    before,
    contents,
    in_turn,
    post,
    replying,
    request_bytes,
    row,
    rows,
    talk,
    text_in,
    wire_stream,
    wire_whole,
)


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

        def broken(*_: object) -> bytes:
            raise TypeError("cannot be encoded")

        monkeypatch.setattr("proxy.frames.ending", broken)
        _, got = await post(proxy, "chat/completions", stream=True)
        assert got.endswith(b"data: [DONE]\n\n")
