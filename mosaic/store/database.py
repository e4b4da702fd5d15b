"""One database URL: opened, created or refused, and its two kinds of transaction.

SQLite runs in WAL mode with full durability: readers never wait, and writers queue (`BEGIN IMMEDIATE`). On PostgreSQL
writers queue as well, by an advisory lock: what one process writes is committed before the next one reads, so row
numbers rise in the order of commits, which lineage relies on. Readers get a snapshot on both.
"""

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DataError, IntegrityError, SQLAlchemyError

from mosaic.errors import RequestError, StoreError
from mosaic.store.models import Base
from mosaic.store.views import create_views
from mosaic.urls import shown_url

BUSY_TIMEOUT_S = 5
"""Seconds that a transaction waits for another writer before it fails."""
AGAIN_S = 0.01
"""Seconds between tries where SQLite does not wait by itself."""
WAL_PAGES = 16_000
"""Pages of 4 KiB from which SQLite's write-ahead log is brought into the file: most pages change many times before."""
CACHE_KIB = 32_000
"""Memory of a connection to SQLite for pages."""
STATEMENT_TIMEOUT_S = 30
"""Seconds after which PostgreSQL gives up a writing statement: a database that hangs must not hang the writer."""
WRITER_LOCK = 0x6D6F73616963
"""Key of the advisory lock that PostgreSQL's writers hold while they write."""
HEAD = "0007"
"""Revision of the schema that this code reads and writes; the newest file in `migrations/versions`."""
_REVISION = re.compile(r"\d{4}")


