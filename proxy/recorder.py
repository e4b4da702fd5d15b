"""Commits calls before their last byte leaves, many in one transaction, and spools what the database cannot take.

One thread owns the store's lineage and writes. The model path waits for it at most `store_wait_s`; a failure in here
never reaches a client. What could neither be stored nor spooled is counted and logged, loudly.
"""

import asyncio
import queue
import threading
from dataclasses import dataclass

import structlog

from mosaic.capture import CapturedCall
from mosaic.errors import MosaicError
from mosaic.settings import Settings
from mosaic.store import Store
from proxy import spool as spool_file
from proxy.spool import Spool

MAX_BATCH = 256
"""Most calls in one transaction."""
MAX_QUEUE = 10_000
"""Most calls that wait for the writer; beyond that they are spooled at once."""

log = structlog.get_logger()


@dataclass(slots=True)
class Health:
    """What the recorder did since the start."""

    stored: int = 0
    spooled: int = 0
    lost: int = 0
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class _Waiting:
    call: CapturedCall
    done: "asyncio.Future[bool]"
    loop: asyncio.AbstractEventLoop

    def tell(self, stored: bool) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._settle, stored)

    def _settle(self, stored: bool) -> None:
        if not self.done.done():
            self.done.set_result(stored)


class Recorder:
    """Takes calls from the event loop and commits them in a thread of its own."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._wait_s = settings.store_wait_s
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(MAX_QUEUE)
        self.spool = Spool(settings.spool)
        self._spool_lock = threading.Lock()
        self.health = Health()
        self._replay_due = not self.spool.empty()
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    async def record(self, call: CapturedCall) -> None:
        """Return once the call is durable: committed, or spooled. Never raises on a store failure."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(call, loop.create_future(), loop)
        try:
            self._queue.put_nowait(waiting)
            stored = await asyncio.wait_for(waiting.done, self._wait_s)
        except (TimeoutError, queue.Full):
            stored = False
        if not stored:
            await asyncio.to_thread(self._spool, call)

    def close(self) -> None:
        """Write what waits, then stop."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            first = self._queue.get()
            if first is None:
                return
            batch = [first]
            stop = False
            while len(batch) < MAX_BATCH and not stop:
                try:
                    more = self._queue.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    stop = True
                else:
                    batch.append(more)
            self._write(batch)
            if stop:
                return

    def _write(self, batch: list[_Waiting]) -> None:
        if self._replay_due:
            self._replay()
        stored = self._commit([w.call for w in batch])
        if not stored and len(batch) > 1:
            # One call that cannot be written must not take the others with it.
            for waiting in batch:
                waiting.tell(self._commit([waiting.call]))
            return
        for waiting in batch:
            waiting.tell(stored)

    def _commit(self, calls: list[CapturedCall]) -> bool:
        try:
            self._store.record(calls)
        except Exception as error:  # noqa: BLE001 - whatever went wrong, the calls are spooled, counted and reported.
            self.health.last_error = str(error)
            log.error("calls not stored, spooling them", calls=len(calls), error=str(error))
            return False
        self.health.stored += len(calls)
        return True

    def _spool(self, call: CapturedCall) -> None:
        try:
            with self._spool_lock:
                self.spool.append(call)
        except OSError as error:
            self.health.lost += 1
            self.health.last_error = str(error)
            log.error(
                "call LOST: neither database nor spool took it; free disk space", call=call.call_id, error=str(error)
            )
            return
        self.health.spooled += 1
        self._replay_due = True

    def _replay(self) -> None:
        """Bring spooled calls into the store; a file is removed once all its lines are there."""
        with self._spool_lock:
            for path in self.spool.files():
                lines = list(spool_file.read(path))
                calls = [c for c in lines if c is not None]
                for call in calls:
                    if not self._commit([call]):
                        return
                if len(calls) < len(lines):
                    self._store.count("spool_lines_unreadable", "cut", len(lines) - len(calls))
                path.unlink()
                log.info("spool replayed", file=path.name, calls=len(calls))
            self._replay_due = False

    def replay_now(self) -> None:
        """Replay what earlier processes left behind. Call once at start, before serving."""
        if self._replay_due:
            try:
                self._replay()
            except (OSError, MosaicError) as error:
                log.error("spool not replayed", error=str(error))
