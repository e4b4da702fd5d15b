"""How well the advantages of a rule follow the true contributions, for one policy that is not trained meanwhile.

Within a trajectory is the clean measure; pooled correlations mix in the luck of the outcome (mosaic.md, section 6). A
correlation is undefined where either side is constant (one session, or sessions that all brought the same): such a
trajectory counts as 0 in `within`, and is left out of `within_defined`.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.credit.environment import Draws, Floats, Setting, leave_one_out, play
from benchmarks.credit.learning import advantages
from benchmarks.credit.methods import Method
from mosaic.credit.estimate import pearson, spearman

TASKS = 40
"""Groups per seed."""


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Correlations of session advantages with true contributions, one value per seed."""

    within: list[float]
    """Mean Spearman within a trajectory, 0 where undefined."""
    within_defined: list[float]
    """The same over trajectories in which the truth differs between sessions."""
    successes: list[float]
    """Pearson over the sessions of successes."""
    pooled: list[float]
    """Pearson over all sessions."""
    scatter: list[tuple[float, float]]
    """Some pairs (true contribution, advantage) of the first seed."""


def fidelity(setting: Setting, method: Method, theta_SP: Floats, seeds: list[int]) -> Fidelity:
    """Measure on fresh episodes of the given policies, one row of `theta_SP` per seed."""
    episodes = play(setting, theta_SP, Draws(seeds), TASKS)
    given = method.estimator(episodes, Draws([seed + 1_000_000 for seed in seeds])) if method.estimator else None
    value_SNK, truth_SNK = advantages(episodes, given, method.rule).session_SNK, leave_one_out(episodes)
    used_SNK = episodes.used_SNK
    within, defined, successes, pooled = [], [], [], []
    for s in range(len(seeds)):
        pairs = [(value_SNK[s, n][used], truth_SNK[s, n][used]) for n, used in enumerate(used_SNK[s])]
        rho = np.array([spearman(*pair) for pair in pairs])
        differs = np.array([len(truth) > 1 and bool(np.ptp(truth) > 1e-9) for _, truth in pairs])
        within.append(float(rho.mean()))
        defined.append(float(rho[differs].mean()))
        pooled.append(pearson(value_SNK[s][used_SNK[s]], truth_SNK[s][used_SNK[s]]))
        won = used_SNK[s] & (episodes.reward_SN[s] == 1)[:, None]
        successes.append(pearson(value_SNK[s][won], truth_SNK[s][won]))
    first = used_SNK[0]
    scatter = list(zip(truth_SNK[0][first][:400].tolist(), value_SNK[0][first][:400].tolist(), strict=True))
    return Fidelity(within, defined, successes, pooled, scatter)
