"""Faults of the database, the journal and their disks."""

import sqlite3
from pathlib import Path

import pytest

from mosaic.store import Store
from proxy.doctor import Level, storage
from proxy.progress import Progress
from tests.proxy.doctor.looking import found, only, settings_of
from tests.proxy.traces import conversation, leave

FIRST_RELEASE = Path(__file__).parents[2] / "store" / "first_release.sql"


def made(settings_folder: Path) -> Store:
    return Store(settings_of(settings_folder).database)


def test_a_sound_database_is_only_looked_at(database_url: str, tmp_path: Path) -> None:
    store = Store(database_url)
    assert [one.level for one in found(settings_of(tmp_path, database=database_url), "database")] == [Level.OK]
    assert store.counters() == {}
    store.close()


def test_a_database_that_is_not_there_yet_is_not_made(tmp_path: Path) -> None:
    only(found(settings_of(tmp_path), "database"), Level.NOTE, "there is no database")
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_cannot_be_made(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, database="sqlite:////proc/no/mosaic.db")
    only(found(settings, "database"), Level.WRONG, "cannot be made", step="Set database")


@pytest.mark.parametrize("url", ["mosaic.db", "postgresql://me@nowhere:port/mosaic"])
def test_a_database_whose_url_is_none(tmp_path: Path, url: str) -> None:
    only(found(settings_of(tmp_path, database=url), "database"), Level.WRONG, "cannot be read", step="sqlite:///")


def test_a_database_of_another_release(tmp_path: Path) -> None:
    raw = sqlite3.connect(tmp_path / "mosaic.db")
    raw.executescript(FIRST_RELEASE.read_text(encoding="utf-8"))
    raw.close()
    only(found(settings_of(tmp_path), "database"), Level.WRONG, "has schema 0001", step="mosaic db upgrade")


def test_a_database_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "mosaic.db").write_text("This is a text, and long enough to be read as the head of a file. " * 20)
    only(found(settings_of(tmp_path), "database"), Level.WRONG, "cannot be used", step="Check")


def test_a_database_that_takes_nothing(tmp_path: Path) -> None:
    made(tmp_path).close()
    raw = sqlite3.connect(tmp_path / "mosaic.db")
    raw.execute("create trigger full before insert on counters begin select raise(abort, 'the disk is full'); end")
    raw.close()
    only(found(settings_of(tmp_path), "database"), Level.WRONG, "the disk is full", step="free space")


def test_a_folder_of_the_journal_that_cannot_be_written(tmp_path: Path) -> None:
    seen = found(settings_of(tmp_path, spool=Path("/proc/no/spool")), "journal")
    only(seen, Level.WRONG, "cannot be written", step="Set spool")


async def test_calls_that_nobody_stores(tmp_path: Path) -> None:
    await leave(tmp_path / "spool", conversation(2))
    only(found(settings_of(tmp_path), "journal"), Level.WRONG, "2 calls wait in ", step="once a proxy runs")


async def test_calls_that_the_database_refuses(tmp_path: Path) -> None:
    await leave(tmp_path / "spool", conversation(2))
    progress = Progress(tmp_path / "spool")
    progress.begin()
    assert [one.level for one in found(settings_of(tmp_path), "journal")] == [Level.OK]
    progress.refused("no space left on device")
    only(found(settings_of(tmp_path), "journal"), Level.WRONG, "the database refuses: no space left on device")
    progress.close()


def test_files_of_the_journal_that_are_damaged(tmp_path: Path) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "damaged-1").touch()
    only(found(settings_of(tmp_path), "journal"), Level.WARNING, "1 damaged files", step="remove")


@pytest.mark.parametrize(("bound", "level"), [("LITTLE_BYTES", Level.WRONG), ("LOW_BYTES", Level.WARNING)])
def test_a_disk_with_little_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, level: Level) -> None:
    settings = settings_of(tmp_path, train={"output": tmp_path})
    assert {one.level for one in found(settings, "disk")} == {Level.OK}
    monkeypatch.setattr(storage, bound, 2**62)
    only(found(settings, "disk"), level, "are free for the journal and checkpoints and the database", step="room")
