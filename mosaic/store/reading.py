"""Reads calls, sessions and trajectories back, with every prompt rebuilt exactly from its deltas."""

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import orjson
from sqlalchemy import ColumnElement, Connection, RowMapping, String, Text, cast, func, select
from sqlalchemy.orm import InstrumentedAttribute

from mosaic.capture import CallStatus, CapturedCall, Choice, Fidelity
from mosaic.lineage.model import Link, Placement, Rung, Why
from mosaic.records import Call, IdArray, Message, Sample, Session, SessionKind, Trajectory, TrajectoryState
from mosaic.store.codec import unpack_ids, unpack_logprobs
from mosaic.store.models import CallRow, LinkRow, MessageRow, ParamsRow, SessionRow, TokensRow, TrajectoryRow

Key = TypeVar("Key", str, int)
Value = TypeVar("Value")

TOGETHER = 50
"""Trajectories that are read with the same statements."""


def tokens_after(connection: Connection, call_id: str) -> dict[int, IdArray]:
    """Prompt + sampled ids of each choice of a call, by choice index. Empty when the call is unknown."""
    return _Tokens(connection).after(call_id)


def prompt_of(connection: Connection, call_id: str) -> IdArray:
    """Prompt ids of a call; empty when they are not known."""
    return _Tokens(connection).prompt(call_id)


class _Tokens:
    """Prompt ids rebuilt from deltas, each call once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: dict[str, list[RowMapping]] = {}
        self._prompts: dict[str, IdArray] = {}

    def preload(self, call_ids: Sequence[str]) -> None:
        """Read the token rows of many calls at once."""
        for some in batched(call_ids):
            self._rows.update({call_id: [] for call_id in some})
            query = select(TokensRow.__table__).where(TokensRow.call_id.in_(some))
            for row in self._connection.execute(query.order_by(TokensRow.call_id, TokensRow.choice)).mappings():
                self._rows[row["call_id"]].append(row)

    def rows(self, call_id: str) -> list[RowMapping]:
        """The choices of a call. Reads, with it, every call that its prompt builds on."""
        if call_id not in self._rows:
            self.preload(_ancestors(self._connection, TokensRow.call_id, TokensRow.base_call_id, [call_id]))
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
                base = self._after_choice(row["base_call_id"], row["base_choice"])
                new = np.concatenate([base[: row["prompt_kept"]], new])
            self._prompts[row["call_id"]] = new
        return self._prompts[call_id]

    def _after_choice(self, call_id: str, choice: int) -> IdArray:
        row = {row["choice"]: row for row in self.rows(call_id)}[choice]
        return np.concatenate([self.prompt(call_id), unpack_ids(row["sampled"])])

    def after(self, call_id: str) -> dict[int, IdArray]:
        return {r["choice"]: self._after_choice(call_id, r["choice"]) for r in self.rows(call_id)}


class _Messages:
    """Message chains, each message read once."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._known: dict[int, tuple[int | None, Message]] = {}

    def preload(self, heads: Sequence[int]) -> None:
        """Read these messages and all that stand before them."""
        wanted = [head for head in heads if head not in self._known]
        chains = _ancestors(self._connection, MessageRow.message_id, MessageRow.parent_id, wanted)
        query = select(MessageRow.message_id, MessageRow.parent_id, MessageRow.body)
        for some in batched(chains):
            for message_id, parent_id, body in self._connection.execute(query.where(MessageRow.message_id.in_(some))):
                self._known[message_id] = (parent_id, load(body))

    def body(self, message_id: int) -> tuple[int | None, Message]:
        if message_id not in self._known:
            self.preload([message_id])
        return self._known[message_id]

    def chain(self, head: int | None) -> tuple[Message, ...]:
        found = []
        while head is not None:
            head, message = self.body(head)
            found.append(message)
        return tuple(reversed(found))


def batched(ids: Sequence[Value], size: int = 500) -> Iterator[Sequence[Value]]:
    """The ids in portions that fit into one statement."""
    for at in range(0, len(ids), size):
        yield ids[at : at + size]


