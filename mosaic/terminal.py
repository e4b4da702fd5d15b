"""What all commands share at the terminal: their options, tables, JSON and progress."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleDimensions
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from mosaic.store.shortened import LEFT_OUT

JSON = typer.Option(False, "--json", help="Print JSON instead of a table.")
DATABASE = typer.Option(None, help="SQLAlchemy URL of the store.")
TRAJECTORY = typer.Argument(help="Id of the trajectory, as `mosaic trajectories` lists it.")
GAP = 2
"""Spaces between the columns of a table."""
LONG = 24
"""Characters up to which a cell stays whole where there is room: numbers, states, reasons, dates."""
FOLDED = 12
"""Fewest columns into which a path or a text is folded."""
SHORTENED = 10
"""Fewest characters that are left of an id."""


def print_json(value: object) -> None:
    """Print a value as indented JSON; what JSON has no form for is printed as text."""
    typer.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2, default=str).decode())


def counted(number: int, noun: str) -> str:
    """A number of things in words: 1 call, 2 calls, 2 trajectories."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"


def how_ended(status: str, http_status: int) -> str:
    """How a call ended in words: ok, aborted, failed (HTTP 404). What else the client got says nothing."""
    return f"{status} (HTTP {http_status})" if status == "failed" and http_status >= 400 else status


def print_table(columns: str, rows: list[tuple[Any, ...]]) -> None:
    """Print rows under `columns`, which are parted by spaces; None is printed as nothing.

    Nothing is cut where no terminal reads it. On a narrow terminal long texts are folded and long ids lose their
    middle; then short texts and dates are folded between words. Numbers, states and reasons stay whole, and the
    terminal wraps what is still too wide.
    """
    names = columns.split()
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    console = Console()
    taken = [_width(column) for column in zip(names, *cells, strict=True)]
    wide = sum(taken) + GAP * (len(names) - 1)
    if console.is_terminal:
        _narrow(taken, names, cells, wide - console.width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for name, width in zip(names, taken, strict=True):
        table.add_column(name, width=width, overflow="fold")
    for row in cells:
        table.add_row(*(Text(cell) for cell in row))
    console.size = ConsoleDimensions(max(console.width, wide), console.height)
    console.print(table)


def _narrow(taken: list[int], names: list[str], cells: list[list[str]], too_wide: int) -> None:
    """Take what is too wide from the columns: from texts and paths first, which are folded, then from ids, then from
    short texts, as far as their words stay whole, and at last from long texts again."""
    long = [n for n, width in enumerate(taken) if width > LONG]
    folded = [n for n in range(len(taken)) if any(_is_text(row[n]) for row in cells)][::-1]
    texts, short = [n for n in folded if n in long], [n for n in folded if n not in long]
    least_of = [*((n, LONG) for n in texts), *((n, SHORTENED) for n in long if n not in texts)]
    least_of += [(n, _width(word for row in cells for word in row[n].split())) for n in short]
    for column, least in [*least_of, *((n, FOLDED) for n in texts)]:
        whole = [row[column] for row in cells if not _is_text(row[column]) and not _is_id(row[column])]
        less = max(0, min(too_wide, taken[column] - max(least, _width([names[column], *whole]))))
        taken[column] -= less
        too_wide -= less
        for row in cells:
            if less and _is_id(row[column]):
                row[column] = shortened(row[column], taken[column])


def _is_text(cell: str) -> bool:
    """Whether it can be folded: prose or a path."""
    return " " in cell or "/" in cell


def _is_id(cell: str) -> bool:
    """Whether it can lose its middle; states and reasons have no digits."""
    return not _is_text(cell) and any(character.isdigit() for character in cell)


def shortened(text: str, width: int) -> str:
    """An id without its middle, where it is wider than that."""
    if _width((text,)) <= width:
        return text
    return f"{text[: width // 2]}{LEFT_OUT}{text[len(text) - (width - 1) // 2 :]}"


def _width(texts: Iterable[str]) -> int:
    """Columns of a terminal that the widest takes."""
    return max((cell_len(line) for text in texts for line in text.splitlines()), default=0)


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
