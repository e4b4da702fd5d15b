"""The commands that the proxy adds to `mosaic`."""

import contextlib
import errno
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import structlog
import typer
import uvicorn
from uvicorn.supervisors import Multiprocess

from adapters.harnesses import HARNESSES
from mosaic.errors import MosaicError, SettingsError
from mosaic.keys import trajectory_key
from mosaic.settings import Settings, load
from mosaic.store import Store, relinking
from mosaic.terminal import DATABASE, JSON, print_json, progress
from mosaic.urls import shown_url
from proxy import engine_watch, spans
from proxy.access import check_bind
from proxy.app import Application, create_app
from proxy.belonging import Belonging
from proxy.connections import Connection
from proxy.figures import total
from proxy.reading import waiting_calls

BACKLOG = 2048
"""Connections that may wait while the server starts or is busy."""
MAX_DESCRIPTORS = 65_536
"""Files and connections that may be open."""

log = structlog.get_logger()


def serve(
    *,
    upstream: str | None = typer.Option(None, help="Base URL of the vLLM that serves the policy."),
    host: str | None = typer.Option(None, help="Address to listen on."),
    port: int | None = typer.Option(None, help="Port to listen on; 0 takes a free one."),
    database: str | None = typer.Option(None, help="SQLAlchemy URL of the store."),
    workers: int | None = typer.Option(None, help="Proxy processes that serve the port together."),
    record: bool | None = typer.Option(None, help="Whether to record calls, or only to forward them."),
) -> None:
    """Stand in front of the engine and record every call.

    Agents speak to it as to the engine, under `/v1` or, to name the attempt, `/t/NAME/v1`; the dashboard is at `/ui`.
    An address that others can reach needs `api_keys`. With a `[schedule]` in mosaic.toml training jobs start by
    themselves. SIGTERM lets open calls end for `drain_s`.

        mosaic serve --upstream http://localhost:8000/v1
        mosaic serve --workers 4 --database postgresql://mosaic@localhost/mosaic
        mosaic serve --host 0.0.0.0 --port 80
    """
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
    if settings.otel:
        spans.require()
    _raise_limits()
    listener = _listen(settings)
    belonging = Belonging(settings)
    # Also brings the database into being, before several workers would.
    Store(settings.database).close()
    where = f"http://{settings.host}:{listener.getsockname()[1]}"
    engine = shown_url(settings.upstream)
    said = f"mosaic serves {where}/v1 in front of {engine}; recording to {shown_url(settings.database)}"
    # Until uvicorn listens to signals, being asked to end must still end the schedule too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.closing(belonging), _schedule(settings):
        _serve(settings, flags, listener, said)


def _raise_limits() -> None:
    """As many descriptors as the system lets us have: each open call takes two, and shells give 1,024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _serve(settings: Settings, flags: Mapping[str, object], listener: socket.socket, said: str) -> None:
    lost = total(settings.spool)["lost"]
    if settings.workers > 1:
        typer.echo(said, err=True)
        with engine_watch.running(settings):
            _serve_together(settings, flags, listener)
        _say_stored(settings, lost)
        return
    server = uvicorn.Server(_config(create_app(settings), settings))
    # uvicorn drains on SIGTERM and then raises the signal again; ending as asked is no failure. Nor is it one to be
    # asked before uvicorn listens to signals.
    signal.signal(signal.SIGTERM, lambda *_: setattr(server, "should_exit", True))
    typer.echo(said, err=True)
    with contextlib.suppress(KeyboardInterrupt), engine_watch.running(settings):  # nor, for the same reason, is Ctrl-C
        server.run(sockets=[listener])
    _say_stored(settings, lost)


def _say_stored(settings: Settings, lost_before: int) -> None:
    if not settings.record:
        log.info("stopped")
    elif lost := total(settings.spool)["lost"] - lost_before:
        log.error("stopped; calls are LOST: the disk did not take them", calls=lost, folder=str(settings.spool))
    elif waiting := waiting_calls(settings.spool):
        where = {"calls": waiting, "folder": str(settings.spool)}
        log.warning("stopped; calls wait on the disk until the next start stores them", **where)
    else:
        log.info("stopped; all calls are stored")


def relink(
    *,
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would change."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Find sessions and trajectories again from the recorded calls, with the rules and tables of this release.

    States and rewards stay with their trajectories. Run it after an upgrade, or after a harness was added.

        mosaic relink --dry-run
        mosaic relink --json
    """
    settings = load(database=database)
    store = Store(settings.database, settings.reward_window_s, create=False)
    with progress("relinking") as on_progress:
        found = relinking.relink(store.database, HARNESSES, dry_run=dry_run, on_progress=on_progress)
    store.close()
    if as_json:
        print_json({**asdict(found), "dry_run": dry_run})
        return
    for moved in found.moved:
        typer.echo(f"{moved.call_id}: {' / '.join(map(str, moved.before))} -> {' / '.join(map(str, moved.after))}")
    would = "would be " if dry_run else ""
    typer.echo(
        f"{found.calls} calls; {would}moved: {len(found.moved)}; {would}linked otherwise: {found.links} sessions; "
        f"{would}given their evidence: {found.filled}"
    )


@contextlib.contextmanager
def _schedule(settings: Settings) -> Iterator[None]:
    """Run the schedule of [schedule], if there is one, in a process of its own: the proxy loads nothing of training."""
    if not settings.schedule.starts:
        yield
        return
    command = [sys.executable, "-m", "mosaic", "schedule", "--parent", str(os.getpid())]
    given = {"MOSAIC_UPSTREAM": settings.upstream, "MOSAIC_DATABASE": settings.database}
    asked: list[int] = []
    # While the process is made nobody has it yet to end it.
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    process = subprocess.Popen(command, env={**os.environ, **given}, stdin=subprocess.DEVNULL)
    try:
        signal.signal(signal.SIGTERM, before)
        if asked:
            signal.raise_signal(signal.SIGTERM)
        yield
    finally:
        process.terminate()
        try:
            process.wait(settings.drain_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def key(trajectory: str = typer.Argument(help="Name of the attempt, new or not.")) -> None:
    """Print a key with which an agent can make calls, and only of this trajectory.

    It is signed with `trajectory_secret`, which `mosaic serve` needs too, kept nowhere, and opens nothing else: an
    agent that can only be given a key so names its attempt.

        mosaic key run-17
    """
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
        log_config=None,
        access_log=False,
        proxy_headers=False,
        http=Connection,
        timeout_graceful_shutdown=max(1, round(settings.drain_s)),
        **options,
    )


def _listen(settings: Settings) -> socket.socket:
    """The listening socket. Raises before anything else is started when the port is taken."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # By its protocol asyncio knows to send small packets at once; without it an answer waits 40 ms for the one before.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
