"""The command `mosaic`. Other packages add their commands as entry points, loaded only when they are called.

Errors go to standard error, one line, with the next step; what each exit code means stands in `exit_codes`. A command's
docstring is its help and, with lines that begin with `mosaic` indented, its examples: docs/cli.md is made from it.
"""

import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

import typer

from mosaic import (
    credit_commands,
    db_commands,
    demo_command,
    lineage_commands,
    logs,
    rollout_command,
    score_command,
    settings_file,
    tail_command,
    transfer_commands,
)
from mosaic.errors import MosaicError
from mosaic.records import MAX_REWARD, TrajectoryState
from mosaic.settings import load, origins
from mosaic.store import Store
from mosaic.terminal import DATABASE, JSON, TRAJECTORY, print_json, print_table

DISTRIBUTION = "mosaic-rl"
PANELS = {
    "Start": ("init", "serve", "doctor", "config", "key", "demo"),
    "Look": ("tail", "trajectories", "show", "explain", "unlinked", "certificate", "credit"),
    "Reward": ("reward", "end", "rollout", "score"),
    "Train": ("train", "schedule", "policy"),
    "Keep": ("db", "export", "import", "relink"),
}
"""Commands by what one does with them, in the order of the help and of docs/cli.md."""

HELP = """Train the agent you already run: record its calls, find its sessions, credit them, train, reload.

Put it before your vLLM, point an agent at it, say how it went, train:

    mosaic serve --upstream http://localhost:8000/v1
    OPENAI_BASE_URL=http://localhost:8080/t/run-17/v1 OPENAI_API_KEY=any your-agent
    mosaic reward run-17 1.0
    mosaic train --model /path/to/the/checkpoint

`mosaic doctor` says what is wrong, `mosaic COMMAND --help` what a command does.
"""


FLUSH = "\n\n<!-- -->"
"""Ends every help. Typer takes off what all lines after the first paragraph are indented by, and with one line before
them the examples would run into each other; this line is not indented, and Markdown does not show it."""


class Ended(StrEnum):
    """How a trajectory can be said to be over."""

    CLOSED = TrajectoryState.CLOSED.value
    FAILED = TrajectoryState.FAILED.value
    TRUNCATED = TrajectoryState.TRUNCATED.value


def _version(wanted: bool) -> None:
    if wanted:
        try:
            typer.echo(f"mosaic {version(DISTRIBUTION)}")
        except PackageNotFoundError:
            typer.echo("mosaic, not installed")
        raise typer.Exit


def _root(
    _: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version and exit."),
) -> None:
    pass


def config(as_json: bool = JSON) -> None:
    """Print every setting in force and where it came from.

    A default, the file mosaic.toml of this folder, or a variable. Secrets are masked.

        mosaic config
        mosaic config --json
    """
    found = origins(load())
    if as_json:
        print_json({name: {"value": value, "from": origin} for name, (value, origin) in found.items()})
        return
    print_table("setting value from", [(name, value, origin) for name, (value, origin) in found.items()])


def reward(
    trajectory: str = TRAJECTORY,
    value: str = typer.Argument(help="A number within a million of 0, or `none` when the attempt cannot be scored."),
    *,
    source: str = typer.Option("cli", help="Who says so."),
    note: str | None = typer.Option(None, help="Anything to remember with it."),
    session: str | None = typer.Option(None, help="Judge only this session of the trajectory."),
    database: str | None = DATABASE,
) -> None:
    """Say how a trajectory went; late and corrected rewards are fine.

    The last one that is in force counts. Training compares the attempts at one task with each other, so their rewards
    must differ for anything to be learnt. The same from a program: `POST /api/trajectories/ID/reward`, `mosaic.client`.

        mosaic reward run-17 1.0
        mosaic reward run-17 0.4 --source grader --note "7 of 12 tests"
        mosaic reward run-17 none
    """
    number = None if value.lower() == "none" else _number(value)
    store = _store(database)
    trajectory = store.whole_trajectory_id(trajectory)
    outcome = store.reward(trajectory, number, source, note, session_id=session)
    said = "" if outcome.in_force else f" (too late to count: it was {outcome.state.value}; kept, see reward_window_s)"
    typer.echo(
        f"{trajectory}: {'none' if number is None else number}{said}"
        + (", to be trained by the next job" if outcome.reopened else "")
    )


