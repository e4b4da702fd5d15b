"""Lets an answer's last byte go once its call is durable, and keeps the writer running that brings calls to the store.

A call is durable once the journal has it on disk. With `commit_first` an answer also waits for the database, and while
the writer is far behind, until it is less so: at most `store_wait_s`, and not at all while the database is known to
refuse. A failure in here never reaches a client. A call that the disk refuses is held in memory until it does not; what
cannot be held is counted and logged, loudly.
"""

import asyncio
import contextlib
import os
import socket
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any

import structlog

from mosaic.errors import SettingsError
from mosaic.settings import Settings
from proxy.belonging import Belonging
from proxy.beside import CLOSE_S, STUCK_S, Watchdog, writer_at
from proxy.figures import COUNTERS, Figures, total
from proxy.journal import Entry, File, Journal
from proxy.progress import Progress
from proxy.trace import Trace

GATHER_S = 0.25
"""Seconds in which calls are gathered that nobody waits for: fewer, larger transactions."""
LOOK_S = 0.001
"""Seconds between looks at the writer's progress, while anybody waits for it."""
NEARER_S = 0.01
"""Seconds between looks whether a writer that was far behind has come nearer."""
RETRY_S = 1.0
"""Seconds before a writer is started again, and before the disk is tried again."""
START_S = 15.0
"""Seconds that the first writer gets to bring in what dead processes left, before calls are served."""
WATCH_S = 15.0
"""Seconds between looks whether the writer is stuck."""

log = structlog.get_logger()


