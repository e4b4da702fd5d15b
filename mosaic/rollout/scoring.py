"""How an attempt went: a command, a function, or what the agent itself wrote.

scorer given:  its word      a function gets a `Finished`; a command finds the same in its environment, and its
                             standard input is what the agent printed
none given:    the file that MOSAIC_REWARD_FILE names, if the agent wrote it
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic.functions import load_function
from mosaic.rollout.attempt import Ended, Work
from mosaic.scoring.commands import Command
from mosaic.scoring.outcome import Score, ScoreError, as_score, read_score

MAX_OUTPUT = 16 * 2**20
"""Bytes of an agent's output that a scorer gets; of more it gets the end."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a scoring function is told of an attempt."""

    task: Mapping[str, Any]
    """The task with all its fields."""
    trajectory_id: str
    output: str
    """What the agent printed."""
    status: int
    """Its exit status."""
    scratch: Path
    """The folder in which it ran."""


@dataclass(frozen=True, slots=True)
class Scoring:
    """Who says how attempts went; neither: the agents themselves, by file."""

    command: Command | None = None
    function: str | None = None
    """`module:function`, so that it can be sent to where the attempt is made."""

    @property
    def source(self) -> str:
        """Who it was, as rewards are marked."""
        return "rollout:" + ("command" if self.command else "function" if self.function else "file")

    def score(self, work: Work, ended: Ended) -> Score | None:
        """The score; None when nobody has said anything. Raises `ScoreError`."""
        if self.function is not None:
            return self._by_function(self.function, work, ended)
        if self.command is not None:
            variables = {**work.environment(), "MOSAIC_STATUS": str(ended.status)}
            return self.command.score(_output(work), variables)
        try:
            return read_score(work.reward_file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            raise ScoreError(f"the reward in {work.reward_file} cannot be read: {error}.") from error

    def _by_function(self, function: str, work: Work, ended: Ended) -> Score:
        output = _output(work).decode(errors="replace")
        finished = Finished(work.task.fields, work.trajectory_id, output, ended.status or 0, work.scratch)
        try:
            said = load_function(function)(finished)
        except Exception as error:  # The user's own code; it is counted, and the attempt stays unscored.
            raise ScoreError(f"the scoring function failed: {type(error).__name__}: {error}.") from error
        return as_score(said)


def _output(work: Work) -> bytes:
    path = work.folder / "stdout"
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MAX_OUTPUT))
            return file.read()
    except OSError:
        return b""