def end(
    trajectory: str = TRAJECTORY,
    *,
    state: Ended = typer.Option(Ended.CLOSED, "--as", help="How it ended."),
    reason: str = typer.Option("cli", help="Why; counted."),
    database: str | None = DATABASE,
) -> None:
    """Say that a trajectory is over; failed and truncated ones are not trained.

    Nobody has to: one without a call for `close_after_s` is closed by itself. Failed means that the attempt's
    surroundings broke, truncated that it was cut short; neither says that the policy did badly (that is a reward of 0).

        mosaic end run-17
        mosaic end run-17 --as failed --reason sandbox_died
    """
    store = _store(database)
    trajectory = store.whole_trajectory_id(trajectory)
    typer.echo(f"{trajectory}: {store.end(trajectory, TrajectoryState(state), reason).value}")


def trajectories(
    limit: int = typer.Option(50, min=1, max=100_000, help="How many, newest first."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """List the newest trajectories with their sessions.

    Columns: sessions, those opened by compaction, subagents, calls, calls that cannot be trained, sampled tokens and
    the oldest policy version among them. An id that a narrow terminal shows without its middle (`run-1…e.3`) can be
    given to any command as it stands there.

        mosaic trajectories
        mosaic trajectories --limit 1000 --json
    """
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


OWN: dict[str, Callable[..., None]] = {
    "config": config,
    "reward": reward,
    "end": end,
    "trajectories": trajectories,
    "init": settings_file.init,
    "tail": tail_command.tail,
    "demo": demo_command.demo,
    "credit": credit_commands.credit,
    "export": transfer_commands.export_,
    "import": transfer_commands.import_,
    "rollout": rollout_command.rollout,
    "score": score_command.score,
    "show": lineage_commands.show,
    "explain": lineage_commands.explain,
    "unlinked": lineage_commands.unlinked,
    "certificate": lineage_commands.certificate,
}
"""The core's own commands; other packages register theirs as entry points."""
PASSING: dict[str, Any] = {"ignore_unknown_options": True}
CONTEXTS: dict[str, dict[str, Any]] = {
    "reward": PASSING,  # a reward may be negative
    "demo": {**PASSING, "allow_extra_args": True, "help_option_names": ["--help"]},
}


def assemble(named: str | None = None) -> typer.Typer:
    """The whole command line; of other packages only the command that is named, or all."""
    app = typer.Typer(
        help=HELP, callback=_root, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
    )
    loaded: dict[str, object] = {**OWN, "db": db_commands.app}
    entries = entry_points(group="mosaic.commands")
    if named is not None and not named.startswith("-") and named not in loaded.keys() | entries.names:
        named = None  # a typing error: what is meant is suggested from all
    for entry in entries:
        if named in (None, entry.name):
            loaded[entry.name] = entry.load()
    for panel, name in _ordered(loaded):
        command = loaded[name]
        if isinstance(command, typer.Typer):
            app.add_typer(command, name=name, rich_help_panel=panel)
        elif callable(command):
            app.command(name, rich_help_panel=panel, context_settings=CONTEXTS.get(name))(command)
    _end_helps(app)
    return app


def _end_helps(app: typer.Typer) -> None:
    for command in app.registered_commands:
        text = command.help or inspect.getdoc(command.callback) or ""
        command.help = text.removesuffix(FLUSH) + FLUSH
    for group in app.registered_groups:
        if group.typer_instance is not None:
            _end_helps(group.typer_instance)


def _ordered(names: dict[str, object]) -> Iterator[tuple[str, str]]:
    """(Panel, command): those of the panels in their order, then those that nobody put into one."""
    placed = [(panel, name) for panel, inside in PANELS.items() for name in inside]
    yield from (place for place in placed if place[1] in names)
    yield from (("Further", name) for name in sorted(names.keys() - {name for _, name in placed}))


def main() -> None:
    """Run the command line; errors become one line and an exit code."""
    logs.configure()
    given = sys.argv[1] if len(sys.argv) > 1 else None
    # Only the command that is asked for is imported; help and completion list them all.
    app = assemble(None if given is None or given == "--help" else given)
    try:
        app(prog_name="mosaic")
    except MosaicError as error:
        typer.secho(f"mosaic: {error}", err=True, fg="red")
        sys.exit(error.exit_code)


def _store(database: str | None) -> Store:
    settings = load(database=database)
    return Store(settings.database, settings.reward_window_s, create=False)


def _number(text: str) -> float:
    try:
        number = float(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is neither a number nor `none`") from None
    if not abs(number) <= MAX_REWARD:
        raise typer.BadParameter(f"{text!r} is no finite number from -{MAX_REWARD:,.0f} to {MAX_REWARD:,.0f}")
    return number
