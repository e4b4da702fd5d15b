"""The trajectory level: the numeric examples of mosaic.md 4.1, strata, the C2 guards and the baselines."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mosaic.credit import RULES, Baseline, CreditSettings, DropReason, SessionInput, Single, TrajectoryInput, assign
from mosaic.credit.trajectory import strata, usage_ranks

from .builders import SPEC, advantages, counted_group, group, session, trajectory

EXACT = SPEC


@pytest.mark.parametrize(
    ("rewards", "counts", "alpha", "expected"),
    [
        ([1, 1, 0, 0], [3, 5, 2, 6], 0.5, [1.5, 0.5, -1.5, -0.5]),
        ([1, 1, 0, 0], [2, 3, 2, 4], 0.3, [1.3, 0.7, -1.3, -0.7]),
        ([1, 1, 1, 1], [2, 3, 3, 5], 0.5, [0.25, 0, 0, -0.25]),
        ([0, 0, 0, 0], [2, 3, 3, 5], 0.5, [-0.1, 0, 0, 0.1]),
        ([1, 1, 1], [2, 2, 2], 0.5, [0, 0, 0]),
        ([0.2, 0.4, 0.9], [1, 4, 2], 0.5, [-1.01905, -0.33968, 1.35873]),
    ],
)
def test_the_examples_of_the_specification_come_out(
    rewards: list[float], counts: list[int], alpha: float, expected: list[float]
) -> None:
    [credit] = assign([counted_group(rewards, counts)], replace(EXACT, alpha=alpha, alpha_f=alpha))
    assert advantages(credit) == pytest.approx(expected, abs=1e-5)


def test_a_close_neighbour_halves_what_usage_may_move() -> None:
    given = counted_group([0, 0, 0.9, 0.9, 1, 1], [1, 1, 1, 2, 1, 2])
    [credit] = assign([given], replace(EXACT, alpha=0.9, alpha_f=0.9, baseline=Baseline.DR_GRPO))
    mean, move = 3.8 / 6, 0.9 * 0.05
    rewards = [0, 0, 0.9 + move, 0.9 - move, 1 + move, 1 - move]
    assert advantages(credit) == pytest.approx([r - mean for r in rewards])


def test_a_reward_at_the_threshold_is_a_success() -> None:
    assert advantages(assign([counted_group([0.5, 0.5], [1, 2])], EXACT)[0]) == [0.25, -0.25]


@pytest.mark.parametrize("count", [1, 4, 9])
def test_a_lone_success_of_eight_has_the_same_advantage_whatever_its_sessions(count: int) -> None:
    given = counted_group([1] + [0] * 7, [count, 1, 2, 3, 4, 5, 6, 7])
    [credit] = assign([given], replace(EXACT, alpha=0.5, alpha_f=0.5))
    assert advantages(credit)[0] == pytest.approx(2.646, abs=1e-3)
    assert advantages(credit)[1] == pytest.approx(-0.567, abs=1e-3)
    assert advantages(credit)[7] == pytest.approx(-0.189, abs=1e-3)


def test_graded_rewards_that_all_differ_are_grpo_even_on_the_grid_of_the_bins() -> None:
    rewards = [n * 0.05 for n in range(9)]
    given = counted_group(rewards, [9, 8, 7, 6, 5, 4, 3, 2, 1])
    assert advantages(assign([given], "mosaic")[0]) == advantages(assign([given], "grpo")[0])


def test_graded_rewards_of_one_bin_are_ranked_by_usage_and_keep_their_own_difference() -> None:
    given = counted_group([0.9, 0.92, 0.1], [2, 5, 3])
    [credit] = assign([given], replace(EXACT, alpha=0.5, alpha_f=0.5, baseline=Baseline.DR_GRPO))
    shift = 0.5 * (0.9 - 0.1) / 2
    assert advantages(credit) == pytest.approx([0.26 + shift, 0.28 - shift, -0.54])


@pytest.mark.parametrize(
    ("rewards", "width", "labels"),
    [
        ([0, 1, 0], 0.05, [0, 1, 0]),
        ([0.1, 0.14, 0.15, 0.19, 0.2], 0.05, [0, 0, 1, 1, 2]),
        ([0.49, 0.5], 0.05, [0, 1]),
        ([0.9, 0.8, 0.9, 0.9 + 1e-9], 0.0, [1, 0, 1, 1]),
        ([], 0.05, []),
    ],
)
def test_a_stratum_starts_at_its_lowest_reward_and_never_holds_successes_with_failures(
    rewards: list[float], width: float, labels: list[int]
) -> None:
    assert list(strata(np.array(rewards, dtype=np.float64), CreditSettings(bin_width=width))) == labels


@pytest.mark.parametrize(
    ("counts", "ranks"),
    [([2, 3, 3, 5], [0, 0.5, 0.5, 1]), ([7], [0.5]), ([4, 4], [0.5, 0.5]), ([], []), ([9, 1, 1], [1, 0.25, 0.25])],
)
def test_usage_ranks_share_ties(counts: list[float], ranks: list[float]) -> None:
    assert list(usage_ranks(np.array(counts, dtype=np.float64))) == ranks


def failure(tid: str, sessions: Sequence[SessionInput]) -> TrajectoryInput:
    return TrajectoryInput(trajectory_id=tid, reward=0.0, sessions=tuple(sessions))


def test_a_failure_is_not_paid_for_sessions_without_output_or_findings() -> None:
    busy = failure("busy", [session(f"b{k}") for k in range(3)])
    silent = failure("silent", [session("s0"), *(session(f"s{k}", effective=False) for k in range(1, 6))])
    repeating = failure("repeating", [session("r0"), *(session(f"r{k}", exploration=0.09) for k in range(1, 6))])
    [credit] = assign([group([busy, silent, repeating])], EXACT)
    assert [t.usage_rank for t in credit.trajectories] == [1.0, 0.25, 0.25]
    assert advantages(credit) == pytest.approx([0.1, -0.05, -0.05])


def test_a_failure_is_not_paid_for_sessions_beyond_the_cap() -> None:
    given = counted_group([0, 0, 0], [2, 3, 9])
    capped, free = assign([given], replace(EXACT, k_cap=3))[0], assign([given], EXACT)[0]
    assert [t.usage_rank for t in capped.trajectories] == [0, 0.75, 0.75]
    assert [t.usage_rank for t in free.trajectories] == [0, 0.5, 1]


def test_a_success_is_ranked_by_all_its_sessions() -> None:
    short = trajectory("short", 1.0, [None, None])
    long = trajectory("long", 1.0, [None, None, None], effective=False, exploration=0.0)
    assert advantages(assign([group([short, long])], EXACT)[0]) == pytest.approx([0.25, -0.25])


def test_effort_in_all_fail_groups_can_be_switched_off() -> None:
    given, settings = counted_group([0, 0], [1, 5]), replace(EXACT, c2_all_fail=False)
    [credit] = assign([given], settings)
    assert advantages(credit) == [0, 0]
    assert credit.drop_reason is DropReason.NO_CONTRAST
    assert advantages(assign([counted_group([1, 1], [1, 5])], settings)[0]) == [0.25, -0.25]


REWARDS, OTHERS = [1.0, 0.0, 0.5, 0.1], [1.0, 0.0, 0.0, 0.0]


def by_rule(rule: str | CreditSettings, *rewards: list[float]) -> list[list[float]]:
    batch = [counted_group(r, list(range(1, len(r) + 1)), f"{i}") for i, r in enumerate(rewards)]
    return [advantages(credit) for credit in assign(batch, rule)]


@pytest.mark.parametrize("name", ["grpo", "broadcast"])
def test_grpo_divides_the_difference_from_the_group_mean_by_the_groups_spread(name: str) -> None:
    reward_G = np.array(REWARDS)
    [values] = by_rule(name, REWARDS)
    assert values == pytest.approx((reward_G - 0.4) / reward_G.std(), rel=1e-5)


def test_dr_grpo_does_not_divide() -> None:
    assert by_rule("dr_grpo", REWARDS) == [pytest.approx([0.6, -0.4, 0.1, -0.3])]


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    others = [0.6 / 3, 1.6 / 3, 1.1 / 3, 1.5 / 3]
    assert by_rule("rloo", REWARDS) == [pytest.approx([r - o for r, o in zip(REWARDS, others, strict=True)])]


def test_reinforce_pp_divides_by_the_spread_of_the_batch() -> None:
    diffs = [np.array(REWARDS) - 0.4, np.array(OTHERS) - 0.25]
    sigma = np.concatenate(diffs).std()
    values = by_rule("reinforce_pp", REWARDS, OTHERS)
    assert values == [pytest.approx(diffs[0] / sigma, rel=1e-5), pytest.approx(diffs[1] / sigma, rel=1e-5)]


def test_reinforce_pp_compares_tasks_seen_once_with_the_batch() -> None:
    values = by_rule("reinforce_pp", [1.0], [0.0], [0.5], [])
    assert values == [[pytest.approx(1.2247, abs=1e-3)], [pytest.approx(-1.2247, abs=1e-3)], [0.0], []]


def test_any_rule_can_use_the_batch_for_tasks_seen_once_and_keeps_its_divisor() -> None:
    single = replace(RULES["mosaic"], single=Single.BATCH)
    assert by_rule(single, [1.0], [0.0]) == [[pytest.approx(1, rel=1e-5)], [pytest.approx(-1, rel=1e-5)]]
    assert by_rule(replace(single, baseline=Baseline.RLOO), [1.0], [0.0]) == [[0.5], [-0.5]]


def test_without_that_a_task_seen_once_is_dropped_and_does_not_touch_the_spread_of_the_batch() -> None:
    settings = replace(RULES["reinforce_pp"], single=Single.DROP)
    lone, alone = by_rule(settings, [1.0], REWARDS), by_rule(settings, REWARDS)
    assert lone == [[0.0], alone[0]]


def test_the_usage_term_does_not_enter_its_own_divisor() -> None:
    given = counted_group([1, 1, 0, 0], [1, 9, 1, 9])
    values = [
        advantages(assign([given], replace(EXACT, alpha=alpha, alpha_f=alpha))[0])[0] for alpha in (0.0, 0.2, 0.4)
    ]
    assert values == pytest.approx([1.0, 1.2, 1.4])


def test_the_slowest_of_many_successes_falls_below_zero_and_stays_above_every_failure() -> None:
    given = counted_group([1, 1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1, 8, 3])
    values = advantages(assign([given], replace(EXACT, alpha=0.95))[0])
    assert values[7] < values[6] < 0 < values[0]
