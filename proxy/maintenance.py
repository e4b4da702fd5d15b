"""Housekeeping beside the serving: silent trajectories are closed, old ones pruned. One process at a time, by lease."""

import asyncio
import contextlib
import secrets
import threading
from collections.abc import AsyncIterator

import structlog

from mosaic.errors import StoreError
from mosaic.settings import Settings
from mosaic.store import Store
from mosaic.store.pruning import PruneRule, prune

EVERY_S = 60.0
LEASE_S = 3 * EVERY_S
"""A process that dies leaves the lease to others after this long."""

log = structlog.get_logger()


@contextlib.asynccontextmanager
async def running(store: Store, settings: Settings) -> AsyncIterator[None]:
    """Housekeeping goes on inside this context."""
    house = House(store, settings)
    task = asyncio.ensure_future(house.keep())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await house.close()


class House:
    """One process's share of the housekeeping."""

    def __init__(self, store: Store, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._owner = f"proxy-{secrets.token_hex(6)}"
        self._closing = threading.Event()
        self._round: asyncio.Future[bool] | None = None
        self._live: int | None = None
        """The version that was live at the last look; None before the first."""

    async def keep(self) -> None:
        """A round every minute, in a thread."""
        while True:
            try:
                self._round = asyncio.ensure_future(asyncio.to_thread(self.once))
                await asyncio.shield(self._round)
            except StoreError as error:
                log.warning("housekeeping put off", error=str(error))
            await asyncio.sleep(EVERY_S)

    def once(self) -> bool:
        """One round; False when another process has the lease. Raises `StoreError`."""
        store, settings = self._store, self._settings
        if not store.take_lease("maintenance", self._owner, LEASE_S):
            return False
        if closed := store.close_silent(settings.close_after_s, settings.answered_after_s):
            log.info("silent trajectories closed", trajectories=closed)
        self._say_what_is_live(store.policy()[0])
        if settings.retention_days is not None:
            rule = PruneRule(settings.retention_days * 24 * 3600.0, keep_trained_since=settings.keep_trained_since)
            pruned = prune(store.database, rule, self._go_on)
            if pruned.trajectories:
                log.info("old trajectories pruned", trajectories=pruned.trajectories)
        return True

    def _say_what_is_live(self, version: int) -> None:
        """A job elsewhere puts versions live, or back: the log says so, once."""
        if self._live not in (None, version):
            log.info(f"version {version} is live", before=self._live)
        self._live = version

    def _go_on(self, _done: int, _of: int) -> None:
        if self._closing.is_set():
            raise StoreError("the server stops.")
        self._store.take_lease("maintenance", self._owner, LEASE_S)

    async def close(self) -> None:
        """Stop after the batch at hand, and leave the lease to others."""
        self._closing.set()
        if self._round is not None:  # its thread has a connection of the store's
            await asyncio.gather(self._round, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await asyncio.to_thread(self._store.give_lease, "maintenance", self._owner)
