"""Fixtures shared by all tests: a proxy on a free port before a scripted engine, stopped by the test itself."""

import asyncio
import secrets
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvicorn
from hypothesis import HealthCheck, settings

from mosaic.settings import Settings
from mosaic.store import Store
from proxy.app import create_app
from proxy.connections import Connection
from tests.engine import ScriptedEngine
from tests.engine.scripted import Script
from tests.postgres import Server, server

# Machines are shared: how long an example takes says nothing.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")


@dataclass
class Proxy:
    """A running proxy and what stands around it."""

    url: str
    engine: ScriptedEngine
    settings: Settings
    store: Store


ProxyFactory = Callable[..., AbstractAsyncContextManager[Proxy]]


@asynccontextmanager
async def serving(settings: Settings, port: int = 0) -> AsyncIterator[str]:
    """Serve the proxy in this event loop, on a free port unless it is given; yields its address."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    config = uvicorn.Config(create_app(settings), http=Connection, log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    running = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
        if running.done():
            await running
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listener.close()


async def until(condition: Callable[[], object], seconds: float = 20.0) -> None:
    """Return as soon as the condition holds; fail when it does not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.01)


@pytest.fixture
def start_proxy(tmp_path: Path) -> ProxyFactory:
    """Call with a script or an engine (and settings) to get a running proxy before a scripted engine."""

    @asynccontextmanager
    async def start(script: Script | ScriptedEngine, **overrides: object) -> AsyncIterator[Proxy]:
        engine = script if isinstance(script, ScriptedEngine) else ScriptedEngine(script)
        async with engine.serve() as upstream:
            values = {
                "upstream": upstream,
                "database": f"sqlite:///{tmp_path}/mosaic.db",
                "spool": tmp_path / "spool",
                "writer_process": False,
                "commit_first": True,
                **overrides,
            }
            settings = Settings(**values)  # type: ignore[arg-type]
            async with serving(settings) as url:
                store = Store(settings.database)
                try:
                    yield Proxy(url, engine, settings, store)
                finally:
                    store.close()

    return start


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Server]:
    """One PostgreSQL server for the whole run, started by the first test that needs it."""
    with server() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a fresh, empty database; PostgreSQL is started only where a test asks for it."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/mosaic.db"
        return
    postgres: Server = request.getfixturevalue("postgres_server")
    # A test that failed while the server was stopped must not take the others with it.
    postgres.start()
    name = f"test_{secrets.token_hex(8)}"
    yield postgres.create(name)
    postgres.start()
    postgres.drop(name)
