"""A client's connection: uvicorn's, with bounds on the head of a request, which the server itself does not have.

A connection on which no request has begun for a while is closed, one whose request's head is not complete in time gets
a 408, one whose head is too large a 431. Bodies and keep-alive have bounds of their own (`routes`, uvicorn). An
answer's head leaves together with what follows it.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 60.0
"""Seconds from the connection's, or from the head's first byte on, until the head must be complete."""
MAX_HEAD_BYTES = 2**20
"""About the largest head of a request, its request line included."""


class _Joining:
    """A connection's transport, which sends the head of an answer with what follows it at once: one packet, not two.

    uvicorn writes them one after the other, and uvloop each in a system call of its own.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send it now, or, if it is a head, at the end of the loop's turn at the latest."""
        if self._head:
            data, self._head = self._head + data, b""
            self._transport.write(data)
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Send what is held, and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            head, self._head = self._head, b""
            self._transport.write(head)


class Connection(HttpToolsProtocol):
    """One connection of a client."""

    _in_head = True
    _head_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; its first request is awaited."""
        super().connection_made(_Joining(transport, self.loop))  # type: ignore[arg-type]
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._unset_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came."""
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refuse(b"431 Request Header Fields Too Large")
        elif self._deadline is None and (self._in_head or not self._answering()):
            self._set_deadline()

    def on_message_begin(self) -> None:
        """A request's first byte."""
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The end of its head."""
        self._in_head, self._head_bytes = False, 0
        self._unset_deadline()
        super().on_headers_complete()

    def _set_deadline(self) -> None:
        self._deadline = self.loop.call_later(HEAD_S, self._late)

    def _unset_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _late(self) -> None:
        if self._answering():  # the request before this one; what it still gets is not cut
            self._set_deadline()
        elif self._head_bytes:
            self._refuse(b"408 Request Timeout")
        else:
            self.transport.close()

    def _refuse(self, status: bytes) -> None:
        if not self._answering():  # else it would stand in the middle of the answer before
            self.transport.write(b"HTTP/1.1 " + status + b"\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()
