"""Scores what was recorded without anybody saying how it went: closed trajectories without a reward, each once.

One that fails stays closed and is looked at again next time. A reward that somebody else gave meanwhile stands.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import structlog

from mosaic.job_settings import ScoreConfig
from mosaic.scoring.outcome import ScoreError
from mosaic.scoring.scorers import Scorer, scorer_of
from mosaic.store import Store
from mosaic.store.rows import plain

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Scored:
    """What a scorer made of one trajectory."""

    trajectory_id: str
    reward: float | None
    """None when it cannot be scored, or the scorer failed."""
    note: str | None
    error: str | None
    """Why there is no score; None when there is one, or it is unscorable."""
    kept: bool
    """False when nothing was written: the scorer failed, it was a dry run, or somebody else was faster."""


def score_closed(
    store: Store,
    scorer: Scorer,
    config: ScoreConfig,
    *,
    dry_run: bool = False,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Scored]:
    """Ask the scorer for every closed, unscored trajectory that the filters allow, the oldest first."""
    names = store.unscored(config.only, config.task, config.limit)
    found: dict[str, Scored] = {}
    with ThreadPoolExecutor(config.concurrency, "scorer") as threads:
        futures = [threads.submit(_one, store, scorer, name, dry_run) for name in names]
        try:
            for future in as_completed(futures):
                scored = future.result()
                found[scored.trajectory_id] = scored
                on_progress(len(found), len(names))
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
    return list(_in_order(names, found))


def score_configured(store: Store, config: ScoreConfig) -> None:
    """Ask the scorer of [score] before a job chooses, if there is one and jobs are to ask it."""
    scorer = scorer_of(config) if config.in_jobs else None
    if scorer is not None:
        found = score_closed(store, scorer, config)
        failed = [one for one in found if one.error is not None]
        for one in failed:
            log.warning("not scored", trajectory=one.trajectory_id, error=one.error)
        log.info("scored before selection", source=scorer.source, trajectories=len(found), failed=len(failed))


def to_score(store: Store, config: ScoreConfig) -> list[str]:
    """The trajectories that `score_configured` would ask about."""
    if not config.in_jobs or scorer_of(config) is None:
        return []
    return store.unscored(config.only, config.task, config.limit)


def _in_order(names: list[str], found: dict[str, Scored]) -> Iterator[Scored]:
    for name in names:
        yield found[name]


def _one(store: Store, scorer: Scorer, trajectory_id: str, dry_run: bool) -> Scored:
    try:
        score = scorer.score(store.trajectory(trajectory_id))
    except ScoreError as error:
        if not dry_run:
            store.count("scorer_failures", scorer.source)
        return Scored(trajectory_id, None, None, plain(str(error)), kept=False)
    kept = not dry_run and store.score(trajectory_id, score.value, scorer.source, score.note)
    return Scored(trajectory_id, score.value, score.note, None, kept)
