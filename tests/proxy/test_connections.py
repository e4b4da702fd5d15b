"""What a client may do with its connection, byte by byte."""

import asyncio
import gzip
import json
import socket
import struct

import pytest

from proxy import connections
from tests.conftest import Proxy, ProxyFactory
from tests.engine import Turn
from tests.engine.raw import End, event_stream, whole
from tests.proxy.faults import BODIES, PATHS, before, post, replying, request_bytes, talk, wire_whole

TARGET = "/v1/chat/completions"
BODY = json.dumps(BODIES["chat/completions"]).encode()


async def statuses(proxy: Proxy, raw: bytes) -> list[int]:
    """Statuses of all answers on a connection, until the proxy closes it."""
    return [int(part[1:4]) for part in (await talk(proxy, raw)).split(b"HTTP/1.1")[1:]]


async def test_a_head_that_is_too_large_is_refused_while_it_is_still_being_sent(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        endless = f"POST {TARGET} HTTP/1.1\r\nhost: a\r\nx-endless: ".encode() + b"a" * connections.MAX_HEAD_BYTES
        assert await statuses(proxy, endless) == [431]
        large = request_bytes(TARGET, BODY, f"x-large: {'a' * 4000}")
        assert await statuses(proxy, large) == [200]


async def test_a_head_that_is_never_complete_is_a_408_and_a_silent_connection_is_closed(
    start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.1)
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        assert await talk(proxy, b"") == b""
        assert await statuses(proxy, f"POST {TARGET} HTTP/1.1\r\nhost:".encode()) == [408]
        again = request_bytes(TARGET, BODY).replace(b"connection: close\r\n", b"")
        assert await statuses(proxy, again + b"POST /v1") == [200, 408]
        assert await statuses(proxy, again + b"\r\n") == [200]


async def test_a_head_that_is_refused_leaves_no_trace_in_the_answer_before_it(start_proxy: ProxyFactory) -> None:
    async with before(start_proxy, replying(event_stream(), b"data: {}\n\n", End.HANG)) as (proxy, engine):
        host, port = proxy.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        streamed = json.dumps({**BODIES["chat/completions"], "stream": True}).encode()
        writer.write(request_bytes(TARGET, streamed).replace(b"connection: close\r\n", b""))
        await asyncio.wait_for(engine.reached.wait(), 20)
        writer.write(b"POST / HTTP/1.1\r\nx: " + b"a" * connections.MAX_HEAD_BYTES)
        assert b"431" not in await asyncio.wait_for(reader.read(), 10)
        await asyncio.wait_for(engine.left.wait(), 5)
        writer.close()


async def test_a_slow_answer_outlives_the_time_for_a_head(
    start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.05)
    answer = whole(wire_whole("chat/completions", Turn("Hi")))
    async with before(start_proxy, replying(End.PAUSE, answer)) as (proxy, engine):
        asking = asyncio.ensure_future(post(proxy, "chat/completions"))
        await engine.reached.wait()
        asyncio.get_running_loop().call_later(0.2, engine.go.set)
        assert (await asking)[0] == 200


async def test_pipelined_requests_are_answered_in_their_order_and_all_recorded(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda body: Turn(body["messages"][0]["content"])) as proxy:
        bodies = [json.dumps({"messages": [{"role": "user", "content": f"word-{n}"}]}).encode() for n in range(3)]
        first = [request_bytes(TARGET, body).replace(b"connection: close\r\n", b"") for body in bodies[:2]]
        said = await talk(proxy, b"".join([*first, request_bytes(TARGET, bodies[2])]))
        places = [said.index(f'"content":"word-{n}"'.encode()) for n in range(3)]
        assert places == sorted(places)
        assert sum(t.calls for t in proxy.store.trajectories()) == 3


async def test_a_body_may_come_in_chunks_after_a_100_and_behind_a_byte_order_mark(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        parts = b"".join(b"%x;x=y\r\n%c\r\n" % (1, byte) for byte in BODY) + b"0\r\n\r\n"
        chunked = request_bytes(TARGET, b"", "transfer-encoding: chunked").replace(b"content-length: 0\r\n", b"")
        assert await statuses(proxy, chunked + parts) == [200]
        assert await statuses(proxy, request_bytes(TARGET, BODY, "expect: 100-continue")) in ([100, 200], [200])
        assert await statuses(proxy, request_bytes(TARGET, b"\xef\xbb\xbf" + BODY)) == [200]
        assert proxy.engine.requests[0] == proxy.engine.requests[2]


async def test_an_answer_comes_in_one_packet_with_its_head(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        host, port = proxy.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_bytes(TARGET, BODY))
        assert b'"content":"Hi"' in await asyncio.wait_for(reader.read(), 10)
        assert data_segments_in(writer.get_extra_info("socket")) == 1
        writer.close()


def data_segments_in(connection: socket.socket) -> int:
    """Segments with data that a TCP connection got (`tcpi_data_segs_in` of Linux's `struct tcp_info`)."""
    return int(struct.unpack_from("I", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 232), 152)[0])


async def test_the_head_of_a_stream_does_not_wait_for_its_first_event(start_proxy: ProxyFactory) -> None:
    async with before(start_proxy, replying(event_stream(), End.HANG), ping_s=0) as (proxy, engine):
        host, port = proxy.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(request_bytes(TARGET, json.dumps({**BODIES["chat/completions"], "stream": True}).encode()))
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).startswith(b"HTTP/1.1 200")
        writer.close()
        await asyncio.wait_for(engine.left.wait(), 5)


@pytest.mark.parametrize("path", PATHS)
async def test_a_compressed_body_is_refused_in_words(start_proxy: ProxyFactory, path: str) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        packed = gzip.compress(json.dumps(BODIES[path]).encode())
        status, said = await post(proxy, path, packed, {"content-encoding": "gzip"})
        assert status == 415
        assert "'gzip'" in json.loads(said)["error"]["message"]


@pytest.mark.parametrize(
    "head",
    [
        "transfer-encoding: chunked",  # beside its content-length
        "content-length: 3",  # a second one
        "transfer-encoding: gzip, identity",
        "x-folded: a\r\n b",
        "x-space : a",
        "x-nul: a\0b",
    ],
)
async def test_a_head_that_may_be_read_in_two_ways_reaches_no_engine(start_proxy: ProxyFactory, head: str) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        assert await statuses(proxy, request_bytes(TARGET, BODY, head)) == [400]
        assert proxy.engine.requests == []


async def test_a_web_page_of_another_site_may_not_call(start_proxy: ProxyFactory) -> None:
    """A browser asks before it sends JSON elsewhere: whoever has the proxy on loopback without keys is safe from it."""
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        asked = ("host: 127.0.0.1", "origin: http://elsewhere", "access-control-request-method: POST")
        for target in (TARGET, "/v1/messages", "/api/trajectories/run-1/reward"):
            said = await talk(proxy, request_bytes(target, b"", *asked, method="OPTIONS"))
            assert said.split()[1] in (b"404", b"405")
            assert b"access-control-allow" not in said.lower()
