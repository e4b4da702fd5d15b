"""`mosaic policy`: which weights there are, going back to earlier ones, holding one, and a first LoRA adapter."""

import time
from dataclasses import asdict
from pathlib import Path

import typer

from mosaic.errors import SettingsError
from mosaic.lease import held
from mosaic.settings import load
from mosaic.store import Store
from mosaic.store.policies import LEASE, PolicyVersion
from mosaic.terminal import DATABASE, JSON, print_json, print_table
from trainer.policies import before, find, listed, put_back, state_of, weights_of

app = typer.Typer(help="List policy versions, go back to one, pin one, make a first adapter.", no_args_is_help=True)

UPSTREAM = typer.Option(None, help="Base URL of the vLLM that serves the policy.")
MODEL = typer.Option(None, help="Checkpoint that the engine started with (until a job has run).")
FIRST = "version 0 is live: the checkpoint that the engine started with"
PATHLESS = "its path is known once a job has published"


@app.command("list")
def list_(as_json: bool = JSON, database: str | None = DATABASE) -> None:
    """List all policy versions, newest first; one is live, those that served before it were.

    Version 0 is the checkpoint that the engine started with; weights put back have a number of their own.

        mosaic policy list
        mosaic policy list --json
    """
    store = Store(load(database=database).database, create=False)
    live, _ = store.policy()
    found = listed(store)[::-1]
    if as_json:
        print_json([{**asdict(one), "serves": one.version == live} for one in found])
        return
    print_table("ver. state weights_of live_since gap path", [_row(one, live) for one in found])
    if not live:
        typer.echo(FIRST)


def _row(one: PolicyVersion, live: int) -> tuple[object, ...]:
    gap = one.verification.get("gap_mean")
    state, since = state_of(one, live) + (" pinned" if one.pinned else ""), _shown("live_at", one.live_at)
    return one.version, state, one.restores, since, None if gap is None else f"{gap:.2g}", one.path


def _shown(name: str, value: object) -> object:
    """A value as people read it: a date, or a number with four digits that say something."""
    if not isinstance(value, float):
        return value
    if name.endswith("_at"):
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(value))
    return f"{value:.0f}" if value.is_integer() or abs(value) >= 1e4 else f"{value:.4g}"


@app.command()
def show(
    version: int | None = typer.Argument(None, help="Number of the version; not given: the live one."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Show one version: its weights, how it was verified, and the job that trained it.

    The gap is the distance in nats between the engine's logprobs and the trainer's for the same tokens.

        mosaic policy show
        mosaic policy show 7
        mosaic policy show 7 --json
    """
    store = Store(load(database=database).database, create=False)
    known, live = listed(store), store.policy()[0]
    wanted = live if version is None else version
    if wanted == 0 and store.first_version() is None:
        said = f"{FIRST if live == 0 else FIRST.replace('live: ', '')}; {PATHLESS}"
        typer.echo('{"version": {"version": 0, "state": "live"}, "job": null, "metrics": {}}' if as_json else said)
        return
    found = find(known, wanted)
    job = None if found.job_id is None else store.job(found.job_id)
    numbers = {} if job is None else store.job_metrics(job.job_id)
    if as_json:
        print_json({"version": asdict(found), "job": None if job is None else asdict(job), "metrics": numbers})
        return
    values = {**asdict(found), "state": state_of(found, live)}
    rows = [(name, _shown(name, value)) for name, value in values.items() if name != "verification"]
    rows += [(f"verified {name}", _shown(name, value)) for name, value in found.verification.items()]
    rows += [] if job is None else [("job state", job.state.value), ("job error", job.error)]
    print_table("what value", rows + [(f"job {name}", _shown(name, value)) for name, value in sorted(numbers.items())])


@app.command()
def rollback(
    version: int | None = typer.Argument(None, help="Whose weights to serve; not given: those before the live ones."),
    *,
    model: Path | None = MODEL,
    upstream: str | None = UPSTREAM,
    database: str | None = DATABASE,
) -> None:
    """Serve earlier weights again, under a new version number; no request is lost.

    Version 0 is the checkpoint that the engine started with; the jobs that trained it keep its path.

        mosaic policy rollback
        mosaic policy rollback 5
        mosaic policy rollback 0
    """
    typer.echo(_serve_again(version, model, upstream, database)[1])


@app.command()
def pin(
    version: int | None = typer.Argument(None, help="Whose weights to serve and hold; not given: the live ones."),
    *,
    off: bool = typer.Option(False, "--off", help="Let go: jobs may publish again."),
    model: Path | None = MODEL,
    upstream: str | None = UPSTREAM,
    database: str | None = DATABASE,
) -> None:
    """Hold a version: no job trains or publishes until `mosaic policy pin --off`; its checkpoint is kept.

    With a number, its weights are put live first.

        mosaic policy pin
        mosaic policy pin 5
        mosaic policy pin --off
    """
    if off and version is not None:
        raise typer.BadParameter("--off lets go of whatever is pinned; leave out the number")
    store = Store(load(database=database).database, create=False)
    if off:
        store.pin(None)
        typer.echo("no version is pinned")
        return
    live, _ = store.policy()
    said = ""
    if version is not None and weights_of(store, version) != weights_of(store, live):
        live, said = _serve_again(version, model, upstream, database)
    if not live:
        raise SettingsError(
            f"{FIRST}; a version can be held once a job has published one.",
            "Until then, keep jobs from running: no `mosaic train`, no [schedule].",
        )
    with held(store, LEASE):
        store.pin(find(store.versions(), live).version)
    typer.echo(f"{said + '; ' if said else ''}version {live} is pinned")


@app.command()
def adapter(
    base: Path = typer.Argument(help="Checkpoint that vLLM serves (--model)."),
    folder: Path = typer.Argument(help="Folder that receives the adapter."),
    rank: int = typer.Option(16, min=1, help="Rank of the adapter's matrices (--max-lora-rank of vLLM)."),
    seed: int = typer.Option(0, help="Of its first matrices; the second are zero, so it changes nothing yet."),
) -> None:
    """Make a first LoRA adapter, equal to its base model, for vLLM to start with and for jobs to train.

    It prints how to start vLLM with it and what to write into mosaic.toml.

        mosaic policy adapter /models/base /models/adapter
        mosaic policy adapter /models/base /models/adapter --rank 32
    """
    from trainer.adapter import live_link, make_adapter

    make_adapter(base, folder, rank, seed)
    typer.echo(
        f"start vLLM with: --model {base} --enable-lora --max-lora-rank {max(rank, 8)} "
        f"--lora-modules policy={live_link(folder)}\n"
        f'and set policy_model = "policy" and, under [train], model = "{folder}" in mosaic.toml'
    )


def _serve_again(
    version: int | None, model: Path | None, upstream: str | None, database: str | None
) -> tuple[int, str]:
    settings = load(database=database, upstream=upstream)
    if model is not None:
        settings = settings.model_copy(update={"train": settings.train.model_copy(update={"model": model})})
    store = Store(settings.database, create=False)
    with held(store, LEASE) as lease:
        target = before(store) if version is None else version
        live, _ = store.policy()
        if weights_of(store, target) == weights_of(store, live):
            return live, f"version {live} is already live" + _whose(store, target, live)
        number = put_back(store, settings, target, lease.check)
    return number, f"version {number} is live" + _whose(store, target, number)


def _whose(store: Store, target: int, number: int) -> str:
    weights = weights_of(store, target)
    return "" if weights == number else f", with the weights of version {weights}"
