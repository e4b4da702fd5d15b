"""The constants of the credit rules, and the rules by name.

Every rule is one `CreditSettings`: the baselines are Mosaic with its usage term and its session shaping set to zero, so
that the reductions of the rule hold by construction. All defaults are this project's own; the idea of Mosaic is that of
arXiv 2610.22174, whose formulas and constants were not available to us.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any


class Baseline(StrEnum):
    """What a reward is compared with, and what the difference is divided by."""

    GRPO = "grpo"
    """(R - group mean) / group standard deviation: GRPO, arXiv 2402.03300."""
    DR_GRPO = "dr_grpo"
    """R - group mean: Dr. GRPO, arXiv 2503.20783."""
    RLOO = "rloo"
    """R - mean of the other trajectories: RLOO, arXiv 2402.14740."""
    REINFORCE_PP = "reinforce_pp"
    """(R - group mean) / batch standard deviation: REINFORCE++-baseline, arXiv 2501.03262, over trajectories here."""


class Single(StrEnum):
    """What happens to a trajectory that is alone in its group."""

    DROP = "drop"
    BATCH = "batch"
    """It is compared with the mean reward of the batch: REINFORCE++, arXiv 2501.03262."""


class Renorm(StrEnum):
    """Over what the positive and the negative mass of the advantages is conserved."""

    BATCH = "batch"
    GROUP = "group"
    OFF = "off"


class LossMean(StrEnum):
    """How the loss averages inside a trajectory; renormalisation weights the sessions in the same way."""

    TRAJECTORY = "trajectory"
    """Every trained token of the trajectory weighs the same."""
    AGENT = "agent"
    """Every session with trained tokens weighs the same (agent-mean of WideSeek-R1)."""


class Granularity(StrEnum):
    """What has a credit of its own."""

    SESSION = "session"
    CALL = "call"
    """A call, by its information gain (IGPO, arXiv 2510.14967, per turn), below its session."""
    CHUNK = "chunk"
    """A tool result, scored in the same way; a call has the mean of its results. This project's own."""


class SpawnSpan(StrEnum):
    """Which advantage the tokens get that start a subagent."""

    TRAJECTORY = "trajectory"
    CHILDREN = "children"
    """The mean over the subagents that the call started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreditSettings:
    """Every constant of a credit rule; all are this project's own design (mosaic.md, section 4)."""

    baseline: Baseline = Baseline.GRPO
    single: Single = Single.DROP
    success_reward: float = 0.5
    """r*: a reward of at least this is a success."""
    bin_width: float = 0.05
    """Rewards closer than this are of one stratum, in units of the reward; 0 means equal rewards only."""
    alpha: float = 0.95
    """Strength of the usage term among the successes of a group with different rewards, in [0, 1): the share of half
    the distance to the next stratum that the fewest sessions gain and the most lose."""
    alpha_f: float = 0.02
    """The same for failures (C2), in [0, 1), and at most their distance to the mean: it pays for effort alone."""
    beta_s: float = 2.0
    """Largest advantage from usage when all rewards are equal and a success."""
    beta_f: float = 0.02
    """The same when all are a failure. Keep it below `beta_s`: it pays for effort alone."""
    c2_all_fail: bool = True
    """False: a group in which all rewards are equal and a failure gives no signal."""
    k_cap: int = 16
    """More sessions than this do not count as more effort in a failure, >= 1."""
    x_min: float = 0.1
    """Least exploration score of a session that counts as effort in a failure."""
    gamma: float = 1.0
    """Strength of the shaping by contribution, in [0, 1]; 0 means none."""
    gamma_f: float = 0.4
    """Strength of the shaping by exploration, in [0, 1]; 0 means none."""
    tau: float = 0.0
    """A failure whose largest contribution is at most this is shaped by exploration."""
    s_min: float = 1e-3
    """Least scale by which contributions and exploration scores are divided, > 0."""
    scale_quantile: float = 1.0
    """Quantile of the positive values of the group that counts as full contribution, in [0, 1]; 1 is the largest."""
    granularity: Granularity = Granularity.SESSION
    gamma_call: float = 0.4
    """Strength of the shaping by a call's own gain, in [0, 1]; used with a granularity below the session."""
    renorm: Renorm = Renorm.BATCH
    loss_mean: LossMean = LossMean.TRAJECTORY
    spawn_span: SpawnSpan = SpawnSpan.TRAJECTORY
    spawn_usage: float = 0.25
    """Share of the usage term, in [0, 1], that the call bears which starts subagents (with `SpawnSpan.TRAJECTORY`): it
    sets their number at once and before anything is known, so the whole term would make it too timid."""
    epsilon: float = 1e-6
    """Added to a standard deviation before dividing; rewards within it are equal; > 0, in units of the reward."""

    def __post_init__(self) -> None:
        """Reject what the guarantees of the rule do not cover."""
        for name in ("alpha", "alpha_f"):
            self._check(name, "in [0, 1), or a worse reward could win", 0 <= getattr(self, name) < 1)
        for name in ("gamma", "gamma_f", "gamma_call", "scale_quantile", "x_min", "spawn_usage"):
            self._check(name, "in [0, 1]", 0 <= getattr(self, name) <= 1)
        for name in ("beta_s", "beta_f", "bin_width"):
            self._check(name, ">= 0 and finite", 0 <= getattr(self, name) < float("inf"))
        for name in ("epsilon", "s_min"):
            self._check(name, "> 0 and finite", 0 < getattr(self, name) < float("inf"))
        self._check("k_cap", ">= 1", self.k_cap >= 1)
        self._check("success_reward", "a number", self.success_reward == self.success_reward)
        self._check("tau", "a number", self.tau == self.tau)
        for field in fields(self):
            kind = type(field.default)
            if issubclass(kind, StrEnum):
                # Configuration arrives as text; an unknown name raises here and not as a silent other branch later.
                object.__setattr__(self, field.name, kind(getattr(self, field.name)))

    def _check(self, name: str, expected: str, holds: bool) -> None:
        if not holds:
            raise ValueError(f"credit setting {name} = {getattr(self, name)!r}: must be {expected}")


