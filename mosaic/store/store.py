"""The store's face: record calls, take rewards, hand out groups, keep jobs and policy versions.

Every method is one transaction and may be called from any thread; several processes may share one database. Only
`record` keeps state (lineage); the calls of one trajectory must be recorded through one store.
"""

import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import orjson
from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy.exc import SQLAlchemyError

from mosaic.capture import CapturedCall
from mosaic.errors import RequestError, StoreError
from mosaic.lineage import Lineage, Placement
from mosaic.lineage.lineage import pool_key
from mosaic.records import Group, Trajectory, TrajectoryState
from mosaic.store.connect import connect
from mosaic.store.models import (
    CallRow,
    CounterRow,
    JobMetricRow,
    JobRow,
    LinkRow,
    PolicyVersionRow,
    RewardRow,
    SessionRow,
    TrajectoryRow,
)
from mosaic.store.reading import read_captured, read_trajectory
from mosaic.store.versions import read_timeline
from mosaic.store.writing import count, insert_new, plain, write_call

RESTORE_SECONDS = 24 * 3600
"""How far back the calls of a client without trajectory ids are read when its lineage is restored."""


@dataclass(frozen=True, slots=True)
class TrajectorySummary:
    """One line of a listing."""

    trajectory_id: str
    task_key: str | None
    state: str
    reward: float | None
    sessions: int
    compactions: int
    spawns: int
    calls: int
    inexact_calls: int
    sampled_tokens: int
    policy_version: int
    """Newest version among its calls."""
    created_at: float


