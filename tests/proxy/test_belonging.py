"""A spool folder's calls go to one database, whichever proxies use it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from mosaic.errors import SettingsError
from mosaic.settings import Settings
from proxy.belonging import NAME, Belonging
from tests.proxy.traces import conversation, leave


def settings(folder: Path, database: str, *, record: bool = True) -> Settings:
    return Settings(upstream="http://127.0.0.1:1/v1", spool=folder, database=database, record=record)


@contextmanager
def belonging(folder: Path, database: str) -> Iterator[Belonging]:
    found = Belonging(settings(folder, database))
    try:
        yield found
    finally:
        found.close()


def test_a_folder_in_use_for_another_database_is_refused_and_free_again_afterwards(tmp_path: Path) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(belonging(tmp_path, f"sqlite:///{tmp_path}/a.db"))
        second = stack.enter_context(belonging(tmp_path, f"sqlite:///{tmp_path}/sub/../a.db"))
        for left in (first, second):
            with pytest.raises(SettingsError, match=r"in use by .*a\.db, not to .*b\.db.*MOSAIC_SPOOL"):
                Belonging(settings(tmp_path, f"sqlite:///{tmp_path}/b.db"))
            left.close()
        stack.enter_context(belonging(tmp_path, f"sqlite:///{tmp_path}/b.db"))
        with pytest.raises(SettingsError):
            Belonging(settings(tmp_path, f"sqlite:///{tmp_path}/a.db"))
        Belonging(settings(tmp_path, f"sqlite:///{tmp_path}/a.db", record=False)).close()


def test_a_database_is_named_without_its_password(tmp_path: Path) -> None:
    with belonging(tmp_path, "postgresql://me:very-secret@localhost/mosaic"):
        assert "very-secret" not in (tmp_path / NAME).read_text()
        with belonging(tmp_path, "postgresql://me:changed@localhost/mosaic"):
            pass


async def test_calls_that_wait_for_another_database_are_told_of(tmp_path: Path) -> None:
    with belonging(tmp_path, f"sqlite:///{tmp_path}/a.db"):
        await leave(tmp_path, conversation(3))
    with capture_logs() as told, belonging(tmp_path, f"sqlite:///{tmp_path}/b.db"):
        pass
    assert [(line["calls"], line["other"]) for line in told] == [(3, f"sqlite:///{tmp_path}/a.db")]


def test_a_second_server_on_the_folder_of_a_running_one_says_what_to_do_and_ends(tmp_path: Path) -> None:
    environment = {**os.environ, "MOSAIC_UPSTREAM": "http://127.0.0.1:9/v1", "PYTHONPATH": str(Path.cwd())}
    command = [sys.executable, "-m", "mosaic", "serve", "--port", "0", "--workers"]
    with subprocess.Popen([*command, "1"], cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as first:
        try:
            assert first.stderr is not None
            assert "mosaic serves" in first.stderr.readline()
            for workers in ("1", "2"):
                second = subprocess.run(
                    [*command, workers, "--database", "sqlite:///other.db"],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                assert second.returncode == 2
                assert "MOSAIC_SPOOL=var/spool-2" in second.stderr
                assert "Traceback" not in second.stderr
                assert not (tmp_path / "other.db").exists()
        finally:
            first.send_signal(signal.SIGTERM)
            first.communicate(timeout=60)
    assert first.returncode == 0
