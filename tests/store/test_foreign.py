"""Databases that are another program's, or cannot be reached: said in one line, and left as they are."""

import sqlite3
from pathlib import Path

import pytest

from mosaic.errors import RequestError, StoreError
from mosaic.store import Store


def tables(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        return [name for (name,) in connection.execute("select name from sqlite_master")]


def test_what_only_reads_writes_nothing_into_the_file_of_another_program(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table users (name text)")
    with pytest.raises(StoreError, match=r"holds none of Mosaic's tables.*mosaic serve"):
        Store(f"sqlite:///{path}", create=False)
    assert tables(path) == ["users"]


@pytest.mark.parametrize("rows", [["ae1027a6acf"], []])
def test_a_schema_that_no_release_has_made_is_another_programs(tmp_path: Path, rows: list[str]) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table alembic_version (version_num text)")
        connection.executemany("insert into alembic_version values (?)", [(row,) for row in rows])
    with pytest.raises(StoreError, match=r"another program's\. Give Mosaic a database of its own"):
        Store(f"sqlite:///{path}")
    assert tables(path) == ["alembic_version"]


@pytest.mark.parametrize("create", [True, False])
def test_a_path_that_cannot_be_is_told_in_one_line(tmp_path: Path, create: bool) -> None:
    with pytest.raises(StoreError, match="cannot be used: "):
        Store(f"sqlite:///{tmp_path}/{'x' * 300}.db", create=create)


def test_an_argument_that_is_no_utf8_is_told_of(database_url: str) -> None:
    store = Store(database_url)
    with pytest.raises(RequestError, match="no text that a database can hold"):
        store.trajectory("\udcff")
    with pytest.raises(RequestError, match="no text that a database can hold"):
        store.reward("\udcff", 1.0, "test")
    store.close()


def test_a_database_that_somebody_else_writes_to_is_told_as_such(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(database_url).close()
    monkeypatch.setattr("mosaic.store.database.BUSY_TIMEOUT_S", 1)
    one, other = Store(database_url), Store(database_url)
    with one.database.writing(), pytest.raises(StoreError, match="Something else is writing to it"):
        other.count("tests", "run")
    other.count("tests", "run")
    assert other.counters()["tests"] == {"run": 1}
    one.close()
    other.close()
