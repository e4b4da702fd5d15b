"""Everything that Mosaic remembers, in SQL: SQLite by default, PostgreSQL by URL."""

from mosaic.store.database import upgrade
from mosaic.store.store import Store

__all__ = ["Store", "upgrade"]