def _ancestors(
    connection: Connection,
    key: InstrumentedAttribute[Key],
    parent: InstrumentedAttribute[Key | None],
    ids: Sequence[Key],
) -> list[Key]:
    """These ids and, step by step, those that their rows name as parents; each once.

    The parent is looked up row by row: PostgreSQL would join the whole table with a chain whose length it cannot guess.
    """
    found: dict[Key, None] = {}
    kind = Text() if isinstance(key.type, String) else key.type  # PostgreSQL's `max` forgets a text's length
    for some in batched(ids):
        chain = select(cast(key, kind).label("id")).where(key.in_(some)).cte("ancestors", recursive=True)
        looked_up = select(cast(func.max(parent), kind)).where(key == chain.c.id).correlate(chain).scalar_subquery()
        chain = chain.union(select(looked_up).where(chain.c.id.is_not(None)))
        rows = connection.scalars(select(chain.c.id).where(chain.c.id.is_not(None)))
        found.update(dict.fromkeys(rows))
    return list(found)


def load(body: str) -> Any:
    """JSON as it was written, lone surrogates included."""
    try:
        return orjson.loads(body)
    except (orjson.JSONDecodeError, UnicodeEncodeError):
        import json

        return json.loads(body)


def read_trajectory(connection: Connection, trajectory_id: str) -> Trajectory | None:
    """One trajectory with its sessions and calls, or None when there is none of that id."""
    return read_trajectories(connection, [trajectory_id]).get(trajectory_id)


def read_trajectories(connection: Connection, ids: Sequence[str]) -> dict[str, Trajectory]:
    """The trajectories that are there, by id, many at a time: the statements would take longer than what they read."""
    return {found.trajectory_id: found for some in batched(ids, TOGETHER) for found in _together(connection, some)}


def _together(connection: Connection, ids: Sequence[str]) -> Iterator[Trajectory]:
    rows = connection.execute(select(TrajectoryRow.__table__).where(TrajectoryRow.trajectory_id.in_(ids))).mappings()
    calls = _calls_by_session(connection, ids)
    sessions: dict[str, list[Session]] = {}
    of_ids = select(SessionRow.__table__).where(SessionRow.trajectory_id.in_(ids))
    for s in connection.execute(of_ids.order_by(SessionRow.position)).mappings():
        session = Session(
            session_id=s["session_id"],
            kind=SessionKind(s["kind"]),
            parent_session_id=s["parent_session_id"],
            opened_by_call_id=s["opened_by_call_id"],
            calls=tuple(calls.get(s["session_id"], ())),
        )
        sessions.setdefault(s["trajectory_id"], []).append(session)
    for row in rows:
        yield Trajectory(
            trajectory_id=row["trajectory_id"],
            task_key=row["task_key"] or "",
            reward=row["reward"],
            state=TrajectoryState(row["state"]),
            sessions=tuple(sessions.get(row["trajectory_id"], ())),
        )


def _calls_by_session(connection: Connection, trajectory_ids: Sequence[str]) -> dict[str, list[Call]]:
    query = select(CallRow.__table__).where(CallRow.trajectory_id.in_(trajectory_ids))
    rows = list(connection.execute(query.order_by(CallRow.started_at, CallRow.seq)).mappings())
    tokens, messages = _preloaded(connection, rows)
    calls: dict[str, list[Call]] = {}
    for row in rows:
        calls.setdefault(row["session_id"], []).append(_call(row, tokens, messages))
    return calls


def _preloaded(connection: Connection, calls: Sequence[RowMapping]) -> tuple[_Tokens, _Messages]:
    """Tokens and messages of the calls, read in few statements."""
    tokens, messages = _Tokens(connection), _Messages(connection)
    tokens.preload([row["call_id"] for row in calls])
    heads = {row["message_id"]: None for row in calls if row["message_id"] is not None}
    replies = (t["message_id"] for row in calls for t in tokens.rows(row["call_id"]))
    messages.preload(list({**heads, **dict.fromkeys(r for r in replies if r is not None)}))
    return tokens, messages


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


def read_placed(
    connection: Connection, *where: ColumnElement[bool], newest: int | None = None
) -> Iterator[tuple[CapturedCall, Placement]]:
    """The calls that fit, as they were captured and placed, in the order in which they were placed.

    With `newest`, only that many of the latest.
    """
    query = select(CallRow.__table__).where(*where).order_by(CallRow.seq.desc()).limit(newest)
    rows = list(reversed(connection.execute(query).mappings().all()))
    tokens, messages = _preloaded(connection, rows)
    large = _large_params(connection, rows)
    opened, summaries = _links(connection, rows)
    for row in rows:
        call = _captured(row, {**large[row["params_id"]], **load(row["params"])}, tokens, messages)
        link, position = opened.get(f"s-{row['call_id']}", (None, None))
        why = _why(row, link)
        served = why.evidence.get("serves")
        if served is None and row["call_id"] in summaries and not call.tool_names:
            served = "summary"  # it served the task after all, but its session did not go on with it
        yield (
            call,
            Placement(
                call_id=row["call_id"],
                trajectory_id=row["trajectory_id"],
                session_id=row["session_id"],
                parent_call_id=row["parent_call_id"],
                auxiliary=served or row["auxiliary"],
                position=position or 0,
                opened=link,
                why=why,
                confirmed=tuple(link.evidence.get("summary_calls", ())) if link else (),
            ),
        )


