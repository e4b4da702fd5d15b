"""A policy that is worse does not stay live: it is judged before and after its swap, while it serves.

By the user's own command, whose last line on standard output is the score: it can do anything that an agent can, and
finds `GATE_PHASE` (before, after) and `GATE_VERSION` (of the live policy) in its environment: names that are none of
Mosaic's settings, since it may run `mosaic` itself. Or by attempts at held-out tasks, whose mean reward is the score;
their trajectories are recorded like all others, under ids that no job trains.
"""

import math
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from mosaic.client import Client
from mosaic.errors import GateError, MosaicError, PublishError, SettingsError
from mosaic.keys import agent_key
from mosaic.rollout import Agent, Outcome, Plan, Report, Rollout, Task, read_tasks
from mosaic.rollout.attempt import check_placeholders
from mosaic.rollout.local import Processes
from mosaic.rollout.rollout import first_failure
from mosaic.rollout.scoring import Scoring
from mosaic.rollout.told import Told
from mosaic.scoring.commands import Command, run
from mosaic.settings import Settings
from mosaic.store.listing import HELD_OUT


class Judge(Protocol):
    """Who says how good the live policy is; higher is better."""

    def score(self, when: str, version: int, job_id: str) -> float:
        """Raises `GateError` when there is nothing to be said."""
        ...


@dataclass(frozen=True, slots=True)
class Gate:
    """When a new version may stay."""

    judge: Judge
    tolerance: float
    """How much lower the score may be after."""

    def check(self, before: float, after: float, version: int) -> None:
        """Raises `PublishError` when the version is worse than the one before it."""
        if after < before - self.tolerance:
            raise PublishError(
                f"version {version} is worse: the gate gave {after:g} after {before:g} (tolerance {self.tolerance:g}).",
                "Its trajectories count as trained: the same job would give the same weights again.",
            )


def gate_of(settings: Settings) -> Gate | None:
    """The gate that is asked for, if one is. Raises `SettingsError` for one that could never judge."""
    train, held_out = settings.train, settings.held_out
    if held_out.tasks is None:
        if train.gate is None:
            return None
        return Gate(CommandJudge(train.gate, train.gate_timeout_s), train.gate_tolerance)
    if train.gate is not None:
        raise SettingsError("train.gate and held_out.tasks are both set.", "A job has one gate; unset one of them.")
    return Gate(HeldOutTasks.of(settings, held_out.tasks), held_out.margin)


@dataclass(frozen=True, slots=True)
class CommandJudge:
    """The user's command, run by the shell."""

    command: str
    timeout_s: float

    def score(self, when: str, version: int, job_id: str) -> float:  # noqa: ARG002 - the command knows no jobs
        """Run the command. Raises `GateError` when it fails or prints no number."""
        try:
            ran = run(self.command, self.timeout_s, {"GATE_PHASE": when, "GATE_VERSION": str(version)})
        except TimeoutError as error:
            raise self._error(str(error), when) from None
        except OSError as error:
            raise self._error(f"cannot be run: {error}", when) from error
        if ran.status:
            raise self._error(f"ended with status {ran.status}: {ran.err.strip()[-300:]}", when)
        last = (ran.out.strip().splitlines() or [""])[-1]
        try:
            score = float(last)
        except ValueError:
            raise self._error(f"printed no number at the end, but {last[:80]!r}", when) from None
        if not math.isfinite(score):
            raise self._error(f"printed {last}", when)
        return score

    def _error(self, what: str, when: str) -> GateError:
        return GateError(f"the gate's command ({when}) {what}.", "Run it by hand: " + self.command)


@dataclass(frozen=True, slots=True)
class HeldOutTasks:
    """Attempts at tasks that are kept out of training."""

    tasks: list[Task]
    settings: Settings

    @classmethod
    def of(cls, settings: Settings, file: Path) -> "HeldOutTasks":
        """Read the tasks. Raises `SettingsError` when they or the agent cannot be used."""
        config = settings.held_out
        if not config.agent or ("{" not in config.agent[0] and shutil.which(config.agent[0]) is None):
            raise SettingsError(f"held_out.agent is no command: {config.agent}.", "Give the agent's command line.")
        tasks = read_tasks(file)
        check_placeholders(tuple(config.agent), tasks)
        return cls(tasks, settings)

    def score(self, when: str, version: int, job_id: str) -> float:
        """The mean reward. A job that died meanwhile goes on with the attempts that are not made yet."""
        plan = self._plan(f"{HELD_OUT}{job_id}-{when}-{version}")
        keys = self.settings.api_keys
        client = Client(plan.proxy_url, keys[0].get_secret_value() if keys else None)
        try:
            report = Rollout(plan, Processes(), Told(client, "gate")).run()
            first_failure(report.results)
        except MosaicError as error:
            raise GateError(f"the held-out tasks ({when}): {error.message}", error.next_step) from error
        return self._mean(report, when)

    def _plan(self, run: str) -> Plan:
        settings, config = self.settings, self.settings.held_out
        command = None if config.score is None else Command(config.score, config.timeout_s)
        return Plan(
            run=run,
            tasks=self.tasks,
            attempts=config.attempts,
            agent=Agent(tuple(config.agent), Path.cwd(), config.timeout_s),
            scoring=Scoring(command, config.score_function),
            folder=config.folder.absolute() / run,
            proxy_url=(config.proxy or f"http://{settings.host}:{settings.port}").rstrip("/"),
            key_of=partial(agent_key, settings),
            concurrency=config.concurrency,
        )

    def _mean(self, report: Report, when: str) -> float:
        """Attempts that failed count too: a policy that wrecks its agent must not look better for it."""
        failed = [r for r in report.results if r.outcome in (Outcome.FAILED, Outcome.LOST, Outcome.TRUNCATED)]
        rewards = [r.reward for r in report.results if r.reward is not None]
        if not rewards:
            raise GateError(
                f"none of {len(report.results)} attempts at held-out tasks ({when}) was scored.",
                f"See {report.folder}, and held_out.score.",
            )
        return (sum(rewards) + len(failed) * self.settings.held_out.failed_reward) / (len(rewards) + len(failed))
