"""Takes one call to the engine and its answer back to the client, whatever happens on either side.

The engine's bytes go to the client as they come; the call is made durable while the very last piece (the final event
of a stream, or a whole body) is held back, so that nothing a client has received in full can be lost. While nothing
comes, the client of a stream gets keep-alives. A request is sent once; only where no connection came about is it tried
again.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterator, MutableMapping
from typing import Any

import aiohttp
import orjson
import structlog

from adapters.wires.sse import EventSplitter
from adapters.wires.wire import MESSAGES, RESPONSES, Shown
from mosaic.capture import CallStatus
from mosaic.settings import Settings
from proxy.exchange import Exchange
from proxy.recorder import Recorder
from proxy.token_path import Made, TokenPath
from proxy.upstream import RETRY_S, Upstream, shown_headers
from proxy.weights import UNKNOWN, Weights

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_ERROR = 500
"""Bytes of an error answer that are kept with the call."""
NOT_REACHED = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""An engine that does not listen, or is too busy to take a connection within `connect_timeout_s`."""
CODINGS = frozenset({"", "identity", "gzip", "deflate", "br", "zstd"})
"""Content codings that are taken off on the way."""
OVERFLOW = ("maximum context length", "longer than the maximum model length", "context length exceeded")
"""How vLLM says that a conversation no longer fits."""
STREAM_HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]

log = structlog.get_logger()


