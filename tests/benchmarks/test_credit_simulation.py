"""The credit simulation: its truth is exact, its seeds share nothing, its figures can be drawn from its results."""

import json
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.credit import figures, simulation
from benchmarks.credit.contributions import blended, group, information_gain, replay
from benchmarks.credit.environment import (
    MAX_SESSIONS,
    PARAMETERS,
    SIZE,
    SUCCESS,
    TOPICS,
    WASTE,
    Draws,
    Episodes,
    Floats,
    Setting,
    leave_one_out,
    play,
    success,
)
from benchmarks.credit.fidelity import fidelity
from benchmarks.credit.handoff import CREDITS, carry
from benchmarks.credit.learning import learn
from benchmarks.credit.methods import FRESH_SEEDS, METHODS, TUNING_SEEDS

settings = pytest.mark.parametrize("setting", list(Setting))


def policy(seeds: int = 2) -> Floats:
    """Goes on often, so that there are trajectories of every length."""
    theta_SP = np.zeros((seeds, PARAMETERS))
    theta_SP[:, :3], theta_SP[:, 3:7] = (2, -1, 1), (1, -2, -2, -1)
    return theta_SP


def by_hand(episodes: Episodes, s: int, n: int, without: int | None) -> float:
    """The success probability of one trajectory, written out as a story."""
    held: set[int] = set()
    useless = 0
    for k in range(MAX_SESSIONS):
        if episodes.used_SNK[s, n, k] and k != without:
            topic = int(episodes.topic_SNK[s, n, k])
            new = bool(episodes.found_SNK[s, n, k]) and topic not in held
            useless += not new
            held |= {topic} if new else set()
        if k + 1 < MAX_SESSIONS and episodes.used_SNK[s, n, k + 1]:
            held = {t for t in held if episodes.kept_SNK[s, n, k] >> t & 1}
    need = {t for t in range(TOPICS) if episodes.need_SN[s, n] >> t & 1}
    return float(SUCCESS[len(need - held)] * WASTE**useless)


@settings
def test_the_true_contribution_is_the_success_probability_with_minus_without(setting: Setting) -> None:
    episodes = play(setting, policy(), Draws([3, 4]))
    found = leave_one_out(episodes)
    whole = success(episodes, episodes.used_SNK)[..., -1]
    for s, n, k in np.argwhere(episodes.used_SNK)[::7]:
        assert whole[s, n] == pytest.approx(by_hand(episodes, s, n, None))
        assert found[s, n, k] == pytest.approx(whole[s, n] - by_hand(episodes, s, n, k))
    assert (found[~episodes.used_SNK] == 0).all()
    assert set(np.unique(SIZE[episodes.need_SN])) <= {1, 2, 3}


@settings
def test_seeds_run_side_by_side_and_share_nothing(setting: Setting) -> None:
    together, theta_SP = learn(setting, METHODS["mosaic"], [5, 6], steps=4)
    alone, of_six = learn(setting, METHODS["mosaic"], [6], steps=4)
    assert together.sessions_ST[1] == pytest.approx(alone.sessions_ST[0])
    assert theta_SP[1] == pytest.approx(of_six[0])
    assert not set(TUNING_SEEDS) & set(FRESH_SEEDS)


@settings
def test_only_the_truth_is_followed_exactly_and_broadcast_tells_no_session_from_another(setting: Setting) -> None:
    seeds = [7, 8]
    found = {name: fidelity(setting, METHODS[name], policy(), seeds) for name in METHODS}
    assert found["broadcast"].within == [0, 0]
    assert min(found["mosaic, true contribution"].within_defined) > 0.9
    assert min(found["mosaic"].within_defined) > 0.6
    for estimator in (information_gain, group, blended, replay):
        episodes = play(setting, policy(), Draws(seeds))
        assert np.isfinite(estimator(episodes, Draws([1, 2]))).all()


def test_results_are_kept_per_job_and_all_figures_are_drawn_from_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulation, "STAGES", {"untrained": 0, "trained": 2})
    monkeypatch.setattr(simulation, "EARLY", slice(0, 5))
    monkeypatch.setattr(simulation, "learn", lambda setting, method, seeds, _=0: learn(setting, method, seeds, 5))
    done: list[simulation.Job] = []
    first = simulation.simulate([1], tmp_path / "cache", done.append)
    assert len(done) == len(simulation.jobs()) == len(list((tmp_path / "cache").glob("*.json")))
    monkeypatch.setattr(simulation, "learn", None)
    assert simulation.simulate([1], tmp_path / "cache", done.append) == first
    (tmp_path / "credit.json").write_text(json.dumps({"details": {"settings": first}}))
    paths = figures.draw(tmp_path / "credit.json", tmp_path / "figures")
    assert len(paths) == 5
    for path in paths:
        drawn = ElementTree.parse(path).getroot()
        assert len(list(drawn.iter("{http://www.w3.org/2000/svg}text"))) > 20
        assert "nan" not in path.read_text()


def test_a_policy_learns_to_hand_over_carefully_and_its_seeds_repeat() -> None:
    share, success_T = carry(CREDITS["successor"], 3, steps=12)
    assert share[-3:].mean() > share[:3].mean()
    assert (carry(CREDITS["successor"], 3, steps=2)[0] == share[:2]).all()
    assert ((success_T > 0) & (success_T < 1)).all()
