"""The statements of the hot path, compiled to text once: for each batch SQLAlchemy then has nothing left to work out.

`Statement` holds one for every database; rows are mappings of its named parameters. A list parameter is one value: JSON
on SQLite, an array on PostgreSQL.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

import orjson
from sqlalchemy import Connection, CursorResult, any_, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql import ClauseElement, ColumnElement
from sqlalchemy.sql.compiler import SQLCompiler

Dialect = Any
"""`sqlalchemy.dialects.sqlite` or `.postgresql`: the module, for its `insert`."""


class Statement:
    """A statement for any database; `build` gets the dialect's module."""

    def __init__(self, build: Callable[[Dialect], ClauseElement]) -> None:
        self._build = build
        self._text = cache(self._compile)

    def _compile(self, name: str) -> tuple[str, Callable[[Mapping[str, Any]], Any]]:
        """The text, and what makes a row's values into what the driver takes."""
        if name == "postgresql":
            return str(self._build(postgresql).compile(dialect=postgresql.psycopg.dialect())), dict  # type: ignore[no-untyped-call]
        compiled = self._build(sqlite).compile(dialect=sqlite.dialect(paramstyle="qmark"))
        assert isinstance(compiled, SQLCompiler)
        names = compiled.positiontup or []
        # By name, SQLite's driver would make and look for a text for every value of every row.
        taken = itemgetter(*names) if len(names) > 1 else lambda row: tuple(row[name] for name in names)
        return str(compiled), taken

    def many(self, connection: Connection, rows: Iterable[Mapping[str, Any]]) -> None:
        """Run it once for every row; not at all when there are none."""
        text, taken = self._text(connection.dialect.name)
        if values := [taken(row) for row in rows]:
            connection.exec_driver_sql(text, values)

    def run(self, connection: Connection, **values: Any) -> CursorResult[*tuple[Any, ...]]:
        """Run it once."""
        text, taken = self._text(connection.dialect.name)
        return connection.exec_driver_sql(text, taken(values))


def among(column: ColumnElement[Any] | Any, dialect: Dialect, name: str = "ids") -> ColumnElement[bool]:
    """Whether the column is one of the values of the list parameter `name`, given as `listed` makes it."""
    if dialect is postgresql:
        return column == any_(bindparam(name, type_=postgresql.ARRAY(column.type)))
    values = func.json_each(bindparam(name)).table_valued("value")
    return column.in_(select(values.c.value))


def listed(connection: Connection, values: Sequence[str]) -> object:
    """A list parameter's value."""
    return list(values) if connection.dialect.name == "postgresql" else orjson.dumps(list(values)).decode()
