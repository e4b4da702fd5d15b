"""Rules by name and the limits of their constants."""

from dataclasses import replace
from typing import Any

import pytest

from mosaic.credit import RULES, Baseline, CreditSettings, Renorm, assign, rule_settings

from .builders import counted_group


def test_an_unknown_rule_is_refused_with_the_names_to_choose_from() -> None:
    with pytest.raises(ValueError, match="'mosiac'") as caught:
        assign([], "mosiac")
    assert all(name in str(caught.value) for name in RULES)


def test_a_rule_can_be_given_by_name_or_by_its_settings() -> None:
    given = counted_group([1, 1, 0], [1, 2, 3])
    assert assign([given], "mosaic") == assign([given], CreditSettings()) == assign([given])
    assert rule_settings("rloo") is RULES["rloo"]


def test_the_ablations_are_mosaic_with_one_level_taken_away() -> None:
    given = counted_group([1, 1, 0, 0], [1, 2, 1, 2])
    assert rule_settings("mosaic:trajectory") == replace(CreditSettings(), gamma=0, gamma_f=0, spawn_usage=1)
    grpo, session_only = assign([given], "grpo")[0], assign([given], "mosaic:session")[0]
    assert [t.advantage for t in session_only.trajectories] == [t.advantage for t in grpo.trajectories]


@pytest.mark.parametrize(
    "wrong",
    [
        {"alpha": 1.0},
        {"alpha": -0.1},
        {"gamma": 1.1},
        {"gamma_f": -0.1},
        {"scale_quantile": 2},
        {"x_min": float("nan")},
        {"beta_s": -1},
        {"beta_f": float("inf")},
        {"bin_width": -0.1},
        {"epsilon": 0},
        {"s_min": 0},
        {"k_cap": 0},
        {"success_reward": float("nan")},
        {"tau": float("nan")},
    ],
)
def test_a_constant_outside_its_range_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        CreditSettings(**wrong)


def test_choices_can_be_written_as_text_and_are_checked() -> None:
    texts: dict[str, Any] = {"renorm": "group", "baseline": "rloo"}
    settings = CreditSettings(**texts)
    assert settings.renorm is Renorm.GROUP
    assert settings.baseline is Baseline.RLOO
    with pytest.raises(ValueError, match="grop"):
        CreditSettings(renorm="grop")  # type: ignore[arg-type]
