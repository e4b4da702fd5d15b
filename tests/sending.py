"""A server that sends bytes of one's choice, whatever it is asked."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def sending(*parts: bytes, drips: bool = False) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that sends these bytes to whoever asks, then one more every 10 ms or nothing; with what it was sent."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.writelines(parts)
        try:
            while drips:
                writer.write(b"x")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


def answer(body: bytes, status: str = "200 OK", more: bytes = b"") -> bytes:
    """The bytes of an answer; `more` are lines of its head."""
    return b"HTTP/1.1 %b\r\nconnection: close\r\ncontent-length: %d\r\n%b\r\n%b" % (
        status.encode(),
        len(body),
        more,
        body,
    )
