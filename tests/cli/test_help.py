"""What the command line says of itself: help with examples that work, a page of it, completion, a version."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer

from mosaic import demo_command
from mosaic.cli import DISTRIBUTION, PANELS, assemble
from mosaic.cli_page import page
from mosaic.errors import SettingsError
from mosaic.exit_codes import ExitCode
from tests.cli.command import mosaic

ROOT = Path(__file__).parents[2]


def commands() -> dict[str, Any]:
    """Every command by its whole name."""

    def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", {})
        if not inner:
            yield name, command
        for below, one in inner.items():
            yield from walk(one, f"{name} {below}")

    return dict(walk(typer.main.get_command(assemble()), "mosaic"))


COMMANDS = commands()


def examples(command: Any) -> list[str]:
    return re.findall(r"^ +(mosaic .*)$", command.help, re.MULTILINE)


def test_the_page_is_what_the_commands_say() -> None:
    assert (ROOT / "docs/cli.md").read_text() == page(), "run `make docs`"


def test_the_page_is_written_as_a_whole_and_left_alone_when_it_cannot_be(tmp_path: Path) -> None:
    [recipe] = re.findall(r"^\t\$\(BIN\)/python (.*cli_page.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    written = tmp_path / "docs" / "cli.md"
    written.parent.mkdir()
    written.write_text("as it was")
    (tmp_path / "mosaic.py").write_text("")  # in the place of the package
    shell, environment = ["bash", "-c", f"{sys.executable} {recipe}"], {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode != 0
    assert written.read_text() == "as it was"
    (tmp_path / "mosaic.py").unlink()
    subprocess.run(shell, cwd=tmp_path, env=environment, check=True)
    assert written.read_text() == page()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_examples_of_itself_that_its_own_parser_takes(name: str) -> None:
    shown = [one for one in examples(COMMANDS[name]) if one.startswith(name)]
    assert shown
    for example in shown:
        arguments = shlex.split(example)[len(name.split()) :]
        COMMANDS[name].make_context(name, arguments).close()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_and_argument_is_explained(name: str) -> None:
    for one in COMMANDS[name].params:
        assert one.hidden or (one.help and one.help[-1] in '."'), one.name


def test_every_command_stands_in_one_panel_of_the_help() -> None:
    placed = [name for names in PANELS.values() for name in names]
    assert sorted(placed) == sorted({name.split()[1] for name in COMMANDS})


def test_help_shows_what_is_in_brackets_and_keeps_examples_on_their_lines(tmp_path: Path) -> None:
    shown = mosaic(tmp_path, "score", "--help", COLUMNS="120").stdout
    assert "What is not given is read from [score]." in shown
    assert '  mosaic score --function grading:reward --only "run-7-%"' in shown


@pytest.mark.parametrize("group", ["policy", "db"])
def test_examples_of_commands_within_a_group_keep_their_lines_too(tmp_path: Path, group: str) -> None:
    for name in (name for name in COMMANDS if name.startswith(f"mosaic {group} ")):
        shown = mosaic(tmp_path, *name.split()[1:], "--help", COLUMNS="120").stdout
        lines = [line.strip() for line in shown.splitlines()]
        assert set(examples(COMMANDS[name])) <= set(lines)


def test_no_example_runs_into_another(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    for name, command in COMMANDS.items():
        command.get_help(typer.Context(command, info_name=name))
        lines = {line.strip() for line in capsys.readouterr().out.splitlines()}
        assert {" ".join(example.split()) for example in examples(command)} <= lines, name
        assert not any("<!--" in line for line in lines)


def test_every_exit_code_of_an_error_is_documented() -> None:
    from mosaic import errors

    found = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, errors.MosaicError)]
    assert len(found) > 8
    assert all(isinstance(one.exit_code, ExitCode) for one in found)


def test_no_other_file_says_an_exit_code_as_a_number() -> None:
    for folder in ("mosaic", "proxy", "trainer"):
        for path in (ROOT / folder).rglob("*.py"):
            assert not re.search(r"(Exit\(|sys\.exit\(|exit_code = )[1-9]", path.read_text()), path


def completions(folder: Path, shell: str, line: str) -> str:
    """What a shell is offered after a line."""
    asked = {"_MOSAIC_COMPLETE": f"complete_{shell}", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    asked |= {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "mosaic"]
    done = subprocess.run(command, cwd=folder, env={**os.environ, **asked}, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_commands_of_every_package_and_their_options(tmp_path: Path, shell: str) -> None:
    found = completions(tmp_path, shell, "mosaic tra")
    assert "train" in found
    assert "trajectories" in found
    assert "serve" not in found
    assert "--dry-run" in completions(tmp_path, shell, "mosaic train --dry")
    assert "upgrade" in completions(tmp_path, shell, "mosaic db up")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_that_installs_completion_is_shown(tmp_path: Path, shell: str) -> None:
    done = mosaic(tmp_path, "--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert (done.returncode, "_MOSAIC_COMPLETE" in done.stdout) == (0, True)


def test_the_version_is_printed(tmp_path: Path) -> None:
    done = mosaic(tmp_path, "--version")
    assert (done.returncode, done.stdout) == (0, f"mosaic {version(DISTRIBUTION)}\n")


def test_the_demo_takes_its_options_from_anywhere_in_a_clone(tmp_path: Path) -> None:
    done = mosaic(tmp_path, "demo", "-h")
    assert (done.returncode, "--rounds" in done.stdout) == (0, True)
    assert mosaic(tmp_path, "demo", "--rounds", "many").returncode == ExitCode.USAGE


def test_the_demo_outside_of_a_clone_says_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_command, "ROOT", tmp_path)
    context = COMMANDS["mosaic demo"].make_context("demo", [])
    with pytest.raises(SettingsError, match="Clone the repository and run `make demo`"):
        demo_command.demo(context)
    assert context.args == []