class Store:
    """All of Mosaic's memory behind one database URL."""

    def __init__(self, url: str) -> None:
        self.engine = connect(url)
        self._lineage = Lineage()

    def close(self) -> None:
        """Release the database's connections."""
        self.engine.dispose()

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self.engine.begin() as connection:
                yield connection
        except SQLAlchemyError as error:
            raise StoreError(
                f"the database refused: {getattr(error, 'orig', error)}.",
                "Check its free space and permissions; nothing that was committed is lost.",
            ) from error

    # calls

    def record(self, calls: Sequence[CapturedCall]) -> list[Placement]:
        """Place the calls and commit them in one transaction, in the order given (that in which they ended).

        Calls that are there already are skipped. On any error nothing is written and `StoreError` is raised.
        """
        try:
            with self._transaction() as connection:
                timeline = read_timeline(connection)
                known = set(
                    connection.scalars(select(CallRow.call_id).where(CallRow.call_id.in_([c.call_id for c in calls])))
                )
                placements = []
                for call in calls:
                    if call.call_id in known:
                        continue
                    self._restore(connection, call)
                    placement = self._lineage.place(call)
                    write_call(connection, call, placement, timeline)
                    placements.append(placement)
                return placements
        except BaseException:
            for call in calls:
                self._lineage.forget(pool_key(call))
            raise

    def _restore(self, connection: Connection, call: CapturedCall) -> None:
        """After a restart: place the calls again that the call's pool already holds."""
        if self._lineage.knows(pool_key(call)):
            return
        if call.trajectory_id is not None:
            earlier = read_captured(connection, CallRow.trajectory_id == call.trajectory_id)
        else:
            since = call.started_at - RESTORE_SECONDS
            mine = (CallRow.attribution == "lineage", CallRow.client == call.client, CallRow.started_at >= since)
            earlier = read_captured(connection, *mine)
        for known in earlier:
            self._lineage.place(known)

    def count(self, name: str, reason: str, by: int = 1) -> None:
        """Add to a counter."""
        with self._transaction() as connection:
            count(connection, name, reason, by)

    def counters(self) -> dict[str, dict[str, int]]:
        """All counters: name -> reason -> value."""
        found: dict[str, dict[str, int]] = {}
        with self._transaction() as connection:
            for name, reason, value in connection.execute(select(CounterRow.name, CounterRow.reason, CounterRow.value)):
                found.setdefault(name, {})[reason] = value
        return found

    # rewards

    def reward(
        self, trajectory_id: str, value: float | None, source: str, note: str | None = None, now: float | None = None
    ) -> None:
        """Append a reward; the last one is in force. None means that the trajectory cannot be scored.

        Raises `RequestError`: 404 for an unknown trajectory, 400 for a reward that is not finite.
        """
        if value is not None and not math.isfinite(value):
            raise RequestError(
                f"a reward of {value} cannot be used.",
                "Give a finite number; null (`none` on the command line) means unscorable.",
            )
        now = time.time() if now is None else now
        with self._transaction() as connection:
            state = connection.scalar(select(TrajectoryRow.state).where(TrajectoryRow.trajectory_id == trajectory_id))
            if state is None:
                raise RequestError(
                    f"there is no trajectory {trajectory_id!r}.",
                    "List them with `mosaic trajectories`; a trajectory exists once its first call has ended.",
                    status=404,
                )
            row = {
                "trajectory_id": trajectory_id,
                "value": value,
                "source": source,
                "note": None if note is None else plain(note),
                "created_at": now,
            }
            connection.execute(insert(RewardRow), row)
            new_state = TrajectoryState.UNSCORABLE if value is None else TrajectoryState.SCORED
            if state == TrajectoryState.TRAINED.value:
                count(connection, "late_rewards", "after_training")
                new_state = TrajectoryState.TRAINED
            changed = update(TrajectoryRow).where(TrajectoryRow.trajectory_id == trajectory_id)
            connection.execute(changed.values(reward=value, state=new_state.value, updated_at=now))

    def fail(self, trajectory_id: str, reason: str) -> None:
        """Mark a trajectory as failed by its infrastructure: it is not a reward of 0 and is never trained."""
        with self._transaction() as connection:
            changed = update(TrajectoryRow).where(TrajectoryRow.trajectory_id == trajectory_id)
            connection.execute(changed.values(state=TrajectoryState.FAILED.value, updated_at=time.time()))
            count(connection, "failed_trajectories", reason)

    # trajectories

    def trajectory(self, trajectory_id: str) -> Trajectory:
        """One trajectory with its sessions and calls. Raises `RequestError` (404) when there is none."""
        with self._transaction() as connection:
            found = read_trajectory(connection, trajectory_id)
        if found is None:
            raise RequestError(
                f"there is no trajectory {trajectory_id!r}.", "List them with `mosaic trajectories`.", status=404
            )
        return found

    def trajectories(self, limit: int = 50, like: str | None = None) -> list[TrajectorySummary]:
        """The newest trajectories, optionally those whose id matches an SQL LIKE pattern."""
        query = select(TrajectoryRow.__table__).order_by(TrajectoryRow.created_at.desc()).limit(limit)
        if like is not None:
            query = query.where(TrajectoryRow.trajectory_id.like(like))
        with self._transaction() as connection:
            rows = list(connection.execute(query).mappings())
            ids = [r["trajectory_id"] for r in rows]
            calls, kinds = _call_totals(connection, ids), _session_kinds(connection, ids)
        return [_summary(r, calls.get(r["trajectory_id"]), kinds.get(r["trajectory_id"], {})) for r in rows]

    def links(self, trajectory_id: str) -> list[dict[str, Any]]:
        """The links of a trajectory's sessions in order of opening, evidence and rivals decoded."""
        query = (
            select(LinkRow.__table__)
            .join(SessionRow, SessionRow.session_id == LinkRow.session_id)
            .where(LinkRow.trajectory_id == trajectory_id)
            .order_by(SessionRow.position)
        )
        with self._transaction() as connection:
            rows = connection.execute(query).mappings().all()
        return [{**r, "evidence": orjson.loads(r["evidence"]), "rivals": orjson.loads(r["rivals"])} for r in rows]

    def untrained_groups(self, like: str | None = None) -> list[Group]:
        """Scored trajectories that no job has trained, by task, oldest first; `like` is a pattern for their ids."""
        query = (
            select(TrajectoryRow.trajectory_id, TrajectoryRow.task_key)
            .where(TrajectoryRow.state == TrajectoryState.SCORED.value)
            .order_by(TrajectoryRow.created_at)
        )
        if like is not None:
            query = query.where(TrajectoryRow.trajectory_id.like(like))
        groups: dict[str, list[Trajectory]] = {}
        with self._transaction() as connection:
            for trajectory_id, task_key in connection.execute(query).all():
                found = read_trajectory(connection, trajectory_id)
                if found is not None:
                    groups.setdefault(task_key or trajectory_id, []).append(found)
        return [Group(key, tuple(members)) for key, members in groups.items()]

    # jobs and policy versions

    def start_job(self, settings: Mapping[str, Any]) -> str:
        """A new training job, in state `running`, on the current policy version."""
        job_id = f"job-{uuid.uuid4().hex[:12]}"
        row = {"job_id": job_id, "state": "running", "settings": orjson.dumps(settings, default=str).decode()}
        with self._transaction() as connection:
            current = connection.scalar(_current_version()) or 0
            connection.execute(insert(JobRow), {**row, "policy_from": current, "created_at": time.time()})
        return job_id

    def end_job(self, job_id: str, error: str | None = None, metrics: Mapping[str, float] | None = None) -> None:
        """Close a job as `done`, or as `failed` with the reason."""
        state = "done" if error is None else "failed"
        rows = [{"job_id": job_id, "step": 0, "name": n, "value": float(v)} for n, v in (metrics or {}).items()]
        with self._transaction() as connection:
            ended = update(JobRow).where(JobRow.job_id == job_id)
            connection.execute(ended.values(state=state, error=error, ended_at=time.time()))
            insert_new(connection, JobMetricRow, rows)

    def new_version(self, path: str, job_id: str | None) -> int:
        """Number a checkpoint. It is `loading` until `version_live`."""
        with self._transaction() as connection:
            version = (connection.scalar(select(func.max(PolicyVersionRow.version))) or 0) + 1
            row = {"version": version, "path": path, "state": "loading", "job_id": job_id, "created_at": time.time()}
            connection.execute(insert(PolicyVersionRow), row)
        return version

    def version_live(self, version: int) -> None:
        """Call between the load and the resume of generation: from now on tokens are sampled by `version`."""
        with self._transaction() as connection:
            row = update(PolicyVersionRow).where(PolicyVersionRow.version == version)
            connection.execute(row.values(state="live", live_at=time.time()))

    def version_failed(self, version: int) -> None:
        """The version was not put live, or was rolled back."""
        with self._transaction() as connection:
            row = update(PolicyVersionRow).where(PolicyVersionRow.version == version)
            connection.execute(row.values(state="failed"))

    def finish_training(
        self, job_id: str, version: int, trained: Sequence[str], verification: Mapping[str, Any]
    ) -> None:
        """In one transaction: the trajectories are trained, the version is verified, the job points at it."""
        with self._transaction() as connection:
            for at in range(0, len(trained), 500):
                rows = update(TrajectoryRow).where(TrajectoryRow.trajectory_id.in_(trained[at : at + 500]))
                connection.execute(
                    rows.values(state=TrajectoryState.TRAINED.value, trained_version=version, trained_job_id=job_id)
                )
            checked = update(PolicyVersionRow).where(PolicyVersionRow.version == version)
            connection.execute(checked.values(verification=orjson.dumps(verification).decode()))
            connection.execute(update(JobRow).where(JobRow.job_id == job_id).values(policy_to=version))

    def policy(self) -> tuple[int, str | None]:
        """The live version and its checkpoint; (0, None) while the engine has the weights that it started with."""
        query = select(PolicyVersionRow.version, PolicyVersionRow.path).where(PolicyVersionRow.state == "live")
        with self._transaction() as connection:
            row = connection.execute(query.order_by(PolicyVersionRow.version.desc()).limit(1)).first()
        return (row[0], row[1]) if row else (0, None)


