"""Lineage computed again from the recorded calls: the same answer as live, or that of newer rules and tables.

Pool by pool, each in one transaction: the calls are placed in the order in which they were, and what differs is
written. Nothing that was recorded changes, only where it stands. Trajectories in which no call stands any more go,
unless someone judged them or a job trained them; sessions likewise.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, bindparam, delete, exists, func, select, update

from mosaic.capture import CapturedCall
from mosaic.lineage import Ending, Harness, Lineage, Link, Placement
from mosaic.store.database import Database
from mosaic.store.models import AdvantageRow, CallRow, LinkRow, RewardRow, SessionRow, TaskRow, TrajectoryRow
from mosaic.store.reading import batched, read_placed
from mosaic.store.recording import in_pool
from mosaic.store.rows import link_values, session_row, task_row, trajectory_row, why_values
from mosaic.store.writing import count, insert_new

AT_ONCE = 500
"""Calls that are read together."""
ASIDE = 1_000_000
"""Added to the positions of a trajectory's sessions while they are numbered anew."""


@dataclass(frozen=True, slots=True)
class Moved:
    """A call that stands elsewhere now."""

    call_id: str
    before: tuple[str, str, str | None, str | None]
    """Trajectory, session, the call that it extends, auxiliary tag."""
    after: tuple[str, str, str | None, str | None]


@dataclass(frozen=True, slots=True)
class Relinked:
    """What came out."""

    calls: int
    """Calls that were looked at."""
    moved: tuple[Moved, ...]
    links: int
    """Links of sessions that read otherwise now: kind, parent, score or evidence."""
    filled: int
    """Calls of older releases, or imported ones, that know now why they stand where they stand."""


@dataclass(slots=True)
class _Pool:
    """A pool as it should be."""

    calls: dict[str, Placement] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    trained: set[str] = field(default_factory=set)
    """Calls whose auxiliary tag was taken back."""
    ended: dict[str, tuple[Ending | None, float]] = field(default_factory=dict)
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    trajectories: dict[str, dict[str, Any]] = field(default_factory=dict)
    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    before: dict[str, tuple[str, str, str | None, str | None]] = field(default_factory=dict)
    derived: set[str] = field(default_factory=set)
    """Task keys that came from a call's first user text, and not from an operator."""

    def take(self, call: CapturedCall, was: Placement, tag: str | None, placement: Placement) -> None:
        """Note where a call should stand, and where it stands."""
        self.before[call.call_id] = (was.trajectory_id, was.session_id, was.parent_call_id, tag)
        self.calls[call.call_id] = placement
        self.trained.update(placement.confirmed)
        for link in (placement.opened, *placement.relinked):
            if link is not None:
                self.links[link.session_id] = link
        self.ended.update({session: (ending, call.ended_at) for session, ending in placement.ended.items()})
        trajectory = self.trajectories.setdefault(
            placement.trajectory_id, trajectory_row(call, placement.trajectory_id, 0)
        )
        trajectory["updated_at"] = max(trajectory["updated_at"], call.ended_at)
        if placement.opened is not None:
            row = session_row(call, placement.opened, placement.trajectory_id, placement.position)
            self.sessions[placement.session_id] = row
        if was.parent_call_id is None:
            self.derived.add(task_row(call)["task_key"])
        if placement.names_task and trajectory["task_key"] is None:
            task = task_row(call)
            self.tasks[task["task_key"]] = task
            trajectory["task_key"] = task["task_key"]

    def after(self, call_id: str) -> tuple[str, str, str | None, str | None]:
        """Where a call should stand."""
        placement = self.calls[call_id]
        tag = None if call_id in self.trained else placement.auxiliary
        return placement.trajectory_id, placement.session_id, placement.parent_call_id, tag


