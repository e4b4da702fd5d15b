"""The PostgreSQL of the tests keeps what was committed, comes and goes when told, and leaves nothing behind."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.conftest import until
from tests.postgres import PACKAGE, Account, Server, _find_binaries, _packaged, server

KILLED_RUNNER = """
import sys
from tests.postgres import server
with server() as postgres:
    print(postgres.folder, postgres.port, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    with server() as running:
        yield running


@pytest.fixture
def database(postgres: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """libpq's address of a fresh database."""
    postgres.start()
    name = request.node.name
    yield address(postgres.create(name))
    postgres.start()
    postgres.drop(name)


def address(url: str) -> str:
    return url.replace("+psycopg", "")


def numbers(database: str) -> list[int]:
    with psycopg.connect(database) as connection:
        return [n for (n,) in connection.execute("select n from numbers order by n")]


def kill_runner() -> tuple[Path, int]:
    """Start a server in another process, kill that process, and return the server's folder and port."""
    command = [sys.executable, "-c", KILLED_RUNNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        folder, port = runner.stdout.readline().split()
        runner.kill()
    return Path(folder), int(port)


def check_gone(port: int) -> None:
    """Nobody listens there."""
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(f"postgresql://mosaic@127.0.0.1:{port}/postgres")


def test_durability_is_postgresqls_default(database: str) -> None:
    with psycopg.connect(database) as connection:
        for name in ("fsync", "synchronous_commit", "full_page_writes"):
            assert connection.execute(f"show {name}").fetchone() == ("on",)
        assert connection.execute("show max_connections").fetchone() == ("50",)
        assert connection.execute("show server_encoding").fetchone() == ("UTF8",)


def test_a_stopped_server_refuses_and_a_started_one_has_everything(postgres: Server, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table numbers as select generate_series(1, 3) as n")
    postgres.stop()
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(database)
    postgres.stop()
    postgres.start()
    postgres.start()
    assert numbers(database) == [1, 2, 3]


def test_after_a_crash_what_was_committed_is_there_and_nothing_else(postgres: Server, database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute("create table numbers as select generate_series(1, 3) as n")
        connection.commit()
        connection.execute("insert into numbers values (4)")
        postgres.crash()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    assert "automatic recovery in progress" not in postgres.log.read_text()
    postgres.start()
    assert "automatic recovery in progress" in postgres.log.read_text()
    assert numbers(database) == [1, 2, 3]


def test_a_database_is_dropped_with_its_connections(postgres: Server) -> None:
    postgres.start()
    with psycopg.connect(address(postgres.create("busy"))) as connection:
        with pytest.raises(psycopg.errors.DuplicateDatabase):
            postgres.create("busy")
        postgres.drop("busy")
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")
    postgres.drop("busy")
    postgres.create("busy")
    postgres.drop("busy")


def test_nothing_is_left_of_a_server_whose_test_failed() -> None:
    seen: list[Server] = []

    def fail() -> None:
        with server() as postgres:
            seen.append(postgres)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    check_gone(seen[0].port)
    assert not seen[0].folder.exists()


async def test_nothing_is_left_of_a_server_whose_runner_was_killed() -> None:
    folder, port = kill_runner()
    await until(lambda: not folder.exists())
    check_gone(port)


def test_a_shim_on_the_path_that_does_not_run_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("initdb", "postgres"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 126\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _find_binaries(tmp_path, Account()) != tmp_path


@pytest.fixture
def only_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """No PostgreSQL but the one in the Python package."""
    if not _packaged():
        pytest.skip("the package with PostgreSQL's binaries is not installed")
    monkeypatch.setattr("tests.postgres._on_path", list)
    monkeypatch.setattr("tests.postgres.SYSTEM", Path("/nowhere"))


@pytest.mark.usefixtures("only_the_package")
def test_the_packages_postgresql_serves_when_no_other_runs() -> None:
    with server() as postgres:
        assert postgres.binaries.parent.name.startswith("pginstall")
        postgres.create("packaged")


@pytest.mark.usefixtures("only_the_package")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as somebody else")
def test_the_package_is_copied_when_the_server_may_not_enter_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _packaged()[0]
    barred = tmp_path / "barred"
    barred.mkdir(mode=0o700)
    for name in (PACKAGE, f"{PACKAGE}.libs"):
        (barred / name).symlink_to(found.parents[2] / name)
    monkeypatch.setattr("tests.postgres._packaged", lambda: [barred / found.relative_to(found.parents[2])])
    with server() as postgres:
        assert postgres.binaries.is_relative_to(postgres.folder)
        postgres.create("packaged")
