"""Starts the writer beside a worker, at the other end of a socket, and ends it."""

import asyncio
import contextlib
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial

from mosaic.settings import Settings
from proxy.writer import Writer

CLOSE_S = 5.0
"""Seconds that the writer gets to end."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A writer that runs."""

    pid: int
    kill: Callable[[], None]
    """Ends it, where it is a process of its own."""


@contextlib.asynccontextmanager
async def writer_at(connection: socket.socket, settings: Settings) -> AsyncIterator[Beside]:
    """A writer at the other end of `connection`: a process, or a thread where the settings say so."""
    if not settings.writer_process:
        writer = Writer(connection, settings.database, settings.spool, settings.otel)
        thread = threading.Thread(target=_run_and_close, args=(writer, connection), daemon=True)
        thread.start()
        yield Beside(os.getpid(), lambda: None)
        await asyncio.to_thread(thread.join, CLOSE_S)
        return
    environment = {**os.environ, "MOSAIC_DATABASE": settings.database, "MOSAIC_SPOOL": str(settings.spool)}
    environment["MOSAIC_OTEL"] = str(settings.otel)
    command = [sys.executable, "-m", "proxy.writer", str(connection.fileno())]
    process = await asyncio.create_subprocess_exec(*command, pass_fds=[connection.fileno()], env=environment)
    connection.close()
    try:
        yield Beside(process.pid, partial(_kill, process))
    finally:
        try:
            async with asyncio.timeout(CLOSE_S):
                await process.wait()
        except TimeoutError:
            _kill(process)
            await process.wait()


def _kill(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()


def _run_and_close(writer: Writer, connection: socket.socket) -> None:
    with connection:
        writer.run()
