"""Reads calls, sessions and trajectories back, with every prompt rebuilt exactly from its deltas."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import orjson
from sqlalchemy import ColumnElement, Connection, RowMapping, select

from mosaic.capture import CallStatus, CapturedCall, Choice
from mosaic.records import Call, IdArray, Message, Sample, Session, SessionKind, Trajectory, TrajectoryState
from mosaic.store.codec import unpack_ids, unpack_logprobs
from mosaic.store.models import CallRow, MessageRow, ParamsRow, SessionRow, TokensRow, TrajectoryRow


def tokens_after(connection: Connection, call_id: str) -> dict[int, IdArray]:
    """Prompt + sampled ids of each choice of a call, by choice index. Empty when the call is unknown."""
    return _Tokens(connection).after(call_id)


class _Tokens:
    """Prompt ids rebuilt from deltas, each call once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: dict[str, list[RowMapping]] = {}
        self._prompts: dict[str, IdArray] = {}

    def preload(self, call_ids: Sequence[str]) -> None:
        """Read the token rows of many calls at once."""
        self._rows.update({call_id: [] for call_id in call_ids})
        for at in range(0, len(call_ids), 500):
            query = _tokens_query().where(TokensRow.call_id.in_(call_ids[at : at + 500]))
            for row in self._connection.execute(query).mappings():
                self._rows[row["call_id"]].append(row)

    def rows(self, call_id: str) -> list[RowMapping]:
        if call_id not in self._rows:
            query = _tokens_query().where(TokensRow.call_id == call_id)
            self._rows[call_id] = list(self._connection.execute(query).mappings())
        return self._rows[call_id]

    def prompt(self, call_id: str) -> IdArray:
        """Prompt ids of a call: walks back to the nearest call that is known, then forward again."""
        pending = []
        at: str | None = call_id
        while at is not None and at not in self._prompts:
            rows = self.rows(at)
            if not rows:
                self._prompts[at] = np.zeros(0, np.int32)
                break
            pending.append(rows[0])
            at = rows[0]["base_call_id"]
        for row in reversed(pending):
            new = unpack_ids(row["prompt_new"])
            if row["base_call_id"] is not None:
                base = self.after(row["base_call_id"])[row["base_choice"]]
                new = np.concatenate([base[: row["prompt_kept"]], new])
            self._prompts[row["call_id"]] = new
        return self._prompts[call_id]

    def after(self, call_id: str) -> dict[int, IdArray]:
        rows = self.rows(call_id)
        return {r["choice"]: np.concatenate([self.prompt(call_id), unpack_ids(r["sampled"])]) for r in rows}


def _tokens_query() -> Any:
    return select(TokensRow.__table__).order_by(TokensRow.call_id, TokensRow.choice)


class _Messages:
    """Message chains, each message read once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[str, tuple[str | None, Message]] = {}

    def body(self, message_id: str) -> tuple[str | None, Message]:
        if message_id not in self._known:
            query = select(MessageRow.parent_id, MessageRow.body).where(MessageRow.message_id == message_id)
            parent_id, body = self._connection.execute(query).one()
            self._known[message_id] = (parent_id, load(body))
        return self._known[message_id]

    def chain(self, head: str | None) -> tuple[Message, ...]:
        found = []
        while head is not None:
            head, message = self.body(head)
            found.append(message)
        return tuple(reversed(found))


def load(body: str) -> Any:
    """JSON as it was written, lone surrogates included."""
    try:
        return orjson.loads(body)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        import json

        return json.loads(body)


def read_trajectory(connection: Connection, trajectory_id: str) -> Trajectory | None:
    """One trajectory with its sessions and calls, or None when there is none of that id."""
    row = (
        connection.execute(select(TrajectoryRow.__table__).where(TrajectoryRow.trajectory_id == trajectory_id))
        .mappings()
        .first()
    )
    if row is None:
        return None
    calls = _calls_by_session(connection, trajectory_id)
    sessions = connection.execute(
        select(SessionRow.__table__).where(SessionRow.trajectory_id == trajectory_id).order_by(SessionRow.position)
    ).mappings()
    return Trajectory(
        trajectory_id=trajectory_id,
        task_key=row["task_key"] or "",
        reward=row["reward"],
        state=TrajectoryState(row["state"]),
        sessions=tuple(
            Session(
                session_id=s["session_id"],
                kind=SessionKind(s["kind"]),
                parent_session_id=s["parent_session_id"],
                opened_by_call_id=s["opened_by_call_id"],
                calls=tuple(calls.get(s["session_id"], ())),
            )
            for s in sessions
        ),
    )


def _calls_by_session(connection: Connection, trajectory_id: str) -> dict[str, list[Call]]:
    query = select(CallRow.__table__).where(CallRow.trajectory_id == trajectory_id)
    rows = list(connection.execute(query.order_by(CallRow.started_at, CallRow.seq)).mappings())
    tokens, messages = _Tokens(connection), _Messages(connection)
    tokens.preload([r["call_id"] for r in rows])
    calls: dict[str, list[Call]] = {}
    for row in rows:
        calls.setdefault(row["session_id"], []).append(_call(row, tokens, messages))
    return calls


def _call(row: RowMapping, tokens: _Tokens, messages: _Messages) -> Call:
    call_id = row["call_id"]
    return Call(
        call_id=call_id,
        prompt_ids_P=tokens.prompt(call_id),
        samples=tuple(
            Sample(
                index=t["choice"],
                ids_T=unpack_ids(t["sampled"]),
                logprobs_T=unpack_logprobs(t["logprobs"]),
                message=messages.body(t["message_id"])[1],
                finish_reason=t["finish_reason"],
            )
            for t in tokens.rows(call_id)
        ),
        messages=messages.chain(row["message_id"]),
        policy_version=row["policy_version"],
        policy_version_end=row["policy_version_end"],
        exact=row["exact"],
        auxiliary=row["auxiliary"],
        started_at=row["started_at"],
    )


def read_captured(connection: Connection, *where: ColumnElement[bool]) -> Iterator[CapturedCall]:
    """The calls that fit, as they were captured and in the order in which lineage placed them."""
    tokens, messages = _Tokens(connection), _Messages(connection)
    query = select(CallRow.__table__).where(*where).order_by(CallRow.seq)
    for row in list(connection.execute(query).mappings()):
        params = connection.scalar(select(ParamsRow.body).where(ParamsRow.params_id == row["params_id"]))
        yield CapturedCall(
            call_id=row["call_id"],
            wire=row["wire"],
            status=CallStatus(row["status"]),
            http_status=row["http_status"],
            messages=messages.chain(row["message_id"]),
            params=load(params or "{}"),
            choices=tuple(
                Choice(
                    index=t["choice"],
                    message=messages.body(t["message_id"])[1],
                    finish_reason=t["finish_reason"],
                    ids_T=unpack_ids(t["sampled"]),
                    logprobs_T=unpack_logprobs(t["logprobs"]),
                )
                for t in tokens.rows(row["call_id"])
            ),
            prompt_ids_P=tokens.prompt(row["call_id"]),
            usage=None,
            inexact_reason=row["inexact_reason"],
            started_at=row["started_at"],
            first_byte_at=row["first_byte_at"],
            ended_at=row["ended_at"],
            trajectory_id=row["trajectory_id"] if row["attribution"] != "lineage" else None,
            attribution=row["attribution"],
            client=row["client"],
            retry_count=row["retry_count"],
            error=row["error"],
            streamed=row["streamed"],
            headers=load(row["headers"]),
        )
