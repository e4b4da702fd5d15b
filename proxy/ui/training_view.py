"""How training goes, as series to plot: attempts in time, figures of jobs, where new versions went live. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mosaic.credit import CreditSettings
from mosaic.store.progress import Attempt, Job, Version

BUCKETS = 60
"""Points of a series over attempts, at most."""
SMALLEST = 8
"""Attempts behind one point, at least, where there are enough of them: fewer would show chance alone."""
SUCCESS = CreditSettings().success_reward
"""A reward of at least this is a success, for the credit rule and for a job's figures too."""
JOB_FIGURES = {
    "success": "Success of what a job considered",
    "mean_ratio": "Ratio π/π engine",
    "entropy": "Entropy, nats",
    "clip_fraction": "Clipped tokens",
    "logprob_gap_mean": "Logprob gap, nats",
    "grad_norm": "Gradient norm",
    "publish_pause_seconds": "Pause at the swap, s",
}
"""Figures of jobs that are plotted where a job reported them."""


@dataclass(frozen=True, slots=True)
class Plot:
    """One chart."""

    title: str
    meaning: str
    times: Sequence[float]
    lines: Mapping[str, Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class TrainingView:
    """The page."""

    plots: Sequence[Plot]
    markers: Sequence[tuple[float, int]]
    """(when, version): where a version went live."""
    scored: int
    success: float | None
    """Share of successes among the newest `lately` scored attempts."""
    lately: int
    """A tenth of the scored attempts, but 20 where there are so many, so that chance is not all that shows."""
    zero_variance: float | None
    """Share of groups of two and more whose rewards are all equal."""
    staleness: float | None
    """Mean of versions between sampling and training."""


def training_view(attempts: Sequence[Attempt], jobs: Sequence[Job], versions: Sequence[Version]) -> TrainingView:
    """What the plots and the figures above them show."""
    scored = [a for a in attempts if a.reward is not None]
    last = scored[-max(20, len(scored) // 10) :]
    trained = [a for a in attempts if a.trained_version is not None]
    plots = [*_attempt_plots(scored), *_zero_variance_plot(scored), *_staleness_plot(trained), *_job_plots(jobs)]
    groups = [rewards for rewards in _by_task(scored).values() if len(rewards) > 1]
    return TrainingView(
        plots=plots,
        markers=sorted((v.live_at, v.version) for v in versions if v.live_at is not None),
        scored=len(scored),
        success=fmean(_success(a) for a in last) if last else None,
        lately=len(last),
        zero_variance=fmean(len(set(rewards)) == 1 for rewards in groups) if groups else None,
        staleness=fmean(_staleness(a) for a in trained) if trained else None,
    )


def _attempt_plots(scored: Sequence[Attempt]) -> list[Plot]:
    if not scored:
        return []
    times, parts = _buckets(scored)
    reward = {"reward": _means(parts, lambda a: a.reward or 0.0), "success": _means(parts, _success)}
    sessions = {"sessions": _means(parts, lambda a: float(a.sessions))}
    utility = {"utility": _means(parts, lambda a: (a.reward or 0.0) / max(1, a.sessions))}
    return [
        Plot("Reward and success", "Mean reward, and share of attempts with a reward of 0.5 or more.", times, reward),
        Plot("Sessions per trajectory", "Mean number of sessions that an attempt used.", times, sessions),
        Plot("Utility", "Mean reward per session that an attempt used.", times, utility),
    ]


def _zero_variance_plot(scored: Sequence[Attempt]) -> list[Plot]:
    if len(scored) < 2:
        return []
    times, parts = _buckets(scored)
    shares = []
    for part in parts:
        groups = [rewards for rewards in _by_task(part).values() if len(rewards) > 1]
        shares.append(fmean(len(set(rewards)) == 1 for rewards in groups) if groups else None)
    if all(share is None for share in shares):
        return []
    meaning = "Share of groups whose rewards are all equal: they teach a plain rule nothing."
    return [Plot("Zero-variance groups", meaning, times, {"share": shares})]


def _staleness_plot(trained: Sequence[Attempt]) -> list[Plot]:
    if not trained:
        return []
    times, parts = _buckets(trained)
    meaning = "Policy versions between the one that sampled and the one that training started from."
    return [Plot("Staleness", meaning, times, {"versions": _means(parts, _staleness)})]


def _job_plots(jobs: Sequence[Job]) -> list[Plot]:
    done = sorted((job for job in jobs if job.ended_at is not None), key=lambda job: job.ended_at or 0.0)
    found = []
    for name, title in JOB_FIGURES.items():
        known = [job for job in done if name in job.metrics]
        if known:
            values = {name.removeprefix("publish_"): [job.metrics[name] for job in known]}
            found.append(Plot(title, "As each job reported it.", [job.ended_at or 0.0 for job in known], values))
    return found


def _buckets(attempts: Sequence[Attempt]) -> tuple[list[float], list[Sequence[Attempt]]]:
    """Equally many attempts in each, in order of time; the time of a bucket is that of its last attempt."""
    size = max(min(SMALLEST, -(-len(attempts) // 6)), -(-len(attempts) // BUCKETS))
    parts = [attempts[at : at + size] for at in range(0, len(attempts), size)]
    return [part[-1].created_at for part in parts], parts


def _means(parts: Sequence[Sequence[Attempt]], of: Callable[[Attempt], float]) -> list[float | None]:
    return [fmean(map(of, part)) for part in parts]


def _success(attempt: Attempt) -> float:
    return float((attempt.reward or 0.0) >= SUCCESS)


def _staleness(attempt: Attempt) -> float:
    return float(max(0, (attempt.trained_version or 0) - 1 - attempt.policy_version))


def _by_task(attempts: Sequence[Attempt]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for attempt in attempts:
        if attempt.task_key is not None and attempt.reward is not None:
            found.setdefault(attempt.task_key, []).append(attempt.reward)
    return found


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One task with its newest attempts."""

    task_key: str
    attempts: Sequence[Attempt]
    mean_reward: float | None
    successes: int
    scored: int
    no_contrast: bool
    """Two and more rewards, all equal."""
    newest_at: float


def task_lines(attempts: Sequence[Attempt]) -> list[TaskLine]:
    """Tasks of these attempts, that with the newest first."""
    by_task: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.task_key is not None:
            by_task.setdefault(attempt.task_key, []).append(attempt)
    lines = [_task_line(key, found) for key, found in by_task.items()]
    return sorted(lines, key=lambda line: line.newest_at, reverse=True)


def _task_line(task_key: str, attempts: Sequence[Attempt]) -> TaskLine:
    rewards = [a.reward for a in attempts if a.reward is not None]
    return TaskLine(
        task_key=task_key,
        attempts=attempts,
        mean_reward=fmean(rewards) if rewards else None,
        successes=sum(reward >= SUCCESS for reward in rewards),
        scored=len(rewards),
        no_contrast=len(rewards) > 1 and len(set(rewards)) == 1,
        newest_at=attempts[-1].created_at,
    )


def plots_json(view: TrainingView) -> dict[str, Any]:
    """What the script draws: times and values by column, as uPlot takes them."""
    plots = [
        {"title": plot.title, "names": list(plot.lines), "columns": [list(plot.times), *map(list, plot.lines.values())]}
        for plot in view.plots
    ]
    return {"plots": plots, "markers": [list(marker) for marker in view.markers]}
