"""Runs an attempt as a process of this machine: in a session of its own, so that nothing of it outlives it.

Output goes to files and never to a pipe: a full pipe would stop the agent, and what was said before a crash is kept.
"""

import json
import os
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mosaic.rollout.attempt import Ended, Made, Work
from mosaic.rollout.scoring import Scoring
from mosaic.scoring.outcome import ScoreError

GRACE_S = 5.0
"""Seconds between asking an agent to end and ending it."""


class Processes:
    """The attempts that run now in this process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False

    def make(self, work: Work, scoring: Scoring) -> Made:
        """Make one attempt, wait for its end, and score it if it ended well."""
        ended = self.run(work)
        if ended.status is None or (ended.status != 0 and not work.agent.any_status):
            return Made(ended, None, ended.error or tail(work.folder / "stderr") or None)
        try:
            return Made(ended, scoring.score(work, ended), None)
        except ScoreError as error:
            return Made(ended, None, str(error))

    def run(self, work: Work) -> Ended:
        """Make one attempt and wait for its end."""
        started = time.monotonic()
        write_task(work)
        try:
            process = self._start(work)
        except (OSError, ValueError) as error:
            return Ended(work.trajectory_id, None, False, f"it could not be started: {error}", 0.0)
        timed_out = False
        try:
            process.wait(work.agent.timeout_s)
        except subprocess.TimeoutExpired:
            timed_out = True
        finally:
            end_group(process)
            with self._lock:
                self._running.discard(process)
        status = None if timed_out else process.returncode
        return Ended(work.trajectory_id, status, timed_out, None, time.monotonic() - started)

    def stop(self) -> None:
        """End what runs, and start nothing more."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            _signal(process, signal.SIGTERM)
        until = time.monotonic() + GRACE_S
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, until - time.monotonic()))
            _signal(process, signal.SIGKILL)

    def _start(self, work: Work) -> "subprocess.Popen[bytes]":
        # Settings stay here: they may hold keys of the control API or the database's password.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("MOSAIC_")}
        environment = {**inherited, **work.environment()}
        with self._lock, (work.folder / "stdout").open("wb") as out, (work.folder / "stderr").open("wb") as err:
            if self._stopped:
                raise OSError("the rollout was stopped")
            process: subprocess.Popen[bytes] = subprocess.Popen(
                work.arguments(),
                cwd=work.scratch,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            self._running.add(process)
        return process


def write_task(work: Work) -> None:
    """The attempt's folder, with what is asked for."""
    work.scratch.mkdir(parents=True, exist_ok=True)
    work.task_file.write_text(json.dumps(work.task.fields), encoding="utf-8")


def end_group(process: "subprocess.Popen[Any]") -> None:
    """End a process and all that it has started, kindly at first."""
    _signal(process, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_S)
    _signal(process, signal.SIGKILL)
    process.wait()


def tail(path: Path, characters: int = 500) -> str:
    """The end of a file of output."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            file.seek(max(0, size - 4 * characters))
            return file.read().decode("utf-8", "replace").strip()[-characters:]
    except OSError:
        return ""


def _signal(process: "subprocess.Popen[Any]", number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
