"""What the doctor says, in which form, and with which exit code."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from mosaic.errors import EngineError
from mosaic.exit_codes import ExitCode
from proxy.doctor import Finding, Level, checks, findings
from proxy.doctor.checks import CHECKS
from proxy.doctor.command import exit_code
from proxy.doctor.finding import note, ok, warning, wrong
from tests.cli.command import mosaic
from tests.proxy.doctor.looking import Administered, settings_of

PAGE = Path(__file__).parents[3] / "docs" / "doctor.md"


def test_the_exit_code_is_that_of_the_worst_finding() -> None:
    good, told = ok("a"), note("b")
    assert exit_code([]) is exit_code([good, told]) is ExitCode.DONE
    assert exit_code([told, warning("c", "d", "e"), good]) is ExitCode.WARNINGS
    assert exit_code([warning("c", "d", "e"), wrong("f", "g", "h")]) is ExitCode.FAILURE


def test_what_is_wrong_is_said_with_its_reason_and_its_next_step(tmp_path: Path) -> None:
    done = mosaic(tmp_path, "doctor", MOSAIC_UPSTREAM="http://127.0.0.1:9/v1", COLUMNS="200")
    assert done.returncode == ExitCode.FAILURE
    lines = done.stdout.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("wrong "))
    assert re.match(r"wrong +engine +http://127.0.0.1:9/v1/models does not answer", lines[at])
    assert lines[at + 1].strip() == "Agents' calls wait for it and then get an error."
    assert lines[at + 2].strip() == "-> Start vLLM, or set upstream to where it listens."
    assert lines[-1].endswith(" 1 wrong")
    assert list(tmp_path.iterdir()) == []


async def test_json_has_every_finding_with_its_check(tmp_path: Path) -> None:
    done = mosaic(tmp_path, "doctor", "--json", "--no-sample", MOSAIC_UPSTREAM="http://127.0.0.1:9/v1")
    said = json.loads(done.stdout)
    assert {one["check"] for one in said} <= set(CHECKS)
    assert all(set(one) == {"level", "what", "why", "next_step", "check"} for one in said)
    assert said[0]["level"] == "wrong"


async def test_engines_are_asked_for_no_tokens_where_nobody_said_so(tmp_path: Path) -> None:
    engine = Administered()
    async with engine.serve() as url:
        seen = await asyncio.to_thread(findings, settings_of(tmp_path, url))
    assert engine.requests == []
    assert "the engine was not asked for tokens" in [one.what for one in seen]


def test_a_check_that_breaks_is_a_finding_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> list[Finding]:
        raise ZeroDivisionError("by 0")

    def refused(_: object) -> list[Finding]:
        raise EngineError("it died.", "Start it.")

    monkeypatch.setattr(checks, "CHECKS", {"one": broken, "two": refused, "keys": CHECKS["keys"]})
    first, second, third = findings(settings_of(tmp_path))
    assert (first.level, first.check, "ZeroDivisionError('by 0')" in first.what) == (Level.WARNING, "one", True)
    assert (second.level, second.what, second.next_step) == (Level.WRONG, "it died.", "Start it.")
    assert third.level is Level.OK


def test_the_page_lists_every_check() -> None:
    assert re.findall(r"^\| `([^`]+)` \|", PAGE.read_text(), re.MULTILINE) == list(CHECKS)
