"""One training job, top to bottom: select, credit, build sequences, train, publish, write down what was done.

    selected -> credited -> trained (checkpoint written) -> verified (live) -> published, or failed with its reason;
    skipped where there is nothing to learn from

Every arrow is one transaction. One job runs at a time, by lease. A job that died is taken up by the next run from
where it stood, with its own settings, trajectories and seed, or failed with a reason (and its version, if it is live,
taken back); trajectories are marked trained together with the job, so none is trained twice.
"""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from mosaic.errors import EngineError, GateError, NothingToTrain, PolicyPinned, PublishError
from mosaic.job_settings import TrainConfig
from mosaic.lease import Lease, held
from mosaic.records import IdArray, JobState
from mosaic.scoring.passive import score_configured
from mosaic.settings import Settings
from mosaic.store import Store, trained_tokens
from mosaic.store.jobs import Job
from mosaic.store.listing import Waiting
from mosaic.store.policies import LEASE
from trainer.batches import Normalisation
from trainer.contributions import estimated
from trainer.figures import chosen_figures, job_figures, trained_figures
from trainer.gate import Gate, gate_of
from trainer.policies import MAX_PROBE, check_pin, checkpoint_of, go_live, put_back, serving
from trainer.publish import Publication, PublishReport
from trainer.replicas import running_engines
from trainer.round import LOGPROBS_FILE, OPTIMIZER_FILE, REPORT_FILE, StepReport, TrainReport, TrainSettings
from trainer.round_process import RoundRequest, run_round
from trainer.selection import Selection, choose, nothing, rule
from trainer.tracking import Tracking, check_trackers
from trainer.trained_logprobs import load_logprobs

MAX_ATTEMPTS = 3
"""A job that died this often before it had a checkpoint is failed: what kills it would kill it again."""
CALLS_AT_ONCE = 200
"""Calls of which one transaction keeps the trainer's logprobs."""

KEPT_OUT = {
    *("keep_checkpoints", "keep_logprobs", "output", "max_trajectories", "launch", "nice", "threads"),
    *("trackers", "track_project", "track_run"),
    *("pause", "transport", "nccl_workers", "gate", "gate_tolerance", "gate_timeout_s"),
}
"""Settings that do not decide which weights come out of a job."""
SELECTED = {"groups", "left_out"}
"""What a job's selection holds from its beginning."""
CREDITED = SELECTED | {"groups_trained", "rewards", "advantages", "probe", "figures"}
"""What it holds once it is credited: all that is needed to publish and to end."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a job did."""

    job_id: str
    version: int
    groups_trained: int
    trajectories_trained: int
    left_out: Mapping[str, int]
    train: TrainReport
    published: PublishReport
    resumed_from: JobState | None
    """Where it was taken up again; None when it ran through."""


@dataclass(slots=True)
class _Work:
    """A job under way."""

    store: Store
    settings: Settings
    """Those of this run: engines, publishing."""
    config: TrainConfig
    """Those that the job began with: what is trained, and how."""
    job: Job
    model: Path
    """Checkpoint of the version from which it starts."""
    lease: Lease

    @property
    def checkpoint(self) -> Path:
        return self.config.output.absolute() / self.job.job_id

    def reached(self, state: JobState, **values: Any) -> None:
        """Commit a step; nothing is done that another process might be doing as well."""
        self.lease.check()
        self.store.job_reached(self.job.job_id, state, **values)
        self.job = self.store.job(self.job.job_id)