def _baseline(baseline: Baseline, single: Single = Single.DROP) -> CreditSettings:
    return CreditSettings(baseline=baseline, single=single, alpha=0, alpha_f=0, beta_s=0, beta_f=0, gamma=0, gamma_f=0)


RULES: Mapping[str, CreditSettings] = MappingProxyType(
    {
        "broadcast": _baseline(Baseline.GRPO),
        "grpo": _baseline(Baseline.GRPO),
        "dr_grpo": _baseline(Baseline.DR_GRPO),
        "rloo": _baseline(Baseline.RLOO),
        "reinforce_pp": _baseline(Baseline.REINFORCE_PP, Single.BATCH),
        "mosaic": CreditSettings(),
        "mosaic:trajectory": CreditSettings(gamma=0, gamma_f=0, spawn_usage=1),
        "mosaic:session": CreditSettings(alpha=0, alpha_f=0, beta_s=0, beta_f=0),
        "call": CreditSettings(granularity=Granularity.CALL),
        "chunk": CreditSettings(granularity=Granularity.CHUNK),
    }
)
"""The rules by name. To change a constant: `dataclasses.replace(RULES["mosaic"], alpha=0.2)`."""


def rule_settings(rule: str | CreditSettings, options: Mapping[str, Any] = MappingProxyType({})) -> CreditSettings:
    """Return the settings of a rule given by name, with the options changed; settings pass through.

    Raises ValueError, which lists the names where one is not known.
    """
    if isinstance(rule, str) and rule not in RULES:
        raise ValueError(f"no credit rule is named {rule!r}; choose one of: {', '.join(RULES)}")
    settings = RULES[rule] if isinstance(rule, str) else rule
    known = [field.name for field in fields(settings)]
    if unknown := [name for name in options if name not in known]:
        raise ValueError(f"a credit rule has no option {unknown[0]!r}; choose of: {', '.join(known)}")
    try:
        return replace(settings, **options) if options else settings
    except TypeError as error:  # text where a number belongs
        raise ValueError(f"options of the credit rule: {error}") from error
