"""Opens the database: SQLite in WAL mode with full durability by default, anything else by URL."""

import sqlite3
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from mosaic.errors import StoreError
from mosaic.store.models import Base

BUSY_TIMEOUT_S = 5


def connect(url: str) -> Engine:
    """An engine with all tables in place. Raises `StoreError` when the database cannot be opened or written."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(f"database URL {url!r} cannot be read.", "Use sqlite:///path/to/file.db.") from error
    try:
        engine = create_engine(parsed, pool_pre_ping=parsed.get_backend_name() != "sqlite")
    except (ArgumentError, ImportError) as error:
        raise StoreError(f"no driver for database {parsed.drivername!r}: {error}.", "Use sqlite:///file.db.") from error
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
    try:
        if parsed.get_backend_name() == "sqlite" and parsed.database:
            Path(parsed.database).parent.mkdir(parents=True, exist_ok=True)
        Base.metadata.create_all(engine)
    except (SQLAlchemyError, OSError) as error:
        engine.dispose()
        shown = parsed.render_as_string(hide_password=True)
        raise StoreError(
            f"database {shown} cannot be used: {getattr(error, 'orig', error)}.",
            "Check that it exists, is writable and has free space.",
        ) from error
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    if not isinstance(connection, sqlite3.Connection):
        return
    for pragma in (
        "journal_mode=WAL",
        "synchronous=FULL",
        "foreign_keys=ON",
        f"busy_timeout={BUSY_TIMEOUT_S * 1000}",
    ):
        connection.execute(f"PRAGMA {pragma}")