def run_job(
    store: Store, settings: Settings, on_step: Callable[[StepReport], None] | None = None, *, fresh: bool = False
) -> JobReport:
    """Take up the job that did not come to its end, or begin one, and run it to the end.

    `fresh` fails the former, whatever it had done. An interrupted job (Ctrl-C, a crash, an engine that is away while it
    is published) stays where it is for the next run; whatever else is raised fails it. Raises `NothingToTrain` without
    a signal, `LeaseTaken` while another job runs, `EngineError`, `TrainError` or `PublishError` on failure.
    """
    check_trackers(settings.train)
    gate_of(settings)
    with held(store, LEASE) as lease:
        job = store.unsettled_job()
        given_up = "given up: a fresh job was asked for" if fresh else None
        if job is not None and (reason := given_up or _why_not(store, settings, job)):
            log.warning("job failed", job=job.job_id, state=job.state.value, reason=reason)
            if given_up is None and store.policy()[0] == job.policy_to:  # what it trained on will be trained again
                put_back(store, settings, job.policy_from, lease.check)
                store.version_failed(job.policy_to)
            store.end_job(job.job_id, error=reason)
            job = None
        resumed_from = None if job is None else job.state
        if job is not None:
            log.info("job taken up", job=job.job_id, state=job.state.value)
            store.take_up_job(job.job_id)
        else:
            job = _begin(store, settings)
        config = TrainConfig.model_validate(job.settings)
        work = _Work(store, settings, config, job, checkpoint_of(store, job.policy_from, config.model), lease)
        try:
            report = _run(work, on_step)
        except NothingToTrain as found:
            store.skip_job(job.job_id, str(found))
            raise
        except (EngineError, GateError, PolicyPinned) as error:
            if work.job.state in (JobState.SELECTED, JobState.CREDITED):
                store.end_job(job.job_id, error=f"{type(error).__name__}: {error}")
            else:
                store.note_job(job.job_id, f"{type(error).__name__}: {error}")
            raise
        except Exception as error:
            if store.job(job.job_id).state is not JobState.FAILED:
                store.end_job(job.job_id, error=f"{type(error).__name__}: {error}")
            raise
    return replace(report, resumed_from=resumed_from)


def _why_not(store: Store, settings: Settings, job: Job) -> str | None:
    """Why an unsettled job cannot be taken up, or None when it can."""
    try:
        config = TrainConfig.model_validate(job.settings)
        _check_left(job, config.output.absolute() / job.job_id)
    except (ValueError, TypeError, KeyError, FileNotFoundError):
        return f"died in state {job.state.value}; its settings, or what it left, are those of another release"
    states = {v.version: v.state for v in store.versions()}
    if job.policy_to is not None and states[job.policy_to] == "failed":
        return f"died when its version {job.policy_to} had been rolled back"
    version, _ = store.policy()
    if version not in (job.policy_from, job.policy_to):
        return f"died in state {job.state.value}; version {version} has gone live since"
    if job.state in (JobState.TRAINED, JobState.VERIFIED):
        return None
    if job.attempts >= MAX_ATTEMPTS:
        return f"died {job.attempts} times in state {job.state.value}"
    changed = _told(config) != _told(settings.train)
    return f"died in state {job.state.value}; [train] has changed since" if changed else None


def _check_left(job: Job, checkpoint: Path) -> None:
    """Read what a job left for its end: its selection and, once it has trained, its report. Raises as reading does."""
    needed = SELECTED
    if checkpoint.exists() or job.state not in (JobState.SELECTED, JobState.CREDITED):
        TrainReport.load(checkpoint / REPORT_FILE)
        needed = CREDITED
    if missing := needed - job.selection.keys():
        raise KeyError(*missing)


def _told(config: TrainConfig) -> dict[str, Any]:
    """What decides which weights come out of a job."""
    return _rooted(config).model_dump(mode="json", exclude=KEPT_OUT)


def _rooted(config: TrainConfig) -> TrainConfig:
    """With the path of its checkpoint as whoever comes from another folder can use it."""
    return config if config.model is None else config.model_copy(update={"model": config.model.absolute()})


def _begin(store: Store, settings: Settings) -> Job:
    """Choose trajectories and write a job down. Raises `SettingsError` when there is no checkpoint to start from."""
    config = settings.train
    current, _ = store.policy()
    checkpoint_of(store, current, config.model)
    check_pin(store)
    score_configured(store, settings.score)
    waiting = waiting_for(store, config, current)
    chosen = {"groups": dict(waiting.groups), "left_out": dict(waiting.left_out)}
    return store.job(store.start_job(_rooted(config).model_dump(mode="json"), chosen))


