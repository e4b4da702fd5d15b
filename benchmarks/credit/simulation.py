"""The simulation: every method learns, and is measured, on the same seeds.

Each (setting, method) is one job whose result is kept on disk under a digest of all that it depends on, so that an
interrupted run goes on where it stopped. No figure is taken from a seed on which anything was chosen.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.credit.environment import PARAMETERS, Draws, Floats, Setting, play
from benchmarks.credit.fidelity import fidelity
from benchmarks.credit.learning import STEPS, Curves, learn
from benchmarks.credit.methods import METHODS, Method

LAST = 30
"""Steps at the end over which a seed's result is averaged."""
EARLY = slice(30, 60)
EVERY = 5
"""Curves keep one point for this many steps."""
STAGES = {"untrained": 0, "early": 30, "trained": STEPS}
"""Steps of broadcast training after which fidelity is measured: the same policies for all methods."""
SCATTER = 150
"""Points of a scatter plot."""
SOURCES = ("environment", "contributions", "learning", "fidelity", "simulation")


@dataclass(frozen=True, slots=True)
class Job:
    """One setting and one method."""

    setting: Setting
    name: str


def jobs() -> list[Job]:
    """All of them; broadcast first, as its policies are what fidelity is measured on."""
    return [Job(setting, name) for setting in Setting for name in METHODS]


def simulate(seeds: Sequence[int], cache: Path, done: Callable[[Job], None]) -> dict[str, dict[str, Any]]:
    """Run what is not in the cache yet; setting -> method -> result. Tells `done` after each job."""
    results: dict[str, dict[str, Any]] = {setting: {} for setting in Setting}
    policies: dict[Setting, dict[str, Floats]] = {}
    for job in jobs():
        path = cache / f"{_digest(job, seeds)}.json"
        if not path.exists():
            if job.setting not in policies:
                policies[job.setting] = _policies(job.setting, seeds)
            path.parent.mkdir(parents=True, exist_ok=True)
            result = _run(job, METHODS[job.name], list(seeds), policies[job.setting])
            partial = path.with_suffix(".partial")
            partial.write_bytes(orjson.dumps(result))
            partial.rename(path)
        results[job.setting][job.name] = orjson.loads(path.read_bytes())
        done(job)
    return results


def _digest(job: Job, seeds: Sequence[int]) -> str:
    """Of the method, the seeds and the code that the result depends on."""
    method = METHODS[job.name]
    folder = Path(__file__).parent
    code = [(folder / f"{name}.py").read_bytes() for name in SOURCES]
    code += [path.read_bytes() for path in sorted((folder.parents[1] / "mosaic" / "credit").glob("*.py"))]
    given = (job.setting, method.rule, method.estimator and method.estimator.__name__, tuple(seeds))
    return hashlib.blake2b(repr(given).encode() + b"".join(code), digest_size=12).hexdigest()


def _policies(setting: Setting, seeds: Sequence[int]) -> dict[str, Floats]:
    untrained = np.zeros((len(seeds), PARAMETERS))
    return {
        stage: learn(setting, METHODS["broadcast"], seeds, steps)[1] if steps else untrained
        for stage, steps in STAGES.items()
    }


def _run(job: Job, method: Method, seeds: list[int], policies: dict[str, Floats]) -> dict[str, Any]:
    curves, theta_SP = learn(job.setting, method, seeds)
    result: dict[str, Any] = dict(_summary(curves))
    result["curves"], result["curve_steps"] = _curves(curves), EVERY
    result["session_counts"] = _session_counts(job.setting, theta_SP, seeds)
    measured = {
        stage: fidelity(job.setting, method, policy, [seed + 2_000_000 for seed in seeds])
        for stage, policy in policies.items()
    }
    result["fidelity"] = {
        stage: {k: v for k, v in asdict(f).items() if k != "scatter"} for stage, f in measured.items()
    }
    result["scatter"] = [[round(x, 4), round(y, 4)] for x, y in measured["trained"].scatter[:SCATTER]]
    return result


def _summary(curves: Curves) -> Iterator[tuple[str, list[float]]]:
    """One number per seed."""
    yield "success", _rounded(curves.success_ST[:, -LAST:].mean(1))
    yield "sessions", _rounded(curves.sessions_ST[:, -LAST:].mean(1))
    yield "utility", _rounded(curves.utility_ST[:, -LAST:].mean(1))
    yield "early_success", _rounded(curves.success_ST[:, EARLY].mean(1))


def _curves(curves: Curves) -> dict[str, dict[str, list[float]]]:
    """Mean and spread over seeds; each point is the mean of `EVERY` steps."""
    found = {}
    for name, value_ST in (
        ("success", curves.success_ST),
        ("sessions", curves.sessions_ST),
        ("utility", curves.utility_ST),
    ):
        blocks_SB = value_ST.reshape(len(value_ST), -1, EVERY).mean(2)
        found[name] = {"mean": _rounded(blocks_SB.mean(0)), "std": _rounded(blocks_SB.std(0))}
    return found


def _session_counts(setting: Setting, theta_SP: Floats, seeds: list[int]) -> dict[str, list[float]]:
    """Share of trajectories by number of sessions (from 0), of the trained policies."""
    episodes = play(setting, theta_SP, Draws([seed + 3_000_000 for seed in seeds]), tasks=40)
    count, won = episodes.sessions_SN.ravel(), episodes.reward_SN.ravel() == 1
    return {
        name: _rounded(np.bincount(count[chosen], minlength=10) / len(count))
        for name, chosen in (("success", won), ("failure", ~won))
    }


def _rounded(values: Floats) -> list[float]:
    return [round(float(value), 4) for value in values]
