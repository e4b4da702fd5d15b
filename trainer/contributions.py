"""The contributions that a training job credits with: by group statistics, by scoring the tasks' answers, or both.

What was estimated is written beside the checkpoint (`contributions.json`), so that `mosaic credit` can show it again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import orjson
import structlog

from mosaic.credit import (
    Blend,
    ContributionEstimator,
    CreditSettings,
    Estimate,
    Granularity,
    GroupStatistics,
    Known,
)
from mosaic.credit.information_gain import call_gains, contributions
from mosaic.errors import SettingsError
from mosaic.records import Group, Trajectory
from mosaic.settings import Settings
from mosaic.store import Store
from trainer.engine_control import engine_control
from trainer.scoring import AnswerScorer, Cost, ScoringSettings, recorded_tools

VARIANCE = 0.03
"""Squared error of an information gain, from the simulation's policy; `calibrate` measures it for a policy at hand."""

CONTRIBUTIONS_FILE = "contributions.json"

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Contributions:
    """What a job knows about who contributed what."""

    estimator: ContributionEstimator
    call_gains: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    scored: Mapping[str, Estimate] = field(default_factory=dict)
    """Those that were scored by the engine, by session id."""
    cost: Cost | None = None
    """What scoring took; None when nothing was scored."""

    def write(self, checkpoint: Path) -> None:
        """Write what was scored beside a checkpoint, if anything was."""
        if self.scored:
            rows = {session_id: asdict(estimate) for session_id, estimate in self.scored.items()}
            (checkpoint / CONTRIBUTIONS_FILE).write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))


def estimated(store: Store, groups: Sequence[Group], settings: Settings, rule: CreditSettings) -> Contributions:
    """Estimate as `train.contribution` says. Raises `SettingsError` without answers, `EngineError` without engine."""
    config = settings.train
    chunks = rule.granularity is not Granularity.SESSION
    if config.contribution == "group" and not chunks:
        return Contributions(GroupStatistics())
    if config.answers is None:
        raise SettingsError(
            f"train.contribution = {config.contribution!r} with rule {config.credit!r} needs the tasks' answers.",
            "Set answers under [train], or use contribution = group.",
        )
    trajectories = [t for group in groups for t in group.trajectories]
    scorer = AnswerScorer(engine_control(settings), ScoringSettings(chunks=chunks))
    found = scorer.score(trajectories, answers_from(config.answers), recorded_tools(store, trajectories))
    log.info("answers scored", **asdict(found.cost))
    for reason, number in found.cost.unscored.items():
        store.count("unscored_contexts", reason, number)
    scored: dict[str, Estimate] = {}
    gains: dict[str, tuple[float, ...]] = {}
    for trajectory in trajectories:
        scores = found.scores.get(trajectory.trajectory_id, {})
        values = contributions(trajectory, scores)
        scored.update({sid: Estimate(value, VARIANCE, "information_gain") for sid, value in values.items()})
        if chunks:
            gains.update(call_gains(trajectory, scores, chunks=rule.granularity is Granularity.CHUNK))
    by_engine, by_group = Known(scored), GroupStatistics()
    chosen: dict[str, ContributionEstimator] = {
        "information_gain": by_engine,
        "group": by_group,
        "blend": Blend((by_engine, by_group)),
    }
    return Contributions(chosen[config.contribution], gains, scored, found.cost)


def answers_from(path: Path) -> Callable[[Trajectory], Sequence[str]]:
    """Read accepted answers: a JSON object of task -> answer or answers. Raises `SettingsError`.

    A task is named by its key, or by the text of the root's first user message.
    """
    try:
        table: Mapping[str, Any] = dict(orjson.loads(path.read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise SettingsError(f"train.answers: {path} cannot be read: {error}.", "Write a JSON object.") from error

    def answers(trajectory: Trajectory) -> Sequence[str]:
        found = table.get(trajectory.task_key, table.get(_question(trajectory), ()))
        return [found] if isinstance(found, str) else list(found)

    return answers


def _question(trajectory: Trajectory) -> str:
    calls = [call for session in trajectory.sessions[:1] for call in session.calls if call.auxiliary is None]
    asked = (m.get("content") for call in calls[:1] for m in call.messages if m.get("role") == "user")
    return str(next(asked, ""))
