"""One trajectory as one record that stands for itself: what export writes, import reads and a dataset holds.

The layout is the same in JSON lines, Parquet and Hugging Face datasets (docs/export.md). As in the store, each message,
each large parameter and each token is there once: a call names the head of its message chain, and its prompt is the ids
that are new after another call's. `prompt_ids` puts the prompts together again.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from sqlalchemy import Boolean, Float, Integer, LargeBinary

from mosaic.capture import CallStatus
from mosaic.records import MAX_REWARD, IdArray, LogprobArray, SessionKind, TrajectoryState
from mosaic.store.codec import digest
from mosaic.store.models import (
    AdvantageRow,
    Base,
    CallRow,
    LinkRow,
    MessageRow,
    ParamsRow,
    RewardRow,
    SessionRow,
    TokensRow,
    TrajectoryRow,
)
from mosaic.store.reading import load

FORMAT = "mosaic-trajectory-1"
"""Name and version of the layout; every record carries it."""

Record = dict[str, Any]
"""One trajectory. Token arrays are numpy arrays, or lists once a file format has had them in hand."""

Type = Literal["text", "json", "int", "float", "bool", "ids", "logprobs", "row", "rows"]


@dataclass(frozen=True, slots=True)
class Field:
    """What stands under one name of a record."""

    type: Type
    """`json` is text that holds JSON, `ids` a list of int32, `logprobs` a list of float32 that may hold -infinity."""
    optional: bool = False
    """True when it may be null."""
    fields: Mapping[str, "Field"] = field(default_factory=dict)
    """The names within a `row` or within each of `rows`."""


_JSON = {"body", "evidence", "headers", "params", "rivals", "versions"}
_NAMES = {"kind": SessionKind, "state": TrajectoryState, "status": CallStatus}


def fields_of(table: type[Base], *left_out: str) -> dict[str, Field]:
    """The table's columns as fields of a record."""
    return {c.name: Field(_type(c), bool(c.nullable)) for c in table.__table__.columns if c.name not in left_out}


def _type(column: Any) -> Type:
    if isinstance(column.type, LargeBinary):
        return "logprobs" if column.name == "logprobs" else "ids"
    for kind, name in ((Boolean, "bool"), (Integer, "int"), (Float, "float")):
        if isinstance(column.type, kind):
            return name  # type: ignore[return-value]
    return "json" if column.name in _JSON else "text"


LINK = fields_of(LinkRow, "session_id", "trajectory_id")
ADVANTAGE = fields_of(AdvantageRow, "session_id")
SESSION = fields_of(SessionRow, "trajectory_id", "ended", "ended_at")
"""How it ended is found again by `mosaic relink`."""
MESSAGE = {**fields_of(MessageRow, "digest"), "message_id": Field("text"), "parent_id": Field("text", optional=True)}
"""Messages go by their digests: numbers are one database's own."""
PARAMS = fields_of(ParamsRow)
CHOICE = {**fields_of(TokensRow, "call_id"), "message_id": Field("text", optional=True)}
CALL = {
    **fields_of(CallRow, "seq", "trajectory_id", "rung", "score", "evidence", "rivals"),
    "message_id": Field("text", optional=True),
}
"""Why it stands where it stands is found again by `mosaic relink`."""
REWARD = fields_of(RewardRow, "reward_id", "trajectory_id")
TRAJECTORY = fields_of(TrajectoryRow)

LAYOUT: Mapping[str, Field] = {
    "format": Field("text"),
    **TRAJECTORY,
    "task": Field("text", optional=True),
    "sessions": Field(
        "rows",
        fields={
            **SESSION,
            "link": Field("row", optional=True, fields=LINK),
            "advantages": Field("rows", fields=ADVANTAGE),
        },
    ),
    "messages": Field("rows", fields=MESSAGE),
    "params": Field("rows", fields=PARAMS),
    "calls": Field("rows", fields={**CALL, "choices": Field("rows", fields=CHOICE)}),
    "rewards": Field("rows", fields=REWARD),
}
"""Every name of a record. It follows the schema: a change there that changes it needs another `FORMAT`, but for a field
that may be null, which files without it lack."""


def prompt_ids(record: Mapping[str, Any]) -> dict[str, IdArray]:
    """The whole prompt of each call, int32, by call id; empty where the engine told none.

    `record` is one trajectory from any format: a line of JSON, a row of Parquet or of a Hugging Face dataset. What was
    sampled after the prompt is `calls[].choices[].sampled`.
    """
    prompts: dict[str, IdArray] = {}
    after: dict[tuple[str, int], IdArray] = {}
    for call in record["calls"]:
        prompt = np.zeros(0, np.int32)
        for position, choice in enumerate(call["choices"]):
            if position == 0:
                prompt = np.asarray(choice["prompt_new"], np.int32)
                if choice["base_call_id"] is not None:
                    base = after[choice["base_call_id"], choice["base_choice"]]
                    prompt = np.concatenate([base[: choice["prompt_kept"]], prompt])
            sampled = np.asarray(choice["sampled"], np.int32)
            after[call["call_id"], choice["choice"]] = np.concatenate([prompt, sampled])
        prompts[call["call_id"]] = prompt
    return prompts


def check(raw: object) -> Record:
    """The record, with arrays for its lists of tokens. Raises `ValueError`, saying where it is not as it must be."""
    found = raw.get("format") if isinstance(raw, dict) else None
    if found != FORMAT:
        raise ValueError(f"its format is {found!r}, and this Mosaic reads {FORMAT!r}")
    record = _row(raw, LAYOUT, "")
    _check_content(record)
    _check_references(record)
    _check_tokens(record)
    return record


