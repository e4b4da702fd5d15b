"""What a person looks at: pages of trajectories, and one trajectory with its sessions and rewards.

Every question has an index, whatever is filtered: a page of trajectories looks at `WINDOW` rows at most and then says
from where to go on. Cursors name the last row that was looked at, so that rows which come meanwhile move nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, func, or_, select

from mosaic.errors import RequestError
from mosaic.store import listing
from mosaic.store.listing import TrajectorySummary
from mosaic.store.models import (
    AdvantageRow,
    CallRow,
    JobRow,
    LinkRow,
    RewardRow,
    SessionRow,
    TaskRow,
    TrajectoryRow,
)
from mosaic.store.reading import batched, load

WINDOW = 20_000
"""Trajectories that one page looks at, at most."""
TEXT_WINDOW = 5_000
"""The same when their tasks' texts are searched, which are longer than rows."""

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Page(Generic[Item]):
    """Some of a list, and how to go on."""

    items: Sequence[Item]
    next: str | None
    """Cursor of the page after this one; None at the end. A page may be short, even empty, and still have one."""


@dataclass(frozen=True, slots=True)
class Filter:
    """Which trajectories; None asks for nothing."""

    text: str | None = None
    """Part of the id or of the task, in any case."""
    state: str | None = None
    task_key: str | None = None
    min_reward: float | None = None
    below_reward: float | None = None
    scored: bool | None = None
    """Whether there is a reward."""


@dataclass(frozen=True, slots=True)
class SessionLine:
    """A session with why it stands where it stands, and what it was worth."""

    session_id: str
    position: int
    kind: str
    parent_session_id: str | None
    opened_by_call_id: str | None
    created_at: float
    ended_at: float | None
    """When its newest call ended."""
    ended: str | None
    """Why it is believed to be over: answered, succeeded or returned; None while it may go on."""
    calls: int
    auxiliary_calls: int
    inexact_calls: int
    sampled_tokens: int
    link: Mapping[str, Any] | None
    """Rung, score, evidence, rivals; None when the session has no link."""
    advantage: float | None
    """With which the newest job trained it: renormalised over that job's whole batch."""
    trained_by: str | None
    """That job."""
    reward: float | None
    """Its own, where it was judged by itself."""


def page(connection: Connection, wanted: Filter, cursor: str | None, limit: int) -> Page[TrajectorySummary]:
    """The newest trajectories that fit, after the cursor. Raises `RequestError` for a cursor that is none of ours."""
    window = TEXT_WINDOW if wanted.text else WINDOW
    looked_at = _after(select(TrajectoryRow.__table__), cursor)
    if wanted.task_key is not None:
        looked_at = looked_at.where(TrajectoryRow.task_key == wanted.task_key)
    newest_first = (TrajectoryRow.created_at.desc(), TrajectoryRow.trajectory_id.desc())
    inner = looked_at.order_by(*newest_first).limit(window).subquery("looked_at")
    query = select(inner).where(*_fits(inner.c, wanted))
    if wanted.text:
        query = query.outerjoin(TaskRow, TaskRow.task_key == inner.c.task_key)
    rows = connection.execute(
        query.order_by(inner.c.created_at.desc(), inner.c.trajectory_id.desc()).limit(limit + 1)
    ).mappings()
    found = list(rows)
    if len(found) > limit:
        found.pop()
        after: str | None = _cursor(found[-1])
    else:
        last = looked_at.order_by(*newest_first).offset(window - 1).limit(1)
        end = connection.execute(last).mappings().first()
        after = None if end is None else _cursor(end)
    return Page(listing.summarised(connection, found), after)


def by_ids(connection: Connection, ids: Sequence[str]) -> list[TrajectorySummary]:
    """These trajectories, newest first; unknown ids are left out."""
    query = select(TrajectoryRow.__table__).where(TrajectoryRow.trajectory_id.in_(ids))
    return listing.summarised(
        connection, connection.execute(query.order_by(TrajectoryRow.created_at.desc())).mappings().all()
    )


def states(connection: Connection) -> dict[str, int]:
    """How many trajectories are in which state."""
    query = select(TrajectoryRow.state, func.count()).group_by(TrajectoryRow.state)
    return dict(connection.execute(query).all())


def trajectory_of(connection: Connection, any_id: str) -> str | None:
    """The trajectory of this id, or that of the call or session of this id."""
    for named in (
        select(TrajectoryRow.trajectory_id).where(TrajectoryRow.trajectory_id == any_id),
        select(CallRow.trajectory_id).where(CallRow.call_id == any_id),
        select(SessionRow.trajectory_id).where(SessionRow.session_id == any_id),
    ):
        if (found := connection.scalar(named)) is not None:
            return found
    return None


def overview(connection: Connection, trajectory_id: str) -> tuple[TrajectorySummary, RowMapping]:
    """One trajectory, summed up and as its row. Raises `RequestError` (404)."""
    row = (
        connection.execute(select(TrajectoryRow.__table__).where(TrajectoryRow.trajectory_id == trajectory_id))
        .mappings()
        .first()
    )
    if row is None:
        raise missing("trajectory", trajectory_id)
    return listing.summarised(connection, [row])[0], row


def rewards(connection: Connection, trajectory_id: str) -> list[dict[str, Any]]:
    """All that was said of how it went, newest first."""
    query = select(RewardRow.__table__).where(RewardRow.trajectory_id == trajectory_id)
    return [dict(row) for row in connection.execute(query.order_by(RewardRow.reward_id.desc())).mappings()]


