"""Rows of what lineage decides, as they are written live and by `mosaic relink`."""

import hashlib
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, bindparam, update

from mosaic.capture import CapturedCall
from mosaic.lineage.canonical import collapse, text_of
from mosaic.lineage.model import Ending, Link, Why
from mosaic.records import TrajectoryState
from mosaic.store.codec import dump
from mosaic.store.models import LinkRow, SessionRow, TrajectoryRow

MAX_INDEXED = 300
"""Longest indexed text from outside, in characters; PostgreSQL's indexes take no more than 2,700 bytes."""
MAX_TASK_KEY = 200
"""Longest task key in characters; a longer one is replaced by its digest."""


def plain(text: str) -> str:
    """Text that any database takes: lone surrogates and NUL, which some refuse, as escapes."""
    if text.isascii() and "\0" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def indexed(text: str) -> str:
    """Plain text that is short enough for any database's index."""
    return plain(text[:MAX_INDEXED])[:MAX_INDEXED]


def trajectory_row(call: CapturedCall, trajectory_id: str, policy_version: int) -> dict[str, Any]:
    return {
        "policy_version": policy_version,
        "trajectory_id": trajectory_id,
        "task_key": None,
        "state": TrajectoryState.OPEN.value,
        "state_at": call.started_at,
        "attribution": call.attribution,
        "created_at": call.started_at,
        "updated_at": call.ended_at,
    }


def task_row(call: CapturedCall) -> dict[str, Any]:
    """The task of a trajectory's root: the operator's key, or a digest of the first user text."""
    text = next((text_of(m.get("content")) for m in call.messages if m.get("role") == "user"), "")
    key = derived_key(text) if call.task_key is None else given_key(call.task_key)
    return {"task_key": key, "text": plain(text), "created_at": call.started_at}


def given_key(key: str) -> str:
    """An operator's task key as it is stored: one that is too long becomes a digest."""
    return plain(key) if len(plain(key)) <= MAX_TASK_KEY else _digest(plain(key))


def derived_key(text: str) -> str:
    """The key of a task that nobody named: a digest of its first user text."""
    return _digest(collapse(text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def session_row(call: CapturedCall, link: Link, trajectory_id: str, position: int) -> dict[str, Any]:
    return {
        "session_id": link.session_id,
        "trajectory_id": trajectory_id,
        "kind": link.kind.value,
        "parent_session_id": link.parent_session_id,
        "opened_by_call_id": link.parent_call_id,
        "position": position,
        "created_at": call.started_at,
    }


def link_values(link: Link) -> dict[str, Any]:
    return {
        "session_id": link.session_id,
        "kind": link.kind.value,
        "parent_session_id": link.parent_session_id,
        "parent_call_id": link.parent_call_id,
        "rung": link.rung.value,
        "score": link.score,
        "evidence": dump(link.evidence).decode(),
        "rivals": dump(link.rivals).decode(),
    }


def why_values(why: Why) -> dict[str, Any]:
    """Columns of a call: why it stands where it stands."""
    return {
        "rung": why.rung.value,
        "score": why.score,
        "evidence": dump(why.evidence).decode(),
        "rivals": dump(why.rivals).decode() if why.rivals else None,
    }


_CHANGE_LINK = update(LinkRow).where(LinkRow.session_id == bindparam("which"))
_CHANGE_OPENER = update(SessionRow).where(SessionRow.session_id == bindparam("which"))


def change_link(connection: Connection, link: Link) -> None:
    """Put a link in the place of what was believed before."""
    connection.execute(_CHANGE_LINK.values(**link_values(link)), {"which": link.session_id})
    connection.execute(_CHANGE_OPENER.values(opened_by_call_id=link.parent_call_id), {"which": link.session_id})


def change_ends(connection: Connection, ended: Mapping[str, tuple[Ending | None, float]]) -> None:
    """Session -> how it ended (None: it is open again), and when (Unix seconds)."""
    rows = [
        {"which": session_id, "ended": ending, "ended_at": at if ending is not None else None}
        for session_id, (ending, at) in ended.items()
    ]
    if rows:
        connection.execute(_CHANGE_OPENER.values(ended=bindparam("ended"), ended_at=bindparam("ended_at")), rows)


_CLOSE = update(TrajectoryRow).where(
    TrajectoryRow.trajectory_id == bindparam("which"), TrajectoryRow.state == TrajectoryState.OPEN.value
)


def close_rolled_over(connection: Connection, over: Mapping[str, float]) -> None:
    """Close the trajectories after which their client's only agent began another: id -> when (Unix seconds)."""
    rows = [{"which": trajectory_id, "state_at": at} for trajectory_id, at in over.items()]
    if rows:
        connection.execute(_CLOSE.values(state=TrajectoryState.CLOSED.value, state_at=bindparam("state_at")), rows)
