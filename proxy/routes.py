"""The model path: pure ASGI, so that bytes leave as they come and a client's leaving is seen at once.

The engine's bytes go to the client first; the call is committed while the very last piece (the final SSE event, or the
last byte of a whole body) is held back, so that nothing a client has received in full can be lost. A failure in
recording never changes what the client gets.
"""

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import aiohttp
import orjson
import structlog

from adapters.wires.chat import Shown, Untouched
from adapters.wires.sse import EventSplitter
from mosaic.capture import CallStatus
from mosaic.errors import RequestError
from mosaic.settings import Settings
from proxy.access import check_key
from proxy.exchange import Exchange, open_exchange, origin_of
from proxy.journal import Journal
from proxy.recorder import Recorder
from proxy.upstream import Upstream, shown_headers

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_PATH = re.compile(r"(?:/t/(?P<trajectory>[^/]+))?/v1/(?P<rest>.+)")
_TRAJECTORY = re.compile(r"(?!\.{1,2}$)[\w.:@+~-]{1,200}", re.ASCII)

MAX_ERROR = 500
"""Bytes of an error answer that are kept with the call."""

log = structlog.get_logger()


class ModelPath:
    """`/v1/...` and `/t/<trajectory>/v1/...`."""

    def __init__(self, settings: Settings, upstream: Upstream, recorder: Recorder, journal: Journal) -> None:
        self._settings = settings
        self._upstream = upstream
        self._recorder = recorder
        self._journal = journal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        try:
            check_key(self._settings, headers)
            trajectory_id, attribution, rest = _attribution(scope["path"], headers)
            if scope["method"] == "GET" and rest == "models":
                await self._pass_through(rest, headers, send)
            elif scope["method"] == "POST" and rest == "chat/completions":
                raw = await self._body(receive)
                origin = origin_of(headers, trajectory_id, attribution)
                exchange = open_exchange(raw, origin, headers, self._settings.record)
                if self._settings.record:
                    exchange.entry = self._journal.begin(origin, raw)
                await self._exchange(exchange, receive, send)
            else:
                raise RequestError(
                    f"{scope['method']} /v1/{rest} is not served.",
                    "Served are POST /v1/chat/completions and GET /v1/models.",
                    status=404,
                )
        except RequestError as error:
            await _send_error(send, error.status, str(error), "invalid_request_error")

    async def _body(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise RequestError("the client left before its request was complete.", status=499)
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if size > self._settings.max_body_bytes:
                limit = self._settings.max_body_bytes
                raise RequestError(f"the body is larger than {limit} bytes.", "Raise max_body_bytes.", status=413)
            if not event.get("more_body"):
                return b"".join(parts)

    async def _pass_through(self, rest: str, headers: dict[str, str], send: Send) -> None:
        try:
            async with self._upstream.send("GET", rest, None, headers) as response:
                body = await response.read()
                await _send_whole(send, response.status, shown_headers(response.headers), body)
        except (aiohttp.ClientError, TimeoutError) as error:
            await self._unreachable(send, error)

    async def _unreachable(self, send: Send, error: Exception) -> None:
        message = f"the engine at {self._settings.upstream} cannot be reached ({error or type(error).__name__})."
        next_step = "Check that vLLM runs there (`upstream` in mosaic.toml, or --upstream)."
        await _send_error(send, 502, f"{message} {next_step}", "upstream_unreachable")

    async def _exchange(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Run the exchange until it ends or the client leaves, whichever comes first."""
        work = asyncio.ensure_future(self._forward(exchange, send))
        gone = asyncio.ensure_future(_until_disconnect(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            exchange.ended(CallStatus.ABORTED, "the proxy was stopped before the answer ended")
            raise
        finally:
            # Also when the server shuts down: cancelling the work closes the connection, and vLLM stops generating.
            gone.cancel()
            if not work.done():
                work.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            if exchange.status is CallStatus.ABORTED:
                await self._record(exchange)
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error("exchange failed", call=exchange.call_id, error=repr(error))
            raise error

    async def _record(self, exchange: Exchange) -> None:
        if self._settings.record:
            await self._recorder.record(exchange.trace(), lambda: self._journal.end(exchange.entry))

    async def _forward(self, exchange: Exchange, send: Send) -> None:
        try:
            request = self._upstream.send("POST", "chat/completions", exchange.sent, exchange.headers)
            async with request as response:
                exchange.http_status = response.status
                if response.status == 200 and response.content_type == "text/event-stream":
                    await self._stream(exchange, response, send)
                else:
                    await self._whole(exchange, response, send)
        except (aiohttp.ClientError, TimeoutError) as error:
            exchange.ended(CallStatus.FAILED, f"engine: {error or type(error).__name__}")
            if exchange.event_stream:
                await self._end_broken_stream(exchange, send)
                return
            exchange.http_status = 502
            await self._record(exchange)
            await self._unreachable(send, error)

    async def _whole(self, exchange: Exchange, response: aiohttp.ClientResponse, send: Send) -> None:
        body = await response.read()
        exchange.pieces.append((time.time(), body))
        if response.status == 200:
            body = exchange.shown.whole(body)
            exchange.ended(CallStatus.OK)
        else:
            body = _with_next_step(response.status, body)
            exchange.ended(CallStatus.FAILED, f"engine answered {response.status}: {_said(body)}")
        headers = [*shown_headers(response.headers), (b"x-mosaic-call-id", exchange.call_id.encode())]
        # Nobody can use a part of it: it is held until it is recorded.
        await self._record(exchange)
        await _send_whole(send, response.status, headers, body)

    async def _stream(self, exchange: Exchange, response: aiohttp.ClientResponse, send: Send) -> None:
        headers = [*shown_headers(response.headers), (b"x-mosaic-call-id", exchange.call_id.encode())]
        await _send_start(send, 200, headers, None)
        exchange.event_stream = True
        splitter, shown, held = EventSplitter(), exchange.shown, b""
        with _reset_after_the_end(shown):
            async for chunk in response.content.iter_any():
                now = time.time()
                exchange.pieces.append((now, chunk))
                self._journal.piece(exchange.entry, chunk, now)
                out = []
                for event in splitter.feed(chunk):
                    part = shown.event(event)
                    if shown.done:
                        held += part
                    else:
                        out.append(part)
                if ready := b"".join(out):
                    await send({"type": "http.response.body", "body": ready, "more_body": True})
        if shown.error is not None:
            exchange.ended(CallStatus.FAILED, f"engine: {shown.error}")
        elif shown.done:
            exchange.ended(CallStatus.OK)
        else:
            exchange.ended(CallStatus.FAILED, "engine: the stream ended without [DONE]")
            await self._end_broken_stream(exchange, send)
            return
        await self._record(exchange)
        await send({"type": "http.response.body", "body": held + splitter.rest(), "more_body": False})

    async def _end_broken_stream(self, exchange: Exchange, send: Send) -> None:
        """Tell the client, in its wire's own way, that the stream did not end well."""
        await self._record(exchange)
        event = b"data: " + orjson.dumps(_error(exchange.error or "", "upstream_error")) + b"\n\n"
        await send({"type": "http.response.body", "body": event, "more_body": False})


def _attribution(path: str, headers: dict[str, str]) -> tuple[str | None, str, str]:
    """(trajectory id or None, what named it, path after /v1/). Raises `RequestError` for a bad id or path."""
    match = _PATH.fullmatch(path)
    if match is None:
        raise RequestError(f"{path} is not served.", "Use /v1/... or /t/<trajectory>/v1/...", status=404)
    in_path, in_header = match["trajectory"], headers.get("x-mosaic-trajectory")
    trajectory_id = in_path or in_header
    if trajectory_id is not None and not _TRAJECTORY.fullmatch(trajectory_id):
        raise RequestError(
            f"trajectory id {trajectory_id!r} is not usable.", "Use up to 200 of A-Z a-z 0-9 . _ : @ + ~ -"
        )
    attribution = "path" if in_path else "header" if in_header else "lineage"
    return trajectory_id, attribution, match["rest"]


@contextmanager
def _reset_after_the_end(shown: Shown | Untouched) -> Iterator[None]:
    """A connection that breaks after the stream's last event has broken nothing."""
    try:
        yield
    except aiohttp.ClientError:
        if not shown.done:
            raise


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _error(message: str, kind: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _said(body: bytes) -> str:
    """The start of an error answer, for the record."""
    return body[:MAX_ERROR].decode("utf-8", "replace")


def _with_next_step(status: int, body: bytes) -> bytes:
    """The engine's 404 for an unknown model, with what to do about it."""
    if status != 404:
        return body
    try:
        parsed = orjson.loads(body)
        parsed["error"]["message"] += " GET /v1/models lists the models that are served."
        return orjson.dumps(parsed)
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body


async def _send_error(send: Send, status: int, message: str, kind: str) -> None:
    body = orjson.dumps(_error(message, kind))
    await _send_whole(send, status, [(b"content-type", b"application/json")], body)


async def _send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await _send_start(send, status, headers, len(body))
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _send_start(send: Send, status: int, headers: list[tuple[bytes, bytes]], length: int | None) -> None:
    if length is not None:
        headers = [*headers, (b"content-length", str(length).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
