"""What the proxy is told of an attempt, and asked: by its control API, so that it may be anywhere."""

import time
from collections.abc import Callable
from typing import Any

from mosaic.client import Client
from mosaic.errors import RequestError
from mosaic.rollout.attempt import Made, Outcome, Result, Work

WAIT_S = 2.0
"""Seconds in which a trajectory that is not there may still come: its last call may have just been cut, and another
worker of the proxy may have recorded it."""
AGAIN_S = 0.1
"""Seconds between two looks."""
NO_CALL = "it made no call through the proxy; is the agent pointed at OPENAI_BASE_URL or ANTHROPIC_BASE_URL?"


class Told:
    """The control API, as a rollout uses it. Thread-safe. Raises `MosaicError` where it cannot be reached."""

    def __init__(self, client: Client, source: str) -> None:
        self._client = client
        self._source = source

    def settle(self, work: Work, made: Made, outcome: Outcome) -> Result:
        """Say how an attempt ended and what it was worth; returns what became of it."""
        error, reward = made.complaint, None
        try:
            self._once_there(lambda: self._client.name_task(work.trajectory_id, work.task.task_id, work.task.prompt))
            if outcome in (Outcome.SCORED, Outcome.UNSCORABLE) and made.score is not None:
                reward = made.score.value
                self._client.reward(work.trajectory_id, reward, note=made.score.note, source=self._source)
            else:
                self._client.end(work.trajectory_id, *_ENDINGS[outcome])
        except RequestError as refused:
            if refused.status != 404:
                raise
            error = error or NO_CALL
            reward = None
            if outcome not in (Outcome.TRUNCATED, Outcome.LOST):
                outcome = Outcome.FAILED
        ended = made.ended
        return Result(
            task_id=work.task.task_id,
            attempt=work.attempt,
            tries=work.tries,
            trajectory_id=work.trajectory_id,
            outcome=outcome,
            reward=reward,
            status=ended.status,
            seconds=round(ended.seconds, 3),
            error=error,
        )

    def engine_failed(self, trajectory_id: str) -> bool:
        """Whether a call of the trajectory failed for reasons that are not the agent's."""
        try:
            return any(call["http_status"] >= 500 for call in self._client.calls(trajectory_id))
        except RequestError:
            return False

    def check(self) -> None:
        """Raises `MosaicError` when the proxy cannot be reached or refuses the key."""
        next(self._client.trajectories(limit=1), None)

    def states(self, run: str) -> dict[str, tuple[str, float | None]]:
        """The trajectories of a run that are there: id -> (state, reward)."""
        found = self._client.trajectories(q=f"{run}.")
        return {t["trajectory_id"]: (t["state"], t["reward"]) for t in found}

    def interrupted(self, trajectory_id: str) -> None:
        """Nobody knows how the attempt would have ended."""
        self._client.end(trajectory_id, "failed", "rollout_interrupted")

    def _once_there(self, ask: Callable[[], Any]) -> None:
        until = time.monotonic() + WAIT_S
        while True:
            try:
                ask()
                return
            except RequestError as error:
                if error.status != 404 or time.monotonic() > until:
                    raise
            time.sleep(AGAIN_S)


_ENDINGS = {
    Outcome.UNSCORED: ("closed", "rollout"),
    Outcome.FAILED: ("failed", "rollout_agent"),
    Outcome.LOST: ("failed", "rollout_surroundings"),
    Outcome.TRUNCATED: ("truncated", "rollout_timeout"),
}
