"""What the tests of faults between a client and an engine are made of: raw engines, requests, and how answers are read.

Each test stands for a kind of fault that was reported against another proxy (docs/faults.md).
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from adapters.wires.wire import WIRES, Context, Opened, Wire
from mosaic.capture import CallStatus, CapturedCall
from mosaic.store.checking import check
from proxy.trace import Origin, Trace, captured
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Turn
from tests.engine.raw import RawEngine, Reply, Step
from tests.engine.scripted import answer_to

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
LEAVING_S = 0.2
"""Seconds within which an engine hears that a client has left."""
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


def opened(wire: Wire, path: str, **fields: Any) -> Opened:
    """A request of the wire, read."""
    body = {**BODIES[path], **fields}
    return wire.open(json.dumps(body).encode(), body, Context("call-1", 1e9))


def record_of(path: str, body: bytes, pieces: Sequence[bytes], *, stream: bool = True) -> CapturedCall:
    """What is recorded of a request and its answer in pieces."""
    origin = Origin("call-1", WIRES[path].name, None, "lineage", "client", None, 0, True, {}, 1e9)
    timed = tuple((1e9 + at, piece) for at, piece in enumerate(pieces))
    return captured(Trace(origin, body, timed, stream, CallStatus.OK, 200, None, 2e9))
