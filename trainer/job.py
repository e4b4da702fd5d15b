"""One training job, top to bottom: select, credit, build sequences, train, publish, write down what was done.

The store says which scored trajectories no job has trained yet. They are marked trained in one transaction, after the
new version is live and verified; until then nothing about them changes.
"""

import shutil
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import structlog

from mosaic.credit import (
    CreditSettings,
    GroupCredit,
    GroupStatistics,
    TrajectoryCredit,
    assign,
    group_input,
    rule_settings,
)
from mosaic.errors import EngineError, NothingToTrain, SettingsError
from mosaic.records import Group, IdArray
from mosaic.settings import Settings, TrainConfig
from mosaic.store import Store
from trainer.contributions import Contributions, estimated
from trainer.engine_control import EngineControl, engine_control
from trainer.probe import checkpoint_logprobs
from trainer.publish import Publication, PublishReport, publish
from trainer.round import StepReport, TrainReport, TrainSettings
from trainer.sequences import Credit, Sequence, build_sequences

MAX_PROBE = 512
"""Longest probe for the check of published weights, in tokens."""

MAX_GAP = 0.1
"""Largest mean |engine - checkpoint| logprob in nats at which the engine counts as serving that checkpoint."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Selection:
    """What a job trains, and what it leaves out."""

    sequences: list[Sequence]
    trained: Mapping[str, float | None]
    """Trajectories with at least one sequence, each with its reward."""
    credits: list[GroupCredit]
    left_out: Mapping[str, int]
    """Reason -> trajectories, groups or calls that are not trained for it."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a job did."""

    job_id: str
    version: int
    groups: int
    trajectories: int
    left_out: Mapping[str, int]
    train: TrainReport
    published: PublishReport


@dataclass(frozen=True, slots=True)
class _Task:
    """What one job starts from."""

    job_id: str
    current: int
    """The live policy version."""
    model: Path
    """Its checkpoint."""
    rule: CreditSettings


def run_job(store: Store, settings: Settings, on_step: Callable[[StepReport], None] | None = None) -> JobReport:
    """Run one job to the end. Raises `NothingToTrain` without a signal, `EngineError`, `TrainError` or
    `PublishError` on failure."""
    current, path = store.policy()
    model = Path(path) if path is not None else settings.train.model
    if model is None:
        raise SettingsError(
            "the checkpoint that the engine started with is not known.",
            "Pass --model, or set model under [train] in mosaic.toml.",
        )
    rule = _rule(settings.train)
    if not (model / "config.json").is_file():
        raise SettingsError(
            f"{model} holds no checkpoint (no config.json).", "Pass the folder that vLLM serves as --model."
        )
    job_id = store.start_job(settings.train.model_dump(mode="json"))
    try:
        report = _train_and_publish(store, settings, _Task(job_id, current, model, rule), on_step)
    except BaseException as error:
        store.end_job(job_id, error=f"{type(error).__name__}: {error}")
        raise
    store.end_job(job_id, metrics=_metrics(report))
    return report


def _train_and_publish(
    store: Store, settings: Settings, task: _Task, on_step: Callable[[StepReport], None] | None
) -> JobReport:
    config, job_id, model = settings.train, task.job_id, task.model
    waiting = store.waiting(config.only, task.current - config.max_staleness, config.max_trajectories)
    groups = store.groups(waiting)
    known = estimated(store, groups, settings, task.rule)
    selection = select(groups, config, task.rule, known)
    left_out = {**waiting.left_out, **selection.left_out}
    for reason, number in left_out.items():
        store.count("left_out_of_training", reason, number)
    if not selection.sequences:
        reasons = ", ".join(f"{n} {reason}" for reason, n in left_out.items()) or "nothing is scored"
        raise NothingToTrain(
            f"there is nothing to learn from ({reasons}).",
            "Score attempts of one task with different outcomes; see `mosaic trajectories`.",
        )
    probe = max(selection.sequences, key=lambda s: len(s.ids_L)).ids_L[:MAX_PROBE]
    engine = running_engine(settings, model, task.current, probe)
    # Importing TRL takes seconds: only a job that has something to train pays for it.
    from trainer.policy_trainer import OPTIMIZER_FILE, train

    checkpoint = config.output.absolute() / job_id
    optimizer = model / OPTIMIZER_FILE
    trained = train(
        model,
        selection.sequences,
        TrainSettings(learning_rate=config.learning_rate, epochs=config.epochs, minibatches=config.minibatches),
        checkpoint,
        optimizer_state=optimizer if optimizer.exists() else None,
        on_step=on_step,
    )
    version = store.new_version(str(checkpoint), job_id)
    published = publish(
        [engine],
        Publication(checkpoint, version, model, task.current, probe),
        on_loaded=lambda: store.version_live(version),
        on_rolled_back=lambda: _rolled_back(store, version, model),
    )
    advantages = {s.session_id: s.advantage for c in selection.credits for t in c.trajectories for s in t.sessions}
    store.finish_training(job_id, version, selection.trained, advantages, asdict(published))
    known.write(checkpoint)
    _prune(config.output, config.keep_checkpoints, {checkpoint, model})
    return JobReport(
        job_id=job_id,
        version=version,
        groups=sum(c.drop_reason is None for c in selection.credits),
        trajectories=len(selection.trained),
        left_out=left_out,
        train=trained,
        published=published,
    )


