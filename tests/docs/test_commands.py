"""What the docs tell to type works: marked blocks are run, and every other `mosaic ...` line is one that the CLI takes.

A block is run where `<!-- run -->` stands above it; all such blocks of a page are one shell script, before a scripted
engine and on a free port.
"""

import asyncio
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from mosaic.cli import assemble
from tests.engine import ScriptedEngine, Turn

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "docker" / "README.md"]
PAGES += sorted((ROOT / "examples").rglob("README.md"))
_BLOCK = re.compile(r"^(<!-- run -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> Iterator[tuple[bool, str]]:
    """(whether it is to be run, text) of the page's shell blocks."""
    for run, language, text in _BLOCK.findall(page.read_text()):
        if language in ("bash", "sh", ""):
            yield bool(run), text


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each call of `mosaic` in a piece of shell."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        try:
            found = [*words, ";"]
        except ValueError:
            continue  # a quote that goes on in the next line
        at = 0
        for end in (n for n, word in enumerate(found) if set(word) <= set(";&|()<>")):
            part, at = found[at:end], end + 1
            while part and re.match(r"\w+=", part[0]):
                del part[0]
            if part and part[0] in ("mosaic", ".venv/bin/mosaic"):
                yield [word for word in part[1:] if not re.fullmatch(r"\[.*\]|\.\.\.", word)]  # left to the reader


def test_commands_are_found_in_shell() -> None:
    text = "A=1 mosaic key run-17 | cat; x=$(.venv/bin/mosaic show \\\n  'a b')  # mosaic no\nmosaic policy pin [X] &"
    assert list(commands(text)) == [["key", "run-17"], ["show", "a b"], ["policy", "pin"]]


@pytest.fixture(scope="module")
def takes() -> Any:
    """The real command line, of which every command does nothing once its arguments are understood."""
    command = typer.main.get_command(assemble())
    _silence(command)
    return command


def _silence(command: Any) -> None:
    for below in getattr(command, "commands", {}).values():
        _silence(below)
        if not hasattr(below, "commands"):
            below.callback = lambda **_: None


def understood(takes: Any, arguments: list[str]) -> None:
    takes.main(arguments, prog_name="mosaic", standalone_mode=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_of_the_docs_is_understood(takes: Any, page: Path) -> None:
    for _, text in blocks(page):
        for arguments in commands(text):
            try:
                understood(takes, arguments)
            except Exception as error:
                raise AssertionError(f"mosaic {shlex.join(arguments)}: {error}") from error


def test_what_the_command_line_does_not_know_is_noticed(takes: Any) -> None:
    for wrong in (["serve", "--prot", "80"], ["no-such-command"], ["policy", "rollback", "newest"], ["show"]):
        with pytest.raises(Exception, match=r".+"):
            understood(takes, wrong)


RUN = [page for page in PAGES if any(run for run, _ in blocks(page))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", RUN, ids=lambda page: str(page.relative_to(ROOT)))
async def test_the_marked_blocks_of_a_page_run(page: Path, tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (tmp_path / "bin").mkdir()
    shim = tmp_path / "bin" / "mosaic"
    shim.write_text(f'#!/bin/sh\nexec {sys.executable} -m mosaic "$@"\n')
    shim.chmod(0o755)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    async with ScriptedEngine(lambda _: Turn("Lisbon")).serve() as upstream:
        script = "\n".join(text for run, text in blocks(page) if run)
        script = script.replace("http://localhost:8000/v1", upstream).replace("localhost:8080", f"127.0.0.1:{port}")
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MOSAIC_")}
        environment = {
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "MOSAIC_PORT": str(port),
        }
        # On a busy machine the next command may come sooner than the database has the call.
        environment |= {"MOSAIC_COMMIT_FIRST": "true", "MOSAIC_STORE_WAIT_S": "60"}
        with (tmp_path / "said").open("wb") as said:
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", f"set -euo pipefail\ntrap 'kill $(jobs -p); wait' EXIT\n{script}",
                cwd=tmp_path, env=kept | environment, stdout=said, stderr=said, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            status = await asyncio.wait_for(process.wait(), 120)
    printed = (tmp_path / "said").read_text()
    assert status == 0, printed
    if page.name == "start.md":
        assert "first-4" in printed
        assert re.search(r"from version 0 would be trained: 4 trajectories of 1 group, 4 sequences", printed), printed
