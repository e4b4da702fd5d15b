"""The statements of the hot path, compiled to text once: for each batch SQLAlchemy then has nothing left to work out.

`Statement` holds one for every database; rows are mappings of its named parameters. A list parameter is one value: JSON
on SQLite, an array on PostgreSQL.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import orjson
from sqlalchemy import Connection, CursorResult, any_, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ClauseElement, ColumnElement

Dialect = Any
"""`sqlalchemy.dialects.sqlite` or `.postgresql`: the module, for its `insert`."""


class Statement:
    """A statement for any database; `build` gets the dialect's module."""

    def __init__(self, build: Callable[[Dialect], ClauseElement]) -> None:
        self._build = build
        self._text = cache(self._compile)

    def _compile(self, name: str) -> str:
        if name == "postgresql":
            return str(self._build(postgresql).compile(dialect=postgresql.psycopg.dialect()))  # type: ignore[no-untyped-call]
        return str(self._build(sqlite).compile(dialect=sqlite.dialect(paramstyle="named")))

    def many(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Run it once for every row; not at all when there are none."""
        if values := list(rows):
            connection.exec_driver_sql(self._text(connection.dialect.name), values)

    def run(self, connection: Connection, **values: Any) -> CursorResult[*tuple[Any, ...]]:
        """Run it once."""
        return connection.exec_driver_sql(self._text(connection.dialect.name), values)


def among(column: ColumnElement[Any] | Any, dialect: Dialect, name: str = "ids") -> ColumnElement[bool]:
    """Whether the column is one of the values of the list parameter `name`, given as `listed` makes it."""
    if dialect is postgresql:
        return column == any_(bindparam(name, type_=postgresql.ARRAY(column.type)))
    values = func.json_each(bindparam(name)).table_valued("value")
    return column.in_(select(values.c.value))


def listed(connection: Connection, values: Sequence[str]) -> object:
    """A list parameter's value."""
    return list(values) if connection.dialect.name == "postgresql" else orjson.dumps(list(values)).decode()
