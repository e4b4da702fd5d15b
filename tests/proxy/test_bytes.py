"""Bytes in any division and coding."""

import asyncio
import gzip
import json
import socket
import zlib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from adapters.wires.sse import EventSplitter
from adapters.wires.wire import WIRES
from mosaic.capture import CapturedCall
from tests.conftest import ProxyFactory
from tests.engine import Turn
from tests.engine.raw import End, Step, event_stream, whole
from tests.proxy.faults import (
    BODIES,
    PATHS,
    TEXT,
    before,
    opened,
    post,
    record_of,
    replying,
    request_bytes,
    row,
    talk,
    text_in,
    wire_stream,
    wire_whole,
)


def encoded(name: str, body: bytes) -> bytes:
    if name == "gzip":
        return gzip.compress(body)
    if name == "deflate":
        return zlib.compress(body)
    return body


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=60)
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
