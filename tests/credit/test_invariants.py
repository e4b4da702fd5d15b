"""The invariants of mosaic.md, section 5, in its order, and the reductions of section 4.7.

`EXACT` has no `epsilon` to speak of, so that what holds exactly on paper holds to rounding here.
"""

import itertools
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mosaic.credit import RULES, Baseline, CreditSettings, GroupInput, LossMean, Renorm, TrajectoryInput, assign
from mosaic.credit.trajectory import strata

from .builders import (
    advantages,
    binary,
    contribution,
    graded,
    group,
    groups,
    map_sessions,
    mixed,
    quick,
    session,
    session_advantages,
    trajectory,
)

EXACT = CreditSettings(epsilon=1e-12)
strengths = st.sampled_from([0.05, 0.1, 0.3, 0.5, 0.9])
maybe = st.none() | contribution | st.just(float("nan"))


def tuned(alpha: float, **fields: object) -> CreditSettings:
    return replace(EXACT, alpha=alpha, alpha_f=alpha, **fields)  # type: ignore[arg-type]


def effort(t: TrajectoryInput) -> int:
    """Sessions that C2 counts, written out independently."""
    good = [s for s in t.sessions if s.effective and s.exploration >= EXACT.x_min]
    return min(max(len(good), 1), EXACT.k_cap)


@quick
@given(groups(binary | graded), strengths, st.sampled_from([Baseline.GRPO, Baseline.DR_GRPO, Baseline.RLOO]))
def test_1_the_advantages_of_a_group_sum_to_zero(sample: GroupInput, alpha: float, baseline: Baseline) -> None:
    [credit] = assign([sample], tuned(alpha, baseline=baseline))
    assert sum(advantages(credit)) == pytest.approx(0, abs=1e-9)


@quick
@given(groups(binary | graded), strengths)
def test_2_a_better_reward_always_has_the_larger_advantage(sample: GroupInput, alpha: float) -> None:
    assume(mixed(sample))
    [credit] = assign([sample], tuned(alpha))
    for t, a in zip(sample.trajectories, advantages(credit), strict=True):
        for u, b in zip(sample.trajectories, advantages(credit), strict=True):
            assert t.reward is not None
            assert u.reward is not None
            assert t.reward <= u.reward or a > b


@quick
@given(groups(st.integers(0, 1000).map(lambda n: n / 1000)), strengths)
def test_2_for_rewards_within_a_bin_the_order_holds_between_bins(sample: GroupInput, alpha: float) -> None:
    [credit] = assign([sample], tuned(alpha))
    label_G = strata(np.array([t.reward for t in sample.trajectories], dtype=np.float64), EXACT)
    value_G = np.array(advantages(credit))
    for label in range(int(label_G.max())):
        assert value_G[label_G == label].max() < value_G[label_G == label + 1].min()


@quick
@given(groups(), strengths)
def test_3_fewer_sessions_rank_higher_in_successes_and_more_effort_in_failures(
    sample: GroupInput, alpha: float
) -> None:
    [credit] = assign([sample], tuned(alpha))
    rows = list(zip(sample.trajectories, advantages(credit), strict=True))
    for t, a in rows:
        for u, b in rows:
            if t.reward == u.reward == 1.0:
                assert len(t.sessions) >= len(u.sessions) or a > b
                assert len(t.sessions) != len(u.sessions) or a == pytest.approx(b)
            if t.reward == u.reward == 0.0:
                assert effort(t) <= effort(u) or a > b
                assert effort(t) != effort(u) or a == pytest.approx(b)


@quick
@given(groups(), strengths)
def test_4_the_outcome_keeps_its_sign_and_no_effort_makes_a_failure_good(sample: GroupInput, alpha: float) -> None:
    """Weaker than mosaic.md's: there, no success could fall below zero either (docs/decisions.md)."""
    assume(mixed(sample))
    [credit] = assign([sample], tuned(alpha))
    for t, out in zip(sample.trajectories, credit.trajectories, strict=True):
        assert (out.advantage - out.usage > 0) == (t.reward == 1.0)
        assert t.reward == 1.0 or out.advantage < 0


