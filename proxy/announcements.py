"""Tells another server how jobs ended: finished, failed, or refused by the gate; signed as incoming webhooks are.

What is to be told stands in the database with the job's end, so nothing is lost with a process and no job waits. One
worker tells, by lease, and repeats what was not taken, later and later, for a day. Told at least once:
`x-mosaic-delivery` names what is told, for who must not act twice.
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
import structlog

from mosaic.errors import SettingsError, StoreError
from mosaic.settings import Settings
from mosaic.store import Store, jobs
from mosaic.store.jobs import Job
from mosaic.store.writing import count
from mosaic.urls import shown_url
from proxy.webhooks import signature

LOOK_S = 5.0
"""Seconds between two looks."""
FIRST_WAIT_S = 5.0
"""Seconds until something is told again that was not taken; twice as many each time after that."""
LONGEST_WAIT_S = 900.0
TIMEOUT_S = 10.0
GIVE_UP_S = 24 * 3600.0
"""Seconds after the end of a job in which it is told."""
LEASE = "announcements"
LEASE_S = 90.0

log = structlog.get_logger()


def check(settings: Settings) -> None:
    """Raises `SettingsError` for an address to which nothing could be sent signed."""
    if settings.webhook_url is not None and settings.webhook_secret is None:
        raise SettingsError("webhook_url needs webhook_secret, which signs.", "Set MOSAIC_WEBHOOK_SECRET.")


@contextlib.asynccontextmanager
async def running(store: Store, settings: Settings) -> AsyncIterator[None]:
    """Ends of jobs are told inside this context, where an address is set."""
    if settings.webhook_url is None or settings.webhook_secret is None:
        yield
        return
    timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
    async with aiohttp.ClientSession(timeout=timeout) as client:
        told = Announcements(store, client, settings.webhook_url, settings.webhook_secret.get_secret_value())
        task = asyncio.ensure_future(told.keep())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


class Announcements:
    """One worker's share of the telling."""

    def __init__(self, store: Store, client: aiohttp.ClientSession, url: str, secret: str) -> None:
        self._store = store
        self._client = client
        self._url = url
        self._secret = secret
        self._owner = f"proxy-{secrets.token_hex(6)}"
        self._waits: dict[str, tuple[float, float]] = {}
        """Job -> seconds of its last wait, and when that is over (monotonic)."""

    async def keep(self) -> None:
        """Look again and again."""
        while True:
            try:
                await self.once()
            except StoreError as error:
                log.warning("announcements put off", error=str(error))
            await asyncio.sleep(LOOK_S)

    async def once(self) -> None:
        """Tell what is due. Raises `StoreError`."""
        for event, job in await asyncio.to_thread(self._due):
            if await self._told(event, job):
                self._waits.pop(job.job_id, None)
                await asyncio.to_thread(self._done, job.job_id)
            else:
                wait, _ = self._waits.get(job.job_id, (FIRST_WAIT_S / 2, 0.0))
                wait = min(2 * wait, LONGEST_WAIT_S)
                self._waits[job.job_id] = wait, time.monotonic() + wait

    def _due(self) -> list[tuple[str, Job]]:
        with self._store.database.reading() as connection:
            found = jobs.unannounced(connection)
        if not found or not self._store.take_lease(LEASE, self._owner, LEASE_S):
            return []
        now = time.monotonic()
        old = time.time() - GIVE_UP_S
        for _, job in found:
            if (job.ended_at or 0.0) < old:
                self._done(job.job_id, "given_up")
        young = [(event, job) for event, job in found if (job.ended_at or 0.0) >= old]
        return [(event, job) for event, job in young if self._waits.get(job.job_id, (0.0, 0.0))[1] <= now]

    def _done(self, job_id: str, outcome: str = "told") -> None:
        with self._store.database.writing() as connection:
            jobs.change(connection, job_id, announce=None)
            count(connection, "webhooks_out", outcome)

    async def _told(self, event: str, job: Job) -> bool:
        """Whether the other side took it: any answer of 2xx."""
        body = orjson.dumps(await asyncio.to_thread(self._body, event, job))
        stamp = str(int(time.time()))
        headers = {
            "content-type": "application/json",
            "x-mosaic-event": event,
            "x-mosaic-delivery": f"{job.job_id}.{event}",
            "x-mosaic-timestamp": stamp,
            "x-mosaic-signature": signature(self._secret, stamp, body),
        }
        try:
            async with self._client.post(self._url, data=body, headers=headers, allow_redirects=False) as answer:
                reason = f"status {answer.status}"
                taken = 200 <= answer.status < 300
        except ValueError as error:  # an address that is none; what is said of it would show it whole
            reason, taken = f"{type(error).__name__}: {shown_url(self._url)}", False
        except (aiohttp.ClientError, TimeoutError) as error:
            reason, taken = f"{type(error).__name__}: {error}", False
        if not taken:
            log.warning("webhook not taken", what=event, job=job.job_id, reason=reason)
            await asyncio.to_thread(self._store.count, "webhooks_out", "not_taken")
        return taken

    def _body(self, event: str, job: Job) -> dict[str, Any]:
        return {
            "event": event,
            "job_id": job.job_id,
            "state": job.state.value,
            "error": job.error,
            "policy_from": job.policy_from,
            "policy_to": job.policy_to,
            "created_at": job.created_at,
            "ended_at": job.ended_at,
            "metrics": self._store.job_metrics(job.job_id),
        }
