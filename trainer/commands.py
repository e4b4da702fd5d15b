"""The commands that the trainer adds to `mosaic`. Importing this loads no torch."""

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import typer

from mosaic.db_commands import seconds
from mosaic.job_settings import TrainConfig
from mosaic.settings import Settings, load
from mosaic.store import Store
from mosaic.terminal import JSON, counted, print_json, print_table
from trainer.job import JobReport, run_job
from trainer.policies import checkpoint_of
from trainer.preview import Preview, preview
from trainer.round import StepReport
from trainer.selection import nothing, told

SHOWN = 50
"""Most trajectories that a preview lists as text."""


def train(
    *,
    model: Path | None = typer.Option(None, help="Checkpoint that the engine started with (until a job has run)."),
    credit: str | None = typer.Option(None, help="Credit rule: mosaic, broadcast, ..."),
    only: str | None = typer.Option(None, help="Only trajectories whose id is LIKE this pattern, as run-7-%."),
    task: str | None = typer.Option(None, help="Only tasks whose key is LIKE this pattern."),
    newer_than: str | None = typer.Option(None, help="Only what had a call lately: a number with s, m, h, d or w."),
    max_staleness: int | None = typer.Option(None, min=0, help="Versions that a trajectory may be behind."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Train nothing; say what would be, and why the rest not."),
    fresh: bool = typer.Option(False, "--fresh", help="Give up a job that died, instead of taking it up."),
    upstream: str | None = typer.Option(None, help="Base URL of the vLLM that serves the policy."),
    database: str | None = typer.Option(None, help="SQLAlchemy URL of the store."),
    as_json: bool = JSON,
) -> None:
    """Train once on what is scored and untrained, and put the new weights into the running engine.

    A job that died is taken up where it stood. Exits with 6 when there is nothing to learn from, with 8 while another
    job runs. docs/training.md tells what a job does, and what `[train]` in mosaic.toml changes in it.

        mosaic train --dry-run --model /path/to/the/checkpoint
        mosaic train --model /path/to/the/checkpoint
        mosaic train --only "run-7-%" --newer-than 2d
    """
    age = None if newer_than is None else seconds(newer_than, "--newer-than")
    given = {"model": model, "credit": credit, "only": only, "task": task, "max_age_s": age}
    changed = given | {"max_staleness": max_staleness}
    settings = load(upstream=upstream, database=database, train=changed)
    store = Store(settings.database, create=False)
    _check(store, settings, dry_run=dry_run, fresh=fresh)
    if dry_run:
        _show_preview(preview(store, settings), as_json)
        return
    _step_back(settings.train)
    typer.echo("selecting trajectories; loading the trainer takes a while ...", err=True)
    report = run_job(store, settings, on_step=_say, fresh=fresh)
    if as_json:
        print_json(asdict(report))
    else:
        _show(report)


def schedule(
    *,
    cron: str | None = typer.Option(None, help='Times of day, five fields of cron: "0 3 * * *".'),
    every: str | None = typer.Option(None, help="From one job to the next: a number with s, m, h, d or w, as 2h."),
    when_scored: int | None = typer.Option(None, min=1, help="As soon as so many were scored since the last job."),
    idle: str | None = typer.Option(None, help="Begin only when no call has ended for so long, as 10m."),
    hours: str | None = typer.Option(None, help="Begin only within these hours of the day: 22:00-06:00."),
    parent: int | None = typer.Option(None, hidden=True, help="End when this process is no more the parent."),
    upstream: str | None = typer.Option(None, help="Base URL of the vLLM that serves the policy."),
    database: str | None = typer.Option(None, help="SQLAlchemy URL of the store."),
) -> None:
    """Start training jobs by the clock, or when there is enough to learn from, until it is stopped.

    A run that was missed is made up for, once. Several schedules on one database are as one. `mosaic serve` runs the
    schedule of mosaic.toml by itself.

        mosaic schedule --cron "0 3 * * *"
        mosaic schedule --every 2h --hours 22:00-06:00
        mosaic schedule --when-scored 256 --idle 10m
    """
    from trainer.schedule import Schedule, TrainProcess, run

    given = {
        "cron": cron,
        "every_s": None if every is None else seconds(every, "--every"),
        "when_scored": when_scored,
        "idle_s": None if idle is None else seconds(idle, "--idle"),
        "hours": hours,
    }
    settings = load(upstream=upstream, database=database, schedule=given)
    config = settings.schedule
    store = Store(settings.database)
    # In the environment, not among the arguments, which everybody can read: the URL may hold a password.
    train = TrainProcess({"MOSAIC_UPSTREAM": settings.upstream, "MOSAIC_DATABASE": settings.database})
    made = Schedule(store, config, train)
    following = made.next_at()
    when = "" if following is None else f", next at {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(following))}"
    typer.echo(f"mosaic schedules training jobs{when}", err=True)
    run(store, made, train, config.look_every_s, parent)


def _check(store: Store, settings: Settings, *, dry_run: bool, fresh: bool) -> None:
    """Say at once that the checkpoint cannot be used, unless a job is taken up, which has its own.

    A dry run needs no checkpoint; one that is named must be there. Raises `SettingsError`.
    """
    config = settings.train
    if (config.model is not None or not dry_run) and (fresh or store.unsettled_job() is None):
        checkpoint_of(store, store.policy()[0], config.model)


def _step_back(config: TrainConfig) -> None:
    """Keep training from starving what serves on the same machine."""
    os.nice(config.nice)
    if config.threads is not None:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # read when torch is imported
            os.environ[name] = str(config.threads)


def _show(report: JobReport) -> None:
    if report.resumed_from is not None:
        typer.echo(f"{report.job_id} was taken up where it had stopped ({report.resumed_from.value})")
    paused = report.published.pause_seconds
    swap = "swap pause not known" if paused is None else f"swap pause {paused:.2f} s"
    typer.echo(
        f"version {report.version} is live: trained {counted(report.trajectories_trained, 'trajectory')} of "
        f"{counted(report.groups_trained, 'group')}, {counted(report.train.sequences_trained, 'sequence')}, "
        f"{counted(report.train.tokens_trained, 'token')}, {counted(report.train.steps, 'step')}; "
        f"training alone took {report.train.train_seconds:.1f} s; "
        f"{swap}; engine and trainer {report.published.gap_mean:.2g} nats apart"
    )
    typer.echo(f"checkpoint: {report.train.checkpoint} (to restart vLLM on it: --model {report.train.checkpoint})")
    _say_left_out(report.left_out)


def _say_left_out(left_out: Mapping[str, int]) -> None:
    if left_out:
        typer.echo(f"left out: {told(left_out)}")


def _show_preview(found: Preview, as_json: bool) -> None:
    """Print what would be done. Raises `NothingToTrain` when that is nothing, and no job waits to be taken up."""
    if as_json:
        print_json(asdict(found))
    else:
        _print_preview(found)
    if not found.sequences_trained and found.unsettled_job is None and not found.to_score:
        raise nothing(found.left_out, found.inexact)


def _print_preview(found: Preview) -> None:
    rows = [(c.trajectory_id, c.task_key, c.reward, c.tokens or "", c.reason or "trained") for c in found.candidates]
    print_table("trajectory task reward tokens what", rows[:SHOWN])
    if len(rows) > SHOWN:
        typer.echo(f"... and {len(rows) - SHOWN} more; --json lists them all")
    if found.unsettled_job is not None:
        typer.echo(f"first, {found.unsettled_job} would be taken up")
    if found.to_score:
        typer.echo(f"first, the scorer of [score] would be asked about {found.to_score} closed trajectories")
    typer.echo(
        f"from version {found.version} would be trained: {counted(found.trajectories_trained, 'trajectory')} of "
        f"{counted(found.groups_trained, 'group')}, {counted(found.sequences_trained, 'sequence')}, "
        f"{counted(found.tokens_trained, 'token')}"
    )
    _say_left_out(found.left_out)
    if found.inexact:
        typer.echo("calls that cannot be trained: " + ", ".join(f"{n} {reason}" for reason, n in found.inexact.items()))
    if found.not_scored:
        typer.echo("not scored: " + ", ".join(f"{number} {state}" for state, number in found.not_scored.items()))
    if found.trained_before:
        typer.echo(f"trained by earlier jobs: {found.trained_before}")


def _say(step: StepReport) -> None:
    typer.echo(f"step {step.step}/{step.steps}: loss {step.loss + 0.0:.3g}, ratio {step.mean_ratio:.3f}", err=True)