def _row(value: Any, fields: Mapping[str, Field], at: str) -> Record:
    if not isinstance(value, dict):
        raise ValueError(f"{at or 'it'} is no object")
    if unknown := sorted(value.keys() - fields.keys()):
        raise ValueError(f"{at}{unknown[0]} is no field of this format")
    return {name: _value(value.get(name), wanted, name, f"{at}{name}") for name, wanted in fields.items()}


def _value(value: Any, wanted: Field, name: str, at: str) -> Any:
    if value is None:
        if not wanted.optional:
            raise ValueError(f"{at} is missing")
        return None
    if wanted.type == "row":
        return _row(value, wanted.fields, f"{at}.")
    if wanted.type == "rows":
        if not isinstance(value, list):
            raise ValueError(f"{at} is no list")
        return [_row(one, wanted.fields, f"{at}[{index}].") for index, one in enumerate(value)]
    try:
        read = _READ[wanted.type](value)
        return read if name not in _NAMES else _NAMES[name](read).value
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{at}: {error}") from error


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"text is needed, not {type(value).__name__}")
    return value


def _json(value: Any) -> str:
    load(_text(value))
    return str(value)


def _int(value: Any) -> int:
    if type(value) is not int or not -(2**31) <= value < 2**31:
        raise TypeError("a whole number of 32 bits is needed")
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError("a finite number is needed")
    return float(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError("true or false is needed")
    return value


def _ids(value: Any) -> IdArray:
    ids = np.asarray(value) if len(value) else np.zeros(0, np.int32)
    if ids.ndim != 1 or ids.dtype.kind != "i" or (len(ids) and not 0 <= ids.min() <= ids.max() < 2**31):
        raise ValueError("a list of token ids is needed")
    return ids.astype(np.int32)


def _logprobs(value: Any) -> LogprobArray:
    # JSON has no infinity: null stands for minus infinity there.
    given = np.asarray([-math.inf if one is None else one for one in value]) if len(value) else np.zeros(0)
    if given.ndim != 1 or given.dtype.kind not in "if" or np.isnan(given).any():
        raise ValueError("a list of numbers is needed")
    with np.errstate(over="ignore"):
        return given.astype(np.float32)


_READ: dict[str, Callable[[Any], Any]] = {
    "text": _text,
    "json": _json,
    "int": _int,
    "float": _float,
    "bool": _bool,
    "ids": _ids,
    "logprobs": _logprobs,
}


def _check_content(record: Record) -> None:
    """Messages and parameters are what their digests say: those of other trajectories are shared by them. Rewards are
    such as can be given."""
    depths: dict[str | None, int] = {None: -1}
    for index, message in enumerate(record["messages"]):
        parent = message["parent_id"]
        if depths.get(parent) != message["depth"] - 1:
            raise ValueError(f"messages[{index}] does not stand after its parent")
        if digest(message["body"].encode(), parent) != message["message_id"]:
            raise ValueError(f"messages[{index}].body is not the text that message_id names")
        depths[message["message_id"]] = message["depth"]
    for index, params in enumerate(record["params"]):
        if digest(params["body"].encode()) != params["params_id"]:
            raise ValueError(f"params[{index}].body is not the text that params_id names")
    values = {"reward": record["reward"]}
    values |= {f"rewards[{index}].value": reward["value"] for index, reward in enumerate(record["rewards"])}
    for at, value in values.items():
        if value is not None and abs(value) > MAX_REWARD:
            raise ValueError(f"{at} is beyond {MAX_REWARD:,.0f}, and no reward may be")


def _check_references(record: Record) -> None:
    """Whatever a row names is in the record."""
    known = {
        "session_id": {s["session_id"] for s in record["sessions"]},
        "parent_session_id": {s["session_id"] for s in record["sessions"]},
        "message_id": {m["message_id"] for m in record["messages"]},
        "params_id": {p["params_id"] for p in record["params"]},
    }
    choices = [choice for call in record["calls"] for choice in call["choices"]]
    tables = {
        "sessions": record["sessions"],
        "calls": record["calls"],
        "choices": choices,
        "rewards": record["rewards"],
    }
    for table, rows in tables.items():
        for name, there in known.items():
            _check_names(table, name, rows, there)


def _check_names(table: str, name: str, rows: Iterable[Mapping[str, Any]], there: set[str]) -> None:
    for row in rows:
        if row.get(name) is not None and row[name] not in there:
            raise ValueError(f"{table} name {name} {row[name]!r}, which the record does not hold")


def _check_tokens(record: Record) -> None:
    """Every prompt can be put together from calls that stand before."""
    lengths: dict[tuple[str | None, int | None], int] = {(None, None): 0}
    for call in record["calls"]:
        prompt = None
        for choice in call["choices"]:
            if prompt is None:
                base = lengths.get((choice["base_call_id"], choice["base_choice"]))
                if choice["prompt_new"] is None or base is None or not 0 <= choice["prompt_kept"] <= base:
                    raise ValueError(f"the prompt of call {call['call_id']!r} cannot be put together")
                prompt = choice["prompt_kept"] + len(choice["prompt_new"])
            lengths[call["call_id"], choice["choice"]] = prompt + len(choice["sampled"])
