"""What is dropped before centring, and why."""

from dataclasses import replace

import pytest

from mosaic.credit import DropReason, Single, assign, rule_settings

from .builders import advantages, counted_group, group, trajectory


def test_what_cannot_be_compared_is_dropped_before_centring_and_named() -> None:
    kept = [trajectory("a", 1.0, [None]), trajectory("b", 0.0, [None])]
    gone = [
        trajectory("unscored", None, [None]),
        trajectory("nan", float("nan"), [None]),
        trajectory("empty", 1.0, [None], tokens=0),
        trajectory("bare", 1.0, []),
        replace(trajectory("cut", 0.0, [None]), exclusion=DropReason.TRUNCATED),
    ]
    alone, beside = assign([group(kept)], "mosaic")[0], assign([group([*gone, *kept])], "mosaic")[0]
    assert beside.trajectories == alone.trajectories
    assert beside.dropped == {
        "unscored": DropReason.UNSCORED,
        "nan": DropReason.REWARD_NOT_FINITE,
        "empty": DropReason.NO_TOKENS,
        "bare": DropReason.NO_TOKENS,
        "cut": DropReason.TRUNCATED,
    }


@pytest.mark.parametrize("rule", ["mosaic", "grpo", "dr_grpo", "rloo"])
def test_a_group_of_one_has_nothing_to_compare_and_says_so(rule: str) -> None:
    [credit] = assign([counted_group([1], [3])], rule)
    assert advantages(credit) == [0.0]
    assert credit.drop_reason is DropReason.TOO_FEW


def test_with_a_batch_baseline_only_an_empty_group_has_too_few() -> None:
    batch = [counted_group([1], [1], "a"), counted_group([0], [1], "b"), counted_group([], [], "c")]
    reasons = [credit.drop_reason for credit in assign(batch, "reinforce_pp")]
    assert reasons == [None, None, DropReason.TOO_FEW]


@pytest.mark.parametrize("rule", ["mosaic", "grpo", "dr_grpo", "rloo", "reinforce_pp"])
def test_equal_rewards_and_equal_counts_give_no_signal(rule: str) -> None:
    [credit] = assign([counted_group([0.3, 0.1 + 0.2], [2, 2])], rule)
    assert advantages(credit) == [0.0, 0.0]
    assert credit.drop_reason is DropReason.NO_CONTRAST


def test_an_empty_batch_gives_an_empty_result() -> None:
    assert assign([], "mosaic") == []
    assert assign([], replace(rule_settings("mosaic"), single=Single.BATCH)) == []
