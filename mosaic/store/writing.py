"""Writes batches of placed calls: each message and each token once, whatever repeats them.

A batch is a fixed number of statements, however many calls it holds. What was written lately is remembered, so that a
call's cost does not grow with its history: messages that are there are not sent again, and the parent's ids are at
hand.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import orjson
from sqlalchemy import Connection, Text, bindparam, case, func, literal_column, null, update
from sqlalchemy.sql import ClauseElement

from mosaic.capture import CapturedCall, Choice
from mosaic.lineage.model import Ending, Link, Placement
from mosaic.records import IdArray, TrajectoryState
from mosaic.store.chains import Chains
from mosaic.store.codec import common_prefix, digest, dump, pack
from mosaic.store.models import (
    Base,
    CallRow,
    CounterRow,
    LinkRow,
    ParamsRow,
    SessionRow,
    TaskRow,
    TokensRow,
    TrajectoryRow,
)
from mosaic.store.reading import tokens_after
from mosaic.store.recent import Recent
from mosaic.store.rows import (
    change_ends,
    change_link,
    close_rolled_over,
    indexed,
    link_values,
    plain,
    session_row,
    task_row,
    trajectory_row,
    why_values,
)
from mosaic.store.statements import Statement
from mosaic.store.versions import Timeline

LARGE = 400
"""Bytes of JSON from which a request parameter is stored apart from its call."""
RECENT_PARAMS = 100_000
"""Large parameters whose presence is remembered."""
RECENT_TOKEN_BYTES = 24 * 2**20
"""Bytes of recent calls' token ids that are kept in memory, with what holding them costs."""


def insert_new(connection: Connection, table: type[Base], rows: Iterable[Mapping[str, Any]]) -> None:
    """Insert the rows whose key is not there yet. All have the same columns; those that they lack are NULL."""
    if values := list(rows):
        _insert_new(table, tuple(values[0])).many(connection, values)


def count(connection: Connection, name: str, reason: str, by: int = 1) -> None:
    """Add to a counter."""
    add_counts(connection, Counter({(name, reason): by}))


def add_counts(connection: Connection, counts: Mapping[tuple[str, str], int]) -> None:
    """Add to counters: (name, reason) -> how much."""
    _ADD.many(
        connection,
        ({"name": indexed(name), "reason": indexed(reason), "value": by} for (name, reason), by in counts.items()),
    )


@dataclass(slots=True)
class _Batch:
    """The rows of one transaction, by table."""

    tasks: dict[str, dict[str, Any]] = field(default_factory=dict)
    trajectories: dict[str, dict[str, Any]] = field(default_factory=dict)
    sessions: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)
    relinked: dict[str, Link] = field(default_factory=dict)
    confirmed: list[str] = field(default_factory=list)
    ended: dict[str, tuple[Ending | None, float]] = field(default_factory=dict)
    rolled_over: dict[str, float] = field(default_factory=dict)
    """Trajectory -> when its client's agent began another."""
    params: dict[str, dict[str, Any]] = field(default_factory=dict)
    calls: list[dict[str, Any]] = field(default_factory=list)
    tokens: list[dict[str, Any]] = field(default_factory=list)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    after: dict[str, dict[int, IdArray]] = field(default_factory=dict)
    """Call -> prompt + sampled ids by choice."""


