"""Tells the operator, once per change, that an engine does not answer, and that it answers again.

It runs beside the server in the process that owns the terminal, so that several workers say a thing once, and looks by
opening a connection: nothing is asked, and the engine's own log stays as it is. It never touches a call.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import structlog

from mosaic.settings import Settings
from mosaic.urls import shown_url

LOOK_S = 1.0
"""Seconds between two looks at an engine."""
HELD_S = 0.2
"""Seconds for which a connection must be held: a forwarder before an engine that is gone takes it, and closes it."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine to look at."""

    name: str
    """What it serves, where there are several."""
    url: str

    @property
    def said(self) -> dict[str, str]:
        """Which one it is, for the log."""
        return {"engine": shown_url(self.url), "serves": self.name}


@contextlib.contextmanager
def running(settings: Settings) -> Iterator[None]:
    """All engines of the settings are watched inside this context, each by a thread."""
    stopping = threading.Event()
    threads = [
        threading.Thread(target=_watch, args=(engine, settings, stopping), daemon=True)
        for engine in engines_of(settings)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in threads:
            thread.join(2 * HELD_S)


def engines_of(settings: Settings) -> list[Engine]:
    """The policy's replicas, then the engines of other models."""
    replicas = (settings.upstream, *settings.replicas)
    names = ["the policy"] if len(replicas) == 1 else [f"the policy, replica {n + 1}" for n in range(len(replicas))]
    found = [Engine(name, url) for name, url in zip(names, replicas, strict=True)]
    return [*found, *(Engine(f"models {pattern}", other.upstream) for pattern, other in settings.models.items())]


def _watch(engine: Engine, settings: Settings, stopping: threading.Event) -> None:
    away_since: float | None = None
    while not stopping.is_set():
        why = why_not(engine.url, settings.connect_timeout_s)
        if stopping.is_set():
            return
        if why is not None and away_since is None:
            away_since = time.monotonic()
            log.error(f"the engine does not answer; {_meanwhile(settings.engine_wait_s)}", **engine.said, why=why)
        elif why is None and away_since is not None:
            seconds, away_since = round(time.monotonic() - away_since, 1), None
            log.info("the engine answers again", **engine.said, after_s=seconds)
        stopping.wait(LOOK_S)


def _meanwhile(wait_s: float) -> str:
    return f"new calls wait {wait_s:g} s for it, then get 503" if wait_s else "calls get 503 until it does"


def why_not(url: str, connect_timeout_s: float) -> str | None:
    """Why an engine takes no connection; None when it does."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname, port), connect_timeout_s) as connection:
            connection.settimeout(HELD_S)
            with contextlib.suppress(TimeoutError):
                if connection.recv(1) == b"":
                    return "it closes connections at once"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return None
