"""The command `mosaic`. Other packages add their commands as entry points, loaded only when they are called.

Exit codes: 0 done, 1 other failure, 2 bad usage or settings, 3 database, 4 engine, 5 training, 6 nothing to train,
7 publishing, 8 another process does it, 130 interrupted. Errors go to standard error, one line, with the next step.
"""

import sys
from dataclasses import asdict
from importlib.metadata import entry_points

import typer

from mosaic import credit_commands, db_commands, lineage_commands, logs, transfer_commands
from mosaic.errors import MosaicError
from mosaic.records import TrajectoryState
from mosaic.settings import load, origins
from mosaic.store import Store
from mosaic.terminal import DATABASE, JSON, print_json, print_table

app = typer.Typer(
    help="Train the agent you already run: record its calls, find its sessions, credit them, train, reload.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
app.add_typer(db_commands.app, name="db")
app.command("credit")(credit_commands.credit)
app.command("export")(transfer_commands.export_)
app.command("import")(transfer_commands.import_)
for shown in (lineage_commands.show, lineage_commands.explain, lineage_commands.unlinked, lineage_commands.certificate):
    app.command()(shown)


@app.command()
def config(as_json: bool = JSON) -> None:
    """Print every setting in force and where it came from."""
    found = origins(load())
    if as_json:
        print_json({name: {"value": value, "from": origin} for name, (value, origin) in found.items()})
        return
    print_table("setting value from", [(name, value, origin) for name, (value, origin) in found.items()])


@app.command(context_settings={"ignore_unknown_options": True})
def reward(
    trajectory: str,
    value: str = typer.Argument(help="A number, or `none` when the attempt cannot be scored."),
    *,
    source: str = typer.Option("cli", help="Who says so."),
    note: str | None = typer.Option(None, help="Anything to remember with it."),
    session: str | None = typer.Option(None, help="Judge only this session of the trajectory."),
    database: str | None = DATABASE,
) -> None:
    """Say how a trajectory went; late and corrected rewards are fine."""
    number = None if value.lower() == "none" else _number(value)
    outcome = _store(database).reward(trajectory, number, source, note, session_id=session)
    said = "" if outcome.in_force else f" (too late to count: it was {outcome.state.value}; kept, see reward_window_s)"
    typer.echo(f"{trajectory}: {value}{said}" + (", trained again by the next job" if outcome.reopened else ""))


@app.command()
def end(
    trajectory: str,
    *,
    state: TrajectoryState = typer.Option(TrajectoryState.CLOSED, "--as", help="closed, failed or truncated."),
    reason: str = typer.Option("cli", help="Why; counted."),
    database: str | None = DATABASE,
) -> None:
    """Say that a trajectory is over; failed and truncated ones are not trained."""
    typer.echo(f"{trajectory}: {_store(database).end(trajectory, state, reason).value}")


@app.command()
def trajectories(
    limit: int = typer.Option(50, min=1, max=100_000, help="How many, newest first."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """List the newest trajectories with their sessions."""
    found = _store(database).trajectories(limit)
    if as_json:
        print_json([asdict(t) for t in found])
        return
    print_table(
        "trajectory state reward sess. comp. sub. calls inexact tokens ver.",
        [
            (
                t.trajectory_id,
                t.state,
                t.reward,
                t.sessions,
                t.compactions,
                t.spawns,
                t.calls,
                t.inexact_calls,
                t.sampled_tokens,
                t.policy_version,
            )
            for t in found
        ],
    )


def main() -> None:
    """Run the command line; errors become one line and an exit code."""
    logs.configure()
    named = sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
    for entry in entry_points(group="mosaic.commands"):
        # Only the command that is asked for is imported; the help lists them all.
        if named in (None, entry.name):
            loaded = entry.load()
            if isinstance(loaded, typer.Typer):
                app.add_typer(loaded, name=entry.name)
            else:
                app.command(entry.name)(loaded)
    try:
        app(prog_name="mosaic")
    except MosaicError as error:
        typer.secho(f"mosaic: {error}", err=True, fg="red")
        sys.exit(error.exit_code)


def _store(database: str | None) -> Store:
    settings = load(database=database)
    return Store(settings.database, settings.reward_window_s)


def _number(text: str) -> float:
    try:
        return float(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is neither a number nor `none`") from None
