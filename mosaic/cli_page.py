"""docs/cli.md, written from the commands themselves: `python -m mosaic.cli_page docs/cli.md`, or `make docs`.

A command's docstring is Markdown and stands there as it is; options and arguments are a table. The file is opened
when all of it is there.
"""

import sys
from collections.abc import Iterator, Sequence
from inspect import cleandoc
from pathlib import Path
from typing import Any

import typer

from mosaic.cli import FLUSH, PANELS, assemble
from mosaic.exit_codes import ExitCode

HEAD = """\
# The command line

Written by `make docs` from the commands' own help; a test compares the two. Every command says this page's text with
`--help`. Listings print JSON with `--json`. Commands read `mosaic.toml` of the current folder (`mosaic init` writes
one), `MOSAIC_*` variables and their flags, the later the stronger (`mosaic config`). Errors are one line on standard
error that ends with the next step. `mosaic --install-completion` makes the shell complete commands and options.

## Exit codes

| code | meaning |
|---|---|
"""


def page() -> str:
    """The page's text."""
    root = typer.main.get_command(assemble())
    context = typer.Context(root, info_name="mosaic")
    commands: dict[str, Any] = root.commands  # type: ignore[attr-defined]
    parts = [HEAD, *(f"| {code.value} | {code.meaning} |\n" for code in ExitCode)]
    for panel, names in PANELS.items():
        parts.append(f"\n## {panel}\n")
        for name in names:
            parts += _command(commands[name], context, ("mosaic", name))
    return "".join(parts)


def _command(command: Any, parent: Any, path: Sequence[str]) -> Iterator[str]:
    """A command with those below it."""
    context = typer.Context(command, info_name=path[-1], parent=parent)
    usage = " ".join((*path, *command.collect_usage_pieces(context)))
    yield f"\n{'#' * (len(path) + 1)} {' '.join(path)}\n\n{cleandoc(command.help or '').removesuffix(FLUSH)}\n"
    below = getattr(command, "commands", {})
    if not below:
        yield f"\nUsage: `{usage}`\n"
        yield from _table(command, context)
    for name, inner in below.items():
        yield from _command(inner, context, (*path, name))


def _table(command: Any, context: Any) -> Iterator[str]:
    records = [found for one in command.get_params(context) if (found := one.get_help_record(context)) is not None]
    rows = [(name, said) for name, said in records if name != "--help"]
    if rows:
        yield "\n| option or argument | meaning |\n|---|---|\n"
        yield from (f"| `{_cell(name)}` | {_cell(said)} |\n" for name, said in rows)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
