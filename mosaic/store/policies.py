"""Policy versions: which weights there are, and which of them are live.

A version is `loading` until the engines have it, `live` from then on, or `failed`. The newest live one serves. Weights
that are put back get a number of their own (`restores`), so that every token's version stays known.
"""

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Connection, RowMapping, func, insert, select, update

from mosaic.store.models import JobRow, PolicyVersionRow

LEASE = "training"
"""Who holds it may train and change what the engines serve."""


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """One set of weights under its number."""

    version: int
    path: str
    """Folder of its checkpoint."""
    state: str
    """loading, live (also of those that served before) or failed."""
    job_id: str | None
    """The job that trained it; None for weights that were put back."""
    restores: int | None
    """The version whose weights these are; None for new ones. 0: the checkpoint that the engine started with."""
    pinned: bool
    created_at: float
    live_at: float | None
    verification: Mapping[str, Any]
    """What was measured when it was put live; empty when nothing was."""


def new_version(connection: Connection, path: str, job_id: str | None, restores: int | None = None) -> int:
    """Number a checkpoint. It is `loading` until it is live."""
    version = (connection.scalar(select(func.max(PolicyVersionRow.version))) or 0) + 1
    row = {
        "version": version,
        "path": path,
        "state": "loading",
        "job_id": job_id,
        "restores": restores,
        "pinned": False,
        "created_at": time.time(),
    }
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


def versions(connection: Connection) -> list[PolicyVersion]:
    """All versions, oldest first."""
    query = select(PolicyVersionRow.__table__).order_by(PolicyVersionRow.version)
    return [_version(row) for row in connection.execute(query).mappings()]


def first_version(connection: Connection) -> PolicyVersion | None:
    """Version 0, the checkpoint that the engine started with: what the jobs on it trained, once one of them has come as
    far as to publish (the engines were then found to serve it). None before that."""
    query = select(JobRow.settings, JobRow.created_at).where(JobRow.policy_from == 0, JobRow.policy_to.is_not(None))
    row = connection.execute(query.order_by(JobRow.created_at.desc()).limit(1)).first()
    model = None if row is None else orjson.loads(row.settings).get("model")
    if row is None or model is None:
        return None
    return PolicyVersion(0, model, "live", None, None, False, row.created_at, None, {})


def original(found: Sequence[PolicyVersion], version: int) -> int:
    """The version that first had these weights: `version` itself, unless it put older ones back."""
    restores = {one.version: one.restores for one in found}
    while (earlier := restores.get(version)) is not None:
        version = earlier
    return version


def same_weights(found: Sequence[PolicyVersion], version: int) -> frozenset[int]:
    """Every number under which the weights of `version` have been, its own included."""
    first = original(found, version)
    return frozenset({first} | {one.version for one in found if original(found, one.version) == first})


def live_of(found: Sequence[PolicyVersion]) -> PolicyVersion | None:
    """The live one of all versions, oldest first; None while the engine has the weights that it started with."""
    return next((one for one in reversed(found) if one.state == "live"), None)


def started_on(models: Iterable[Mapping[str, Any]], name: str | None, *, unseen: bool = True) -> Path | None:
    """The folder, or an adapter's link, from which an engine had the policy when it started, by its list of models.

    None where it does not say. `name`: under which the policy is served; None: the first of them. Without `unseen` a
    link that this machine does not see says nothing either, since nobody knows where it leads.
    """
    model: Mapping[str, Any] = next((one for one in models if name in (None, one["id"])), {})
    root = model.get("root")
    if not isinstance(root, str) or "\0" in root:
        return None
    return Path(root) if unseen or not model.get("parent") or os.path.exists(root) else None


def serves(found: Sequence[PolicyVersion], said: str | None, root: Path | None, *, at_work: bool) -> bool | None:
    """Whether an engine serves the live weights, or those that are being put live; None when it does not say enough.

    `said`: its `weight_version`, a number once it was given weights and a word of its own before that; None where it
    does not tell. `root`: what `started_on` says. `at_work`: whether anybody holds the lease on training. Where nobody
    does, a `loading` version was left by a job that died: the clock will never say that it sampled a token.
    """
    live = live_of(found)
    loading = [one for one in found if one.state == "loading" and (live is None or one.version > live.version)]
    number = int(said) if said is not None and said.isdecimal() else None
    if live is None:
        left = [] if at_work else loading
        return number not in [one.version for one in left] and not _is_one_of(left, root)
    coming = loading if at_work else []
    if number is not None:
        return number in same_weights(found, live.version) | {one.version for one in coming}
    if root is None:
        return None
    return _is_one_of([live, *coming], root) or (None if said is None else False)


def _is_one_of(some: Sequence[PolicyVersion], root: Path | None) -> bool:
    """Whether a folder is that of one of these versions."""
    return root is not None and root.resolve() in [Path(one.path).resolve() for one in some]


def pin(connection: Connection, version: int | None) -> None:
    """Pin this version and no other; None pins none."""
    connection.execute(update(PolicyVersionRow).where(PolicyVersionRow.pinned).values(pinned=False))
    if version is not None:
        change_version(connection, version, pinned=True)


def _version(row: RowMapping) -> PolicyVersion:
    columns = {name: row[name] for name in PolicyVersion.__dataclass_fields__}
    columns["verification"] = orjson.loads(row["verification"] or "{}")
    return PolicyVersion(**columns)
