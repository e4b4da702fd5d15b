"""`mosaic score`: how recorded trajectories went, said by a function, a command or a judge."""

from dataclasses import asdict
from typing import Any

import typer
from pydantic import ValidationError

from mosaic.db_commands import seconds
from mosaic.errors import MosaicError, SettingsError
from mosaic.job_settings import ScoreConfig
from mosaic.scoring.judge import Judge
from mosaic.scoring.passive import Scored, score_closed
from mosaic.scoring.scorers import scorer_of
from mosaic.settings import load
from mosaic.store import Store
from mosaic.terminal import DATABASE, JSON, print_json, print_table, progress

SHOWN = 50
"""Most trajectories that the table lists."""
SCORERS = ("function", "command", "judge")


def score(
    *,
    function: str | None = typer.Option(None, help="Python function, module:function: trajectory (a dict) -> reward."),
    command: str | None = typer.Option(None, help="Shell command: trajectory as JSON on stdin, reward as last line."),
    judge: str | None = typer.Option(None, help="Base URL, up to /v1, of an OpenAI-compatible server that judges."),
    judge_model: str | None = typer.Option(None, help="Model that judges there."),
    rubric: str | None = typer.Option(None, help="What the judge is to look at, in its own words."),
    only: str | None = typer.Option(None, help="Only trajectories whose id is LIKE this pattern, as run-7-%."),
    task: str | None = typer.Option(None, help="Only tasks whose key is LIKE this pattern."),
    limit: int | None = typer.Option(None, min=1, help="At most so many, the oldest first."),
    concurrency: int | None = typer.Option(None, min=1, help="Trajectories at once."),
    timeout: str | None = typer.Option(None, help="How long a command or a judge may take for one, as 30s or 5m."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Ask the scorer, and write nothing."),
    as_json: bool = JSON,
    database: str | None = DATABASE,
) -> None:
    """Score closed trajectories of which nobody has said how they went. What is not given is read from [score].

    One that cannot be scored becomes unscorable; one on which the scorer fails stays as it is. Exits with 1 when it
    failed on all. A judge is asked a small question first: one that does not answer it scores nothing.

        mosaic score --command "python grade.py" --dry-run
        mosaic score --function grading:reward --only "run-7-%"
        mosaic score --judge http://localhost:9000/v1 --judge-model judge --rubric "Is the answer right?"
    """
    settings = load(database=database)
    given: dict[str, Any] = {"function": function, "command": command, "judge": judge, "judge_model": judge_model}
    given |= {"rubric": rubric, "only": only, "task": task, "limit": limit, "concurrency": concurrency}
    given["timeout_s"] = None if timeout is None else seconds(timeout, "--timeout")
    config = _with(settings.score, given)
    scorer = scorer_of(config)
    if scorer is None:
        raise SettingsError("there is no scorer.", "Give --function, --command or --judge, or set [score].")
    if isinstance(scorer, Judge):
        scorer.check()
    store = Store(settings.database, settings.reward_window_s, create=False)
    with progress("scoring") as bar:
        found = score_closed(store, scorer, config, dry_run=dry_run, on_progress=bar)
    store.close()
    if as_json:
        print_json({"source": scorer.source, "dry_run": dry_run, "trajectories": [asdict(one) for one in found]})
    else:
        _print(found, dry_run)
    if found and all(one.error is not None for one in found):
        raise MosaicError(f"the scorer failed on every trajectory, on the first with: {found[0].error}")


def _with(config: ScoreConfig, given: dict[str, Any]) -> ScoreConfig:
    """The configuration with these changed; a scorer that is given takes the place of one that is configured.

    Raises `SettingsError`, naming the option.
    """
    changed = {name: value for name, value in given.items() if value is not None}
    if any(name in changed for name in SCORERS):
        changed = {**dict.fromkeys(SCORERS), **changed}
    try:
        return ScoreConfig.model_validate({**config.model_dump(), **changed})
    except ValidationError as error:
        first = error.errors()[0]
        option = str(first["loc"][0]).removesuffix("_s").replace("_", "-")
        said = f"--{option}: {first['msg'].removeprefix('Value error, ').rstrip('.')}."
        raise SettingsError(said, "See `mosaic score --help`.") from error


def _print(found: list[Scored], dry_run: bool) -> None:
    rows = [(one.trajectory_id, _said(one), (one.error or one.note or "")[:80]) for one in found]
    if rows:
        print_table("trajectory reward note", rows[:SHOWN])
    if len(rows) > SHOWN:
        typer.echo(f"... and {len(rows) - SHOWN} more; --json lists them all")
    rewards = [one.reward for one in found if one.reward is not None]
    failed = sum(one.error is not None for one in found)
    mean = f", mean {sum(rewards) / len(rewards):.3g}" if rewards else ""
    written = "nothing was written" if dry_run else f"{sum(one.kept for one in found)} written"
    unscorable = len(found) - len(rewards) - failed
    typer.echo(f"{len(rewards)} scored{mean}, {unscorable} unscorable, {failed} failed; {written}")


def _said(one: Scored) -> str:
    if one.error is not None:
        return "failed"
    return "none" if one.reward is None else f"{one.reward:g}"