class Relay:
    """The way of calls through one worker."""

    def __init__(
        self,
        settings: Settings,
        upstream: Upstream,
        recorder: Recorder,
        weights: Weights,
        token_path: TokenPath | None,
    ) -> None:
        self._settings = settings
        self._upstream = upstream
        self._recorder = recorder
        self._journal = recorder.journal
        self._weights = weights
        self._token_path = token_path

    async def run(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Run the exchange until it ends or the client leaves, whichever comes first."""
        if self._settings.record:
            exchange.entry = self._journal.begin(exchange.origin, exchange.opened.recorded)
        work = asyncio.ensure_future(self._forward(exchange, _Client(exchange, send, self._settings.ping_s)))
        gone = asyncio.ensure_future(_until_disconnect(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if exchange.status is CallStatus.ABORTED:  # else it is being recorded as it ended
                exchange.ended(CallStatus.INTERRUPTED, "the proxy was stopped before the answer ended")
            raise
        finally:
            # Also when the server shuts down: cancelling the work closes the connection, and vLLM stops generating.
            gone.cancel()
            if not work.done():
                work.cancel()
            await asyncio.gather(work, gone, return_exceptions=True)
            if exchange.status in (CallStatus.ABORTED, CallStatus.INTERRUPTED):
                await self._record(exchange)
        if not work.cancelled() and (error := work.exception()) is not None:
            log.error("exchange failed", call=exchange.call_id, error=repr(error))
            raise error

    async def _record(self, exchange: Exchange) -> None:
        if not self._settings.record:
            return
        left: asyncio.CancelledError | None = None
        try:
            if exchange.status is CallStatus.OK:
                try:
                    exchange.weights = await self._weights.told(exchange.target, exchange.asked)
                except asyncio.CancelledError as error:  # the client leaves meanwhile: recorded all the same
                    exchange.weights, left = UNKNOWN, error
            await self._recorder.record(exchange.entry, exchange.trace())
        except Exception as error:  # noqa: BLE001 - whatever it is, the client's answer comes first
            self._recorder.lose()
            log.error("call LOST: it could not be recorded", call=exchange.call_id, error=repr(error))
        if left is not None:
            raise left

    async def _forward(self, exchange: Exchange, client: "_Client") -> None:
        with client:
            try:
                async with await self._reach(exchange) as response:
                    exchange.http_status = response.status
                    exchange.asked = self._weights.look(exchange.target)
                    _check_usable(response)
                    if response.status == 200 and response.content_type == "text/event-stream":
                        await self._stream(exchange, response, client)
                    else:
                        await self._whole(exchange, response, client)
            except (aiohttp.ClientError, TimeoutError) as error:
                await self._failed(exchange, client, error)

    async def _reach(self, exchange: Exchange) -> aiohttp.ClientResponse | Made:
        """The engine's answer. While it does not listen (it is being restarted), new calls wait for it."""
        deadline = time.monotonic() + self._settings.engine_wait_s
        while True:
            try:
                if self._token_path is not None and (made := await self._token_path.send(exchange)) is not None:
                    return made
                return await self._upstream.send(
                    "POST",
                    exchange.target,
                    exchange.wire.upstream + exchange.query,
                    exchange.opened.sent,
                    exchange.headers,
                )
            except NOT_REACHED:  # nothing was sent: trying again repeats nothing
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(RETRY_S)

    async def _failed(self, exchange: Exchange, client: "_Client", error: Exception) -> None:
        exchange.ended(CallStatus.FAILED, f"engine: {error or type(error).__name__}")
        unreachable = isinstance(error, NOT_REACHED)
        if not client.started:
            exchange.http_status = 503 if unreachable else 502
        await self._record(exchange)
        if client.started:  # looked at last: a keep-alive may begin the stream while the call is recorded
            await client.last(exchange.opened.shown.failed(exchange.error or ""))
            return
        message = f"the engine at {exchange.target.shown} cannot be reached ({error or type(error).__name__})."
        next_step = "Check that vLLM runs there (`upstream` in mosaic.toml, or --upstream)."
        body = exchange.wire.error_body(exchange.http_status, f"{message} {next_step}", "upstream_unreachable")
        headers = _json_headers(retry_after=unreachable)
        if not unreachable:  # the engine may have acted on it: SDKs repeat a 5xx by themselves unless they are told
            headers.append((b"x-should-retry", b"false"))
        await client.whole(exchange.http_status, headers, body)

    async def _whole(self, exchange: Exchange, response: aiohttp.ClientResponse | Made, client: "_Client") -> None:
        body = await response.read()
        exchange.pieces.append((time.time(), body))
        if response.status != 200:
            await self._refused(exchange, response, client, body)
            return
        shown = exchange.opened.shown
        body = shown.whole(body)
        error = "it sent no stream" if client.started else shown.error  # keep-alives have begun one
        if error is None:
            exchange.ended(CallStatus.OK)
        else:
            exchange.ended(CallStatus.FAILED, f"engine: {error}")
        # Nobody can use a part of it: it is held until it is recorded.
        await self._record(exchange)
        if client.started:
            await client.last(shown.failed(exchange.error or "engine: it sent no stream"))
        else:
            # A response says itself that it failed; a message has only its status for that.
            broken = shown.error is not None and exchange.wire is MESSAGES
            await client.whole(500 if broken else 200, shown_headers(response.headers), body)

    async def _refused(
        self, exchange: Exchange, response: aiohttp.ClientResponse | Made, client: "_Client", body: bytes
    ) -> None:
        """The engine's refusal in the client's wire. An overflow is named as agents know it, so that they compact."""
        exchange.ended(CallStatus.FAILED, f"engine answered {response.status}: {_said(body)}")
        await self._record(exchange)
        message = _message_of(body)
        code = "context_length_exceeded" if any(words in message for words in OVERFLOW) else None
        in_stream = exchange.opened.stream and exchange.wire is RESPONSES and code is not None
        if client.started or in_stream:  # Codex compacts on a failed response alone, not on an HTTP status
            await client.start(STREAM_HEADERS)
            await client.last(exchange.opened.shown.failed(message, code))
            return
        headers = answer_headers(response)
        if exchange.wire.translated or code is not None:
            body = exchange.wire.error_body(response.status, message, code)
        await client.whole(response.status, headers, body)

    async def _stream(self, exchange: Exchange, response: aiohttp.ClientResponse | Made, client: "_Client") -> None:
        exchange.event_stream = True
        await client.start(shown_headers(response.headers))
        splitter, shown, held = EventSplitter(), exchange.opened.shown, b""
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
                    await client.more(ready)
        if last := splitter.last():
            held += shown.event(last)
        if shown.done and shown.error is None:
            exchange.ended(CallStatus.OK)
            await self._record(exchange)
            await client.last(held)
            return
        error = shown.error or "the stream ended without its last event"
        exchange.ended(CallStatus.FAILED, f"engine: {error}")
        await self._record(exchange)
        # An error that the engine has told within the stream is not told again.
        await client.last(held if shown.done or shown.error is not None else shown.failed(exchange.error or ""))


class _Client:
    """The client's side of an exchange: what it has been sent, and keep-alives while there is nothing to send."""

    def __init__(self, exchange: Exchange, send: Send, ping_s: float) -> None:
        self._exchange = exchange
        self._send = send
        self._ping_s = ping_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Future[None] | None = None
        self._sent_at = self._loop.time()
        self._ended = False
        self.started = False

    def __enter__(self) -> "_Client":
        if self._exchange.opened.stream and self._ping_s > 0:
            self._timer = self._loop.call_later(self._ping_s, self._quiet)
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()

    def _quiet(self) -> None:
        if self._ended:
            return
        if self._loop.time() - self._sent_at >= self._ping_s * 0.9:
            self._ping = asyncio.ensure_future(self._keep_alive())
        self._timer = self._loop.call_later(self._ping_s, self._quiet)

    async def _keep_alive(self) -> None:
        if not self.started:
            await self.start(STREAM_HEADERS)
        if not self._ended:
            await self.more(self._exchange.wire.ping)

    async def start(self, headers: list[tuple[bytes, bytes]]) -> None:
        """The status line of a stream, once, and what its wire begins with."""
        if self.started:
            return
        self.started = True
        await _send_start(self._send, 200, [*headers, *self._ids()], None)
        if opening := self._exchange.opened.shown.opening():
            await self.more(opening)

    async def more(self, data: bytes) -> None:
        """Events of a stream."""
        self._sent_at = self._loop.time()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def last(self, data: bytes) -> None:
        """The end of a stream."""
        self._ended = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """A whole answer."""
        self._ended = self.started = True
        await send_whole(self._send, status, [*headers, *self._ids()], body)

    def _ids(self) -> list[tuple[bytes, bytes]]:
        """The call's id, and its trajectory's where the request named it; lineage finds others only later."""
        found = [(b"x-mosaic-call-id", self._exchange.call_id.encode())]
        if (named := self._exchange.origin.trajectory_id) is not None:
            found.append((b"x-mosaic-trajectory", named.encode()))
        return found


@contextlib.contextmanager
def _reset_after_the_end(shown: Shown) -> Iterator[None]:
    """A connection that breaks after the stream's last event has broken nothing."""
    try:
        yield
    except aiohttp.ClientError:
        if not shown.done:
            raise


def answer_headers(response: aiohttp.ClientResponse | Made) -> list[tuple[bytes, bytes]]:
    """The engine's headers; a busy one says when to come again."""
    headers = shown_headers(response.headers)
    if response.status in (429, 503) and "retry-after" not in response.headers:
        headers.append((b"retry-after", b"1"))
    return headers


async def while_there(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Do the work until it ends or the client, whose request has been read, leaves."""
    doing, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_disconnect(receive))
    try:
        await asyncio.wait({doing, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        if not doing.done():
            doing.cancel()
        await asyncio.gather(doing, gone, return_exceptions=True)
    if not doing.cancelled():
        doing.result()


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _check_usable(response: aiohttp.ClientResponse | Made) -> None:
    """Raises `ClientPayloadError` for what no client may get: a way past the proxy, or bytes under a false name."""
    coding = response.headers.get("content-encoding", "identity").lower()
    if 300 <= response.status < 400:
        raise aiohttp.ClientPayloadError(f"it answered with a redirect ({response.status})")
    if coding not in CODINGS:
        raise aiohttp.ClientPayloadError(f"it answered in the unknown coding {coding!r}")


def _message_of(body: bytes) -> str:
    try:
        parsed = orjson.loads(body)
        error = parsed.get("error", parsed)
        return str(error["message"] if isinstance(error, dict) else error)
    except (orjson.JSONDecodeError, KeyError, AttributeError, TypeError):
        return _said(body) or "the engine gave no reason"


def _said(body: bytes) -> str:
    """The start of an error answer, for the record."""
    return body[:MAX_ERROR].decode("utf-8", "replace")


def _json_headers(*, retry_after: bool = False) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), *([(b"retry-after", b"2")] if retry_after else [])]


async def send_error(send: Send, status: int, body: bytes) -> None:
    """An error of ours, in a wire's shape."""
    await send_whole(send, status, _json_headers(retry_after=status in (429, 503)), body)


async def send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    """A whole answer."""
    await _send_start(send, status, headers, len(body))
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _send_start(send: Send, status: int, headers: list[tuple[bytes, bytes]], length: int | None) -> None:
    if length is not None:
        headers = [*headers, (b"content-length", str(length).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
