"""A policy that is worse does not stay live: the user's own command judges before and after.

The command is run by the shell while the policy serves, so it can do anything that an agent can: attempt held-out tasks
through the proxy (`mosaic rollout`), or run a test suite. Its last line on standard output is the score; higher is
better. It finds `GATE_PHASE` (before, after) and `GATE_VERSION` (of the live policy) in its environment: names that are
none of Mosaic's settings, since it may run `mosaic` itself.
"""

import math
import os
import subprocess
from dataclasses import dataclass

from mosaic.errors import GateError, PublishError
from mosaic.settings import TrainConfig


@dataclass(frozen=True, slots=True)
class Gate:
    """When a new version may stay."""

    command: str
    tolerance: float
    """How much lower the score may be after."""
    timeout_s: float

    @classmethod
    def of(cls, config: TrainConfig) -> "Gate | None":
        """The gate that is asked for, if one is."""
        return None if config.gate is None else cls(config.gate, config.gate_tolerance, config.gate_timeout_s)

    def score(self, when: str, version: int) -> float:
        """Run the command against the live policy. Raises `GateError` when it fails or prints no number."""
        environment = {**os.environ, "GATE_PHASE": when, "GATE_VERSION": str(version)}
        try:
            done = subprocess.run(
                ["/bin/sh", "-c", self.command],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise self._error(f"took longer than {self.timeout_s:.0f} s", when) from None
        if done.returncode:
            raise self._error(f"ended with status {done.returncode}: {done.stderr.strip()[-300:]}", when)
        last = (done.stdout.strip().splitlines() or [""])[-1]
        try:
            score = float(last)
        except ValueError:
            raise self._error(f"printed no number at the end, but {last[:80]!r}", when) from None
        if not math.isfinite(score):
            raise self._error(f"printed {last}", when)
        return score

    def check(self, before: float, after: float, version: int) -> None:
        """Raises `PublishError` when the version is worse than the one before it."""
        if after < before - self.tolerance:
            raise PublishError(
                f"version {version} is worse: the gate gave {after:g} after {before:g} (tolerance {self.tolerance:g}).",
                "Its trajectories count as trained: the same job would give the same weights again.",
            )

    def _error(self, what: str, when: str) -> GateError:
        return GateError(f"the gate's command ({when}) {what}.", "Run it by hand: " + self.command)
