"""What lineage decided, for people: why a call stands where it stands, what is unlinked, and what is exact."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, func, or_, select

from mosaic.errors import RequestError
from mosaic.records import SessionKind
from mosaic.store.models import CallRow, LinkRow, MessageRow, SessionRow, TokensRow, TrajectoryRow
from mosaic.store.reading import load

EXCERPT = 160
"""Characters of a text that are shown."""
ENDED = ("status", "http_status", "error", "exact", "inexact_reason")
"""Columns that say how a call ended and whether it can be trained."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What can be trained of a trajectory, or of all, and what not and why. Every call is counted once."""

    exact: int
    """Calls of the task whose tokens are the engine's own."""
    spliced: int
    """The same, with sampled ids put into the prompt (exact prefix mode)."""
    inexact: Mapping[str, int]
    """Cause -> calls of the task that cannot be trained."""
    auxiliary: Mapping[str, int]
    """Kind -> calls that serve the framework."""
    forks: Mapping[str, int]
    """Cause -> sessions that part from another, and calls whose history was edited."""
    unlinked: int
    """Sessions that something spoke for linking, and not enough; or that stand beside a trajectory's root."""
    sessions: int
    trajectories: int


@dataclass(frozen=True, slots=True)
class Unlinked:
    """A session that waits for someone to look at it."""

    session_id: str
    trajectory_id: str
    call_id: str
    """The call that opened it."""
    undecided: str | None
    """Which evidence spoke for other places; None where nothing did."""
    score: float
    candidates: Sequence[Mapping[str, Any]]
    text: str
    """How its first user text begins."""


def certificate(connection: Connection, trajectory_id: str | None = None) -> Certificate:
    """Count the calls and sessions of one trajectory, or of all."""
    calls = _calls(connection, trajectory_id)
    links, forks = _links(connection, trajectory_id)
    edited = select(func.count()).where(
        CallRow.rung == "echo", CallRow.auxiliary.is_(None), *_of(CallRow, trajectory_id)
    )
    edits = connection.scalar(edited.where(CallRow.parent_call_id.is_not(None))) or 0
    task = {name: number for (auxiliary, name), number in calls.items() if auxiliary is None}
    return Certificate(
        exact=task.pop("exact", 0),
        spliced=task.pop("spliced", 0),
        inexact=task,
        auxiliary=_summed((auxiliary, number) for (auxiliary, _), number in calls.items() if auxiliary is not None),
        forks={**forks, **({"history edited": edits} if edits else {})},
        unlinked=len(unlinked(connection, trajectory_id)),
        sessions=links,
        trajectories=connection.scalar(select(func.count()).where(*_of(TrajectoryRow, trajectory_id))) or 0,
    )


def _of(table: Any, trajectory_id: str | None) -> tuple[ColumnElement[bool], ...]:
    return (table.trajectory_id == trajectory_id if trajectory_id is not None else table.trajectory_id.is_not(None),)


def _summed(pairs: Any) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, number in pairs:
        found[name] = found.get(name, 0) + number
    return found


def _calls(connection: Connection, trajectory_id: str | None) -> dict[tuple[str | None, str], int]:
    """(Auxiliary kind, exact, spliced or the cause) -> calls."""
    made = case((CallRow.fidelity == "spliced", "spliced"), else_="exact")
    cause = case((CallRow.exact, made), else_=func.coalesce(CallRow.inexact_reason, "unknown"))
    query = select(CallRow.auxiliary, cause, func.count()).where(*_of(CallRow, trajectory_id))
    rows = connection.execute(query.group_by(CallRow.auxiliary, cause).order_by(func.count().desc()))
    return {(auxiliary, name): number for auxiliary, name, number in rows}


def _links(connection: Connection, trajectory_id: str | None) -> tuple[int, dict[str, int]]:
    """Number of sessions, and cause -> forks."""
    total = connection.scalar(select(func.count()).where(*_of(LinkRow, trajectory_id))) or 0
    query = select(LinkRow.evidence).where(LinkRow.kind == SessionKind.FORK.value, *_of(LinkRow, trajectory_id))
    return total, _summed((_cause(load(evidence)), 1) for evidence in connection.scalars(query))


def _cause(evidence: Mapping[str, Any]) -> str:
    if evidence.get("agent") == "other":
        return "another agent"
    return "another id" if evidence.get("claims") == "contradict" else "branch"


