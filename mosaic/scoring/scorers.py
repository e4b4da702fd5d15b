"""Scorers of recorded trajectories, and which one is configured."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from mosaic.errors import SettingsError
from mosaic.functions import load_function
from mosaic.job_settings import ScoreConfig
from mosaic.records import Trajectory
from mosaic.scoring.commands import Command
from mosaic.scoring.judge import RUBRIC, Judge
from mosaic.scoring.outcome import Score, ScoreError, as_score
from mosaic.scoring.transcript import as_json


class Scorer(Protocol):
    """Says how a trajectory went. Called from several threads."""

    @property
    def source(self) -> str:
        """Who says so, as rewards are marked."""
        ...

    def score(self, trajectory: Trajectory) -> Score:
        """The score. Raises `ScoreError`."""
        ...


@dataclass(frozen=True, slots=True)
class ByFunction:
    """A Python function of the user's: trajectory as a dict -> number, None, or an object with reward and note."""

    name: str
    function: Callable[[dict[str, Any]], Any]

    @property
    def source(self) -> str:
        return f"function:{self.name}"[:64]

    def score(self, trajectory: Trajectory) -> Score:
        """Call it."""
        try:
            said = self.function(as_json(trajectory))
        except Exception as error:  # The user's own code; it is counted, and the trajectory stays as it is.
            raise ScoreError(f"{self.name} failed: {type(error).__name__}: {error}.") from error
        return as_score(said)


@dataclass(frozen=True, slots=True)
class ByCommand:
    """A command of the user's: trajectory as JSON on standard input -> last line of output."""

    command: Command

    @property
    def source(self) -> str:
        return "command"

    def score(self, trajectory: Trajectory) -> Score:
        """Run it."""
        told = json.dumps(as_json(trajectory)).encode()
        return self.command.score(told, {"MOSAIC_TRAJECTORY": trajectory.trajectory_id})


def scorer_of(config: ScoreConfig) -> Scorer | None:
    """The scorer that is configured, if one is. Raises `SettingsError` when it is more than one, or not there."""
    given = [name for name in ("function", "command", "judge") if getattr(config, name) is not None]
    if len(given) > 1:
        raise SettingsError(f"score has {' and '.join(given)}.", "Give one of function, command and judge.")
    if config.function is not None:
        return ByFunction(config.function, load_function(config.function))
    if config.command is not None:
        return ByCommand(Command(config.command, config.timeout_s))
    if config.judge is None:
        return None
    if config.judge_model is None:
        raise SettingsError("the judge has no model.", "Set score.judge_model, or --judge-model.")
    return Judge(
        base_url=config.judge,
        model=config.judge_model,
        api_key=None if config.judge_key is None else config.judge_key.get_secret_value(),
        rubric=config.rubric or RUBRIC,
        max_tokens=config.judge_tokens,
        timeout_s=config.timeout_s,
    )
