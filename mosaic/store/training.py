"""The half of the store's face that training uses: jobs, policy versions, and leases on work for one process at a time.

As in `Store`, every method is one transaction, and may be called from any thread.
"""

import time
from collections.abc import Mapping
from typing import Any

import orjson

from mosaic.errors import RequestError
from mosaic.records import JobState
from mosaic.store import jobs, leases, policies
from mosaic.store.database import Database
from mosaic.store.jobs import Job
from mosaic.store.policies import PolicyVersion


class TrainingStore:
    """What training writes down, in one database."""

    def __init__(self, database: Database) -> None:
        self.database = database

    # jobs

    def start_job(self, settings: Mapping[str, Any], selection: Mapping[str, Any] | None = None) -> str:
        """A new training job, in state `selected`, on the current policy version; `selection` is any JSON."""
        with self.database.writing() as connection:
            return jobs.start(connection, settings, selection or {})

    def job(self, job_id: str) -> Job:
        """One job. Raises `RequestError` (404) when there is none."""
        with self.database.reading() as connection:
            found = jobs.read(connection, job_id)
        if found is None:
            raise RequestError(f"there is no job {job_id!r}.", status=404)
        return found

    def jobs(self, limit: int = 50) -> list[Job]:
        """The newest jobs."""
        with self.database.reading() as connection:
            return jobs.newest(connection, limit)

    def unsettled_job(self) -> Job | None:
        """The job that began and did not come to its end, if there is one."""
        with self.database.reading() as connection:
            return jobs.unsettled(connection)

    def take_up_job(self, job_id: str) -> None:
        """Count one more attempt at a job."""
        with self.database.writing() as connection:
            jobs.taken_up(connection, job_id)

    def job_reached(
        self,
        job_id: str,
        state: JobState,
        *,
        selection: Mapping[str, Any] | None = None,
        checkpoint: str | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """In one transaction: the job is in this state, and what the next one needs to take it up from there."""
        values: dict[str, Any] = {"state": state.value, "error": None}
        if selection is not None:
            values["selection"] = orjson.dumps(selection).decode()
        if checkpoint is not None:
            values["checkpoint"] = checkpoint
        with self.database.writing() as connection:
            jobs.change(connection, job_id, **values)
            jobs.keep_metrics(connection, job_id, metrics or {})

    def note_job(self, job_id: str, error: str) -> None:
        """What kept a job from going on; it stays where it is."""
        with self.database.writing() as connection:
            jobs.change(connection, job_id, error=error)

    def job_metrics(self, job_id: str) -> dict[str, float]:
        """The numbers of a job as a whole."""
        with self.database.reading() as connection:
            return jobs.metrics(connection, job_id)

    def metric_total(self, name: str) -> float:
        """The sum of a number over all jobs."""
        with self.database.reading() as connection:
            return jobs.metric_total(connection, name)

    def end_job(self, job_id: str, error: str | None = None, metrics: Mapping[str, float] | None = None) -> None:
        """Close a job as `published`, or as `failed` with the reason."""
        with self.database.writing() as connection:
            jobs.end(connection, job_id, error, metrics or {})

    def skip_job(self, job_id: str, why: str) -> None:
        """Close a job as `skipped`: there was nothing to learn from, for this reason."""
        with self.database.writing() as connection:
            jobs.skip(connection, job_id, why)

    def finish_training(
        self,
        job_id: str,
        version: int,
        rewards: Mapping[str, float | None],
        advantages: Mapping[str, float],
        verification: Mapping[str, Any],
        *,
        metrics: Mapping[str, float] | None = None,
        error: str | None = None,
    ) -> None:
        """In one transaction: these trajectories are trained (id -> reward used), with these advantages (session ->
        advantage), the version is verified, the job points at it and is published; or failed, with `error`."""
        with self.database.writing() as connection:
            jobs.trained(connection, job_id, version, rewards, advantages)
            policies.change_version(connection, version, verification=orjson.dumps(verification).decode())
            jobs.end(connection, job_id, error, metrics or {}, failed="gate.failed")

    # policy versions

    def new_version(self, path: str, job_id: str | None, restores: int | None = None) -> int:
        """Number a checkpoint, for its job if it has one. It is `loading` until `version_live`."""
        with self.database.writing() as connection:
            version = policies.new_version(connection, path, job_id, restores)
            if job_id is not None:
                jobs.change(connection, job_id, policy_to=version)
            return version

    def version_live(self, version: int) -> None:
        """Call between the load and the resume of generation: from now on tokens are sampled by `version`."""
        with self.database.writing() as connection:
            policies.change_version(connection, version, state="live", live_at=time.time())

    def version_failed(self, version: int) -> None:
        """The version was not put live, or was rolled back."""
        with self.database.writing() as connection:
            policies.change_version(connection, version, state="failed")

    def version_restored(self, failed: int, path: str, restores: int) -> int:
        """In one transaction, while generation is paused: a version failed, and older weights are live again."""
        with self.database.writing() as connection:
            policies.change_version(connection, failed, state="failed")
            version = policies.new_version(connection, path, None, restores)
            policies.change_version(connection, version, state="live", live_at=time.time())
            return version

    def policy(self) -> tuple[int, str | None]:
        """The live version and its checkpoint; (0, None) while the engine has the weights that it started with."""
        with self.database.reading() as connection:
            return policies.live_version(connection)

    def versions(self) -> list[PolicyVersion]:
        """All policy versions, oldest first."""
        with self.database.reading() as connection:
            return policies.versions(connection)

    def first_version(self) -> PolicyVersion | None:
        """Version 0, which is in no list; None until a job has put weights after it live."""
        with self.database.reading() as connection:
            return policies.first_version(connection)

    def pin(self, version: int | None) -> None:
        """Pin this version, and no other; None pins none."""
        with self.database.writing() as connection:
            policies.pin(connection, version)

    # leases

    def take_lease(self, name: str, owner: str, seconds: float) -> bool:
        """Take the lease on work for one process at a time, or keep it `seconds` more; False while another has it."""
        with self.database.writing() as connection:
            return leases.take(connection, name, owner, seconds, time.time())

    def lease_holder(self, name: str) -> str | None:
        """Who has the lease; None when nobody has."""
        with self.database.reading() as connection:
            return leases.holder(connection, name, time.time())

    def give_lease(self, name: str, owner: str) -> None:
        """Give a lease back before it expires."""
        with self.database.writing() as connection:
            leases.give(connection, name, owner)