class Database:
    """A database in this code's schema. Raises `StoreError` when it cannot be opened or has another schema.

    With `create=False`, which is for all that only reads or changes what is there, no SQLite file is made.
    """

    def __init__(self, url: str, *, create: bool = True) -> None:
        parsed = _parse(url)
        self.shown_url = shown_url(url)
        self.engine = _engine(parsed)
        self._writer = self.engine.execution_options(mosaic_writing=True)
        self._reader: Engine = self.engine
        if parsed.get_backend_name() == "postgresql":
            self._reader = self.engine.execution_options(isolation_level="REPEATABLE READ")
        self._file = Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None
        self._identity: tuple[int, int] | None = None
        self._replaced = False
        self._may_create = create
        self._open()

    def _open(self) -> None:
        """Create the tables where there are none. Raises `StoreError`."""
        try:
            if self._file is not None and not self._may_create and not self._file.exists():
                raise self._missing(f"there is no database at {self._file.absolute()}")
            if self._file is not None:
                self._file.parent.mkdir(parents=True, exist_ok=True)
            with self.engine.connect() as connection:
                found = revision(connection)
            if found is None and not self._may_create:
                raise self._missing(f"database {self.shown_url} holds none of Mosaic's tables")
            if found is None:
                with self._writer.begin() as connection:
                    self._lock(connection)
                    found = revision(connection) or _create(connection)
        except (SQLAlchemyError, OSError) as error:
            self.close()
            raise StoreError(
                f"database {self.shown_url} cannot be used: {_said(error)}.",
                "Check that it exists, is writable and has free space.",
            ) from error
        if found != HEAD:
            self.close()
            raise _other_revision(self.shown_url, found)
        self._identity = self._identify()

    def _missing(self, what: str) -> StoreError:
        self.close()
        return StoreError(
            f"{what}.",
            "`mosaic serve` makes it; --database, or mosaic.toml in the folder where you are, names another.",
        )

    def _identify(self) -> tuple[int, int] | None:
        """What tells a SQLite file from another that was put into its place; None for other databases."""
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    @property
    def identity(self) -> tuple[int, int] | None:
        """What tells the SQLite file that is read from others that stood in its place; None for other databases."""
        return self._identity

    def replaced(self) -> bool:
        """Whether another file has been put into the place of the one that was read before; asked once."""
        was, self._replaced = self._replaced, False
        return was

    def renewed(self) -> bool:
        """Whether another file stands where the one did that was read; then that one is read from now on.

        For readers: a file that is away is waited for, and not made. Raises `StoreError`.
        """
        found = self._identify()
        if found is None or found == self._identity:
            return False
        self.engine.dispose()
        self._open()
        return True

    def close(self) -> None:
        """Release the connections."""
        self.engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database throughout."""
        with _refusals(), self._reader.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is alone in writing; it waits at most `BUSY_TIMEOUT_S` for the one before."""
        if self._identify() != self._identity:
            # Its connections write to a file that has no name any more.
            self.engine.dispose()
            self._open()
            self._replaced = True
        with _refusals(), self._writer.begin() as connection:
            self._lock(connection)
            yield connection

    def _lock(self, connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(
                text(
                    "select set_config('lock_timeout', :wait, true), set_config('statement_timeout', :limit, true), "
                    "pg_advisory_xact_lock(:key)"
                ),
                {"wait": f"{BUSY_TIMEOUT_S}s", "limit": f"{STATEMENT_TIMEOUT_S}s", "key": WRITER_LOCK},
            )


def upgrade(url: str) -> tuple[str | None, str]:
    """Bring a database to this code's schema; returns its revision before and after. Raises `StoreError`."""
    from mosaic.store import migrations

    parsed = _parse(url)
    if parsed.get_backend_name() == "sqlite":
        with suppress(OSError):  # SQLite says it better
            Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
    engine = _engine(parsed)
    try:
        with _refusals(), engine.connect() as connection:
            if engine.dialect.name == "sqlite":
                # Tables are rebuilt under their names; the references to them are checked once all are in place.
                connection.connection.cursor().execute("PRAGMA foreign_keys=OFF")
            with connection.execution_options(mosaic_writing=True).begin():
                before = revision(connection)
                if before is None:
                    return None, _create(connection)
                if before not in migrations.known():
                    raise _other_revision(shown_url(url), before)
                if before != HEAD:
                    migrations.run(connection, before)
                return before, HEAD
    finally:
        engine.dispose()


def revision(connection: Connection) -> str | None:
    """Revision of the schema; None for one without Mosaic's tables. Files from before there were revisions count as
    0001."""
    tables = inspect(connection).get_table_names()
    if "alembic_version" in tables:
        return str(connection.execute(text("select version_num from alembic_version")).scalar() or "")
    return "0001" if "calls" in tables else None


def _create(connection: Connection) -> str:
    Base.metadata.create_all(connection)
    create_views(connection)
    connection.execute(text("create table alembic_version (version_num varchar(32) not null primary key)"))
    connection.execute(text("insert into alembic_version values (:head)"), {"head": HEAD})
    return HEAD


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:  # ValueError: a port that is no number
        raise StoreError(
            f"database URL {shown_url(url)!r} cannot be read.",
            "Use sqlite:///path/to/file.db, or postgresql://user:password@host:5432/name.",
        ) from error
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise StoreError("a database in memory would forget everything.", "Use sqlite:///path/to/file.db.")
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    return parsed


def _engine(parsed: URL) -> Engine:
    options: dict[str, Any] = {}
    if parsed.get_backend_name() == "postgresql":
        # A server that is gone without a word is noticed by its silence, not by the kernel's fifteen minutes.
        reach = {"connect_timeout": BUSY_TIMEOUT_S, "tcp_user_timeout": 1000 * STATEMENT_TIMEOUT_S}
        options = {"pool_pre_ping": True, "connect_args": reach}
    try:
        engine = create_engine(parsed, **options)
    except (SQLAlchemyError, ImportError) as error:
        raise StoreError(
            f"no driver for database {parsed.drivername!r}: {error}.",
            "Use sqlite:///file.db, or install mosaic-rl[postgres] for postgresql://.",
        ) from error
    if parsed.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    if not isinstance(connection, sqlite3.Connection):
        return
    # The driver would begin a transaction only at the first change, too late for a reader that goes on to write.
    connection.isolation_level = None
    connection.execute(f"PRAGMA busy_timeout={BUSY_TIMEOUT_S * 1000}")
    _into_wal(connection)
    for pragma in (
        f"wal_autocheckpoint={WAL_PAGES}",
        f"cache_size=-{CACHE_KIB}",
        "synchronous=FULL",
        "foreign_keys=ON",
    ):
        connection.execute(f"PRAGMA {pragma}")


def _into_wal(connection: sqlite3.Connection) -> None:
    """Raises `sqlite3.OperationalError`. Where several switch a new file at once, SQLite refuses without waiting."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(AGAIN_S)
        else:
            return


def _prepare_postgresql(connection: Any, _record: object) -> None:
    # It overrates recursive queries (message chains), and compiles them for longer than they run.
    connection.execute("set jit to off")
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    writing = connection.get_execution_options().get("mosaic_writing")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writing else "BEGIN")


@contextmanager
def _refusals() -> Iterator[None]:
    """What the database refuses becomes a `StoreError`; `permanent` tells what no second try can help."""
    try:
        yield
    except UnicodeEncodeError as error:  # a lone surrogate, as Python reads an argument that is no UTF-8
        raise RequestError(
            f"{error.object!r} is no text that a database can hold.", "Write it in UTF-8, as its neighbours are."
        ) from error
    except SQLAlchemyError as error:
        raise StoreError(
            f"the database refused: {_said(error)}.",
            "Something else is writing to it: try again once that has ended (`mosaic relink`, a backup, ...)."
            if _is_busy(error)
            else "Check its free space and permissions; nothing that was committed is lost.",
            permanent=isinstance(error, IntegrityError | DataError) or _beyond_limits(error),
        ) from error


def _said(error: Exception) -> str:
    """What the driver said, on one line and without the mark at its end."""
    return " ".join(str(getattr(error, "orig", None) or error).split()).rstrip(".?")


def _is_busy(error: SQLAlchemyError) -> bool:
    """Whether somebody else held the database for too long."""
    cause = getattr(error, "orig", None)
    if isinstance(cause, sqlite3.Error):
        return getattr(cause, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return getattr(cause, "sqlstate", None) == "55P03"  # lock_not_available


def _beyond_limits(error: SQLAlchemyError) -> bool:
    """Whether PostgreSQL says that what it was given is more than it can ever take (class 54)."""
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "").startswith("54")


def _other_revision(shown: str, found: str) -> StoreError:
    if not _REVISION.fullmatch(found):
        return StoreError(
            f"database {shown} has schema {found!r}, which is another program's.",
            "Give Mosaic a database of its own: --database, or `database` in mosaic.toml.",
        )
    if found > HEAD:
        return StoreError(f"database {shown} has schema {found}, newer than this Mosaic's {HEAD}.", "Upgrade Mosaic.")
    return StoreError(
        f"database {shown} has schema {found}, this Mosaic needs {HEAD}.",
        "Stop what writes to it, back it up and run `mosaic db upgrade`.",
    )
