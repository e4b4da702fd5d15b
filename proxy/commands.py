"""The commands that the proxy adds to `mosaic`."""

import errno
import signal
import socket

import typer
import uvicorn

from mosaic.errors import MosaicError, SettingsError
from mosaic.settings import Settings, load, shown_url
from proxy.access import check_bind
from proxy.app import create_app

BACKLOG = 2048
"""Connections that may wait while the server starts or is busy."""


def serve(
    upstream: str | None = typer.Option(None, help="Base URL of the vLLM that serves the policy."),
    host: str | None = typer.Option(None, help="Address to listen on."),
    port: int | None = typer.Option(None, help="Port to listen on; 0 takes a free one."),
    database: str | None = typer.Option(None, help="SQLAlchemy URL of the store."),
) -> None:
    """Stand in front of the engine and record every call."""
    settings = load(upstream=upstream, host=host, port=port, database=database)
    check_bind(settings)
    listener = _listen(settings)
    app = create_app(settings)
    where = f"http://{settings.host}:{listener.getsockname()[1]}"
    typer.echo(
        f"mosaic serves {where}/v1 in front of {settings.upstream}; recording to {shown_url(settings.database)}",
        err=True,
    )
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, timeout_graceful_shutdown=max(1, round(settings.drain_s))
    )
    # uvicorn drains on SIGTERM and then raises the signal again; ending as asked is no failure.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listener])


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
