"""`mosaic rollout`: attempts at tasks, scored, ready to be trained on."""

import os
import re
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path

import typer

from mosaic.client import Client
from mosaic.db_commands import seconds
from mosaic.errors import SettingsError
from mosaic.functions import check_agent, load_function
from mosaic.keys import agent_key
from mosaic.rollout.attempt import Agent, Outcome, Result, check_placeholders, hides_the_task
from mosaic.rollout.local import Processes
from mosaic.rollout.rollout import ATTEMPTS, Executor, Plan, Report, Rollout, first_failure, scorer_failures
from mosaic.rollout.scoring import Scoring
from mosaic.rollout.tasks import read_tasks
from mosaic.rollout.told import Told
from mosaic.scoring.commands import Command
from mosaic.settings import Settings, load
from mosaic.terminal import JSON, counted, print_json, print_table, progress

SHOWN = 50
"""Most tasks that the final table lists."""

UNTOLD = (
    "mosaic: nothing in the agent's command gives it its task. Write {prompt} where the task belongs, or {task_file}; "
    "an agent that reads MOSAIC_TASK or MOSAIC_TASK_FILE by itself needs neither."
)


class Executors(StrEnum):
    """Where attempts are made."""

    LOCAL = "local"
    RAY = "ray"


def rollout(
    tasks: Path = typer.Argument(help="JSON lines with `id`, `prompt` and any other fields, or one prompt per line."),
    command: list[str] | None = typer.Argument(
        None, help="The agent's command line after `--`; {prompt} and other fields of the task are filled in."
    ),
    *,
    attempts: int = typer.Option(4, min=1, help="Attempts at each task."),
    function: str | None = typer.Option(None, help="A Python function as the agent, module:function, for a command."),
    score: str | None = typer.Option(None, help="Shell command that scores an attempt: its last line is the reward."),
    score_function: str | None = typer.Option(None, help="Python function that scores an attempt, module:function."),
    score_timeout: str = typer.Option("5m", help="How long a scoring command may take, as 30s or 5m."),
    timeout: str | None = typer.Option(None, help="How long an attempt may take, as 90s or 30m; then it is truncated."),
    concurrency: int = typer.Option(4, min=1, help="Attempts at once."),
    retries: int = typer.Option(2, min=0, help="Further tries of an attempt that its surroundings have failed."),
    any_status: bool = typer.Option(False, "--any-status", help="Ending with another status than 0 is no failure."),
    run: str | None = typer.Option(None, help="Name of the run; one that was stopped goes on where it was."),
    folder: Path = typer.Option(Path("var/rollouts"), help="Receives a folder for each run, and in it each attempt."),
    executor: Executors = typer.Option(Executors.LOCAL, help="Where attempts are made: processes here, or Ray."),
    ray_address: str | None = typer.Option(None, help="Ray cluster, as auto or ray://host:10001; unset: a new one."),
    proxy: str | None = typer.Option(None, help="Address of `mosaic serve`; not given: that of the settings."),
    as_json: bool = JSON,
) -> None:
    """Make attempts at tasks with any agent, each its own trajectory, and say how they went.

    `mosaic serve` must run. The agent gets the proxy's address and a key of its own attempt in OPENAI_BASE_URL,
    OPENAI_API_KEY and their like; a scorer reads what is told it in MOSAIC_* variables (docs/rollouts.md).

    The last line printed is the mean reward over the scored attempts. Exits with 1 when every attempt failed, or
    the scorer failed and no attempt could be scored.

        mosaic rollout tasks.jsonl --attempts 8 --score "python score.py" -- your-agent "{prompt}"
        mosaic rollout tasks.jsonl --function agents:solve --score-function agents:judge --timeout 10m
        mosaic rollout tasks.jsonl --run nightly-3 --score "python score.py" -- your-agent "{prompt}"
    """
    settings = load()
    found = read_tasks(tasks)
    agent = _agent(command or [], function, None if timeout is None else seconds(timeout, "--timeout"), any_status)
    check_placeholders(agent.command, found)
    if function is None and hides_the_task(agent):
        typer.echo(UNTOLD, err=True)
    scoring = _scoring(score, score_function, seconds(score_timeout, "--score-timeout"))
    name = run or _new_name(tasks)
    address = (proxy or f"http://{settings.host}:{settings.port}").rstrip("/")
    plan = Plan(
        run=name,
        tasks=found,
        attempts=attempts,
        agent=agent,
        scoring=scoring,
        folder=folder.absolute() / name,
        proxy_url=address,
        key_of=partial(agent_key, settings),
        concurrency=concurrency,
        retries=retries,
        resumes=run is not None,
    )
    report = _run(plan, _executor(executor, ray_address), settings)
    if as_json:
        print_json(_as_json(report))
    else:
        _print(report)
    if broken := scorer_failures(report.results):
        typer.echo(f"mosaic: {counted(len(broken), 'scorer failure')}, see {report.folder / ATTEMPTS}", err=True)
    first_failure(report.results)
    if broken:
        typer.echo(f"mosaic: the first ({broken[0].trajectory_id}): {broken[0].error}", err=True)