def relink(
    database: Database,
    harnesses: Sequence[Harness],
    *,
    dry_run: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Relinked:
    """Compute lineage again and write what differs; with `dry_run` only tell. Raises `StoreError`."""
    with database.reading() as connection:
        total = connection.scalar(select(func.count()).select_from(CallRow)) or 0
        keys = list(_pools(connection))
    found: list[Relinked] = []
    for key in keys:
        with database.writing() as connection:
            found.append(_relink_pool(connection, key, harnesses, dry_run=dry_run))
        if on_progress is not None:
            on_progress(sum(f.calls for f in found), total)
    return Relinked(
        sum(f.calls for f in found),
        tuple(moved for f in found for moved in f.moved),
        sum(f.links for f in found),
        sum(f.filled for f in found),
    )


def _pools(connection: Connection) -> Iterator[str]:
    """All pools: the clients whose trajectories lineage found, then those that an operator named."""
    clients = select(CallRow.client).where(CallRow.attribution == "lineage").distinct()
    for client in connection.scalars(clients):
        yield f"c:{client}"
    named = select(TrajectoryRow.trajectory_id).where(TrajectoryRow.attribution != "lineage")
    for trajectory_id in connection.scalars(named.order_by(TrajectoryRow.created_at)):
        yield f"t:{trajectory_id}"


def _relink_pool(connection: Connection, key: str, harnesses: Sequence[Harness], *, dry_run: bool) -> Relinked:
    pool, lineage = _Pool(), Lineage(harnesses)
    rows: dict[str, str | None] = {}
    for call, was, tag, rung in _calls(connection, key):
        pool.take(call, was, tag, lineage.place(call))
        rows[call.call_id] = rung
    moved = [Moved(i, b, pool.after(i)) for i, b in pool.before.items() if b != pool.after(i)]
    links = _different_links(connection, pool)
    unfilled = [i for i, rung in rows.items() if rung is None]
    if not dry_run and (moved or links or unfilled):
        _write(connection, pool, [m.call_id for m in moved])
        count(connection, "relinked", "runs")
        count(connection, "relinked", "calls_moved", len(moved))
    return Relinked(len(rows), tuple(moved), len(links), len(unfilled))


def _calls(connection: Connection, key: str) -> Iterator[tuple[CapturedCall, Placement, str | None, str | None]]:
    """(Call, where it stands, its tag, its rung) of a pool's calls, in the order in which they were placed."""
    query = select(CallRow.seq, CallRow.call_id, CallRow.auxiliary, CallRow.rung).where(*in_pool(key))
    rows = connection.execute(query.order_by(CallRow.seq)).all()
    for some in (rows[at : at + AT_ONCE] for at in range(0, len(rows), AT_ONCE)):
        said = {row.call_id: (row.auxiliary, row.rung) for row in some}
        where = (*in_pool(key), CallRow.seq >= some[0].seq, CallRow.seq <= some[-1].seq)
        for call, placement in read_placed(connection, *where):
            yield call, placement, *said[call.call_id]


def _different_links(connection: Connection, pool: _Pool) -> list[str]:
    """Sessions whose link in the database is another."""
    held: dict[str, dict[str, Any]] = {}
    for some in batched(list(pool.links)):
        query = select(LinkRow.__table__).where(LinkRow.session_id.in_(some))
        held.update({row["session_id"]: dict(row) for row in connection.execute(query).mappings()})
    return [
        session_id
        for session_id, link in pool.links.items()
        if session_id not in held or any(held[session_id][k] != v for k, v in link_values(link).items())
    ]


def _write(connection: Connection, pool: _Pool, moved: list[str]) -> None:
    """Put everything where it should stand."""
    insert_new(connection, TaskRow, pool.tasks.values())
    new = [{"reward": None, "trained_version": None, "trained_job_id": None, **t} for t in pool.trajectories.values()]
    insert_new(connection, TrajectoryRow, new)
    _rename_tasks(connection, pool)
    before = {pool.before[call_id][0] for call_id in moved}
    _write_sessions(connection, pool, [*dict.fromkeys([*before, *pool.trajectories])])
    places = [
        {"which": i, **dict(zip(_PLACE, pool.after(i), strict=True)), **why_values(pool.calls[i].why)}
        for i in pool.calls
    ]
    connection.execute(
        update(CallRow).where(CallRow.call_id == bindparam("which")),
        places,
        execution_options={"synchronize_session": False},
    )
    _remove_empty(connection, before)
    for some in batched(list(pool.trajectories)):
        _refresh(connection, some)


def _rename_tasks(connection: Connection, pool: _Pool) -> None:
    """Trajectories whose task came from a first user text, and now from another."""
    for some in batched(list(pool.trajectories)):
        query = select(TrajectoryRow.trajectory_id, TrajectoryRow.task_key).where(TrajectoryRow.trajectory_id.in_(some))
        for trajectory_id, key in connection.execute(query.where(TrajectoryRow.attribution == "lineage")).all():
            new = pool.trajectories[trajectory_id]["task_key"]
            if new is not None and key != new and (key is None or key in pool.derived):
                renamed = update(TrajectoryRow).where(TrajectoryRow.trajectory_id == trajectory_id)
                connection.execute(renamed.values(task_key=new))


_PLACE = ("trajectory_id", "session_id", "parent_call_id", "auxiliary")


def _write_sessions(connection: Connection, pool: _Pool, trajectories: Sequence[str]) -> None:
    for some in batched(trajectories):
        mine = SessionRow.trajectory_id.in_(some)
        connection.execute(update(SessionRow).where(mine).values(position=SessionRow.position + ASIDE))
    rows = [{**row, "ended": None, "ended_at": None} for row in pool.sessions.values()]
    for row in rows:
        link = pool.links[row["session_id"]]
        ending, at = pool.ended.get(row["session_id"], (None, 0.0))
        row |= {"kind": link.kind.value, "parent_session_id": link.parent_session_id}
        row |= {"opened_by_call_id": link.parent_call_id}
        row |= {"ended": ending, "ended_at": at if ending is not None else None}
    insert_new(connection, SessionRow, rows)
    changed = [{"which": row["session_id"], **{k: v for k, v in row.items() if k != "session_id"}} for row in rows]
    if changed:
        connection.execute(update(SessionRow).where(SessionRow.session_id == bindparam("which")), changed)
    links = [
        {"trajectory_id": pool.sessions[session_id]["trajectory_id"], **link_values(link)}
        for session_id, link in pool.links.items()
        if session_id in pool.sessions
    ]
    insert_new(connection, LinkRow, links)
    renewed = [{"which": row["session_id"], **{k: v for k, v in row.items() if k != "session_id"}} for row in links]
    if renewed:
        connection.execute(update(LinkRow).where(LinkRow.session_id == bindparam("which")), renewed)


def _remove_empty(connection: Connection, trajectories: set[str]) -> None:
    """Remove sessions without calls that nobody judged or trained, and trajectories without sessions likewise."""
    used = (
        exists().where(CallRow.session_id == SessionRow.session_id),
        exists().where(RewardRow.session_id == SessionRow.session_id),
        exists().where(AdvantageRow.session_id == SessionRow.session_id),
    )
    for some in batched(sorted(trajectories)):
        empty = select(SessionRow.session_id).where(SessionRow.trajectory_id.in_(some), *(~u for u in used))
        ids = list(connection.scalars(empty))
        connection.execute(delete(LinkRow).where(LinkRow.session_id.in_(ids)))
        connection.execute(delete(SessionRow).where(SessionRow.session_id.in_(ids)))
        held = (
            exists().where(SessionRow.trajectory_id == TrajectoryRow.trajectory_id),
            exists().where(RewardRow.trajectory_id == TrajectoryRow.trajectory_id),
        )
        connection.execute(delete(TrajectoryRow).where(TrajectoryRow.trajectory_id.in_(some), *(~h for h in held)))


def _refresh(connection: Connection, trajectories: Sequence[str]) -> None:
    """Times and the oldest policy version of trajectories, from their calls."""
    mine = CallRow.trajectory_id == TrajectoryRow.trajectory_id
    connection.execute(
        update(TrajectoryRow)
        .where(TrajectoryRow.trajectory_id.in_(trajectories))
        .values(
            updated_at=select(func.max(CallRow.ended_at)).where(mine).scalar_subquery(),
            policy_version=select(func.min(CallRow.policy_version)).where(mine).scalar_subquery(),
        )
    )
