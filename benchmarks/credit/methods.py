"""The rules and estimators that the simulation compares, by name, and its seeds."""

from dataclasses import dataclass, replace

from benchmarks.credit.contributions import Estimator, blended, group, information_gain, replay
from mosaic.credit import RULES, CreditSettings

TUNING_SEEDS = tuple(range(16))
"""Every choice of a constant or a rule was made on these."""

FRESH_SEEDS = tuple(range(1000, 1012))
"""Results are for these; nothing was chosen on them."""

MOSAIC = RULES["mosaic"]


@dataclass(frozen=True, slots=True)
class Method:
    """A rule with the estimator that feeds it."""

    rule: CreditSettings
    estimator: Estimator | None = None


METHODS: dict[str, Method] = {
    "broadcast": Method(RULES["broadcast"]),
    "mosaic": Method(MOSAIC, information_gain),
    "mosaic, group": Method(MOSAIC, group),
    "mosaic, blend": Method(MOSAIC, blended),
    "mosaic, true contribution": Method(MOSAIC, replay),
    "without session shaping": Method(RULES["mosaic:trajectory"]),
    "without usage": Method(RULES["mosaic:session"], information_gain),
    "without gate": Method(replace(MOSAIC, tau=float("-inf")), information_gain),
}
"""`mosaic` is the rule with its defaults and contributions by information gain."""
