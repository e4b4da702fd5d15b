"""An engine that sends the very bytes that a test gives it, and closes as it is told: for faults below HTTP.

It keeps each request as it came, byte for byte. Its list of models is answered without being recorded.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum

MODELS = b'{"object":"list","data":[{"id":"policy","object":"model"}]}'


class End(Enum):
    """What the engine does instead of sending."""

    FIN = "fin"
    """Closes in order."""
    RESET = "reset"
    """Closes so that the other side gets a reset."""
    HALF = "half"
    """Sends FIN, and goes on reading until the other side has closed."""
    HANG = "hang"
    """Sends nothing more, and waits until the other side has closed."""
    PAUSE = "pause"
    """Waits until the test sets `go`, then goes on."""


Step = bytes | End
Reply = Callable[["RawRequest"], Sequence[Step]]


@dataclass(frozen=True)
class RawRequest:
    """A request as it came."""

    line: str
    """Method and target, for example `POST /v1/chat/completions`."""
    headers: list[tuple[str, str]]
    """Names in lower case, in their order, repeated ones repeated."""
    body: bytes

    def all(self, name: str) -> list[str]:
        """The values of one header."""
        return [value for key, value in self.headers if key == name]


def head(*lines: str, status: str = "200 OK") -> bytes:
    """A response's head; each line is a header."""
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


def whole(body: bytes, *lines: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """A response of known length."""
    return head(f"content-type: {kind}", f"content-length: {len(body)}", *lines, status=status) + body


def event_stream(*lines: str) -> bytes:
    """The head of a stream that ends with the connection."""
    return head("content-type: text/event-stream; charset=utf-8", "connection: close", *lines)


def chunked(data: bytes) -> bytes:
    """One chunk of a chunked body; the last one is `chunked(b"")`."""
    return b"%x\r\n%s\r\n" % (len(data), data)


@dataclass
class RawEngine:
    """Use as `async with RawEngine(reply).serve() as base_url`."""

    reply: Reply
    models: bytes = field(default_factory=lambda: whole(MODELS))
    """The whole response to `GET /v1/models`."""
    requests: list[RawRequest] = field(default_factory=list)
    connections: int = 0
    sent: int = 0
    """Bytes that the kernel took of the answers."""
    go: asyncio.Event = field(default_factory=asyncio.Event)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the other side closed while the engine hung or was half closed."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the engine hangs, pauses or has closed its side."""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[str]:
        """Serve on a free loopback port."""
        tasks: set[asyncio.Task[None]] = set()

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            tasks.add(task)
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
            writer.close()
            tasks.discard(task)

        server = await asyncio.start_server(accepted, "127.0.0.1", 0, limit=2**26)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        finally:
            server.close()
            for task in list(tasks):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while True:
            request = await _read(reader)
            if request.line == "GET /v1/models":
                writer.write(self.models)
                await writer.drain()
                continue
            self.requests.append(request)
            for step in self.reply(request):
                if isinstance(step, bytes):
                    writer.write(step)
                    self.sent += len(step)
                    await writer.drain()
                else:
                    await self._end(step, reader, writer)
                    if step is not End.PAUSE:
                        return

    async def _end(self, end: End, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached.set()
        if end is End.PAUSE:
            await self.go.wait()
        elif end is End.RESET:
            raw = writer.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
        elif end is not End.FIN:
            if end is End.HALF:
                writer.write_eof()
            await reader.read()
            self.left.set()


async def _read(reader: asyncio.StreamReader) -> RawRequest:
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = text.split("\r\n")[:-2]
    pairs = [line.split(":", 1) for line in lines]
    headers = [(name.strip().lower(), value.strip()) for name, value in pairs]
    length = int(dict(headers).get("content-length", 0))
    return RawRequest(first.removesuffix(" HTTP/1.1"), headers, await reader.readexactly(length))