def _current_version() -> Any:
    return select(func.max(PolicyVersionRow.version)).where(PolicyVersionRow.state == "live")


def _call_totals(connection: Connection, ids: Sequence[str]) -> dict[str, Any]:
    query = (
        select(
            CallRow.trajectory_id,
            func.count().label("calls"),
            func.sum(CallRow.sampled_tokens).label("sampled"),
            func.count(CallRow.inexact_reason).label("inexact"),
            func.max(CallRow.policy_version_end).label("version"),
        )
        .where(CallRow.trajectory_id.in_(ids))
        .group_by(CallRow.trajectory_id)
    )
    return {r["trajectory_id"]: r for r in connection.execute(query).mappings()}


def _session_kinds(connection: Connection, ids: Sequence[str]) -> dict[str, dict[str, int]]:
    query = (
        select(SessionRow.trajectory_id, SessionRow.kind, func.count())
        .where(SessionRow.trajectory_id.in_(ids))
        .group_by(SessionRow.trajectory_id, SessionRow.kind)
    )
    kinds: dict[str, dict[str, int]] = {}
    for trajectory_id, kind, number in connection.execute(query):
        kinds.setdefault(trajectory_id, {})[kind] = number
    return kinds


def _summary(row: Mapping[Any, Any], calls: Mapping[str, Any] | None, kinds: Mapping[str, int]) -> TrajectorySummary:
    return TrajectorySummary(
        trajectory_id=row["trajectory_id"],
        task_key=row["task_key"],
        state=row["state"],
        reward=row["reward"],
        sessions=sum(kinds.values()),
        compactions=kinds.get("compaction", 0),
        spawns=kinds.get("spawn", 0),
        calls=calls["calls"] if calls else 0,
        inexact_calls=calls["inexact"] if calls else 0,
        sampled_tokens=int(calls["sampled"] or 0) if calls else 0,
        policy_version=calls["version"] if calls else 0,
        created_at=row["created_at"],
    )