def sessions(connection: Connection, trajectory_id: str, session_id: str | None = None) -> list[SessionLine]:
    """The sessions of a trajectory in order of opening, or one of them."""
    query = select(SessionRow.__table__).where(SessionRow.trajectory_id == trajectory_id)
    if session_id is not None:
        query = query.where(SessionRow.session_id == session_id)
    rows = connection.execute(query.order_by(SessionRow.position)).mappings().all()
    totals = _totals(connection, trajectory_id, session_id)
    links = {
        row["session_id"]: {**row, "evidence": load(row["evidence"]), "rivals": load(row["rivals"])}
        for row in connection.execute(
            select(LinkRow.__table__).where(LinkRow.trajectory_id == trajectory_id)
        ).mappings()
    }
    ids = [row["session_id"] for row in rows]
    worth, own = _advantages(connection, ids), _own_rewards(connection, ids)
    return [_session_line(row, totals, links, worth, own) for row in rows]


def _session_line(
    row: RowMapping,
    totals: Mapping[str, RowMapping],
    links: Mapping[str, Mapping[str, Any]],
    worth: Mapping[str, tuple[str, float]],
    own: Mapping[str | None, float | None],
) -> SessionLine:
    session_id = row["session_id"]
    total = totals.get(session_id)
    job_id, advantage = worth.get(session_id, (None, None))
    return SessionLine(
        session_id=session_id,
        position=row["position"],
        kind=row["kind"],
        parent_session_id=row["parent_session_id"],
        opened_by_call_id=row["opened_by_call_id"],
        created_at=row["created_at"],
        ended_at=total["ended_at"] if total else None,
        ended=row["ended"],
        calls=total["calls"] if total else 0,
        auxiliary_calls=total["auxiliary"] if total else 0,
        inexact_calls=total["inexact"] if total else 0,
        sampled_tokens=int(total["sampled"]) if total else 0,
        link=links.get(session_id),
        advantage=advantage,
        trained_by=job_id,
        reward=own.get(session_id),
    )


def _totals(connection: Connection, trajectory_id: str, session_id: str | None) -> dict[str, RowMapping]:
    query = (
        select(
            CallRow.session_id,
            func.count().label("calls"),
            func.count(CallRow.auxiliary).label("auxiliary"),
            func.count(CallRow.inexact_reason).label("inexact"),
            func.sum(CallRow.sampled_tokens).label("sampled"),
            func.max(CallRow.ended_at).label("ended_at"),
        )
        .where(CallRow.trajectory_id == trajectory_id)
        .group_by(CallRow.session_id)
    )
    if session_id is not None:
        query = query.where(CallRow.session_id == session_id)
    return {row["session_id"]: row for row in connection.execute(query).mappings()}


def _advantages(connection: Connection, ids: Sequence[str]) -> dict[str, tuple[str, float]]:
    """Session -> the newest job that trained it, and with which advantage."""
    found: dict[str, tuple[str, float]] = {}
    for some in batched(ids):
        query = (
            select(AdvantageRow.session_id, AdvantageRow.job_id, AdvantageRow.value)
            .join(JobRow, JobRow.job_id == AdvantageRow.job_id)
            .where(AdvantageRow.session_id.in_(some))
            .order_by(JobRow.created_at)
        )
        found.update({session_id: (job_id, value) for session_id, job_id, value in connection.execute(query)})
    return found


def _own_rewards(connection: Connection, ids: Sequence[str]) -> dict[str | None, float | None]:
    """Session -> the last reward in force that is its own."""
    found: dict[str | None, float | None] = {}
    for some in batched(ids):
        query = select(RewardRow.session_id, RewardRow.value).where(RewardRow.session_id.in_(some))
        in_force = query.where(RewardRow.in_force).order_by(RewardRow.reward_id)
        found.update(dict(connection.execute(in_force).all()))
    return found


def _after(query: Select[Any], cursor: str | None) -> Select[Any]:
    """What is older than the trajectory that a cursor names."""
    if cursor is None:
        return query
    when, parted, trajectory_id = cursor.partition("~")
    try:
        at = float(when)
    except ValueError:
        parted = ""
    if not parted or "\0" in trajectory_id:
        raise no_cursor(cursor)
    older = or_(TrajectoryRow.created_at < at, TrajectoryRow.trajectory_id < trajectory_id)
    return query.where(TrajectoryRow.created_at <= at, older)


def _cursor(row: RowMapping) -> str:
    return f"{float(row['created_at'])!r}~{row['trajectory_id']}"


def no_cursor(cursor: str) -> RequestError:
    """The refusal of a cursor that is none of ours."""
    return RequestError(f"{cursor[:80]!r} is no cursor.", "Use `next` of the page before, as it is.")


def missing(what: str, name: str) -> RequestError:
    """The refusal of a name that is not there."""
    return RequestError(
        f"there is no {what} {name[:200]!r}.", "It may have been pruned, or not have ended yet.", status=404
    )


def _fits(columns: Any, wanted: Filter) -> list[ColumnElement[bool]]:
    found: list[ColumnElement[bool]] = []
    if wanted.state is not None:
        found.append(columns.state == wanted.state)
    if wanted.min_reward is not None:
        found.append(columns.reward >= wanted.min_reward)
    if wanted.below_reward is not None:
        found.append(columns.reward < wanted.below_reward)
    if wanted.scored is not None:
        found.append(columns.reward.is_not(None) if wanted.scored else columns.reward.is_(None))
    if wanted.text:
        found.append(
            or_(
                columns.trajectory_id.icontains(wanted.text, autoescape=True),
                TaskRow.text.icontains(wanted.text, autoescape=True),
            )
        )
    return found
