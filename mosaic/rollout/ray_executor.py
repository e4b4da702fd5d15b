"""Makes attempts on a Ray cluster: one task of one CPU each, wherever there is room.

Ray is imported when it is asked for. Every node needs Mosaic, the agent, and a way to the proxy; what an attempt leaves
lies on the node that made it, unless the run's folder is on a file system that all share.
"""

from collections.abc import Mapping
from typing import Any

from mosaic.errors import SettingsError
from mosaic.rollout.attempt import Ended, Made, Work
from mosaic.rollout.local import Processes
from mosaic.rollout.scoring import Scoring


class RayExecutor:
    """Attempts as tasks of a Ray cluster: the one of `address` (as `auto` or `ray://host:10001`), or one of its own."""

    def __init__(self, address: str | None = None, options: Mapping[str, Any] | None = None) -> None:
        """`options` are Ray's for each attempt; without any it gets one CPU, and attempts spread over the nodes."""
        self._ray = _imported()
        if not self._ray.is_initialized():
            self._ray.init(address=address, log_to_driver=False)
        given = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_retries": 0, **(options or {})}
        self._make = self._ray.remote(**given)(_make)
        self._running: set[Any] = set()

    def make(self, work: Work, scoring: Scoring) -> Made:
        """Make one attempt somewhere; a node that dies with it has lost it."""
        asked = self._make.remote(work, scoring)
        self._running.add(asked)
        try:
            made: Made = self._ray.get(asked)
        except self._ray.exceptions.RayError as error:
            # As if a signal had ended it: it is tried again.
            return Made(Ended(work.trajectory_id, -9, False, None, 0.0), None, f"Ray: {error}"[:500])
        finally:
            self._running.discard(asked)
        return made

    def stop(self) -> None:
        """End what runs: the agents end with their workers' interrupt."""
        for asked in list(self._running):
            self._ray.cancel(asked)


def _make(work: Work, scoring: Scoring) -> Made:
    return Processes().make(work, scoring)


def _imported() -> Any:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise SettingsError("Ray is not installed.", "pip install 'mosaic-rl[ray]', here and on every node.") from error
    return ray
