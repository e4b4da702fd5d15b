"""What the proxy is told of an attempt, and asked: by its control API, so that it may be anywhere."""

import time
from collections.abc import Callable
from typing import Any

from mosaic.client import Client
from mosaic.errors import MosaicError, RequestError
from mosaic.rollout.attempt import Made, Outcome, Result, Work

WAIT_S = 2.0
"""Seconds in which a trajectory that is not there may still come: its last call may have just been cut, and another
worker of the proxy may have recorded it."""
AWAY_S = 120.0
"""Seconds in which a proxy that cannot be reached may come back before the run ends: it may be started anew."""
AGAIN_S = 0.1
"""Seconds between two looks."""
NO_CALL = "it made no call through the proxy; is the agent pointed at OPENAI_BASE_URL or ANTHROPIC_BASE_URL?"


class Told:
    """The control API, as a rollout uses it. Thread-safe. Raises `MosaicError` where it stays out of reach."""

    def __init__(self, client: Client, source: str) -> None:
        self._client = client
        self._source = source

    def settle(self, work: Work, made: Made, outcome: Outcome) -> Result:
        """Say how an attempt ended and what it was worth; returns what became of it."""
        error, reward = made.complaint, None
        try:
            self._say(work, made, outcome)
            if outcome is Outcome.SCORED and made.score is not None:
                reward = made.score.value
        except RequestError as refused:
            if refused.status != 404:
                raise
            error = error or NO_CALL
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

    def _say(self, work: Work, made: Made, outcome: Outcome) -> None:
        name, task, score = work.trajectory_id, work.task, made.score
        _patiently(lambda: self._client.name_task(name, task.task_id, task.prompt), WAIT_S)
        if outcome in (Outcome.SCORED, Outcome.UNSCORABLE) and score is not None:
            _patiently(lambda: self._client.reward(name, score.value, note=score.note, source=self._source))
        else:
            _patiently(lambda: self._client.end(name, *_ENDINGS[outcome]))

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


def _patiently(ask: Callable[[], Any], unknown_s: float = 0.0) -> None:
    """Ask until the proxy answers, for `AWAY_S` at most, and until it knows the trajectory, for `unknown_s`.

    What it may have heard already is said again: a reward that stands twice is the same reward.
    """
    began = time.monotonic()
    while True:
        try:
            ask()
            return
        except MosaicError as error:
            status = error.status if isinstance(error, RequestError) else None
            patience = {None: AWAY_S, 404: unknown_s}.get(status, 0.0)
            if time.monotonic() - began >= patience:
                raise
        time.sleep(AGAIN_S)


_ENDINGS = {
    Outcome.UNSCORED: ("closed", "rollout"),
    Outcome.FAILED: ("failed", "rollout_agent"),
    Outcome.LOST: ("failed", "rollout_surroundings"),
    Outcome.TRUNCATED: ("truncated", "rollout_timeout"),
}
