"""What is in the database and how much room it takes: `mosaic db stats`."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, func, select, text
from sqlalchemy.exc import DatabaseError

from mosaic.store.database import Database
from mosaic.store.models import Base, CallRow, TrajectoryRow

DBSTAT_LIMIT = 2**30
"""Bytes of an SQLite file up to which each table's share is measured: that reads the whole file."""


@dataclass(frozen=True, slots=True)
class TableStats:
    """One table."""

    rows: int
    bytes: int | None
    """With its indexes; None where it is not known (see `DBSTAT_LIMIT`)."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """How many calls there are, and what each of them is worth: nothing is dropped without being counted."""

    by_status: Mapping[str, int]
    """How calls ended: `ok`, `aborted`, `failed`, `interrupted`."""
    exact: int
    """Calls that can be trained."""
    inexact: Mapping[str, int]
    """Why the others cannot."""
    sampled_tokens: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What is in the database."""

    bytes: int
    """The whole database with its indexes and free pages (SQLite: without the write-ahead log)."""
    tables: Mapping[str, TableStats]
    calls: Certificate
    trajectories: Mapping[str, int]
    """State -> how many."""
    bytes_per_sampled_token: float | None
    """None while nothing was sampled."""


def stats(database: Database) -> Stats:
    """Count and measure. Raises `StoreError`.

    Rows are counted and trajectories are grouped in indexes alone. Full scans by nature: the certificate reads `calls`
    once (no index has status and reason), and a table's bytes in SQLite need every page of the file.
    """
    with database.reading() as connection:
        whole, sizes = _sizes(connection)
        tables = {
            name: TableStats(connection.scalar(select(func.count()).select_from(table)) or 0, sizes.get(name))
            for name, table in sorted(Base.metadata.tables.items())
        }
        by_state = select(TrajectoryRow.state, func.count()).group_by(TrajectoryRow.state)
        states = dict(connection.execute(by_state).all())
        calls = _certificate(connection)
    each = whole / calls.sampled_tokens if calls.sampled_tokens else None
    return Stats(whole, tables, calls, states, each)


def _certificate(connection: Connection) -> Certificate:
    kinds = (CallRow.status, CallRow.exact, CallRow.inexact_reason)
    by_status: dict[str, int] = {}
    inexact: dict[str, int] = {}
    exact = sampled = 0
    query = select(*kinds, func.count(), func.sum(CallRow.sampled_tokens)).group_by(*kinds)
    for status, is_exact, reason, number, tokens in connection.execute(query):
        by_status[status] = by_status.get(status, 0) + number
        sampled += int(tokens)
        if is_exact:
            exact += number
        else:
            inexact[reason or "unknown"] = inexact.get(reason or "unknown", 0) + number
    return Certificate(by_status, exact, inexact, sampled)


def _sizes(connection: Connection) -> tuple[int, dict[str, int]]:
    """Bytes of the whole and, where they can be had, of each table with its indexes."""
    if connection.dialect.name == "postgresql":
        whole = connection.scalar(text("select pg_database_size(current_database())")) or 0
        names = sorted(Base.metadata.tables)
        query = text("select pg_total_relation_size(cast(:name as regclass))")
        return whole, {name: connection.scalar(query, {"name": name}) or 0 for name in names}
    pages = text("select p.page_count * s.page_size from pragma_page_count p, pragma_page_size s")
    whole = connection.scalar(pages) or 0
    if whole > DBSTAT_LIMIT:
        return whole, {}
    try:
        query = text(
            "select o.tbl_name, sum(d.pgsize) from dbstat d join sqlite_master o on o.name = d.name "
            "where d.aggregate = 1 group by o.tbl_name"
        )
        return whole, {row[0]: row[1] for row in connection.execute(query)}
    except DatabaseError:
        return whole, {}  # This SQLite was built without dbstat.
