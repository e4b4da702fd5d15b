"""One attempt: what an agent is told, and how it can end. Values only, so that any executor can carry them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from mosaic.errors import SettingsError
from mosaic.rollout.tasks import Task
from mosaic.scoring.outcome import Score

MAX_VARIABLE = 100_000
"""Bytes of a task that still go into a variable: Linux takes no more than 131,072 in one. The file always has it."""
SURROUNDINGS = (75, 128 + 9, 128 + 15)
"""Exit statuses of an agent that its surroundings failed: EX_TEMPFAIL of sysexits.h, by which it may say so itself, and
what shells and containers end with when it was killed or ended."""

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}|\{(\w+)\}")
_OWN = ("trajectory", "base_url", "anthropic_base_url", "api_key", "attempt", "scratch", "task_file", "cwd")
"""Placeholders that every task has, besides its own fields."""
TASK_VARIABLE = "MOSAIC_TASK"
"""How the names of the variables begin that hold the task: itself, and its file."""
LONGEST_SCRIPT = 2**20
"""Bytes of a file up to which it is looked into for these names."""


class Outcome(StrEnum):
    """How an attempt ended."""

    SCORED = "scored"
    UNSCORABLE = "unscorable"
    """The scorer said that it cannot be scored."""
    UNSCORED = "unscored"
    """It ended well, and nobody has said how it went (or the scorer failed)."""
    FAILED = "failed"
    """The agent could not be started or ended with another status than 0."""
    LOST = "lost"
    """The same, and the surroundings are to blame: it is tried again."""
    TRUNCATED = "truncated"
    """It ran out of time."""


@dataclass(frozen=True, slots=True)
class Agent:
    """What is run, for any attempt."""

    command: tuple[str, ...]
    """Arguments with placeholders."""
    started_in: Path
    """Where `mosaic` was started: paths of the command are meant from there."""
    timeout_s: float | None = None
    """Seconds after which an attempt is cut; None for none."""
    any_status: bool = False
    """True: ending with another status than 0 is no failure."""
    variables: tuple[tuple[str, str], ...] = ()
    """More of its environment."""


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt at one task, all that an executor needs."""

    trajectory_id: str
    task: Task
    attempt: int
    """From 1."""
    tries: int
    """1, and one more for each that was lost."""
    proxy_url: str
    api_key: str
    folder: Path
    """Of this attempt: the task, its output, what it writes."""
    agent: Agent

    @property
    def base_url(self) -> str:
        return f"{self.proxy_url}/t/{self.trajectory_id}/v1"

    @property
    def scratch(self) -> Path:
        """The folder in which the agent runs."""
        return self.folder / "scratch"

    @property
    def task_file(self) -> Path:
        return self.folder / "task.json"

    @property
    def reward_file(self) -> Path:
        """Where the agent may say how it went."""
        return self.folder / "reward.json"

    def arguments(self) -> list[str]:
        """The command with everything filled in; files that it names are found from where `mosaic` was started."""
        return [
            _filled(_found(argument, position, self.agent.started_in), self._values())
            for position, argument in enumerate(self.agent.command)
        ]

    def environment(self) -> dict[str, str]:
        """Where the policy is, in the words of every wire's clients, and what is attempted."""
        root = f"{self.proxy_url}/t/{self.trajectory_id}"
        task = json.dumps(self.task.fields)
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "ANTHROPIC_BASE_URL": root,
            "ANTHROPIC_API_KEY": self.api_key,
            "MOSAIC_TRAJECTORY": self.trajectory_id,
            "MOSAIC_TASK_FILE": str(self.task_file),
            "MOSAIC_SCRATCH": str(self.scratch),
            "MOSAIC_REWARD_FILE": str(self.reward_file),
            **dict(self.agent.variables),
            **({"MOSAIC_TASK": task} if len(task.encode()) <= MAX_VARIABLE else {}),
        }

    def _values(self) -> dict[str, str]:
        own = (
            self.trajectory_id,
            self.base_url,
            self.base_url.removesuffix("/v1"),
            self.api_key,
            str(self.attempt),
            str(self.scratch),
            str(self.task_file),
            str(self.agent.started_in),
        )
        fields = {k: v if isinstance(v, str) else json.dumps(v) for k, v in self.task.fields.items()}
        return {**fields, **dict(zip(_OWN, own, strict=True))}


@dataclass(frozen=True, slots=True)
class Ended:
    """How an attempt ended, before it was scored."""

    trajectory_id: str
    status: int | None
    """Exit status of the agent (negative: the signal that ended it); None when it was cut or could not be started."""
    timed_out: bool
    error: str | None
    """Why it could not be started."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Made:
    """An attempt that was made, and what was said of it."""

    ended: Ended
    score: Score | None
    """None when nobody has said anything, or it did not come to that."""
    complaint: str | None
    """Why it could not be scored, or the end of what the agent wrote to its error output."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one attempt; a line of the run's file."""

    task_id: str
    attempt: int
    tries: int
    trajectory_id: str
    outcome: Outcome
    reward: float | None
    status: int | None
    seconds: float
    error: str | None

    @property
    def settled(self) -> bool:
        """Whether it needs no other try."""
        return self.outcome is not Outcome.LOST


def check_placeholders(command: tuple[str, ...], tasks: list[Task]) -> None:
    """Raises `SettingsError` for a placeholder that some task has nothing for."""
    wanted = {m[2] for argument in command for m in _PLACEHOLDER.finditer(argument) if m[2]} - set(_OWN)
    for task in tasks:
        for name in sorted(wanted - task.fields.keys()):
            raise SettingsError(
                f"the command has {{{name}}}, which the task {task.task_id!r} lacks.",
                f"There are {', '.join([*task.fields, *_OWN])}; literal braces are written {{{{{name}}}}}.",
            )


def hides_the_task(agent: Agent) -> bool:
    """Whether neither a placeholder of the command nor a name in it, or in a file that it runs, leads to the task.

    A program may still read its environment: nothing can be seen of that from outside.
    """
    filled = {m[2] for argument in agent.command for m in _PLACEHOLDER.finditer(argument) if m[2]}
    if filled - (set(_OWN) - {"task_file"}):
        return False
    named = [Path(_found(argument, n, agent.started_in)) for n, argument in enumerate(agent.command)]
    texts = [argument.encode() for argument in agent.command] + [_script(path) for path in named]
    return not any(TASK_VARIABLE.encode() in text for text in texts)


def _script(path: Path) -> bytes:
    """What a file holds; nothing where there is none, or where it is no script."""
    try:
        return path.read_bytes() if path.is_file() and path.stat().st_size <= LONGEST_SCRIPT else b""
    except (OSError, ValueError):
        return b""


def _filled(argument: str, values: Mapping[str, Any]) -> str:
    """Placeholders replaced, each once: what a prompt holds in braces stays."""
    return _PLACEHOLDER.sub(lambda m: f"{{{m[1]}}}" if m[1] else str(values[m[2]]), argument)


def _found(argument: str, position: int, started_in: Path) -> str:
    """A file named from where `mosaic` was started, in full; the program itself only when it is named by a path."""
    if (position == 0 and "/" not in argument) or not argument or len(argument) > 4096:
        return argument
    path = started_in / argument
    return str(path) if not Path(argument).is_absolute() and "\0" not in argument and path.is_file() else argument
