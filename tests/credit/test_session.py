"""The session level: the gate, the factors and renormalisation, by example."""

from dataclasses import replace

import numpy as np
import pytest

from mosaic.credit import Gate, GroupCredit, LossMean, Renorm, TrajectoryInput, assign

from .builders import SPEC, group, session, session_advantages, trajectory

PLAIN = replace(SPEC, alpha=0.0, alpha_f=0.0, renorm=Renorm.OFF)


def factors(credit: GroupCredit, index: int = 0) -> list[float]:
    return [s.factor for s in credit.trajectories[index].sessions]


def gates(credit: GroupCredit) -> list[Gate]:
    return [t.sessions[0].gate for t in credit.trajectories]


def test_a_success_pays_by_contribution_and_a_failure_spares_it() -> None:
    given = group([trajectory("s", 1.0, [0.6, 0.3, 0.0, -0.5]), trajectory("f", 0.0, [0.6, 0.3, 0.0, -0.5])])
    [credit] = assign([given], PLAIN)
    assert factors(credit, 0) == pytest.approx([1.0, 0.6, 0.2, 0.2])
    assert factors(credit, 1) == pytest.approx([0.2, 0.6, 1.0, 1.0])


def test_full_contribution_is_the_ninth_decile_of_the_positive_values_of_the_group() -> None:
    given = group([trajectory("s", 1.0, [0.1, 0.2, 9.0, 0.0]), trajectory("f", 0.0, [-1.0])])
    [credit] = assign([given], PLAIN)
    decile = 0.2 + 0.8 * 8.8
    assert factors(credit) == pytest.approx([0.2 + 0.08 / decile, 0.2 + 0.16 / decile, 1.0, 0.2])


def test_the_gate_opens_only_for_a_failure_in_which_no_session_helped() -> None:
    helpless: list[float | None] = [0.0, -0.2]
    helped: list[float | None] = [0.1, -0.2]
    rows: list[tuple[float, list[float | None]]] = [
        (1.0, helpless),
        (0.0, helpless),
        (0.0, helped),
        (0.0, [None, None]),
        (0.0, [None, -0.1]),
    ]
    given = group([trajectory(f"t{i}", reward, values) for i, (reward, values) in enumerate(rows)])
    m, x = Gate.CONTRIBUTION, Gate.EXPLORATION
    assert gates(assign([given], PLAIN)[0]) == [m, x, m, m, x]
    assert gates(assign([given], replace(PLAIN, tau=0.1))[0]) == [m, x, x, m, x]


def test_a_helpless_failure_is_shaped_by_exploration_with_the_weaker_strength() -> None:
    sessions = (session("new", 0.0, exploration=1.0), session("old", 0.0, exploration=0.0))
    failed = TrajectoryInput(trajectory_id="f", reward=0.0, sessions=sessions)
    [credit] = assign([group([failed, trajectory("s", 1.0, [0.5])])], PLAIN)
    assert factors(credit) == pytest.approx([0.6, 1.0])
    assert session_advantages(credit)["new"] == pytest.approx(-0.6)


def test_a_failure_above_the_mean_is_paid_for_exploration() -> None:
    sessions = (session("new", 0.0, exploration=1.0), session("old", 0.0, exploration=0.0))
    better = TrajectoryInput(trajectory_id="f", reward=0.3, sessions=sessions)
    [credit] = assign([group([better, trajectory("g", 0.0, [0.0])])], PLAIN)
    assert factors(credit) == pytest.approx([1.0, 0.6])


def test_what_is_unknown_keeps_its_trajectorys_advantage() -> None:
    given = group([trajectory("s", 1.0, [None, float("nan"), float("inf"), 0.0]), trajectory("f", 0.0, [0.4])])
    assert factors(assign([given], PLAIN)[0]) == pytest.approx([1.0, 1.0, 1.0, 0.2])


def test_the_only_session_of_a_trajectory_is_not_shaped() -> None:
    given = group([trajectory("s", 1.0, [0.0]), trajectory("f", 0.0, [0.4])])
    [credit] = assign([given], PLAIN)
    assert [factors(credit, 0), factors(credit, 1)] == [[1.0], [1.0]]


def test_without_any_positive_value_all_sessions_of_a_success_are_alike() -> None:
    given = group([trajectory("s", 1.0, [0.0, -0.4]), trajectory("f", 0.0, [-0.1])])
    assert factors(assign([given], PLAIN)[0]) == pytest.approx([0.2, 0.2])


def test_a_value_below_the_least_scale_is_not_blown_up() -> None:
    given = group([trajectory("s", 1.0, [1e-4, 0.0]), trajectory("f", 0.0, [-0.1])])
    assert factors(assign([given], PLAIN)[0]) == pytest.approx([0.28, 0.2])


def test_renormalisation_weighs_sessions_as_the_loss_does() -> None:
    sessions = (session("long", 0.5, tokens=90), session("short", 0.0, tokens=10), session("untrained", 0.0, tokens=0))
    success = TrajectoryInput(trajectory_id="s", reward=1.0, sessions=sessions)
    given = group([success, trajectory("f", 0.0, [0.0])])
    by_token, by_session = (
        assign([given], replace(PLAIN, renorm=Renorm.BATCH, loss_mean=mean))[0]
        for mean in (LossMean.TRAJECTORY, LossMean.AGENT)
    )
    assert factors(by_token) == pytest.approx([1 / 0.92, 0.2 / 0.92, 0.2 / 0.92])
    assert factors(by_session) == pytest.approx([1 / 0.6, 0.2 / 0.6, 0.2 / 0.6])


def test_a_slow_success_praises_what_brought_it_about_and_blames_what_made_it_slow() -> None:
    slow, fast = trajectory("slow", 1.0, [0.6, 0.0]), trajectory("fast", 1.0, [0.6])
    given = group([slow, fast, trajectory("f", 0.0, [0.0])])
    credit = assign([given], replace(PLAIN, alpha=0.5, gamma=1.0))[0].trajectories[0]
    assert credit.usage == pytest.approx(-0.25 / np.sqrt(2 / 9))
    useful, useless = credit.sessions
    assert (useful.factor, useful.usage_factor, useless.factor, useless.usage_factor) == pytest.approx((1, 0, 0, 1))
    assert useful.advantage == pytest.approx(credit.advantage - credit.usage)
    assert useless.advantage == pytest.approx(credit.usage)


def test_a_full_gamma_without_any_contribution_silences_the_successes() -> None:
    given = group([trajectory("s", 1.0, [0.0, 0.0]), trajectory("f", 0.0, [0.0])])
    assert factors(assign([given], replace(PLAIN, gamma=1.0, renorm=Renorm.BATCH))[0]) == [0.0, 0.0]


def test_the_credit_of_a_session_says_where_its_contribution_came_from() -> None:
    [credit] = assign([group([trajectory("s", 1.0, [0.5, None]), trajectory("f", 0.0, [0.0])])], "mosaic")
    assert [(s.contribution, s.source) for s in credit.trajectories[0].sessions] == [(0.5, "test"), (None, "test")]
