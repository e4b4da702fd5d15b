"""Training jobs, policy versions and leases: who does what, and which weights were live when."""

import time
import uuid
from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, delete, func, insert, select, update

from mosaic.records import TrajectoryState
from mosaic.store.models import (
    AdvantageRow,
    JobMetricRow,
    JobRow,
    LeaseRow,
    PolicyVersionRow,
    SessionRow,
    TrajectoryRow,
)
from mosaic.store.reading import batched
from mosaic.store.writing import count, insert_new


def start(connection: Connection, settings: Mapping[str, Any]) -> str:
    """A new job, in state `running`, on the live policy version; returns its id."""
    job_id = f"job-{uuid.uuid4().hex[:12]}"
    live = select(func.max(PolicyVersionRow.version)).where(PolicyVersionRow.state == "live")
    row = {
        "job_id": job_id,
        "state": "running",
        "settings": orjson.dumps(settings, default=str).decode(),
        "policy_from": connection.scalar(live) or 0,
        "created_at": time.time(),
    }
    connection.execute(insert(JobRow), row)
    return job_id


def end(connection: Connection, job_id: str, error: str | None, metrics: Mapping[str, float]) -> None:
    """Close a job as `done`, or as `failed` with the reason."""
    state = "done" if error is None else "failed"
    ended = update(JobRow).where(JobRow.job_id == job_id)
    connection.execute(ended.values(state=state, error=error, ended_at=time.time()))
    rows = [{"job_id": job_id, "step": 0, "name": name, "value": float(value)} for name, value in metrics.items()]
    insert_new(connection, JobMetricRow, rows)


def trained(
    connection: Connection,
    job_id: str,
    version: int,
    rewards: Mapping[str, float | None],
    advantages: Mapping[str, float],
) -> None:
    """The trajectories are trained, each with the reward given here, and the job points at its version.

    A trajectory that was rewarded otherwise while the job ran stays scored: it was trained with a reward that is no
    longer in force.
    """
    now = time.time()
    for trajectory_id, reward in rewards.items():
        there = TrajectoryRow.trajectory_id == trajectory_id
        same = TrajectoryRow.reward.is_(None) if reward is None else TrajectoryRow.reward == reward
        rows = update(TrajectoryRow).where(there, same)
        values = {"state": TrajectoryState.TRAINED.value, "trained_version": version, "trained_job_id": job_id}
        if not connection.execute(rows.values(**values, state_at=now)).rowcount:
            known = connection.scalar(select(TrajectoryRow.state).where(there)) is not None
            count(connection, *(("late_rewards", "while_training") if known else ("pruned", "while_training")))
    _keep_advantages(connection, job_id, advantages)
    connection.execute(update(JobRow).where(JobRow.job_id == job_id).values(policy_to=version))


def _keep_advantages(connection: Connection, job_id: str, advantages: Mapping[str, float]) -> None:
    """What each session was trained with; some may have been pruned since the job read them."""
    for some in batched(list(advantages)):
        there = connection.scalars(select(SessionRow.session_id).where(SessionRow.session_id.in_(some)))
        rows = [{"job_id": job_id, "session_id": session, "value": advantages[session]} for session in there]
        insert_new(connection, AdvantageRow, rows)


def new_version(connection: Connection, path: str, job_id: str | None) -> int:
    """Number a checkpoint. It is `loading` until it is live."""
    version = (connection.scalar(select(func.max(PolicyVersionRow.version))) or 0) + 1
    row = {"version": version, "path": path, "state": "loading", "job_id": job_id, "created_at": time.time()}
    connection.execute(insert(PolicyVersionRow), row)
    return version


def change_version(connection: Connection, version: int, **values: Any) -> None:
    """Set columns of a version."""
    connection.execute(update(PolicyVersionRow).where(PolicyVersionRow.version == version).values(**values))


def live_version(connection: Connection) -> tuple[int, str | None]:
    """The live version and its checkpoint; (0, None) while the engine has the weights that it started with."""
    query = select(PolicyVersionRow.version, PolicyVersionRow.path).where(PolicyVersionRow.state == "live")
    row = connection.execute(query.order_by(PolicyVersionRow.version.desc()).limit(1)).first()
    return (row[0], row[1]) if row else (0, None)


def take_lease(connection: Connection, name: str, owner: str, seconds: float, now: float) -> bool:
    """Take a lease, or keep it for `seconds` more; False while another owner has it."""
    held = connection.execute(select(LeaseRow.owner, LeaseRow.expires_at).where(LeaseRow.name == name)).first()
    if held is not None and held[0] != owner and held[1] > now:
        return False
    connection.execute(delete(LeaseRow).where(LeaseRow.name == name))
    connection.execute(insert(LeaseRow), {"name": name, "owner": owner, "expires_at": now + seconds})
    return True


def give_lease(connection: Connection, name: str, owner: str) -> None:
    """Give a lease back before it expires; nothing happens when another owner has it."""
    connection.execute(delete(LeaseRow).where(LeaseRow.name == name, LeaseRow.owner == owner))
