"""Blending estimates and comparing them with the truth."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic.credit import Blend, Estimate, GroupStatistics, Known, blend, calibrate
from mosaic.credit.estimate import pearson, spearman
from mosaic.records import Group

from .builders import call, quick, recorded, recorded_session, tool_result

value = st.floats(-1, 1)
estimates = st.builds(Estimate, value, st.floats(1e-3, 10), st.sampled_from("ab"))


@quick
@given(st.lists(estimates, min_size=1, max_size=4))
def test_a_blend_lies_between_its_parts_and_is_surer_than_each(parts: list[Estimate]) -> None:
    mixed = blend(parts)
    assert min(p.value for p in parts) - 1e-9 <= mixed.value <= max(p.value for p in parts) + 1e-9
    assert mixed.variance <= min(p.variance for p in parts) + 1e-12


def test_precision_decides_and_the_sources_are_named() -> None:
    mixed = blend([Estimate(0.0, 1.0, "weak"), Estimate(1.0, 0.25, "strong")])
    assert (mixed.value, mixed.variance) == pytest.approx((0.8, 0.2))
    assert mixed.source == "weak+strong"


def test_certainty_stands_alone_and_what_says_nothing_counts_only_without_others() -> None:
    nothing, nan, sure = Estimate(0.3, math.inf, "n"), Estimate(math.nan, 1.0, "x"), Estimate(0.5, 0.0, "s")
    assert blend([nothing, sure, Estimate(9.0, 1.0, "o")]) == sure
    assert blend([nan, nothing, Estimate(0.25, 2.0, "o")]) == Estimate(0.25, 2.0, "o")
    assert blend([nothing, nan]) == nothing


def test_a_blend_of_estimators_knows_what_any_of_them_knows() -> None:
    sessions = [recorded_session(s, [call(f"c-{s}", 1, [tool_result(f"i-{s}", f"page {s}")])]) for s in "ab"]
    group = Group("task", (recorded("t", sessions[:1], 1.0), recorded("u", sessions[1:], 0.0)))
    known = Known({"a": Estimate(0.9, 0.01, "scored"), "elsewhere": Estimate(0.1, 0.1, "scored")})
    found = Blend((known, GroupStatistics())).contributions(group)
    assert {sid: e.source for sid, e in found.items()} == {"a": "scored+group", "b": "group"}
    assert known.contributions(group).keys() == {"a"}


def test_equal_rewards_say_nothing_about_who_found_what() -> None:
    sessions = [recorded_session(s, [call(f"c-{s}", 1, [tool_result(f"i-{s}", f"page {s}")])]) for s in "ab"]
    group = Group("task", (recorded("t", sessions[:1], 1.0), recorded("u", sessions[1:], 1.0)))
    assert {e.variance for e in GroupStatistics().contributions(group).values()} == {math.inf}


def test_calibration_finds_slope_error_and_rank_correlation() -> None:
    truth = {str(k): Estimate(v, 0.0, "replay") for k, v in enumerate([0.0, 0.2, 0.4, -0.2])}
    guess = {sid: Estimate(e.value / 2, 1.0, "guess") for sid, e in truth.items()} | {"9": Estimate(0.5, 1, "guess")}
    fitted = calibrate(guess, truth)
    assert fitted is not None
    assert (fitted.slope, fitted.spearman, fitted.sessions) == pytest.approx((2, 1, 4))
    applied = fitted.apply(guess)["1"]
    assert (applied.value, applied.variance) == pytest.approx((0.2, 0))
    assert applied.source == "guess"


def test_calibration_needs_three_sessions_and_never_turns_an_estimate_round() -> None:
    truth = {str(k): Estimate(float(k), 0.0, "replay") for k in range(3)}
    assert calibrate({"1": Estimate(1.0, 1.0, "g")}, truth) is None
    against = calibrate({sid: Estimate(-e.value, 1.0, "g") for sid, e in truth.items()}, truth)
    silent = calibrate({sid: Estimate(0.0, 1.0, "g") for sid in truth}, truth)
    assert against is not None
    assert silent is not None
    assert (against.slope, silent.slope, silent.spearman) == (0.0, 0.0, 0.0)


def test_correlations_are_zero_where_they_are_undefined() -> None:
    up, flat = np.array([1.0, 2.0, 3.0]), np.ones(3)
    assert spearman(up, up**3) == pytest.approx(1)
    assert spearman(up, np.array([3.0, 1.0, 1.0])) == pytest.approx(-0.8660254)
    assert [pearson(up, flat), pearson(flat, up), pearson(up[:1], up[:1])] == [0, 0, 0]
    assert pearson(np.array([0.0, 1e-200]), np.array([0.0, 1e-200])) == 0.0