def waiting_for(store: Store, config: TrainConfig, version: int) -> Waiting:
    """The trajectories that a job would take on the live `version`."""
    oldest = version - config.max_staleness
    return store.waiting(config.only, oldest, config.max_trajectories, task=config.task, max_age_s=config.max_age_s)


def _run(work: _Work, on_step: Callable[[StepReport], None] | None) -> JobReport:
    """From wherever the job stands to its end, tracked."""
    with Tracking.of(work.store, work.settings.train, work.checkpoint) as tracking:

        def told(step: StepReport) -> None:
            tracking.step(step)
            if on_step is not None:
                on_step(step)

        report = _to_its_end(work, told)
        chosen = work.job.selection.get("figures", {})
        tracking.job(report.version, job_figures(chosen, report.left_out, report.train, report.published))
        return report


def _to_its_end(work: _Work, on_step: Callable[[StepReport], None]) -> JobReport:
    if work.job.state in (JobState.SELECTED, JobState.CREDITED):
        _train(work, on_step)
    gate = gate_of(work.settings)
    if work.job.state is JobState.TRAINED:
        _publish(work, gate)
    published = PublishReport.from_metrics(work.store.job_metrics(work.job.job_id))
    trained = TrainReport.load(work.checkpoint / REPORT_FILE)
    rejected = None if gate is None else _gate(work, gate, published.version)
    if work.config.keep_logprobs:
        _keep_logprobs(work)
    chosen = work.job.selection
    work.store.finish_training(
        work.job.job_id,
        published.version,
        chosen["rewards"],
        chosen["advantages"],
        asdict(published),
        metrics={**chosen.get("figures", {}), **trained_figures(trained)},
        error=None if rejected is None else str(rejected),
    )
    if rejected is not None:
        raise rejected
    _prune(work.store, work.config.output, work.config.keep_checkpoints, {work.checkpoint, work.model})
    return JobReport(
        job_id=work.job.job_id,
        version=published.version,
        groups_trained=chosen["groups_trained"],
        trajectories_trained=len(chosen["rewards"]),
        left_out=chosen["left_out"],
        train=trained,
        published=published,
        resumed_from=None,
    )


def _train(work: _Work, on_step: Callable[[StepReport], None]) -> None:
    """Credit what was chosen and train on it: selected -> credited -> trained."""
    if not work.checkpoint.exists():
        groups = work.store.groups(Waiting(work.job.selection["groups"], {}))
        told = work.settings.model_copy(update={"train": work.config})
        known = estimated(work.store, groups, told, rule(work.config))
        credited = rule(work.config)
        selection = choose(groups, work.config, credited, work.job.policy_from, known)
        figures = chosen_figures(groups, selection, work.job.policy_from, credited.success_reward)
        probe = _credited(work, selection, figures)
        running_engines(work.settings, serving(work.store, work.job.policy_from, work.model), probe)
        _remove_leftovers(work)
        optimizer = work.model / OPTIMIZER_FILE
        request = RoundRequest(
            model_dir=work.model,
            sequences=selection.sequences,
            settings=train_settings(work.config),
            output_dir=work.checkpoint,
            optimizer_state=optimizer if optimizer.exists() else None,
        )
        run_round(request, work.settings.train.launch, on_step)
        known.write(work.checkpoint)
    work.reached(JobState.TRAINED, checkpoint=str(work.checkpoint))


