"""The commands that the proxy adds to `mosaic`."""

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
import uvicorn
from uvicorn.supervisors import Multiprocess

from mosaic.errors import MosaicError, SettingsError
from mosaic.settings import Settings, load, shown_url
from mosaic.store import Store
from proxy.access import check_bind, trajectory_key
from proxy.app import Application, create_app

BACKLOG = 2048
"""Connections that may wait while the server starts or is busy."""


def serve(
    *,
    upstream: str | None = typer.Option(None, help="Base URL of the vLLM that serves the policy."),
    host: str | None = typer.Option(None, help="Address to listen on."),
    port: int | None = typer.Option(None, help="Port to listen on; 0 takes a free one."),
    database: str | None = typer.Option(None, help="SQLAlchemy URL of the store."),
    workers: int | None = typer.Option(None, help="Proxy processes that serve the port together."),
    record: bool | None = typer.Option(None, help="Whether to record calls, or only to forward them."),
) -> None:
    """Stand in front of the engine and record every call."""
    flags = {
        "upstream": upstream,
        "host": host,
        "port": port,
        "database": database,
        "workers": workers,
        "record": record,
    }
    settings = load(**flags)
    check_bind(settings)
    listener = _listen(settings)
    # Also brings the database into being, before several workers would.
    Store(settings.database).close()
    where = f"http://{settings.host}:{listener.getsockname()[1]}"
    typer.echo(
        f"mosaic serves {where}/v1 in front of {settings.upstream}; recording to {shown_url(settings.database)}",
        err=True,
    )
    with _schedule(settings):
        _serve(settings, flags, listener)


def _serve(settings: Settings, flags: Mapping[str, object], listener: socket.socket) -> None:
    if settings.workers > 1:
        _serve_together(settings, flags, listener)
        return
    # uvicorn drains on SIGTERM and then raises the signal again; ending as asked is no failure.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.Server(_config(create_app(settings), settings)).run(sockets=[listener])


@contextmanager
def _schedule(settings: Settings) -> Iterator[None]:
    """Run the schedule of [schedule], if there is one, in a process of its own: the proxy loads nothing of training."""
    if not settings.schedule.starts:
        yield
        return
    command = [sys.executable, "-m", "mosaic", "schedule", "--parent", str(os.getpid())]
    given = {"MOSAIC_UPSTREAM": settings.upstream, "MOSAIC_DATABASE": settings.database}
    process = subprocess.Popen(command, env={**os.environ, **given}, stdin=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(settings.drain_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def key(trajectory: str) -> None:
    """Print a key with which an agent can make calls, and only of this trajectory."""
    typer.echo(trajectory_key(load(), trajectory))


def _serve_together(settings: Settings, flags: Mapping[str, object], listener: socket.socket) -> None:
    """Several workers on one socket, each started anew when it dies. They get the flags as variables."""
    for name, value in flags.items():
        if value is not None:
            os.environ[f"MOSAIC_{name.upper()}"] = str(value)
    config = _config("proxy.app:create_app", settings, factory=True, workers=settings.workers)
    Multiprocess(config, sockets=[listener]).run()


def _config(app: "Application | str", settings: Settings, **options: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        **options,
    )


def _listen(settings: Settings) -> socket.socket:
    """The listening socket. Raises before anything else is started when the port is taken."""
    listener = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise SettingsError(
                f"port {settings.port} on {settings.host} is in use.", "Stop what listens there or pass --port."
            ) from error
        raise MosaicError(f"cannot listen on {settings.host}:{settings.port}: {error}.") from error
    listener.listen(BACKLOG)
    return listener
