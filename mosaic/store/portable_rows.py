"""Records out of the database and into it (`portable` says what a record is).

Each record is read in a transaction of its own, so that an export of any length keeps nobody from writing, and is
written in one: a trajectory is there as a whole or not at all. Rows go back as they were, not through lineage; only row
numbers (`seq`, `reward_id`) are new, in the old order.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, RowMapping, func, select, tuple_, union

from mosaic.records import JobState
from mosaic.store.chains import Numbers, insert_messages
from mosaic.store.codec import pack, unpack_ids, unpack_logprobs
from mosaic.store.database import Database
from mosaic.store.models import (
    AdvantageRow,
    Base,
    CallRow,
    JobRow,
    LinkRow,
    MessageRow,
    ParamsRow,
    RewardRow,
    SessionRow,
    TaskRow,
    TokensRow,
    TrajectoryRow,
)
from mosaic.store.portable import (
    ADVANTAGE,
    CALL,
    CHOICE,
    FORMAT,
    LINK,
    MESSAGE,
    PARAMS,
    REWARD,
    SESSION,
    TRAJECTORY,
    Field,
    Record,
)
from mosaic.store.writing import insert_new

PAGE = 500
"""Trajectories whose ids are read at once."""


def number(database: Database, like: str | None = None, states: Sequence[str] = ()) -> int:
    """How many trajectories `records` would give now."""
    with database.reading() as connection:
        return connection.scalar(select(func.count()).select_from(TrajectoryRow).where(*_chosen(like, states))) or 0


def records(database: Database, like: str | None = None, states: Sequence[str] = ()) -> Iterator[Record]:
    """The trajectories whose id matches the SQL LIKE pattern and that are in one of the states (none: in any).

    Oldest first, one at a time: each is read when it is asked for, as it is at that moment.
    """
    key = tuple_(TrajectoryRow.created_at, TrajectoryRow.trajectory_id)
    query = select(TrajectoryRow.created_at, TrajectoryRow.trajectory_id).where(*_chosen(like, states))
    query = query.order_by(TrajectoryRow.created_at, TrajectoryRow.trajectory_id).limit(PAGE)
    page = query
    while True:
        with database.reading() as connection:
            found = connection.execute(page).all()
        for _, trajectory_id in found:
            with database.reading() as connection:
                record = read(connection, trajectory_id)
            if record is not None:
                yield record
                del record  # the caller alone holds it while the next one is read
        if len(found) < PAGE:
            return
        page = query.where(key > tuple_(*found[-1]))


def _chosen(like: str | None, states: Sequence[str]) -> list[ColumnElement[bool]]:
    where: list[ColumnElement[bool]] = []
    if like is not None:
        where.append(TrajectoryRow.trajectory_id.like(like))
    if states:
        where.append(TrajectoryRow.state.in_(states))
    return where


def read(connection: Connection, trajectory_id: str) -> Record | None:
    """One trajectory, or None when it is not there."""
    query = select(TrajectoryRow.__table__, TaskRow.text.label("task"))
    query = query.outerjoin(TaskRow, TaskRow.task_key == TrajectoryRow.task_key)
    row = connection.execute(query.where(TrajectoryRow.trajectory_id == trajectory_id)).mappings().first()
    if row is None:
        return None
    messages = _messages(connection, trajectory_id)
    digests = {None: None, **{row["message_id"]: row["digest"] for row in messages}}
    return {
        "format": FORMAT,
        **row,
        "sessions": _sessions(connection, trajectory_id),
        "messages": [_message(row, digests) for row in messages],
        "params": _params(connection, trajectory_id),
        "calls": _calls(connection, trajectory_id, digests),
        "rewards": _rows(connection, RewardRow, REWARD, trajectory_id, RewardRow.reward_id),
    }


def _rows(
    connection: Connection, table: type[Base], fields: Mapping[str, Field], trajectory_id: str, order: Any
) -> list[Record]:
    columns = table.__table__.c
    query = select(*(columns[name] for name in fields)).where(columns.trajectory_id == trajectory_id).order_by(order)
    return [dict(row) for row in connection.execute(query).mappings()]


def _sessions(connection: Connection, trajectory_id: str) -> list[Record]:
    sessions = _rows(connection, SessionRow, SESSION, trajectory_id, SessionRow.position)
    found = connection.execute(select(LinkRow.__table__).where(LinkRow.trajectory_id == trajectory_id)).mappings()
    links = {row["session_id"]: {name: row[name] for name in LINK} for row in found}
    advantages: dict[str, list[Record]] = {}
    query = select(AdvantageRow.__table__).join(SessionRow, SessionRow.session_id == AdvantageRow.session_id)
    rows = connection.execute(query.where(SessionRow.trajectory_id == trajectory_id)).mappings().all()
    for row in sorted(rows, key=lambda row: str(row["job_id"])):
        advantages.setdefault(row["session_id"], []).append({name: row[name] for name in ADVANTAGE})
    return [
        {**s, "link": links.get(s["session_id"]), "advantages": advantages.get(s["session_id"], [])} for s in sessions
    ]


def _messages(connection: Connection, trajectory_id: str) -> list[RowMapping]:
    """The messages of all calls and replies with all that stand before them, each once, parents first."""
    heads = union(
        select(CallRow.message_id).where(CallRow.trajectory_id == trajectory_id),
        select(TokensRow.message_id)
        .join(CallRow, CallRow.call_id == TokensRow.call_id)
        .where(CallRow.trajectory_id == trajectory_id),
    )
    first = select(MessageRow.message_id, MessageRow.parent_id).where(MessageRow.message_id.in_(heads))
    chains = first.cte("chains", recursive=True)
    more = select(MessageRow.message_id, MessageRow.parent_id).join(chains, MessageRow.message_id == chains.c.parent_id)
    chains = chains.union(more)
    query = select(MessageRow.__table__).where(MessageRow.message_id.in_(select(chains.c.message_id)))
    # In the order of the digests' bytes, whatever language the database sorts in: equal records are equal files.
    rows = connection.execute(query).mappings().all()
    return sorted(rows, key=lambda row: (row["depth"], row["digest"]))


def _message(row: RowMapping, digests: Mapping[int | None, str | None]) -> Record:
    named = {"message_id": row["digest"], "parent_id": digests[row["parent_id"]]}
    return {name: named[name] if name in named else row[name] for name in MESSAGE}


def _params(connection: Connection, trajectory_id: str) -> list[Record]:
    used = select(CallRow.params_id).where(CallRow.trajectory_id == trajectory_id)
    rows = connection.execute(select(ParamsRow.__table__).where(ParamsRow.params_id.in_(used))).mappings().all()
    return [{name: row[name] for name in PARAMS} for row in sorted(rows, key=lambda row: str(row["params_id"]))]


def _calls(connection: Connection, trajectory_id: str, digests: Mapping[int | None, str | None]) -> list[Record]:
    calls = _rows(connection, CallRow, CALL, trajectory_id, CallRow.seq)
    choices: dict[str, list[Record]] = {}
    query = select(TokensRow.__table__).join(CallRow, CallRow.call_id == TokensRow.call_id)
    query = query.where(CallRow.trajectory_id == trajectory_id).order_by(TokensRow.choice)
    for row in connection.execute(query).mappings():
        choice = {
            **{name: row[name] for name in CHOICE},
            "message_id": digests[row["message_id"]],
            "prompt_new": None if row["prompt_new"] is None else unpack_ids(row["prompt_new"]),
            "sampled": unpack_ids(row["sampled"]),
            "logprobs": unpack_logprobs(row["logprobs"]),
        }
        choices.setdefault(row["call_id"], []).append(choice)
    return [
        {**call, "message_id": digests[call["message_id"]], "choices": choices.get(call["call_id"], [])}
        for call in calls
    ]


def insert(connection: Connection, record: Record) -> bool:
    """Write a checked record; False when its trajectory is there already, which is left as it is.

    Jobs of the other database get a row in state `imported`, for what was trained names them.
    """
    trajectory_id = record["trajectory_id"]
    there = select(TrajectoryRow.trajectory_id).where(TrajectoryRow.trajectory_id == trajectory_id)
    if connection.scalar(there) is not None:
        return False
    if record["task_key"] is not None:
        task = {"task_key": record["task_key"], "text": record["task"] or "", "created_at": record["created_at"]}
        insert_new(connection, TaskRow, [task])
    insert_new(connection, JobRow, _jobs(record))
    _add(connection, TrajectoryRow, [{name: record[name] for name in TRAJECTORY}])
    numbers = insert_messages(connection, {row["digest"]: row for row in map(_message_row, record["messages"])})
    insert_new(connection, ParamsRow, record["params"])
    for table, rows in _owned(record, numbers).items():
        _add(connection, table, [{"trajectory_id": trajectory_id, **row} for row in rows])
    tokens = [_token_row(call["call_id"], choice, numbers) for call in record["calls"] for choice in call["choices"]]
    _add(connection, TokensRow, tokens)
    _add(
        connection,
        AdvantageRow,
        [{"session_id": s["session_id"], **advantage} for s in record["sessions"] for advantage in s["advantages"]],
    )
    return True


def _add(connection: Connection, table: type[Base], rows: list[Record]) -> None:
    if rows:
        connection.execute(table.__table__.insert(), rows)  # type: ignore[attr-defined]


def _owned(record: Record, numbers: Numbers) -> dict[type[Base], list[Record]]:
    """The rows that name their trajectory, by table, referenced ones first."""
    sessions = record["sessions"]
    return {
        SessionRow: [{name: s[name] for name in SESSION} for s in sessions],
        LinkRow: [{"session_id": s["session_id"], **s["link"]} for s in sessions if s["link"] is not None],
        CallRow: [_call_row(call, numbers) for call in record["calls"]],
        RewardRow: record["rewards"],
    }


def _message_row(message: Record) -> Record:
    named = {"digest": message["message_id"], "before": message["parent_id"]}
    return {**named, **{name: message[name] for name in ("depth", "role", "body")}}


def _call_row(call: Record, numbers: Numbers) -> Record:
    return {**{name: call[name] for name in CALL}, "message_id": numbers[call["message_id"]]}


def _token_row(call_id: str, choice: Record, numbers: Numbers) -> Record:
    new = choice["prompt_new"]
    packed = {"prompt_new": None if new is None else pack(new), "message_id": numbers[choice["message_id"]]}
    return {"call_id": call_id, **choice, **packed, **{name: pack(choice[name]) for name in ("sampled", "logprobs")}}


def _jobs(record: Record) -> list[Record]:
    """A row for each job that the record names; of the jobs themselves nothing is known here."""
    names = {advantage["job_id"] for session in record["sessions"] for advantage in session["advantages"]}
    if record["trained_job_id"] is not None:
        names.add(record["trained_job_id"])
    at = record["state_at"]
    known = {
        "state": JobState.IMPORTED.value,
        "settings": "{}",
        "attempts": 0,
        "policy_from": 0,
        "created_at": at,
        "ended_at": at,
    }
    return [{"job_id": name, **known} for name in sorted(names)]
