"""The commands `mosaic export` and `mosaic import`: trajectories out of a store into files, and back.

What the files hold is told in docs/export.md. An import that meets a bad record ends there: what it wrote before stays.
"""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from mosaic.errors import MosaicError, SettingsError, StoreError
from mosaic.records import TrajectoryState
from mosaic.settings import load
from mosaic.store import portable_files, portable_rows
from mosaic.store.database import Database
from mosaic.store.portable import Record
from mosaic.store.portable_files import FileFormat
from mosaic.store.writing import add_counts
from mosaic.terminal import DATABASE, JSON, counted, print_json

T = TypeVar("T")

PATIENCE_S = 1.0
"""Seconds of work after which a progress bar appears."""


def export_(
    out: Path = typer.Argument(help="File to write, or folder with --format hf."),
    *,
    form: FileFormat | None = typer.Option(
        None,
        "--format",
        help="Not given: parquet for a name with that ending, else jsonl. `hf`: a folder for `datasets`.",
    ),
    like: str | None = typer.Option(None, help="Only trajectories whose id matches this SQL LIKE pattern."),
    state: list[TrajectoryState] | None = typer.Option(None, help="Only trajectories in this state; may be repeated."),
    force: bool = typer.Option(False, "--force", help="Replace what is there."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Write trajectories with sessions, messages, calls, tokens, rewards and advantages to a file.

    docs/export.md has the format.

        mosaic export runs.jsonl.gz
        mosaic export runs.parquet --state scored --state trained
        mosaic export runs --format hf --like "run-7-%"
    """
    states = [one.value for one in state or ()]
    form = form or (FileFormat.PARQUET if out.suffix == ".parquet" else FileFormat.JSONL)
    with _opened(database) as opened:
        total = portable_rows.number(opened, like, states)
        records = _shown(portable_rows.records(opened, like, states), "exporting", total)
        written = portable_files.write(records, out, form, force=force)
    if as_json:
        print_json({"out": str(out), "format": form.value, "trajectories": written})
    else:
        typer.echo(f"{out}: {counted(written, 'trajectory')}")


def import_(
    source: Path = typer.Argument(metavar="IN", help="File or folder that `mosaic export` wrote, in any format."),
    *,
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Read exported trajectories into the store; those that are there already are left as they are.

    The form is recognised. A record that is refused ends the import; what came before it stays.

        mosaic import runs.jsonl.gz
        mosaic import runs --database sqlite:///other.db
    """
    if not source.exists():
        raise SettingsError(f"there is no {source}.", "Name a file or folder that `mosaic export` wrote.")
    done = {"imported": 0, "skipped": 0}
    with _opened(database, create=True) as opened:
        try:
            for place, record in _shown(portable_files.read(source), "importing", None):
                done["imported" if _insert(opened, place, record) else "skipped"] += 1
        except MosaicError as error:
            if done["imported"]:
                error.message += (
                    f" {counted(done['imported'], 'trajectory')} before it stay; of it nothing is imported."
                )
            raise
        finally:
            with suppress(StoreError):  # a count that fails must not hide why the import did
                _count(opened, done)
    if as_json:
        print_json(done)
    else:
        typer.echo(
            f"{source}: {counted(done['imported'], 'trajectory')} imported, {done['skipped']} were there already"
        )


def _insert(database: Database, place: str, record: Record) -> bool:
    """One trajectory in one transaction. What the database refuses names the place in the file."""
    try:
        with database.writing() as connection:
            return portable_rows.insert(connection, record)
    except StoreError as error:
        error.message = f"{place} trajectory {record['trajectory_id']!r}: {error.message}"
        raise


def _count(database: Database, done: Mapping[str, int]) -> None:
    with database.writing() as connection:
        add_counts(connection, {("imports", reason): number for reason, number in done.items() if number})


@contextmanager
def _opened(database: str | None, *, create: bool = False) -> Iterator[Database]:
    opened = Database(load(database=database).database, create=create)
    try:
        yield opened
    finally:
        opened.close()


def _shown(items: Iterable[T], what: str, total: int | None) -> Generator[T]:
    """The items; on a terminal, with a progress bar once it takes long."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(what, total=total)
    started = time.monotonic()
    try:
        for item in items:
            yield item
            del item
            bar.advance(task)
            if not bar.live.is_started and time.monotonic() - started > PATIENCE_S:
                bar.start()
    finally:
        bar.stop()