class Writer:
    """Turns placed calls into rows. Works inside the caller's transaction, one at a time."""

    def __init__(self) -> None:
        self._chains = Chains()
        self._params: Recent[str, bool] = Recent(RECENT_PARAMS)
        self._after: Recent[str, dict[int, IdArray]] = Recent(
            RECENT_TOKEN_BYTES, lambda choices: sum(ids.nbytes + 400 for ids in choices.values())
        )
        self._batch = _Batch()

    def forget(self) -> None:
        """Something else has removed rows: what was remembered of them may be wrong."""
        self._chains.forget()
        self._params.clear()
        self._after.clear()

    def write(
        self,
        connection: Connection,
        placed: Sequence[tuple[CapturedCall, Placement]],
        timeline: Timeline,
        sessions_of: Mapping[str, int],
    ) -> None:
        """Write calls that are not there yet, in order. `sessions_of` counts the sessions that trajectories have.

        The caller commits and then calls `committed`.
        """
        self._batch = _Batch()
        self._chains.begin()
        positions = dict(sessions_of)
        for call, placement in placed:
            self._place(call, placement, positions, timeline)
            self._call(connection, call, placement, timeline)
            row = self._batch.trajectories[placement.trajectory_id]
            row["policy_version"] = min(row["policy_version"], self._batch.calls[-1]["policy_version"])
        _flush(connection, self._batch, self._chains)

    def committed(self) -> None:
        """The batch is in the database: from now on its messages and tokens need not be sent or read again."""
        self._chains.committed()
        self._params.update(dict.fromkeys(self._batch.params, True))
        self._after.update(self._batch.after)
        self._batch = _Batch()

    def _place(self, call: CapturedCall, placement: Placement, positions: dict[str, int], timeline: Timeline) -> None:
        """The trajectory, session and links that the call's placement needs or changes."""
        batch, trajectory_id = self._batch, placement.trajectory_id
        if (row := batch.trajectories.get(trajectory_id)) is None:
            row = batch.trajectories[trajectory_id] = trajectory_row(call, trajectory_id, timeline.newest)
        row["updated_at"] = max(row["updated_at"], call.ended_at)
        if placement.opened is not None:
            position = positions.get(trajectory_id, 0)
            positions[trajectory_id] = position + 1
            undecided = placement.opened.evidence.get("undecided")
            if placement.opened.kind.value == "root" and (position > 0 or undecided is not None):
                batch.counts["unlinked_sessions", str(undecided or placement.opened.rung.value)] += 1
            batch.sessions.append(session_row(call, placement.opened, trajectory_id, position))
            batch.links.append({"trajectory_id": trajectory_id, **link_values(placement.opened)})
        if placement.names_task:
            task = task_row(call)
            batch.tasks[task["task_key"]] = task
            row["task_key"] = row["task_key"] or task["task_key"]
        for link in placement.relinked:
            batch.relinked[link.session_id] = link
        for session_id, ending in placement.ended.items():
            batch.ended[session_id] = ending, call.ended_at
        for over in placement.rolled_over:
            batch.rolled_over[over] = call.started_at
        batch.confirmed += placement.confirmed

    def _call(self, connection: Connection, call: CapturedCall, placement: Placement, timeline: Timeline) -> None:
        batch = self._batch
        head, depth = self._chains.add(call.messages, None, 0)
        spans = [timeline.of(call, choice) for choice in call.choices]
        versions = [version for spans_of in spans for version, _, _ in spans_of] or [timeline.at(call.ended_at)]
        batch.calls.append(
            {
                **_call_values(call, placement),
                **self._params_of(call.params),
                "message_id": head,
                "policy_version": versions[0],
                "policy_version_end": versions[-1],
            }
        )
        prompt = self._prompt_delta(connection, call, placement)
        for choice, spans_of in zip(call.choices, spans, strict=True):
            reply, _ = self._chains.add([choice.message], head, depth)
            several = orjson.dumps(spans_of).decode() if len(spans_of) > 1 else None
            row = {**_choice_values(call, choice), **prompt, "versions": several, "message_id": reply}
            batch.tokens.append(row)
            prompt = _NO_PROMPT
        batch.after[call.call_id] = {c.index: np.concatenate([call.prompt_ids_P, c.ids_T]) for c in call.choices}
        if call.inexact_reason is not None:
            batch.counts["inexact_calls", call.inexact_reason] += 1
        if call.fidelity is not None:
            batch.counts["exact_mode_calls", call.fidelity.kind] += 1
            if call.fidelity.reason is not None:
                batch.counts["exact_mode_fallbacks", call.fidelity.reason] += 1

    def _params_of(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Columns `params` (small parameters) and `params_id` (the large ones, stored once)."""
        large = {name: value for name, value in params.items() if _is_large(value)}
        small = {name: value for name, value in params.items() if name not in large} if large else params
        params_id = None
        if large:
            body = dump(large)
            params_id = digest(body)
            if params_id not in self._params:
                self._batch.params[params_id] = {"params_id": params_id, "body": body.decode()}
        return {"params": dump(small).decode(), "params_id": params_id}

    def _prompt_delta(self, connection: Connection, call: CapturedCall, placement: Placement) -> dict[str, Any]:
        """The prompt against the longest choice prefix of the call that this one extends."""
        kept, base_choice = 0, None
        if placement.parent_call_id is not None and len(call.prompt_ids_P):
            for index, ids in self._ids_after(connection, placement.parent_call_id).items():
                shared = common_prefix(ids, call.prompt_ids_P)
                if shared > kept:
                    kept, base_choice = shared, index
        return {
            "base_call_id": placement.parent_call_id if base_choice is not None else None,
            "base_choice": base_choice,
            "prompt_kept": kept,
            "prompt_new": pack(call.prompt_ids_P[kept:]),
        }

    def _ids_after(self, connection: Connection, call_id: str) -> dict[int, IdArray]:
        known = self._batch.after.get(call_id) or self._after.get(call_id)
        return known if known is not None else tokens_after(connection, call_id)


_NO_PROMPT = {"base_call_id": None, "base_choice": None, "prompt_kept": 0, "prompt_new": None}


def _flush(connection: Connection, batch: _Batch, chains: Chains) -> None:
    """Send the rows, referenced ones before those that refer to them."""
    insert_new(connection, TaskRow, batch.tasks.values())
    _UPSERT_TRAJECTORY.many(connection, batch.trajectories.values())
    insert_new(connection, SessionRow, batch.sessions)
    insert_new(connection, LinkRow, batch.links)
    numbers = chains.insert(connection)
    for row in (*batch.calls, *batch.tokens):
        row["message_id"] = numbers[row["message_id"]]
    insert_new(connection, ParamsRow, batch.params.values())
    _INSERT_CALL.many(connection, batch.calls)
    _INSERT_TOKENS.many(connection, batch.tokens)
    for link in batch.relinked.values():
        change_link(connection, link)
    if batch.confirmed:
        served = update(CallRow).where(CallRow.call_id.in_(batch.confirmed))
        connection.execute(served.values(auxiliary=None))
    change_ends(connection, batch.ended)
    close_rolled_over(connection, batch.rolled_over)
    add_counts(connection, batch.counts)


def _call_values(call: CapturedCall, placement: Placement) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "trajectory_id": placement.trajectory_id,
        "session_id": placement.session_id,
        "parent_call_id": placement.parent_call_id,
        "auxiliary": placement.auxiliary,
        **why_values(placement.why),
        "wire": call.wire,
        "attribution": call.attribution,
        "client": indexed(call.client),
        "headers": dump(call.headers).decode(),
        "retry_count": call.retry_count,
        "streamed": call.streamed,
        "status": call.status.value,
        "http_status": call.http_status,
        "error": None if call.error is None else plain(call.error),
        "exact": call.exact,
        "inexact_reason": None if call.inexact_reason is None else plain(call.inexact_reason),
        "fidelity": None if call.fidelity is None else call.fidelity.kind,
        "fidelity_reason": None if call.fidelity is None else call.fidelity.reason,
        "prompt_tokens": len(call.prompt_ids_P),
        "sampled_tokens": sum(len(c.ids_T) for c in call.choices),
        "started_at": call.started_at,
        "first_byte_at": call.first_byte_at,
        "ended_at": call.ended_at,
    }


def _choice_values(call: CapturedCall, choice: Choice) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "choice": choice.index,
        "sampled": pack(choice.ids_T),
        "logprobs": pack(choice.logprobs_T),
        "finish_reason": None if choice.finish_reason is None else plain(choice.finish_reason),
    }


def _is_large(value: object) -> bool:
    if isinstance(value, str):
        return len(value) >= LARGE
    return isinstance(value, list | dict) and bool(value) and len(dump(value)) >= LARGE


@cache
def _insert_new(table: type[Base], columns: tuple[str, ...]) -> Statement:
    values: dict[str, Any] = {name: bindparam(name) for name in columns}
    return Statement(lambda dialect: dialect.insert(table).values(values).on_conflict_do_nothing().inline())


def _insert(table: type[Base]) -> Statement:
    """A row that is new; its `seq` comes from the database."""
    columns = [column.name for column in table.__table__.columns if column.name != "seq"]
    values: dict[str, Any] = {name: bindparam(name) for name in columns}
    return Statement(lambda dialect: dialect.insert(table).values(values).inline())


def _add(dialect: Any) -> ClauseElement:
    insert = dialect.insert(CounterRow)
    added = {"value": CounterRow.value + insert.excluded.value}
    statement: ClauseElement = insert.on_conflict_do_update(index_elements=["name", "reason"], set_=added)
    return statement


def _upsert_trajectory(dialect: Any) -> ClauseElement:
    """A new trajectory, or the newest call's time of one that is there. A call re-opens one that was closed."""
    unset = ("reward", "trained_version", "trained_job_id")
    columns = [column.name for column in TrajectoryRow.__table__.columns]
    values: dict[str, Any] = {name: null() if name in unset else bindparam(name) for name in columns}
    insert = dialect.insert(TrajectoryRow).values(values)
    new, closed = insert.excluded, literal_column(f"'{TrajectoryState.CLOSED.value}'", Text)
    later = case((new.updated_at > TrajectoryRow.updated_at, new.updated_at), else_=TrajectoryRow.updated_at)
    older = new.policy_version < TrajectoryRow.policy_version
    statement: ClauseElement = insert.on_conflict_do_update(
        index_elements=["trajectory_id"],
        set_={
            "updated_at": later,
            "policy_version": case((older, new.policy_version), else_=TrajectoryRow.policy_version),
            "task_key": func.coalesce(TrajectoryRow.task_key, new.task_key),
            "state": case((TrajectoryRow.state == closed, new.state), else_=TrajectoryRow.state),
            "state_at": case((TrajectoryRow.state == closed, new.state_at), else_=TrajectoryRow.state_at),
        },
    )
    return statement


_ADD = Statement(_add)
_UPSERT_TRAJECTORY = Statement(_upsert_trajectory)
_INSERT_CALL = _insert(CallRow)
_INSERT_TOKENS = _insert(TokensRow)
