"""A command that scores: run by the shell from where `mosaic` was started, its last line is the score."""

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from mosaic.scoring.outcome import Score, ScoreError, read_score


@dataclass(frozen=True, slots=True)
class Command:
    """A scorer of the user's. Thread-safe."""

    command: str
    timeout_s: float

    def score(self, told: bytes, variables: Mapping[str, str]) -> Score:
        """Run it, with `told` on standard input and `variables` in its environment. Raises `ScoreError`."""
        process = subprocess.Popen(
            ["/bin/sh", "-c", self.command],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(told, self.timeout_s)
        except subprocess.TimeoutExpired:
            raise ScoreError(f"the scorer took longer than {self.timeout_s:g} s.", self._again) from None
        finally:
            # Also after its end: nothing that it started may go on.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        if process.returncode:
            said = err.decode(errors="replace").strip()[-300:].rstrip(".")
            why = f": {said}" if said else ""
            raise ScoreError(f"the scorer ended with status {process.returncode}{why}.", self._again)
        return read_score(out.decode(errors="replace"))

    @property
    def _again(self) -> str:
        return "Run it by hand: " + self.command
