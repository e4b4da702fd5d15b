"""A command that scores: run by the shell from where `mosaic` was started, its last line is the score.

Its output goes to files and never to a pipe, which a process that left its session could hold open for ever.
"""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from tempfile import TemporaryFile
from typing import IO

from mosaic.scoring.outcome import Score, ScoreError, read_score

MAX_OUTPUT = 2**20
"""Bytes of a command's output that are read; of more it is the end."""


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended."""

    status: int
    out: str
    err: str


def run(command: str, timeout_s: float, variables: Mapping[str, str], told: bytes = b"") -> Ran:
    """Run a command with `told` on standard input and end all that it started in its session. Thread-safe.

    Raises `TimeoutError` when it takes longer, and `OSError` when it cannot be run.
    """
    with TemporaryFile() as asked, TemporaryFile() as out, TemporaryFile() as err:
        asked.write(told)
        asked.seek(0)
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            env={**os.environ, **variables},
            stdin=asked,
            stdout=out,
            stderr=err,
            start_new_session=True,
        )
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"took longer than {timeout_s:g} s") from None
        finally:
            # Also after its end: nothing that it started may go on.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return Ran(process.returncode, _end(out), _end(err))


def _end(file: IO[bytes]) -> str:
    """The end of what was written, read without moving the place at which somebody may still write."""
    written = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), MAX_OUTPUT, max(0, written - MAX_OUTPUT)).decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Command:
    """A scorer of the user's. Thread-safe."""

    command: str
    timeout_s: float

    def score(self, told: bytes, variables: Mapping[str, str]) -> Score:
        """Run it, with `told` on standard input and `variables` in its environment. Raises `ScoreError`."""
        try:
            ran = run(self.command, self.timeout_s, variables, told)
        except TimeoutError as error:
            raise ScoreError(f"the scorer {error}.", self._again) from None
        except OSError as error:
            raise ScoreError(f"the scorer cannot be run: {error}.", self._again) from error
        if ran.status:
            said = ran.err.strip()[-300:].rstrip(".")
            why = f": {said}" if said else ""
            raise ScoreError(f"the scorer ended with status {ran.status}{why}.", self._again)
        return read_score(ran.out)

    @property
    def _again(self) -> str:
        return "Run it by hand: " + self.command
