"""Commits calls before their last byte leaves, many in one transaction, and spools what the database cannot take.

One thread owns the store's lineage and writes. The model path waits for it at most `store_wait_s`; a failure in here
never reaches a client. Once a call is handed over it is committed or spooled even if nobody waits for it any more.
What can be neither is counted and logged, loudly.
"""

import asyncio
import contextlib
import queue
import threading
import time
from dataclasses import dataclass, field

import structlog

from mosaic.capture import CapturedCall
from mosaic.errors import StoreError
from mosaic.settings import Settings
from mosaic.store import Store
from proxy import spool as spool_file
from proxy.spool import Spool

MAX_BATCH = 256
"""Most calls in one transaction."""
MAX_QUEUE = 10_000
"""Most calls that wait for the writer; beyond that they are spooled at once."""
REPLAY_PAUSE_S = 1.0
"""Seconds after a failure of the database before the spool is tried again."""
CLOSE_S = 5.0
"""Seconds that the writer gets to end; what it then still holds is spooled."""

log = structlog.get_logger()


@dataclass(slots=True)
class Health:
    """What the recorder did since the start."""

    stored: int = 0
    spooled: int = 0
    rejected: int = 0
    """Calls that the store can never take; they are in `rejected.jsonl`."""
    lost: int = 0
    failures: int = 0
    """Times that something went wrong on the way to the store, whatever became of the calls."""
    last_error: str | None = None


@dataclass(slots=True)
class _Waiting:
    call: CapturedCall
    done: "asyncio.Future[None]"
    loop: asyncio.AbstractEventLoop
    spooled: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self) -> None:
        """The call is durable (or lost for good): whoever waits may go on."""
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
            self.loop.call_soon_threadsafe(self._settle)

    def _settle(self) -> None:
        if not self.done.done():
            self.done.set_result(None)


class Recorder:
    """Takes calls from the event loop and commits them in a thread of its own."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._wait_s = settings.store_wait_s
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(MAX_QUEUE)
        self._batch: list[_Waiting] = []
        self.spool = Spool(settings.spool)
        self.health = Health()
        self._replay_due = not self.spool.empty()
        self._failed_at = 0.0
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._thread.start()

    async def record(self, call: CapturedCall) -> None:
        """Return once the call is durable: committed, or spooled. Never raises on a store failure."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(call, loop.create_future(), loop)
        try:
            self._queue.put_nowait(waiting)
            await asyncio.wait_for(asyncio.shield(waiting.done), self._wait_s)
        except (TimeoutError, queue.Full):
            await asyncio.to_thread(self._spool, waiting)

    def alive(self) -> bool:
        """Whether the writer runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Write what waits, then stop; what the database does not take in time is spooled."""
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(None)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            return
        left = list(self._batch)
        while not self._queue.empty():
            if (more := self._queue.get_nowait()) is not None:
                left.append(more)
        for waiting in left:
            self._spool(waiting)

    def _run(self) -> None:
        stop = False
        while not stop:
            self._batch, stop = self._next_batch()
            try:
                self._write(self._batch)
            except Exception as error:  # noqa: BLE001 - the thread must outlive whatever a call brings
                self._note(error, len(self._batch))
                for waiting in self._batch:
                    self._spool(waiting)
            for waiting in self._batch:
                waiting.tell()

    def _next_batch(self) -> tuple[list[_Waiting], bool]:
        """The calls that wait, at least one unless the recorder closes, and whether it does."""
        batch: list[_Waiting] = []
        while len(batch) < MAX_BATCH:
            try:
                more = self._queue.get(block=not batch)
            except queue.Empty:
                break
            if more is None:
                return batch, True
            batch.append(more)
        return batch, False

    def _write(self, batch: list[_Waiting]) -> None:
        if self._replay_due and time.monotonic() - self._failed_at > REPLAY_PAUSE_S:
            self._replay()
        calls = [waiting.call for waiting in batch]
        if not calls or self._commit(calls):
            return
        for waiting in batch:
            # One call that cannot be written must not take the others with it.
            if len(batch) == 1 or not self._commit([waiting.call]):
                self._spool(waiting)

    def _commit(self, calls: list[CapturedCall]) -> bool:
        """True when the calls are dealt with: stored, or a single one put aside because it can never be stored."""
        try:
            self._store.record(calls)
        except StoreError as error:
            self._failed_at = time.monotonic()
            self._note(error, len(calls))
            return False
        except Exception as error:  # noqa: BLE001 - not the database's fault: the call itself cannot be written
            self._note(error, len(calls))
            return len(calls) == 1 and self._reject(calls[0])
        self.health.stored += len(calls)
        return True

    def _note(self, error: Exception, calls: int) -> None:
        self.health.failures += 1
        self.health.last_error = f"{type(error).__name__}: {error}"
        log.error("calls not stored", calls=calls, error=self.health.last_error)

    def _reject(self, call: CapturedCall) -> bool:
        try:
            self.spool.reject(call)
        except (OSError, TypeError, ValueError):
            return False
        self.health.rejected += 1
        with contextlib.suppress(StoreError):
            self._store.count("rejected_calls", "unwritable")
        return True

    def _spool(self, waiting: _Waiting) -> None:
        with waiting.lock:
            if waiting.spooled:
                return
            waiting.spooled = True
            try:
                self.spool.append(waiting.call)
            except (OSError, TypeError, ValueError) as error:
                self.health.lost += 1
                self.health.last_error = f"{type(error).__name__}: {error}"
                log.error("call LOST: neither database nor spool took it", call=waiting.call.call_id, error=str(error))
                return
        self.health.spooled += 1
        self._replay_due = True

    def _replay(self) -> None:
        """Bring spooled calls into the store; a file is removed once all its lines are dealt with."""
        for path in self.spool.take():
            lines = list(spool_file.read(path))
            calls = [c for c in lines if c is not None]
            if not all(self._commit([call]) for call in calls):
                return
            if len(calls) < len(lines):
                self._store.count("spool_lines_unreadable", "cut", len(lines) - len(calls))
            path.unlink(missing_ok=True)
            log.info("spool replayed", file=path.name, calls=len(calls))
        self._replay_due = False

    def replay_now(self) -> None:
        """Replay what earlier processes left behind. Call once at start, before serving."""
        if self._replay_due:
            try:
                self._replay()
            except (OSError, StoreError) as error:
                self._note(error, 0)
