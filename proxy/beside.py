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
from pathlib import Path

from mosaic.settings import Settings
from proxy.writer import Writer

CLOSE_S = 5.0
"""Seconds that the writer gets to end."""
STUCK_S = 60.0
"""Seconds without a sign of life after which a writer is ended, and a new one started, unless it works all the same."""
STARVED_S = 0.1
"""Processor seconds by which one that works is known meanwhile; beyond `STUCK_S` of them it gets nowhere."""


@dataclass(frozen=True, slots=True)
class Beside:
    """A writer that runs."""

    pid: int
    kill: Callable[[], None]
    """Ends it, where it is a process of its own."""

    def cpu_s(self) -> float:
        """Processor seconds that it has had; always 0 where the system does not tell."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Watchdog:
    """Tells a writer that is stuck from one that works, and that a loaded machine gives little time."""

    def __init__(self) -> None:
        self._alive_at = 0.0
        self._cpu_s = 0.0

    def stuck(self, alive_at: float, cpu_s: float, now: float) -> bool:
        """Whether it waits for what does not come, or goes round in circles. `alive_at`: its last sign of life
        (monotonic); `cpu_s`: its processor seconds."""
        if alive_at != self._alive_at:
            self._alive_at, self._cpu_s = alive_at, cpu_s
        return now - alive_at > STUCK_S and not STARVED_S <= cpu_s - self._cpu_s <= STUCK_S


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