def _why(row: RowMapping, link: Link | None) -> Why:
    """Why a call stands where it stands; of calls of older releases only what its session's link says."""
    if row["rung"] is None:
        return Why(link.rung, link.score) if link else Why(Rung.NONE, 0.0)
    rivals = () if row["rivals"] is None else tuple(load(row["rivals"]))
    return Why(Rung(row["rung"]), row["score"], load(row["evidence"]), rivals)


def read_conversation(connection: Connection, call_id: str) -> tuple[Message, ...] | None:
    """The messages of a call and its first reply, without the system message that its `instructions` had become."""
    row = connection.execute(select(CallRow.message_id, CallRow.params).where(CallRow.call_id == call_id)).first()
    if row is None:
        return None
    reply = select(TokensRow.message_id).where(TokensRow.call_id == call_id, TokensRow.choice == 0)
    found = _Messages(connection).chain(connection.scalar(reply) or row[0])
    instructed = "instructions" in (load(row[1]).get("client_request") or {})
    return found[1:] if instructed else found


def read_sampled(connection: Connection, trajectory_id: str, after: int, newest: int) -> tuple[list[Call], int]:
    """The exact chat calls of a trajectory in rows after `after`, at most so many of the newest; and the last row.

    In the order in which they ended.
    """
    query = select(CallRow.__table__).where(CallRow.trajectory_id == trajectory_id, CallRow.seq > after)
    query = query.where(CallRow.exact, CallRow.wire != "completions").order_by(CallRow.seq.desc()).limit(newest)
    rows = list(reversed(connection.execute(query).mappings().all()))
    tokens, messages = _preloaded(connection, rows)
    return [_call(row, tokens, messages) for row in rows], rows[-1]["seq"] if rows else after


def _large_params(connection: Connection, calls: Sequence[RowMapping]) -> dict[str | None, dict[str, Any]]:
    found: dict[str | None, dict[str, Any]] = {None: {}}
    for some in batched(list({row["params_id"] for row in calls if row["params_id"] is not None})):
        query = select(ParamsRow.params_id, ParamsRow.body).where(ParamsRow.params_id.in_(some))
        found.update({params_id: load(body) for params_id, body in connection.execute(query)})
    return found


def _links(connection: Connection, calls: Sequence[RowMapping]) -> tuple[dict[str, tuple[Link, int]], set[str | None]]:
    """Session -> (its link, its position), for the sessions of the calls; and the calls that wrote summaries."""
    opened: dict[str, tuple[Link, int]] = {}
    for some in batched(list({row["session_id"] for row in calls})):
        query = select(LinkRow.__table__, SessionRow.position).join(
            SessionRow, SessionRow.session_id == LinkRow.session_id
        )
        for row in connection.execute(query.where(LinkRow.session_id.in_(some))).mappings():
            opened[row["session_id"]] = _link(row), row["position"]
    return opened, {call for link, _ in opened.values() for call in link.evidence.get("summary_calls", ())}


def _link(row: RowMapping) -> Link:
    return Link(
        session_id=row["session_id"],
        kind=SessionKind(row["kind"]),
        parent_session_id=row["parent_session_id"],
        parent_call_id=row["parent_call_id"],
        rung=Rung(row["rung"]),
        score=row["score"],
        evidence=load(row["evidence"]),
        rivals=tuple(load(row["rivals"])),
    )


def _captured(row: RowMapping, params: dict[str, Any], tokens: _Tokens, messages: _Messages) -> CapturedCall:
    return CapturedCall(
        call_id=row["call_id"],
        wire=row["wire"],
        status=CallStatus(row["status"]),
        http_status=row["http_status"],
        messages=messages.chain(row["message_id"]),
        params=params,
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
        fidelity=None if row["fidelity"] is None else Fidelity(row["fidelity"], row["fidelity_reason"]),
        headers=load(row["headers"]),
    )
