"""What all commands share at the terminal: their options, tables, JSON and progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

JSON = typer.Option(False, "--json", help="Print JSON instead of a table.")
DATABASE = typer.Option(None, help="SQLAlchemy URL of the store.")
TRAJECTORY = typer.Argument(help="Id of the trajectory, as `mosaic trajectories` lists it.")


def print_json(value: object) -> None:
    """Print a value as indented JSON; what JSON has no form for is printed as text."""
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode())


def print_table(columns: str, rows: list[tuple[Any, ...]]) -> None:
    """Print rows under `columns`, which are parted by spaces; None is printed as nothing."""
    table = Table(*columns.split(), box=None, pad_edge=False)
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*("" if cell is None else str(cell) for cell in row))
    Console().print(table)


def printable(text: str) -> str:
    """The text on one line, with a question mark for each character that could steer the terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, if that is a terminal; call the value with (done, total)."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
