"""Credit below the session: calls by their gain, chunks by their results."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic.credit import (
    CallInput,
    Granularity,
    GroupCredit,
    GroupInput,
    Renorm,
    SpanRole,
    TrajectoryInput,
    assign,
    group_input,
    rule_settings,
)
from mosaic.records import Group

from .builders import SPEC, call, group, quick, recorded, recorded_session, session, trajectory

PLAIN = replace(SPEC, alpha=0, alpha_f=0, renorm=Renorm.OFF, granularity=Granularity.CALL, gamma_call=0.5)


def with_calls(*gains: Sequence[float], reward: float = 1.0) -> TrajectoryInput:
    """Two sessions, both of full contribution; the first one's calls gained these."""
    calls = tuple(CallInput(call_id=f"c{k}", tokens=10, gains=tuple(g)) for k, g in enumerate(gains))
    busy = session("busy", 0.5, calls=calls, tokens=10 * len(calls), last_call_id=f"c{len(calls) - 1}")
    return TrajectoryInput(trajectory_id="t", reward=reward, sessions=(busy, session("other", 0.5)))


def given_group(of: TrajectoryInput) -> GroupInput:
    return group([of, trajectory("u", 1.0 - (of.reward or 0.0), [0.5])])


def calls_of(credit: GroupCredit) -> dict[str, float]:
    return {s.call_id: s.advantage for t in credit.trajectories for s in t.spans if s.role is SpanRole.CALL}


def test_a_call_without_gain_is_paid_less_for_a_success_and_blamed_fully_for_a_failure() -> None:
    won = calls_of(assign([given_group(with_calls([0.4], [0.0], [0.2], [], [0.0]))], PLAIN)[0])
    assert won == pytest.approx(
        {"c0": 1.0 * (1 - 0.5 * (0.04 / 0.38) * 0), "c1": 0.5, "c2": 0.5 + 0.1 / 0.38}, abs=0.05
    )
    lost = calls_of(assign([given_group(with_calls([0.4], [0.0], [], reward=0.0))], PLAIN)[0])
    assert lost["c1"] == pytest.approx(-0.2)
    assert lost["c0"] == pytest.approx(-0.1)


def test_a_call_with_several_results_has_the_mean_of_their_factors() -> None:
    found = calls_of(assign([given_group(with_calls([0.4, 0.0], [0.4], [0.0]))], PLAIN)[0])
    assert found == pytest.approx({"c0": 0.75, "c1": 1.0})


def test_decision_spans_go_before_calls_and_without_gains_there_are_none() -> None:
    [credit] = assign([given_group(with_calls([0.4], [0.1]))], PLAIN)
    assert "c1" not in calls_of(credit)
    assert [s.call_id for s in credit.trajectories[0].spans if s.role is SpanRole.ANSWER] == ["c1"]
    assert calls_of(assign([given_group(with_calls([], []))], PLAIN)[0]) == {}
    coarse = replace(PLAIN, granularity=Granularity.SESSION)
    assert calls_of(assign([given_group(with_calls([0.4], [0.1], [0.1]))], coarse)[0]) == {}


@quick
@given(st.lists(st.lists(st.floats(-1, 1), max_size=3), min_size=1, max_size=5), st.sampled_from([0.0, 1.0]))
def test_no_call_is_pushed_against_its_trajectory_and_renormalisation_counts_them(
    gains: list[list[float]], reward: float
) -> None:
    settings = replace(PLAIN, renorm=Renorm.BATCH)
    [credit] = assign([given_group(with_calls(*gains, reward=reward))], settings)
    out = credit.trajectories[0]
    own = calls_of(credit)
    assert all(value * out.advantage >= 0 for value in own.values())
    own.setdefault(f"c{len(gains) - 1}", out.sessions[0].advantage)
    # The answer's span is counted as its session's advantage, times the factor that its gain would have given.
    last = CallInput(call_id="x", tokens=10, gains=tuple(gains[-1]))
    if not last.gains:
        busy = sum(own.get(f"c{k}", out.sessions[0].advantage) for k in range(len(gains))) * 10
        total = busy + out.sessions[1].advantage * 10
        assert total / (10 * len(gains) + 10) == pytest.approx(out.advantage)


def test_the_rules_by_name_read_gains_from_the_recorded_group() -> None:
    given = Group("t", (recorded("a", [recorded_session("s", [call("c1", 1), call("c2", 2)])], 1.0),))
    [t] = group_input(given, call_gains={"c1": (0.5,)}).trajectories
    assert [(c.call_id, c.tokens, c.gains) for c in t.sessions[0].calls] == [("c1", 3, (0.5,)), ("c2", 3, ())]
    assert rule_settings("call").granularity is Granularity.CALL
    assert rule_settings("chunk").granularity is Granularity.CHUNK
