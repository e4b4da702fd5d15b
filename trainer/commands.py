"""The commands that the trainer adds to `mosaic`. Importing this loads no torch."""

from dataclasses import asdict
from pathlib import Path

import orjson
import typer

from mosaic.settings import load
from mosaic.store import Store
from trainer.job import run_job
from trainer.round import StepReport


def train(
    model: Path | None = typer.Option(None, help="Checkpoint that the engine started with (until a job has run)."),
    credit: str | None = typer.Option(None, help="Credit rule: mosaic, broadcast, ..."),
    upstream: str | None = typer.Option(None, help="Base URL of the vLLM that serves the policy."),
    database: str | None = typer.Option(None, help="SQLAlchemy URL of the store."),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
) -> None:
    """Train once on what is scored and untrained, and put the new weights into the running engine."""
    settings = load(upstream=upstream, database=database)
    given = {"model": model, "credit": credit}
    changed = settings.train.model_copy(update={k: v for k, v in given.items() if v is not None})
    settings = settings.model_copy(update={"train": changed})
    typer.echo("selecting trajectories; loading the trainer takes a while ...", err=True)
    report = run_job(Store(settings.database), settings, on_step=_say)
    if as_json:
        typer.echo(orjson.dumps(asdict(report), default=str).decode())
        return
    typer.echo(
        f"version {report.version} is live: {report.trajectories} trajectories of {report.groups} groups, "
        f"{report.train.tokens} tokens, {report.train.steps} steps in {report.train.seconds:.1f} s; "
        f"swap {report.published.pause_seconds:.2f} s; engine and trainer {report.published.gap_mean:.2g} nats apart"
    )
    typer.echo(f"checkpoint: {report.train.checkpoint} (to restart vLLM on it: --model {report.train.checkpoint})")
    for reason, number in report.left_out.items():
        typer.echo(f"left out: {number} {reason}")


def _say(step: StepReport) -> None:
    typer.echo(f"step {step.step}/{step.steps}: loss {step.loss:.4f}, ratio {step.mean_ratio:.3f}", err=True)