@quick
@given(groups(binary | graded, count=st.just(3)), strengths)
def test_5_with_equal_session_counts_the_trajectory_level_is_grpo(sample: GroupInput, alpha: float) -> None:
    alike = map_sessions(sample, lambda s: replace(s, effective=True, exploration=1.0))
    [mosaic], [grpo] = assign([alike], tuned(alpha)), assign([alike], replace(RULES["grpo"], epsilon=EXACT.epsilon))
    assert advantages(mosaic) == advantages(grpo)


@quick
@given(groups(st.just(1.0)) | groups(st.just(0.0)))
def test_6_a_group_of_equal_rewards_ranks_by_usage_within_its_bound(sample: GroupInput) -> None:
    [credit] = assign([sample], EXACT)
    success = sample.trajectories[0].reward == 1.0
    counts = [len(t.sessions) if success else -effort(t) for t in sample.trajectories]
    values = advantages(credit)
    assert max(map(abs, values)) <= (EXACT.beta_s if success else EXACT.beta_f)
    for k, a in zip(counts, values, strict=True):
        for other, b in zip(counts, values, strict=True):
            assert (k < other) == (a > b)


@quick
@given(groups(binary | graded, maybe), strengths, st.sampled_from(Renorm))
def test_7_no_session_is_pushed_against_a_part_of_its_trajectorys_advantage(
    sample: GroupInput, alpha: float, renorm: Renorm
) -> None:
    [credit] = assign([sample], tuned(alpha, renorm=renorm))
    for t in credit.trajectories:
        outcome = t.advantage - t.usage
        assert all(s.factor >= 0 and s.usage_factor >= 0 for s in t.sessions)
        parts = [outcome * s.factor + t.usage * s.usage_factor for s in t.sessions]
        assert [s.advantage for s in t.sessions] == pytest.approx(parts, abs=1e-9)


@quick
@given(groups(binary | graded, maybe), st.sampled_from(Renorm))
def test_7_without_usage_no_session_is_pushed_against_its_trajectory(sample: GroupInput, renorm: Renorm) -> None:
    [credit] = assign([sample], replace(RULES["mosaic:session"], renorm=renorm))
    assert all(s.advantage * t.advantage >= 0 for t in credit.trajectories for s in t.sessions)


