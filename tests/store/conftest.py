"""Stores that several modules look at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mosaic.store import Store, portable_rows
from mosaic.store.portable import Record
from tests.lineage.test_lineage import compaction
from tests.playbook import Recording


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    yield opened
    opened.close()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    """A second, empty store; always SQLite, so that trajectories also move between the two kinds."""
    opened = Store(f"sqlite:///{tmp_path}/other.db")
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Record:
    """One record of a compaction."""
    opened = Store(f"sqlite:///{tmp_path_factory.mktemp('example')}/mosaic.db")
    opened.record(compaction(Recording("run-1")))
    opened.reward("run-1", 1.0, "test")
    (record,) = portable_rows.records(opened.database)
    opened.close()
    return record
