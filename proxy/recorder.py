"""Hands calls to the writer, lets their last bytes go once they are durable, and spools what the writer cannot take.

A call is durable once the journal has it on disk; the writer follows, many calls at a time. Only a writer that has
fallen behind far, or a disk that refuses the journal, makes the model path wait for the writer too: at most
`store_wait_s`, and not at all while it is known to refuse. With `commit_first` every call waits for it. A failure in
here never reaches a client. Once a call is handed over it is committed or spooled even if nobody waits for it any more.
While calls are spooled, later ones follow them into the spool, so that all reach the store in the order in which they
ended. What can be neither is counted and logged, loudly.
"""

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import orjson
import structlog

from mosaic.capture import CallStatus
from mosaic.settings import Settings
from proxy import frames, journal, owned
from proxy.beside import CLOSE_S, writer_at
from proxy.spool import Spool, spooled_ids
from proxy.trace import Trace, encode

MAX_PENDING_BYTES = 256 * 2**20
"""Bytes of calls that may wait for the writer; beyond that they are spooled at once."""
MAX_BEHIND_BYTES = 64 * 2**20
"""Bytes of calls from which new ones wait for the writer, as if the journal had not taken them."""
GATHER_S = 0.05
"""Seconds in which calls that nobody waits for are gathered for the writer: fewer, larger transactions."""
RETRY_S = 1.0
"""Seconds after a refusal before the writer is tried again."""
START_S = 15.0
"""Seconds that the first writer gets to be there before calls are served."""
STUCK_S = 60.0
"""Seconds after which a writer that has work and answers nothing is ended, and a new one started."""
LARGE = 2**20
"""Bytes from which a call's checksum is worked out beside the event loop."""
BYTES_A_SECOND = 20e6
"""A large call gets that much more time to be stored."""
FEW = 200
"""Spooled calls at which new ones are held back for a moment, so that the spool can run dry under load."""

log = structlog.get_logger()


@dataclass(slots=True)
class Health:
    """What the recorder did since the start."""

    stored: int = 0
    spooled: int = 0
    interrupted: int = 0
    """Calls that an earlier process had in flight when it died, now handed to the writer."""
    unreadable: int = 0
    """Calls that it had in flight and that cannot be read; their journal is kept as `damaged-...`."""
    lost: int = 0
    """Calls that neither the writer nor the spool took, nor the journal."""
    left_in_journal: int = 0
    """Calls that neither took and that the journal keeps, for the next process to store."""
    refusals: int = 0
    """Times that the writer refused calls or died."""
    last_error: str | None = None


@dataclass(slots=True)
class _Pending:
    """A call on its way to the writer."""

    parts: list[bytes]
    """The encoded call."""
    then: Callable[[], None]
    done: "asyncio.Future[None]"
    """Done once it is committed or spooled, or lost for good."""
    released: "asyncio.Future[None]"
    """What the model path waits for; it is cancelled when nobody waits any more."""
    due: float
    """Time on the loop's clock at which it is spooled if the writer has not answered."""
    journaled: bool = False
    """Durable without the writer's answer."""
    spooling: bool = False

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, self.parts))

    def release(self) -> None:
        """Whoever waits may go on."""
        if not self.released.done():
            self.released.set_result(None)

    def settle(self, durable: bool = True) -> None:
        """Nothing is left to do for the call."""
        if self.done.done():
            return
        self.done.set_result(None)
        self.release()
        if durable:
            self.then()


