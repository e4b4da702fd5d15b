"""The contribution by group statistics (E2)."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic.credit import GroupStatistics
from mosaic.records import Group, Trajectory

from .builders import call, graded, quick, recorded, recorded_session, tool_result


def attempt(tid: str, reward: float, *found: Sequence[str]) -> Trajectory:
    """A trajectory whose sessions found these texts."""
    sessions = []
    for k, texts in enumerate(found):
        messages = [tool_result(f"{tid}.{k}.{n}", text) for n, text in enumerate(texts)]
        sessions.append(recorded_session(f"{tid}.{k}", [call(f"{tid}.{k}", k, messages)]))
    return recorded(tid, sessions, reward)


def contributions(*trajectories: Trajectory, shrinkage: float = 1.0) -> dict[str, float]:
    found = GroupStatistics(shrinkage).contributions(Group("task", trajectories))
    assert {e.source for e in found.values()} <= {"group"}
    return {session_id: e.value for session_id, e in found.items()}


def lift(rewards: Sequence[float], holds: Sequence[bool]) -> float:
    """The formula of mosaic.md, 4.2, as it is written there."""
    mean, count, held = sum(rewards) / len(rewards), len(rewards), sum(holds)
    with_e = sum(r for r, h in zip(rewards, holds, strict=True) if h)
    without = sum(rewards) - with_e
    return (with_e + mean) / (held + 1) - (without + mean) / (count - held + 1)


@quick
@given(st.lists(st.tuples(graded, st.booleans()), min_size=1, max_size=8))
def test_the_lift_is_that_of_the_specification(rows: list[tuple[float, bool]]) -> None:
    found = contributions(*(attempt(f"t{i}", r, ["key"] if h else []) for i, (r, h) in enumerate(rows)))
    rewards, holds = [r for r, _ in rows], [h for _, h in rows]
    expected = lift(rewards, holds)
    assert found == (
        {f"t{i}.0": pytest.approx(expected * h, abs=1e-9) for i, h in enumerate(holds)} if any(holds) else {}
    )


def test_a_session_has_the_sum_over_the_keys_that_it_found_first() -> None:
    found = contributions(
        attempt("a", 1.0, ["gold", "dust"], ["gold", "map"]),
        attempt("b", 1.0, ["gold"]),
        attempt("c", 0.0, ["dust"]),
        attempt("d", 0.0, []),
    )
    rewards = [1.0, 1.0, 0.0, 0.0]
    gold, dust = lift(rewards, [True, True, False, False]), lift(rewards, [True, False, True, False])
    lone = lift(rewards, [True, False, False, False])
    assert found == pytest.approx({"a.0": gold + dust, "a.1": lone, "b.0": gold, "c.0": dust, "d.0": 0.0})


@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
def test_equal_rewards_and_keys_that_all_have_say_exactly_nothing(reward: float) -> None:
    assert set(contributions(*(attempt(f"t{i}", reward, [f"k{i % 2}", "all"]) for i in range(3))).values()) == {0.0}
    everywhere = contributions(*(attempt(f"t{i}", reward * i / 7, ["all"]) for i in range(3)))
    assert set(everywhere.values()) == {0.0}


def test_rounding_never_turns_nothing_into_a_contribution() -> None:
    assert 3 * 0.2 - 0.6 > 0
    found = contributions(attempt("a", 0.1, []), attempt("b", 0.2, ["middling"]), attempt("c", 0.3, []))
    assert found["b.0"] == 0.0


def test_shrinkage_pulls_towards_nothing_and_must_be_positive() -> None:
    rows = attempt("a", 1.0, ["gold"]), attempt("b", 0.0, [])
    weak, strong = (contributions(*rows, shrinkage=p)["a.0"] for p in (0.5, 5.0))
    assert weak > strong > 0
    with pytest.raises(ValueError, match="shrinkage"):
        GroupStatistics(0.0)


def test_without_any_evidence_the_contribution_is_unknown_and_not_zero() -> None:
    assert contributions(attempt("a", 1.0, []), attempt("b", 0.0, [])) == {}
