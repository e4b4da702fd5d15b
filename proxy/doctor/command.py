"""The command."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

import typer
from rich.console import Console
from rich.text import Text

from mosaic.exit_codes import ExitCode
from mosaic.settings import load
from mosaic.terminal import JSON, print_json
from proxy.doctor.checks import findings
from proxy.doctor.finding import Finding, Level

STYLES = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.WRONG: "bold red"}


def doctor(
    *,
    sample: bool = typer.Option(
        True, help="Ask the engine for a few tokens, to see that ids and logprobs arrive; takes some seconds."
    ),
    as_json: bool = JSON,
) -> None:
    """Look at engine, template, database, journal, keys, training and machine, and say what is wrong.

    Each finding says what was seen, why it matters and what to do next. Exits with 1 when something is wrong, with 9
    when there are warnings only. Nothing is changed. docs/doctor.md lists all checks.

        mosaic doctor
        mosaic doctor --no-sample
        mosaic doctor --json
    """
    found = findings(load(), sampling=sample)
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        _print(found)
    code = exit_code(found)
    if code is not ExitCode.DONE:
        raise typer.Exit(code)


def exit_code(found: Sequence[Finding]) -> ExitCode:
    """By the worst finding."""
    levels = {finding.level for finding in found}
    if Level.WRONG in levels:
        return ExitCode.FAILURE
    return ExitCode.WARNINGS if Level.WARNING in levels else ExitCode.DONE


def _print(found: Sequence[Finding]) -> None:
    console = Console()
    for one in found:
        line = Text.assemble((f"{one.level:8}", STYLES[one.level]), (f"{one.check:11}", "dim"), one.what)
        console.print(line, soft_wrap=True)
        for what in (one.why, one.next_step and f"-> {one.next_step}"):
            if what:
                console.print(Text(f"{'':19}{what}", "dim" if what is one.why else ""), soft_wrap=True)
    number = Counter(one.level for one in found)
    console.print(Text(", ".join(f"{number[level]} {level}" for level in Level)))