class Recorder:
    """One worker's calls on their way to the store. Used by one event loop, between `start` and `close`."""

    def __init__(self, settings: Settings) -> None:
        """Raises `SettingsError` when the folder of the journal cannot be used, or is another database's."""
        self._settings = settings
        self._belonging = Belonging(settings)
        self.journal = Journal(settings.spool)
        self._shared = 0
        """Refusals of the journal's disk that the figures have."""
        try:
            self.progress = Progress(settings.spool)
        except OSError as error:
            raise SettingsError(f"the folder {settings.spool} cannot be used: {error}.", "Set `spool`.") from error
        self._figures = Figures(settings.spool)
        self._waiting: deque[tuple[float, asyncio.Future[bool]]] = deque()
        """(Monotonic time, becomes true once all that had ended by then is in the database)."""
        self._nearer: asyncio.Future[None] | None = None
        """Done once the writer is no longer far behind; all calls that wait for that wait for this."""
        self._ringing: asyncio.TimerHandle | None = None
        self._ready = asyncio.Event()
        """Set once a writer has brought in what it found, or another one does."""
        self._loops: list[asyncio.Future[None]] = []
        self._tasks: set[asyncio.Future[None]] = set()
        """Calls that nobody waits for any more."""
        self._alive = False
        self._closing = asyncio.Event()

    async def start(self) -> None:
        """Start the writer, which brings in what dead processes left."""
        loops: tuple[Coroutine[Any, Any, None], ...] = (self._keep_writing(), self._keep_watch())
        self._loops = [asyncio.ensure_future(loop) for loop in loops]
        with contextlib.suppress(TimeoutError):  # a writer that takes longer is gone without, for now
            await asyncio.wait_for(self._ready.wait(), START_S)

    async def record(self, entry: Entry | None, trace: Trace) -> None:
        """Return once the call is durable, and committed where that is asked for. Never raises for a refusal."""
        file = self.journal.end(entry, trace)
        self._figures.add("recorded")
        try:
            await self._settle(entry, trace, file)
        except asyncio.CancelledError:  # nobody waits any more; the call is kept all the same
            task = asyncio.ensure_future(self._settle(entry, trace, file))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            raise
        if self.journal.behind() and not self._closing.is_set():
            await self._room()

    async def _settle(self, entry: Entry | None, trace: Trace, file: File | None) -> None:
        closing = self._closing.is_set()  # a second Ctrl-C cuts calls while this is closed
        waits = self._settings.commit_first and not closing
        if waits:
            self.journal.flush()  # the writer sees it now
        seen_at = time.monotonic()  # before the bell: the writer's look is later
        if not closing:
            self._ring(0.0 if waits else GATHER_S)
        kept = waits and file is not None and not file.torn and await self._committed(seen_at)
        if not kept:
            kept = file is not None and await self.journal.sync(file)
        if not kept:  # once more, elsewhere
            file = self.journal.write(trace)
            kept = file is not None and await self.journal.sync(file)
        if kept:
            self.journal.over(entry)
            return
        if not self.journal.hold(entry, trace):
            self.lose()
            log.error("call LOST: neither the disk nor memory took it", call=trace.origin.call_id)
        self._share()

    async def _room(self) -> None:
        """Wait until the writer is no longer far behind: the journal must not fill the disk, and calls that come faster
        than they are stored are to slow down, not to stand still."""
        if self._nearer is None or self._nearer.done():
            self._nearer = asyncio.ensure_future(self._writer_nearer())
        _, late = await asyncio.wait([self._nearer], timeout=self._settings.store_wait_s)
        self._figures.add("waits_given_up", len(late))

    async def _writer_nearer(self) -> None:
        self._ring(0.0)
        while self.journal.behind() and not (self.progress.refusing or self._closing.is_set()):
            await self._sleep(NEARER_S)

    async def caught_up(self) -> None:
        """Return once all that had ended until now is in the database, or cannot be for the moment."""
        self.journal.flush()
        seen_at = time.monotonic()
        self._ring(0.0)
        await self._committed(seen_at)

    async def _committed(self, at: float) -> bool:
        """Whether all that had ended by then is in the database, waiting for it a while."""
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting.append((at, done))
        if len(self._waiting) == 1:
            self._look()
        try:
            async with asyncio.timeout(self._settings.store_wait_s):
                committed = await done
        except TimeoutError:
            committed = False
        self._figures.add("waits_given_up", not committed)
        return committed

    def _look(self) -> None:
        """Tell those who wait how far the writer is; again and again while anybody does."""
        committed, refusing = self.progress.committed, self.progress.refusing
        while self._waiting and (refusing or self._waiting[0][0] <= committed or self._waiting[0][1].done()):
            at, done = self._waiting.popleft()
            if not done.done():
                done.set_result(at <= committed)
        if self._waiting:
            asyncio.get_running_loop().call_later(LOOK_S, self._look)

    def _ring(self, after_s: float) -> None:
        """Wake the writer, soon."""
        if after_s == 0.0:
            self.progress.wake()
        elif self._ringing is None:
            self._ringing = asyncio.get_running_loop().call_later(after_s, self._rung)

    def _rung(self) -> None:
        self._ringing = None
        self.progress.wake()

    def alive(self) -> bool:
        """Whether this worker's writer runs, or stands by for another worker's."""
        return self._alive

    def lose(self, calls: int = 1) -> None:
        """Count calls that are lost: the disk refused them, and memory could not hold them."""
        self._figures.add("lost", calls)

    def serving(self, calls: int) -> None:
        """So many calls are open at this worker."""
        self._figures.set("open", calls)

    def figures(self) -> dict[str, int]:
        """What all workers on the folder did: `recorded`, `lost`, `waits_given_up` (for the database), `disk_refusals`,
        the writer's `refusals`; and calls `held` now."""
        found = total(self._settings.spool)
        return {name: found[name] for name in (*COUNTERS, "held")} | {"refusals": self.progress.refusals}

    def _share(self) -> None:
        """Let the other workers know what the journal counts."""
        self._figures.add("disk_refusals", self.journal.failures - self._shared)
        self._shared = self.journal.failures
        self._figures.set("held", self.journal.held)

    async def close(self) -> None:
        """Let go of the journal, and let the writer end what it has."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._closing.set()
        self.journal.close()
        if self.journal.held:
            self.lose(self.journal.held)
            log.error("calls LOST: the disk did not take them until the end", calls=self.journal.held)
        self.progress.wake()  # another worker's, where ours stands by
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * CLOSE_S):
                await asyncio.gather(*self._loops, return_exceptions=True)
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        if self._ringing is not None:
            self._ringing.cancel()
        self._share()
        self._figures.close()
        self.progress.close()
        self._belonging.close()

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._closing.wait(), seconds)

    async def _keep_watch(self) -> None:
        """Write what the disk refused before, and have a folder's writer looked after."""
        while not self._closing.is_set():
            await self._sleep(RETRY_S)
            if self.journal.held:
                self.journal.retry()
                self._ring(0.0)
            self._share()

    async def _keep_writing(self) -> None:
        """Keep a writer running."""
        while not self._closing.is_set():
            try:
                await self._one_writer()
            except OSError as error:  # no process or descriptor to be had
                log.error("writer failed", error=str(error))
            if not self._closing.is_set():
                log.error("the writer died, and is started again")
                await self._sleep(RETRY_S)

    async def _one_writer(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            async with writer_at(theirs, self._settings) as writer:
                reader, stream = await asyncio.open_connection(sock=ours)
                self._alive = True
                ending = asyncio.ensure_future(self._closing.wait())
                watchdog = Watchdog()
                try:
                    reading = asyncio.ensure_future(self._listen(reader))
                    while not await _any_within(WATCH_S, reading, ending):
                        pid, alive_at = self.progress.alive
                        if pid == writer.pid != os.getpid() and watchdog.stuck(
                            alive_at, writer.cpu_s(), time.monotonic()
                        ):
                            log.error("writer ended: it had done nothing for long", seconds=STUCK_S)
                            writer.kill()
                    stream.write_eof()  # it brings in what has ended, and ends
                    await reading
                finally:
                    self._alive = False
                    ending.cancel()
                    stream.close()

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        """Until the writer has ended."""
        while await reader.read(64):
            self._ready.set()


async def _any_within(seconds: float, *futures: asyncio.Future[Any]) -> bool:
    """Whether any of them is done, waiting for it a while."""
    done, _ = await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)
