"""Commands that score, and that judge a version: at their timeout they are over, whatever they have started."""

import os
import select
import time
from pathlib import Path

import pytest

from mosaic.errors import GateError
from mosaic.scoring.commands import MAX_OUTPUT, Command
from mosaic.scoring.outcome import Score, ScoreError
from trainer.gate import CommandJudge

ESCAPES = "setsid sleep 8"
"""Leaves the session, and holds what it was given as output."""


def test_what_left_the_session_and_holds_the_output_does_not_hold_the_scorer() -> None:
    started = time.monotonic()
    assert Command(f"{ESCAPES} & echo 1", 5).score(b"{}", {}) == Score(1.0)
    with pytest.raises(ScoreError, match=r"longer than 0\.2 s"):
        Command(f"{ESCAPES}; echo 1", 0.2).score(b"{}", {})
    assert time.monotonic() - started < 5


def test_of_a_long_output_the_end_is_the_score() -> None:
    assert Command(f"head -c {2 * MAX_OUTPUT} /dev/zero; echo; cat", 20).score(b"0.5", {}) == Score(0.5)


def test_a_gate_that_is_given_up_goes_on_in_no_process(tmp_path: Path) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(GateError, match=r"took longer than 0\.5 s"):
        CommandJudge(f"exec 3> {held}; sleep 60; echo 1", 0.5).score("before", 0, "job")
    asked = select.poll()
    asked.register(reader, select.POLLIN)
    assert asked.poll(10_000) == [(reader, select.POLLHUP)], "somebody still holds it"
    os.close(reader)