def _run(plan: Plan, executor: Executor, settings: Settings) -> Report:
    key = settings.api_keys[0].get_secret_value() if settings.api_keys else None
    told = Told(Client(plan.proxy_url, key), plan.scoring.source)
    total = len(plan.tasks) * plan.attempts
    typer.echo(f"run {plan.run}: {counted(len(plan.tasks), 'task')} x {counted(plan.attempts, 'attempt')}", err=True)
    # As Ctrl-C does, so that no agent goes on alone.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with progress("attempts") as bar:
        try:
            return Rollout(plan, executor, told).run(_counting(bar, total))
        except BaseException:
            typer.echo(f"stopped; the same command with --run {plan.run} goes on from here", err=True)
            raise


def _executor(which: Executors, ray_address: str | None) -> Executor:
    if which is Executors.LOCAL:
        return Processes()
    from mosaic.rollout.ray_executor import RayExecutor

    return RayExecutor(ray_address)


def _counting(bar: Callable[[int, int], None], total: int) -> Callable[[Result], None]:
    done = 0

    def count(_: Result) -> None:
        nonlocal done
        done += 1
        bar(done, total)

    return count


def _agent(command: list[str], function: str | None, timeout_s: float | None, any_status: bool) -> Agent:
    """What is run. Raises `SettingsError` when it is not there, before anything is started."""
    here = Path.cwd()
    if bool(command) == (function is not None):
        raise SettingsError("give one agent.", "Its command line after `--`, or --function module:function.")
    if function is not None:
        check_agent(function)
        path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
        called = (sys.executable, "-m", "mosaic.function_agent", function)
        return Agent(called, here, timeout_s, any_status, (("PYTHONPATH", path),))
    if shutil.which(command[0]) is None and "{" not in command[0]:
        raise SettingsError(f"there is no program {command[0]!r}.", "Is it on the PATH?")
    return Agent(tuple(command), here, timeout_s, any_status)


def _scoring(command: str | None, function: str | None, timeout_s: float) -> Scoring:
    if command is not None and function is not None:
        raise SettingsError("an attempt has one scorer.", "Give --score or --score-function.")
    if function is not None:
        load_function(function)
    return Scoring(None if command is None else Command(command, timeout_s), function)


def _new_name(tasks: Path) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", tasks.stem)[:30] or "run"
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


@dataclass(frozen=True, slots=True)
class TaskLine:
    """The attempts at one task."""

    task: str
    attempts: int
    scored: int
    mean: float | None
    best: float | None
    other: dict[str, int]
    """Outcome -> attempts, without those that were scored."""


def _lines(results: Sequence[Result]) -> list[TaskLine]:
    by_task: dict[str, list[Result]] = {}
    for result in results:
        by_task.setdefault(result.task_id, []).append(result)
    return [_line(task, some) for task, some in by_task.items()]


def _line(task: str, results: Sequence[Result]) -> TaskLine:
    rewards = [r.reward for r in results if r.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    other = {o.value: sum(r.outcome is o for r in results) for o in Outcome if o is not Outcome.SCORED}
    other = {name: number for name, number in other.items() if number}
    return TaskLine(task, len(results), len(rewards), mean, max(rewards, default=None), other)


def _as_json(report: Report) -> dict[str, object]:
    return {
        "run": report.run,
        "folder": report.folder,
        "mean_reward": report.mean_reward,
        "resumed": report.resumed,
        "seconds": report.seconds,
        "tasks": [asdict(line) for line in _lines(report.results)],
        "attempts": [asdict(result) for result in report.results],
    }


def _print(report: Report) -> None:
    lines = _lines(report.results)
    shown = lines if len(lines) <= SHOWN else lines[:SHOWN]
    total = _line("all", report.results)
    print_table("task attempts scored mean best other", [_row(line) for line in [*shown, total]])
    if len(lines) > len(shown):
        typer.echo(f"... {len(lines) - len(shown)} more tasks; --json lists them all")
    typer.echo(f"{report.seconds:.0f} s; {report.resumed} done before; what was printed and written: {report.folder}")
    typer.echo("none" if report.mean_reward is None else f"{report.mean_reward:.6g}")


def _row(line: TaskLine) -> tuple[object, ...]:
    mean, best = (None if v is None else f"{v:.3g}" for v in (line.mean, line.best))
    other = ", ".join(f"{number} {name}" for name, number in line.other.items())
    return line.task[:40], line.attempts, line.scored, mean, best, other
