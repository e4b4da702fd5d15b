"""`mosaic db`: upgrade the database, check it, measure it, and remove what is old."""

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

import typer

from mosaic.errors import SettingsError
from mosaic.exit_codes import ExitCode
from mosaic.records import TrajectoryState
from mosaic.settings import load
from mosaic.store import upgrade as upgrade_schema
from mosaic.store.checking import Severity
from mosaic.store.checking import check as find_faults
from mosaic.store.database import Database
from mosaic.store.pruning import Pruned, PruneRule
from mosaic.store.pruning import prune as remove
from mosaic.store.stats import Stats
from mosaic.store.stats import stats as measure
from mosaic.terminal import DATABASE, JSON, print_json, print_table, progress
from mosaic.urls import shown_url

app = typer.Typer(help="Look after the database: upgrade, check, measure, prune.", no_args_is_help=True)

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@app.command()
def upgrade(database: str | None = DATABASE) -> None:
    """Bring the database to the schema of this Mosaic; stop what writes to it, and back it up before.

    A database of an older release is refused by everything else until then.

        mosaic db upgrade
        mosaic db upgrade --database postgresql://mosaic@localhost/mosaic
    """
    url = load(database=database).database
    before, after = upgrade_schema(url)
    done = f"is at {after} already" if before == after else f"upgraded from {before or 'nothing'} to {after}"
    typer.echo(f"{shown_url(url)}: {done}")


@app.command()
def check(
    deep: bool = typer.Option(False, "--deep", help="Also read every trajectory back, prompt by prompt."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Look for what is missing or damaged; exits with 3 when something is broken.

    It says how many rows are concerned and what to do. The proxy may run meanwhile.

        mosaic db check
        mosaic db check --deep --json
    """
    with _opened(database) as opened, progress("reading trajectories back") as bar:
        found = find_faults(opened, deep, bar if deep else None)
    if as_json:
        print_json([asdict(finding) for finding in found])
    elif found:
        print_table("finding rows what next", [(f.severity, f.how_many, f.what, f.next_step) for f in found])
    else:
        typer.echo("sound" if deep else "sound, as far as can be told without --deep")
    if any(finding.severity is Severity.BROKEN for finding in found):
        raise typer.Exit(ExitCode.STORE)


@app.command()
def stats(as_json: bool = JSON, database: str | None = DATABASE) -> None:
    """Count rows, bytes, calls by how they ended and what they are worth, trajectories by state.

    The bytes of each table are measured up to a size of 1 GiB.

        mosaic db stats
        mosaic db stats --json
    """
    with _opened(database) as opened:
        found = measure(opened)
    if as_json:
        print_json(asdict(found))
        return
    print_table("table rows bytes", [(name, t.rows, _bytes(t.bytes)) for name, t in found.tables.items()])
    typer.echo()
    print_table("what kind number", list(_kinds(found)))


@app.command()
def prune(
    *,
    older_than: str | None = typer.Option(None, help="Age of the newest call: a number with s, m, h, d or w, as 30d."),
    state: list[TrajectoryState] | None = typer.Option(
        None, help="Only trajectories in this state; may be repeated. Not given: every state but open."
    ),
    keep_trained_since: int | None = typer.Option(
        None, min=0, metavar="VERSION", help="Keep what this policy version or a later one was trained on; 0: any."
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Remove nothing, only count."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Remove old trajectories with their calls, tokens and messages, a few at a time; the proxy may run meanwhile.

    `retention_days` in mosaic.toml does the same by itself.

        mosaic db prune --older-than 30d --dry-run
        mosaic db prune --older-than 30d --keep-trained-since 0
        mosaic db prune --older-than 1w --state failed --state truncated
    """
    if older_than is None:
        raise SettingsError(
            "prune needs --older-than: it removes for good.",
            "See first what would go: `mosaic db prune --older-than 30d --dry-run`.",
        )
    rule = PruneRule(
        seconds(older_than, "--older-than"), tuple(state) if state else None, keep_trained_since, dry_run=dry_run
    )
    with _opened(database) as opened, progress("pruning trajectories") as bar:
        gone = remove(opened, rule, bar)
    if as_json:
        print_json(asdict(gone))
    else:
        typer.echo(_said(gone, dry_run))


@contextmanager
def _opened(database: str | None) -> Iterator[Database]:
    opened = Database(load(database=database).database, create=False)
    try:
        yield opened
    finally:
        opened.close()


def seconds(age: str, option: str) -> float:
    """Seconds of an age such as `30d`. Raises `SettingsError`."""
    parts = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", age.strip())
    if parts is None:
        raise SettingsError(
            f"{option} {age!r} is no length of time.", "Give a number with s, m, h, d or w, such as 90s or 30d."
        )
    return float(parts[1]) * UNITS[parts[2]]


def _said(gone: Pruned, dry_run: bool) -> str:
    rows = {name: number for name, number in asdict(gone).items() if number or name == "trajectories"}
    counted = ", ".join(f"{number} {name}" for name, number in rows.items())
    return f"would remove {counted}, and what only they need" if dry_run else f"removed {counted}"


def _kinds(found: Stats) -> Iterator[tuple[str, str, object]]:
    """The figures besides the tables' as rows."""
    yield "calls", "exact", found.calls.exact
    for reason, number in sorted(found.calls.inexact.items()):
        yield "inexact", reason, number
    for status, number in sorted(found.calls.by_status.items()):
        yield "status", status, number
    for state, number in sorted(found.trajectories.items()):
        yield "trajectories", state, number
    yield "tokens", "sampled", found.calls.sampled_tokens
    yield "database", "size", _bytes(found.bytes)
    if found.bytes_per_sampled_token is not None:
        yield "database", "bytes/token", f"{found.bytes_per_sampled_token:.1f}"


def _bytes(number: int | None) -> str | None:
    """A number of bytes for people: 12.3 MiB."""
    if number is None:
        return None
    power = min(int(math.log(number, 1024)), 4) if number else 0
    return f"{number / 1024**power:.{1 if power else 0}f} {['B', 'KiB', 'MiB', 'GiB', 'TiB'][power]}"