def running_engine(settings: Settings, live: Path, version: int, probe_ids_L: IdArray) -> EngineControl:
    """The running engine. Raises `EngineError`, before anything is trained, when it cannot take new weights or does not
    serve those that are said to be live: an engine that was restarted on older ones says nothing of it."""
    control = engine_control(settings)
    control.version()
    gap = float(np.abs(control.logprobs(probe_ids_L) - checkpoint_logprobs(live, probe_ids_L)).mean())
    if not gap <= MAX_GAP:
        raise EngineError(
            f"the engine does not serve version {version}: its logprobs are {gap:.2g} nats off {live}, and "
            "its newest calls carry a wrong version.",
            f"Restart it with --model {live}.",
        )
    return control


def select(
    groups: list[Group], config: TrainConfig, rule: CreditSettings, known: Contributions | None = None
) -> Selection:
    """Credit the groups and turn what carries a signal into sequences. Every drop is counted by its reason."""
    left_out: Counter[str] = Counter()
    known = known or Contributions(GroupStatistics())
    credits = assign([group_input(g, known.estimator, known.call_gains) for g in groups], rule)
    sequences: list[Sequence] = []
    trained: dict[str, float | None] = {}
    for group, credit in zip(groups, credits, strict=True):
        left_out.update(f"trajectory_{reason}" for reason in credit.dropped.values())
        if credit.drop_reason is not None:
            left_out[f"group_{credit.drop_reason}"] += 1
            continue
        members = {t.trajectory_id: t for t in group.trajectories}
        for given in credit.trajectories:
            built = build_sequences(members[given.trajectory_id], _credit(given), config.max_tokens)
            left_out.update({f"call_{reason}": n for reason, n in built.reasons.items()})
            sequences += built.sequences
            if built.sequences:
                trained[given.trajectory_id] = members[given.trajectory_id].reward
    return Selection(sequences, trained, credits, dict(left_out))


def _rule(config: TrainConfig) -> CreditSettings:
    """The credit rule that is asked for, with its options. Raises `SettingsError`."""
    try:
        return replace(rule_settings(config.credit), **config.credit_options)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise SettingsError(
            f"train.credit: {error}.", "See mosaic.credit.CreditSettings for names and ranges."
        ) from error


def _credit(given: TrajectoryCredit) -> Credit:
    return Credit(
        sessions={s.session_id: s.advantage for s in given.sessions},
        calls={span.call_id: span.advantage for span in given.spans},
    )


def _rolled_back(store: Store, failed: int, model: Path) -> None:
    """The previous weights are back: a version of its own, so that every token's version stays known."""
    store.version_failed(failed)
    store.version_live(store.new_version(str(model), None))


def _prune(folder: Path, keep: int, needed: set[Path]) -> None:
    """Remove the oldest checkpoints, never those that are live or the way back."""
    found = sorted((p for p in folder.glob("job-*") if p.is_dir()), key=lambda p: p.stat().st_mtime)
    for old in found[: max(0, len(found) - keep)]:
        if old.absolute() not in needed:
            shutil.rmtree(old)
            log.debug("old checkpoint removed", path=str(old))


def _metrics(report: JobReport) -> dict[str, float]:
    numbers = {**asdict(report.train), **{f"publish_{k}": v for k, v in asdict(report.published).items()}}
    return {k: float(v) for k, v in numbers.items() if isinstance(v, int | float)}
