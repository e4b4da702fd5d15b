"""The least that a proxy can be: FastAPI in front, aiohttp behind, bytes passed through, nothing stored or looked at.

`python -m benchmarks.proxy_bare http://127.0.0.1:N` prints its port and serves until it is killed.
"""

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

KEPT = ("authorization", "content-type", "user-agent")
"""The request's headers that go on."""


def create_app(upstream: str) -> FastAPI:
    """The application."""
    session: aiohttp.ClientSession

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        nonlocal session
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=4)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            yield

    app = FastAPI(lifespan=life)

    @app.post("/{path:path}")
    async def forward(path: str, request: Request) -> Response:
        """One call."""
        headers = {name: value for name, value in request.headers.items() if name in KEPT}
        answer = await session.post(f"{upstream}/{path}", data=await request.body(), headers=headers)
        kind = answer.headers["content-type"]
        if answer.content_type == "text/event-stream":
            return StreamingResponse(_pieces(answer), answer.status, {"content-type": kind})
        async with answer:
            return Response(await answer.read(), answer.status, {"content-type": kind})

    return app


async def _pieces(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async with answer:
        async for piece in answer.content.iter_any():
            yield piece


def main() -> None:
    """Serve on a free loopback port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        create_app(sys.argv[1]), loop="uvloop", http="httptools", log_level="warning", access_log=False
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