def unlinked(connection: Connection, trajectory_id: str | None = None, limit: int = 100_000) -> list[Unlinked]:
    """Sessions that are roots for want of evidence, newest first. Those of auxiliary calls only are left out."""
    first = select(func.min(CallRow.seq)).where(CallRow.session_id == LinkRow.session_id, CallRow.auxiliary.is_(None))
    query = (
        select(LinkRow.__table__, CallRow.call_id, CallRow.message_id)
        .join(SessionRow, SessionRow.session_id == LinkRow.session_id)
        .join(CallRow, CallRow.seq == first.correlate(LinkRow).scalar_subquery())
        .where(
            LinkRow.kind == SessionKind.ROOT.value,
            or_(LinkRow.rivals != "[]", and_(SessionRow.position > 0, LinkRow.rung == "none")),
            *_of(LinkRow, trajectory_id),
        )
        .order_by(CallRow.seq.desc())
        .limit(limit)
    )
    return [
        Unlinked(
            session_id=row["session_id"],
            trajectory_id=row["trajectory_id"],
            call_id=row["call_id"],
            undecided=load(row["evidence"]).get("undecided"),
            score=row["score"],
            candidates=load(row["rivals"]),
            text=_excerpt(connection, row["message_id"]),
        )
        for row in connection.execute(query).mappings().all()
    ]


def explain(connection: Connection, call_id: str) -> dict[str, Any]:
    """Why a call stands where it stands, and what else was considered. Raises `RequestError` (404)."""
    row = connection.execute(select(CallRow.__table__).where(CallRow.call_id == call_id)).mappings().first()
    if row is None:
        raise RequestError(
            f"there is no call {call_id!r}.",
            "`mosaic show TRAJECTORY --calls` lists the calls of a trajectory.",
            status=404,
        )
    link = connection.execute(select(LinkRow.__table__).where(LinkRow.session_id == row["session_id"])).mappings().one()
    evidence = load(row["evidence"] or "{}")
    rivals = [_told(connection, rival) for rival in load(row["rivals"] or "[]")]
    return {
        "call_id": call_id,
        "trajectory_id": row["trajectory_id"],
        "session_id": row["session_id"],
        "opens_session": row["parent_call_id"] is None and row["call_id"] == row["session_id"].removeprefix("s-"),
        "extends": None if row["parent_call_id"] is None else _told(connection, {"call": row["parent_call_id"]}),
        "auxiliary": row["auxiliary"],
        **{name: row[name] for name in ENDED},
        "attribution": row["attribution"],
        "rung": row["rung"],
        "score": row["score"],
        "evidence": evidence,
        "considered": rivals,
        "session": {
            "kind": link["kind"],
            "rung": link["rung"],
            "score": link["score"],
            "parent": link["parent_session_id"],
            "evidence": load(link["evidence"]),
            "considered": load(link["rivals"]),
        },
        "says": _excerpt(connection, row["message_id"]),
        "answers": _reply(connection, call_id),
    }


def inexact(connection: Connection, trajectory_id: str) -> dict[str, Mapping[str, Any]]:
    """How those calls of a trajectory ended that cannot be trained, by call id."""
    query = select(CallRow.call_id, *(getattr(CallRow, name) for name in ENDED))
    rows = connection.execute(query.where(CallRow.trajectory_id == trajectory_id, CallRow.exact.is_(False)))
    return {row["call_id"]: dict(row) for row in rows.mappings()}


def _told(connection: Connection, rival: Mapping[str, Any]) -> dict[str, Any]:
    """A place that was considered, with how its call answered."""
    return {**rival, "answers": _reply(connection, str(rival.get("call", "")))}


def _reply(connection: Connection, call_id: str) -> str:
    query = select(TokensRow.message_id).where(TokensRow.call_id == call_id, TokensRow.choice == 0)
    return _excerpt(connection, connection.scalar(query))


def _excerpt(connection: Connection, message_id: int | None) -> str:
    """How a message begins: its text, or the tool calls in it."""
    body = connection.scalar(select(MessageRow.body).where(MessageRow.message_id == message_id))
    if body is None:
        return ""
    message = load(body)
    said = message.get("content")
    calls = message.get("tool_calls") or ()
    named = [str(c.get("function", {}).get("name")) for c in calls if isinstance(c, Mapping)]
    text = (
        said if isinstance(said, str) else " ".join(str(p.get("text", "")) for p in said or () if isinstance(p, dict))
    )
    return " ".join(" ".join([text, *(f"[calls {name}]" for name in named)]).split())[:EXCERPT]