def _credited(work: _Work, selection: Selection, figures: Mapping[str, float]) -> IdArray:
    """Write down what the credit rule said; returns the probe for the engines.

    Raises `NothingToTrain` when there is nothing to learn from.
    """
    chosen = work.job.selection
    left_out = {**chosen["left_out"], **selection.left_out}
    for reason, number in left_out.items():
        work.store.count("left_out_of_training", reason, number)
    skipped = {f"left_out_{reason}": float(number) for reason, number in left_out.items()}
    if not selection.sequences:
        work.reached(work.job.state, metrics=skipped)
        raise nothing(left_out, work.store.inexact_reasons(Waiting(chosen["groups"], {})))
    probe = max(selection.sequences, key=lambda s: len(s.ids_L)).ids_L[:MAX_PROBE]
    advantages = {s.session_id: s.advantage for c in selection.credits for t in c.trajectories for s in t.sessions}
    credited = {
        "groups": chosen["groups"],
        "groups_trained": selection.groups_trained,
        "left_out": left_out,
        "rewards": selection.trained,
        "advantages": advantages,
        "probe": probe.tolist(),
        "figures": figures,
    }
    work.reached(JobState.CREDITED, selection=credited, metrics=skipped)
    return probe


def _publish(work: _Work, gate: Gate | None) -> None:
    """Put the checkpoint live and check it: trained -> verified."""
    store, job = work.store, work.job
    live, _ = store.policy()
    if gate is not None and live == job.policy_from:
        score = gate.judge.score("before", live, job.job_id)
        store.job_reached(job.job_id, JobState.TRAINED, metrics={"gate_before": score})
    version = job.policy_to or store.new_version(str(work.checkpoint), job.job_id)
    probe = np.array(job.selection["probe"], np.int32)
    publication = Publication(work.checkpoint, version, work.model, job.policy_from, probe)
    published = go_live(store, work.settings, publication, work.lease.check)
    work.reached(JobState.VERIFIED, metrics=published.metrics)


def _gate(work: _Work, gate: Gate, version: int) -> PublishError | None:
    """Judge the live version; the one before is live again, and the reason is returned, when this one may not stay."""
    store, job = work.store, work.job
    before = store.job_metrics(job.job_id).get("gate_before")
    if before is None:
        log.warning("no gate: it was set after the version went live", version=version)
        return None
    try:
        after = gate.judge.score("after", version, job.job_id)
        work.reached(JobState.VERIFIED, metrics={"gate_after": after})
        gate.check(before, after, version)
    except PublishError as error:
        probe = np.array(job.selection["probe"], np.int32)
        put_back(store, work.settings, job.policy_from, work.lease.check, probe_ids_L=probe)
        store.version_failed(version)
        return error
    return None


def _keep_logprobs(work: _Work) -> None:
    """Tell the store what the trainer said of each token; a few calls at a time, since proxies write as well."""
    said = list(load_logprobs(work.checkpoint / LOGPROBS_FILE))
    for at in range(0, len(said), CALLS_AT_ONCE):
        with work.store.database.writing() as connection:
            trained_tokens.keep(connection, work.job.job_id, said[at : at + CALLS_AT_ONCE])


def train_settings(config: TrainConfig) -> TrainSettings:
    """How a round trains, from the configuration."""
    return TrainSettings(
        learning_rate=config.learning_rate,
        epochs=config.epochs,
        minibatches=config.minibatches,
        micro_batch_tokens=config.micro_batch_tokens,
        normalisation=Normalisation(config.normalisation),
        loss_type=config.loss,
        proximal=config.proximal,
        importance_mode=config.importance,
        beta=config.kl,
        reference_dir=config.reference,
        bf16=config.bf16,
        gradient_checkpointing=config.gradient_checkpointing,
        seed=config.seed,
        trl=config.trl,
    )


def _remove_leftovers(work: _Work) -> None:
    """What a run that died had begun to write; the lease says that nobody writes it now."""
    for folder in work.checkpoint.parent.glob(f".{work.job.job_id}-*"):
        shutil.rmtree(folder, ignore_errors=True)


def _prune(store: Store, folder: Path, keep: int, needed: set[Path]) -> None:
    """Remove the oldest checkpoints, never those that are live, pinned or the way back."""
    needed = needed | {Path(v.path) for v in store.versions() if v.pinned}
    found = sorted((p for p in folder.glob("job-*") if p.is_dir()), key=lambda p: p.stat().st_mtime)
    for old in found[: max(0, len(found) - keep)]:
        if old.absolute() not in needed:
            shutil.rmtree(old)
            log.debug("old checkpoint removed", path=str(old))