class Recorder:
    """One worker's calls on their way to the store. Used by one event loop, between `start` and `close`."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._wait_s = settings.store_wait_s
        self.spool = Spool(settings.spool)
        self.health = Health()
        self._loop: asyncio.AbstractEventLoop
        self._numbers = itertools.count(1)
        self._pending: dict[int, _Pending] = {}
        self._pending_bytes = 0
        self._outgoing: list[bytes] = []
        self._replays: dict[int, asyncio.Future[bool]] = {}
        self._answered_at = 0.0
        """Time on the loop's clock at which the writer last answered, or had nothing to answer."""
        self._behind = False
        """True while calls that ended earlier wait in the spool."""
        self._queued = 0
        """Calls that were spooled since the spool was last emptied."""
        self._to_disk: list[_Pending] = []
        self._ready = asyncio.Event()
        """Set once a writer has said that it is there."""
        self._open = asyncio.Event()
        """Cleared for moments, in which new calls are held back."""
        self._disk = ThreadPoolExecutor(1, "spool")
        """One thread: what is spooled first stands first."""
        self._stream: asyncio.StreamWriter | None = None
        self._end_writer: Callable[[], None] = lambda: None
        self._tasks: set[asyncio.Future[None]] = set()
        self._loops: list[asyncio.Future[None]] = []
        self._closing = False

    async def start(self) -> None:
        """Start the writer, and hand it what dead processes had spooled and had in flight."""
        self._loop = asyncio.get_running_loop()
        self._answered_at = self._loop.time()
        self._open.set()
        left_behind = await self._loop.run_in_executor(self._disk, self._adopt)
        self._behind = not self.spool.empty()
        loops = (self._keep_writing(), self._keep_replaying(), self._keep_watch())
        self._loops = [asyncio.ensure_future(loop) for loop in loops]
        with contextlib.suppress(TimeoutError):  # a writer that takes longer is gone without, for now
            await asyncio.wait_for(self._ready.wait(), START_S)
        for left in left_behind:
            self.health.interrupted += sum(call.status is CallStatus.INTERRUPTED for call in left.calls)
            self.health.unreadable += left.unreadable
            await asyncio.gather(*(self.record(trace) for trace in left.calls))
            await asyncio.to_thread(owned.set_aside if left.unreadable else owned.remove, *left.file)

    def _adopt(self) -> list[journal.Left]:
        """Take over what dead processes left, all of it at once: a call that stands in a spool file may still be open
        in the journal, and whoever replays the one must be the one that records the other, after it."""
        folder = self._settings.spool
        with owned.alone(folder):
            self.spool.adopt()
            found = journal.left_behind(folder)
            if not any(left.calls for left in found):
                return found
            ended = spooled_ids(folder)
            return [
                replace(left, calls=tuple(call for call in left.calls if call.origin.call_id not in ended))
                for left in found
            ]

    async def record(
        self,
        trace: Trace,
        then: Callable[[], None] = lambda: None,
        journaled: "asyncio.Future[bool] | None" = None,
    ) -> None:
        """Return once the call is durable: in the journal, committed, or spooled. Never raises on a store failure.

        `then` is called once the journal need not keep it, also when nobody waits for this any more. `journaled`
        becomes true when the journal has it on disk.
        """
        parts = encode(trace)
        size = sum(map(len, parts))
        due = self._loop.time() + self._wait_s + size / BYTES_A_SECOND
        pending = _Pending(parts, then, self._loop.create_future(), self._loop.create_future(), due)
        if journaled is not None:
            journaled.add_done_callback(lambda done: self._journaled(pending, done.result()))
        head = frames.head(b"C", 0, parts) if size < LARGE else await asyncio.to_thread(frames.head, b"C", 0, parts)
        if not (self._open.is_set() and not self._behind and self._send(pending, head)):
            self._task(self._deliver(pending, head))
        await pending.released

    def _journaled(self, pending: _Pending, durable: bool) -> None:
        pending.journaled = durable
        if durable and self._pending_bytes < MAX_BEHIND_BYTES:
            pending.release()

    async def caught_up(self) -> None:
        """Return once all that was recorded until now is in the database, or cannot be for the moment."""
        self._flush()
        waiting = [pending.done for pending in self._pending.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=self._wait_s)

    async def _deliver(self, pending: _Pending, head: bytes) -> None:
        """To the writer as soon as calls are not held back, else into the spool."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(pending.due):
                await self._open.wait()
        if self._behind or not self._open.is_set() or not self._send(pending, head):
            await self._to_spool(pending)

    async def _keep_watch(self) -> None:
        """What the writer does not answer in time is spooled; one that answers nothing for long is ended."""
        while True:
            await asyncio.sleep(self._wait_s / 10)
            now = self._loop.time()
            waited = [p for p in self._pending.values() if p.due < now and not p.spooling]
            for pending in waited:
                if pending.journaled:
                    pending.release()
                else:
                    self._task(self._to_spool(pending))
            if not all(pending.journaled for pending in waited):
                self._refused("the writer did not answer in time")
            if not self._pending and not self._replays:
                self._answered_at = now
            elif now - self._answered_at > STUCK_S:
                log.error("writer ended: it had not answered for long", seconds=STUCK_S)
                self._answered_at = now
                self._end_writer()

    def _task(self, work: Coroutine[Any, Any, None]) -> "asyncio.Future[None]":
        """Work that goes on when nobody waits for it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def waiting(self) -> int:
        """Calls that are on their way to the database now."""
        return len(self._pending)

    def alive(self) -> bool:
        """Whether the writer runs."""
        return self._stream is not None

    async def close(self) -> None:
        """Let the writer end what it has; what it does not take in time is spooled."""
        self._closing = True
        self._flush()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*(p.done for p in self._pending.values()), return_exceptions=True)
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await asyncio.gather(*self._tasks, *(self._to_spool(pending) for pending in list(self._pending.values())))
        await asyncio.to_thread(self._disk.shutdown)
        self.spool.close()

    # to the writer and back

    def _send(self, pending: _Pending, head: bytes) -> bool:
        if self._stream is None or self._pending_bytes > MAX_PENDING_BYTES:
            return False
        number = next(self._numbers)
        self._pending[number] = pending
        self._pending_bytes += pending.size
        if not self._outgoing:
            self._loop.call_later(0.0 if self._settings.waits_for_commit else GATHER_S, self._flush)
        self._outgoing += [frames.numbered(head, number), *pending.parts]
        return True

    def _flush(self) -> None:
        """All that has been gathered for the writer, at once."""
        if self._stream is not None and self._outgoing:
            if others := self.spool.others(grown=True):
                # These calls may answer some that another worker has spooled: first theirs, then ours.
                self._stream.write(frames.pack(b"F", 0, orjson.dumps([str(path) for path in others])))
            self._stream.writelines(self._outgoing)
        self._outgoing.clear()

    async def _keep_writing(self) -> None:
        """Keep a writer running and read its answers."""
        while not self._closing:
            try:
                await self._one_writer()
            except (OSError, ValueError) as error:  # no process or descriptor to be had, or nonsense from it
                log.error("writer failed", error=str(error))
            self._refused("the writer died")
            await asyncio.sleep(RETRY_S)

    async def _one_writer(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            for side in (ours, theirs):
                side.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)
            async with writer_at(theirs, self._settings) as self._end_writer:
                reader, self._stream = await asyncio.open_connection(sock=ours)
                try:
                    await self._read(reader)
                finally:
                    self._stream.close()
                    self._stream = None
                    # At once, before later calls find the writer gone: they follow these into the spool.
                    self._all_refused()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        unpacker = frames.Unpacker()
        while data := await reader.read(2**16):
            self._answered_at = self._loop.time()
            self._ready.set()
            for kind, _, body in unpacker.feed(data):
                for number in orjson.loads(body):
                    self._answered(number, kind == b"D")

    def _answered(self, number: int, done: bool) -> None:
        if (replay := self._replays.pop(number, None)) is not None:
            if not replay.done():
                replay.set_result(done)
            return
        pending = self._pending.pop(number)
        self._pending_bytes -= pending.size
        if done:
            self.health.stored += 1
            pending.settle()
        else:
            self._refused("the database refused")
            self._task(self._to_spool(pending))

    def _all_refused(self) -> None:
        for number in [*self._pending, *self._replays]:
            self._answered(number, done=False)

    def _refused(self, why: str) -> None:
        self._behind = True
        self.health.refusals += 1
        self.health.last_error = why

    # the spool

    async def _to_spool(self, pending: _Pending) -> None:
        """Together with all others that have come to be spooled meanwhile: one fsync makes them durable."""
        if pending.spooling or pending.done.done():
            return
        pending.spooling = True
        self._queued += 1
        self._behind = True
        self._to_disk.append(pending)
        if len(self._to_disk) > 1:
            return  # whoever came first takes this one along
        while self._to_disk:
            batch = list(self._to_disk)
            await self._append(batch)
            del self._to_disk[: len(batch)]

    async def _append(self, batch: list[_Pending]) -> None:
        try:
            await self._loop.run_in_executor(self._disk, self.spool.append, *(p.parts for p in batch))
        except OSError as error:
            if len(batch) > 1:  # some of them may fit
                for pending in batch:
                    await self._append([pending])
                return
            self._not_spooled(batch[0], error)
        else:
            self.health.spooled += len(batch)
            for pending in batch:
                pending.settle()

    def _not_spooled(self, pending: _Pending, error: OSError) -> None:
        self.health.last_error = f"{type(error).__name__}: {error}"
        if pending.journaled:
            self.health.left_in_journal += 1
            log.error("call not stored before the next start: only the journal has it", error=str(error))
        else:
            self.health.lost += 1
            log.error("call LOST: neither writer nor spool took it", error=str(error))
        pending.settle(durable=False)

    async def _keep_replaying(self) -> None:
        """While calls wait in the spool, ask the writer again and again to bring them in."""
        recovering = False
        while True:
            if not self._behind or self._stream is None or not recovering:
                await asyncio.sleep(RETRY_S)
            if self._behind and self._stream is not None:
                try:
                    recovering = await self._replay(hold=recovering and self._queued < FEW)
                except OSError as error:
                    recovering = False
                    log.error("spool not replayed", error=str(error))

    async def _replay(self, hold: bool) -> bool:
        """One round; with `hold`, new calls wait for its end and then go to the writer again."""
        if hold:
            self._open.clear()
            release = self._loop.call_later(self._wait_s / 2, self._open.set)
        try:
            self._queued = 0
            files = await self._loop.run_in_executor(self._disk, self.spool.take)
            others = self.spool.others()
            number, done = next(self._numbers), self._loop.create_future()
            if self._stream is None:
                return False
            self._replays[number] = done
            self._flush()
            self._stream.write(frames.pack(b"R", number, orjson.dumps([str(path) for path in [*files, *others]])))
            if not await done:
                return False
            await self._loop.run_in_executor(self._disk, self.spool.replayed, files)
            self._behind = not (hold and self.spool.empty() and self._queued == 0)
            return True
        finally:
            if hold:
                release.cancel()
            self._open.set()