def masses(batch: list[GroupInput], settings: CreditSettings) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Per group, part and sign: mass of the trajectories' advantages minus their sessions', as the loss weighs it."""
    rows = []
    for sample, credit in zip(batch, assign(batch, settings), strict=True):
        row = [0.0] * 4
        for t, out in zip(sample.trajectories, credit.trajectories, strict=True):
            token_K = np.array([s.tokens for s in t.sessions], dtype=np.float64)
            weight_K = token_K if settings.loss_mean is LossMean.TRAJECTORY else (token_K > 0) * 1.0
            factors = [s.factor for s in out.sessions], [s.usage_factor for s in out.sessions]
            for index, (part, factor_K) in enumerate(zip((out.advantage - out.usage, out.usage), factors, strict=True)):
                mean = float((weight_K * np.array(factor_K)).sum() / weight_K.sum())
                row[2 * index + (part < 0)] += part * (1 - mean)
        rows.append(row)
    return np.array(rows)


SOFT = replace(EXACT, gamma=0.8)
"""With less than full shaping there is always a mass that can be conserved."""


@quick
@given(groups(binary | graded, maybe), strengths, st.sampled_from(LossMean))
def test_8_group_renormalisation_conserves_the_mass_of_each_sign_in_the_group(
    sample: GroupInput, alpha: float, loss_mean: LossMean
) -> None:
    assert masses([sample], tuned(alpha, gamma=0.8, renorm=Renorm.GROUP, loss_mean=loss_mean)) == pytest.approx(
        0, abs=1e-9
    )


@quick
@given(groups(binary | graded, maybe), groups(binary, key="other"), strengths, st.sampled_from(LossMean))
def test_8_batch_renormalisation_conserves_the_mass_of_each_sign_in_the_batch(
    first: GroupInput, second: GroupInput, alpha: float, loss_mean: LossMean
) -> None:
    rows = masses([first, second], tuned(alpha, gamma=0.8, loss_mean=loss_mean))
    assert rows.sum(axis=0) == pytest.approx(0, abs=1e-9)


def test_8_batch_renormalisation_moves_mass_between_groups_and_none_conserves_nothing() -> None:
    helpful = group([trajectory("a", 1.0, [0.5, 0.5]), trajectory("b", 0.0, [0.0, 0.0])])
    useless = group([trajectory("c", 1.0, [0.0, 0.0]), trajectory("d", 0.0, [0.0, 0.0])], "other")
    assert abs(masses([helpful, useless], SOFT)[0, 0]) > 0.1
    assert abs(masses([helpful, useless], replace(SOFT, renorm=Renorm.OFF)).sum(axis=0)[0]) > 0.1


@quick
@given(groups(binary | graded), strengths, st.sampled_from(Renorm))
def test_9_a_larger_value_never_has_the_smaller_advantage(sample: GroupInput, alpha: float, renorm: Renorm) -> None:
    [credit] = assign([sample], tuned(alpha, renorm=renorm))
    for t, out in zip(sample.trajectories, credit.trajectories, strict=True):
        explored = out.sessions[0].gate == "exploration"
        value_K = [s.exploration if explored else (s.contribution or 0.0) for s in t.sessions]
        rows = sorted(zip(value_K, (s.advantage for s in out.sessions), strict=True))
        assert all(low[1] <= high[1] + 1e-12 for low, high in itertools.pairwise(rows))


@quick
@given(groups(), st.sampled_from([0.01, 0.5, 7.0, 1000.0]))
def test_10_scaling_all_contributions_changes_nothing(sample: GroupInput, scale: float) -> None:
    settings = replace(EXACT, s_min=1e-9)
    scaled = map_sessions(sample, lambda s: replace(s, contribution=(s.contribution or 0.0) * scale))
    before, after = (session_advantages(assign([g], settings)[0]) for g in (sample, scaled))
    assert after == pytest.approx(before, abs=1e-9)


@quick
@given(groups(binary | graded, maybe, st.just(1)), groups(binary, maybe, st.just(1), "other"))
def test_11_with_one_session_each_mosaic_is_grpo_exactly(first: GroupInput, second: GroupInput) -> None:
    mosaic, grpo = assign([first, second], "mosaic"), assign([first, second], "grpo")
    for ours, theirs, sample in zip(mosaic, grpo, (first, second), strict=True):
        assert session_advantages(ours) == session_advantages(theirs)
        reward_G = np.array([t.reward for t in sample.trajectories], dtype=np.float64)
        assert advantages(ours) == pytest.approx((reward_G - reward_G.mean()) / (reward_G.std() + 1e-6), abs=1e-9)


@quick
@given(groups(binary | graded, maybe), strengths, st.sampled_from(Renorm))
def test_12_without_shaping_every_session_has_its_trajectorys_advantage(
    sample: GroupInput, alpha: float, renorm: Renorm
) -> None:
    [credit] = assign([sample], tuned(alpha, gamma=0, gamma_f=0, renorm=renorm))
    assert all(s.advantage == t.advantage for t in credit.trajectories for s in t.sessions)


@quick
@given(groups(binary | graded, maybe), groups(binary, key="other"), st.randoms(use_true_random=False), strengths)
def test_13_the_order_of_sessions_trajectories_and_groups_does_not_matter(
    first: GroupInput, second: GroupInput, random: Random, alpha: float
) -> None:
    def shuffled(sample: GroupInput) -> GroupInput:
        turned = [replace(t, sessions=tuple(random.sample(t.sessions, len(t.sessions)))) for t in sample.trajectories]
        return group(random.sample(turned, len(turned)), sample.task_key)

    settings = tuned(alpha)
    straight = assign([first, second], settings)
    turned = assign([shuffled(second), shuffled(first)], settings)[::-1]
    for before, after in zip(straight, turned, strict=True):
        assert session_advantages(after) == pytest.approx(session_advantages(before), abs=1e-9)


def padded(sample: GroupInput, index: int) -> GroupInput:
    """The group in which one trajectory has a further session that contributed nothing."""
    trajectories = list(sample.trajectories)
    old = trajectories[index]
    trajectories[index] = replace(old, sessions=(*old.sessions, session("padding", 0.0, exploration=0.0)))
    return group(trajectories, sample.task_key)


@quick
@given(groups(value=st.none() | contribution), strengths)
def test_14_padding_a_success_raises_none_of_its_sessions(sample: GroupInput, alpha: float) -> None:
    settings = tuned(alpha, renorm=Renorm.OFF)
    assume(any(t.reward == 1.0 for t in sample.trajectories))
    for index, t in enumerate(sample.trajectories):
        if t.reward == 1.0:
            before = session_advantages(assign([sample], settings)[0])
            after = session_advantages(assign([padded(sample, index)], settings)[0])
            assert all(after[s.session_id] <= before[s.session_id] + 1e-12 for s in t.sessions)


def test_14_the_rejected_first_version_fails_the_padding_test() -> None:
    """Guard: centring contributions inside the trajectory (v1 of mosaic.md, 4.4 a) pays a success for padding."""

    def v1(values: list[float]) -> list[float]:
        centred_K = np.array(values) - np.mean(values)
        return list(1.0 + 0.9 * centred_K / max(float(np.abs(centred_K).max()), 1e-9))

    lean, fat = v1([0.6, 0.6]), v1([0.6, 0.6, 0.0])
    assert lean == pytest.approx([1.0, 1.0])
    assert fat == pytest.approx([1.45, 1.45, 0.1])
    assert fat[0] > lean[0]
    one_success = [trajectory("lean", 1.0, [0.6, 0.6]), trajectory("fail", 0.0, [0.0])]
    settings = replace(SOFT, renorm=Renorm.OFF)
    before = session_advantages(assign([group(one_success)], settings)[0])
    after = session_advantages(assign([padded(group(one_success), 0)], settings)[0])
    assert [before["lean.0"], before["lean.1"]] == pytest.approx([1.0, 1.0])
    assert [after["lean.0"], after["lean.1"], after["padding"]] == pytest.approx([1.0, 1.0, 0.2])


def test_14_group_renormalisation_pays_a_single_success_for_padding_and_batch_dilutes_it() -> None:
    one_success = padded(group([trajectory("lean", 1.0, [0.6, 0.6]), trajectory("fail", 0.0, [0.0])]), 0)
    others = [group([trajectory(f"s{i}", 1.0, [0.6]), trajectory(f"f{i}", 0.0, [0.0])], f"{i}") for i in range(9)]
    by_group = assign([one_success, *others], replace(SOFT, renorm=Renorm.GROUP))
    by_batch = assign([one_success, *others], SOFT)
    assert session_advantages(by_group[0])["lean.0"] == pytest.approx(15 / 11)
    assert session_advantages(by_batch[0])["lean.0"] == pytest.approx(10 / (10 - 0.8 / 3))


@quick
@given(groups(binary | graded), st.sampled_from([0.1, 1.0, 3.0, 10.0]), st.integers(-5, 5), strengths)
def test_scaling_and_shifting_all_rewards_with_their_units_changes_nothing(
    sample: GroupInput, scale: float, shift: int, alpha: float
) -> None:
    assume(mixed(sample))
    settings = tuned(alpha)
    moved = replace(
        settings,
        success_reward=settings.success_reward * scale + shift,
        bin_width=settings.bin_width * scale,
        epsilon=settings.epsilon * scale,
    )
    other = group([replace(t, reward=(t.reward or 0.0) * scale + shift) for t in sample.trajectories])
    before, after = assign([sample], settings)[0], assign([other], moved)[0]
    assert session_advantages(after) == pytest.approx(session_advantages(before), abs=1e-6)


@quick
@given(
    st.lists(groups(st.none() | binary | graded | st.just(float("nan")), maybe | st.just(float("inf"))), max_size=3),
    st.sampled_from([*RULES.values(), replace(RULES["mosaic"], gamma=1.0, gamma_f=1.0)]),
    st.sampled_from(Renorm),
)
def test_every_output_is_finite_whatever_is_missing(
    batch: list[GroupInput], rule: CreditSettings, renorm: Renorm
) -> None:
    for sample, credit in zip(batch, assign(batch, replace(rule, renorm=renorm)), strict=True):
        rows = [s for t in credit.trajectories for s in t.sessions]
        assert np.isfinite([*advantages(credit), *(v for s in rows for v in (s.advantage, s.factor))]).all()
        seen = {t.trajectory_id for t in credit.trajectories} | set(credit.dropped)
        assert seen == {t.trajectory_id for t in sample.trajectories}
