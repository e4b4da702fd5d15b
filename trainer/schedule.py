"""Training that starts by itself: by the clock, or when there is enough to learn from; never twice at once.

A trigger only says that a run is due; it begins when the conditions hold (idle, hours), in a process of its own, so
that nothing of it stays in memory and its limits are its own. What is due is worked out from the jobs in the database:
a run that was missed while no schedule was running is made up for, once.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import structlog
from apscheduler.executors.pool import ThreadPoolExecutor
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.interval import IntervalTrigger

from mosaic.daytimes import cron_trigger, minutes
from mosaic.errors import LeaseTaken, SettingsError, StoreError
from mosaic.job_settings import ScheduleConfig
from mosaic.lease import Lease
from mosaic.store import Store, schedules

NOT_NOW = LeaseTaken.exit_code
"""Exit code of a job that did not begin, since another is under way."""
JOB = [sys.executable, "-m", "mosaic", "train"]

log = structlog.get_logger()


class Schedule:
    """What is due, and whether it may begin. `train` runs one job and returns its exit code."""

    def __init__(
        self,
        store: Store,
        config: ScheduleConfig,
        train: Callable[[], int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._config = config
        self._train = train
        self._clock = clock
        self._since = clock()
        """When this schedule began: what was due before is due only if a job has run before that."""
        self._due: str | None = None
        self.hours = None if config.hours is None else minutes(config.hours)
        self.trigger = trigger(config)
        """Of cron or interval; None when only `when_scored` starts jobs."""

    def next_at(self) -> float | None:
        """When the clock asks for the next run (Unix seconds): counted from the newest job, or from this start."""
        if self.trigger is None:
            return None
        last = self._last_job()
        if self._config.every_s is not None and self._config.cron is None:
            return (self._since if last is None else last) + self._config.every_s
        after = datetime.fromtimestamp(self._since if last is None else last, UTC)
        following = self.trigger.get_next_fire_time(after, after)
        return None if following is None else following.timestamp()

    def due(self) -> str | None:
        """Why a run should begin, or None. A reason stays until a run has begun."""
        now = self._clock()
        following = self.next_at()
        if following is not None and following <= now:
            self._due = "cron" if self._config.cron is not None else "every"
        wanted = self._config.when_scored
        if wanted is not None and self._store.scored_since(self._last_job() or 0.0) >= wanted:
            self._due = "when_scored"
        return self._due

    def held_up(self) -> str | None:
        """Which condition does not hold: `calls` (one ended lately), `hours`; None when a run may begin."""
        now = self._clock()
        if self._config.idle_s is not None and now - self._store.newest_call() < self._config.idle_s:
            return "calls"
        if self.hours is None:
            return None
        begins, ends = self.hours
        at = datetime.fromtimestamp(now).hour * 60 + datetime.fromtimestamp(now).minute
        within = begins <= at < ends if begins <= ends else at >= begins or at < ends
        return None if within else "hours"

    def tick(self) -> int | None:
        """Run a job if one is due and may begin, or is asked for; returns its exit code."""
        asked_at = self._look()
        reason = self._due if asked_at is None else "asked"
        if reason is None or (asked_at is None and self.held_up() is not None):
            return None
        log.info("scheduled job begins", reason=reason)
        code = self._train()
        log.info("scheduled job ended", reason=reason, status=code)
        if code != NOT_NOW:
            self._due = None
            # A job that could not even be written down (no database, bad settings) is not tried at every tick.
            self._since = self._clock()
            if asked_at is not None:
                with self._store.database.writing() as connection:
                    schedules.answered(connection, asked_at)
        return code

    def _look(self) -> float | None:
        """See what is due and tell it; returns since when a run is asked for."""
        due = self.due()
        held_up = None if due is None else self.held_up()
        with self._store.database.writing() as connection:
            asked_at = schedules.read(connection).asked_at
            schedules.change(connection, looked_at=self._clock(), next_at=self.next_at(), due=due, held_up=held_up)
        return asked_at

    def _last_job(self) -> float | None:
        newest = self._store.jobs(1)
        return newest[0].created_at if newest else None


def trigger(config: ScheduleConfig) -> BaseTrigger | None:
    """The trigger of the clock. Raises `SettingsError` when nothing ever starts a job."""
    if config.cron is not None:
        return cron_trigger(config.cron)
    if config.every_s is not None:
        return IntervalTrigger(seconds=config.every_s)
    if config.when_scored is None:
        raise SettingsError("nothing starts a job.", "Give --cron, --every or --when-scored, or set [schedule].")
    return None


class TrainProcess:
    """Jobs in processes of their own; a stop that comes while one runs is passed on to it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = {**os.environ, **environment}
        self._process: subprocess.Popen[bytes] | None = None
        self._stopping = threading.Event()

    def __call__(self) -> int:
        if self._stopping.is_set():
            return NOT_NOW
        self._process = subprocess.Popen(JOB, env=self._environment, stdin=subprocess.DEVNULL)
        code = self._process.wait()
        self._process = None
        return code

    def stop(self) -> None:
        """Interrupt the job; the next run takes it up."""
        self._stopping.set()
        process = self._process
        if process is not None:
            process.send_signal(signal.SIGINT)


def run(store: Store, schedule: Schedule, train: TrainProcess, every_s: float, parent: int | None = None) -> None:
    """Look every `every_s` seconds, and at the clock's times, until SIGTERM or SIGINT, or until `parent` is gone.

    Several may run on one database: one has the lease, the others stand by.
    """
    lease = Lease(store, schedules.LEASE, seconds=max(3 * every_s, 30.0))
    scheduler = BlockingScheduler(executors={"default": ThreadPoolExecutor(1)}, timezone=UTC)

    def look() -> None:
        if parent is not None and os.getppid() != parent:
            scheduler.shutdown(wait=False)
            return
        try:
            if lease.take():
                schedule.tick()
        except StoreError as error:
            log.warning("schedule put off", error=str(error))

    def stop(*_: Any) -> None:
        train.stop()
        threading.Thread(target=scheduler.shutdown, daemon=True).start()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    # One look at a time; looks that a running job held up are one look, and no warning each.
    logging.getLogger("apscheduler.scheduler").setLevel(logging.ERROR)
    options: dict[str, Any] = {"max_instances": 1, "coalesce": True, "misfire_grace_time": None}
    scheduler.add_job(look, IntervalTrigger(seconds=every_s), next_run_time=datetime.now(UTC), **options)
    if schedule.trigger is not None:
        scheduler.add_job(look, schedule.trigger, **options)
    try:
        with lease.renewed():
            scheduler.start()
    finally:
        train.stop()
