"""`mosaic credit`: what it shows of a recorded trajectory, and how it refuses what it cannot explain."""

import json
from pathlib import Path

import pytest

from mosaic.credit import GroupStatistics
from mosaic.credit_commands import estimator, explain
from mosaic.errors import RequestError, SettingsError
from mosaic.store import Store
from tests.cli.command import mosaic
from tests.lineage.test_lineage import compaction
from tests.playbook import Recording


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Two attempts at one task, one of them a success, and an unscored third."""
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    for name in ("good", "bad", "open"):
        store.record(compaction(Recording(name)))
    store.reward("good", 1.0, "test")
    store.reward("bad", 0.0, "test")
    return store


@pytest.mark.usefixtures("store")
def test_sessions_are_shown_with_what_other_rules_would_have_given(tmp_path: Path) -> None:
    where = ("--database", f"sqlite:///{tmp_path}/mosaic.db")
    shown = json.loads(mosaic(tmp_path, "credit", "good", "--json", *where).stdout)
    assert (shown["rule"], shown["reward"], shown["usage_rank"], shown["usage"]) == ("mosaic", 1.0, 0.5, 0.0)
    assert shown["group"] == {"good": 1.0, "bad": 0.0, "open": None}
    assert [s["kind"] for s in shown["sessions"]] == ["root", "compaction"]
    assert shown["sessions"][1]["parent_session_id"] == shown["sessions"][0]["session_id"]
    for session in shown["sessions"]:
        assert set(session["others"]) == {"grpo", "mosaic:trajectory", "mosaic:session"}
        assert session["others"]["grpo"] == pytest.approx(1.0, rel=1e-5)
    assert {span["role"] for span in shown["spans"]} == {"handoff", "answer"}
    tree = mosaic(tmp_path, "credit", "good", "--also", "rloo", *where, COLUMNS="300").stdout
    assert "reward 1 of 2 attempts" in tree
    assert "rloo +1.000" in tree
    assert "handoff call" in tree
    assert "were this group the whole batch" in tree
    assert "usage x 1.00, shaped by contribution; contribution " in tree


def test_what_was_estimated_elsewhere_is_blended_in(tmp_path: Path, store: Store) -> None:
    first, second = (s.session_id for s in store.trajectory("good").sessions)
    path = tmp_path / "contributions.json"
    rows = {first: 0.6, second: 0.1}
    path.write_text(json.dumps({sid: {"value": v, "variance": 0.0, "source": "scored"} for sid, v in rows.items()}))
    view = explain(store.group_of("good"), "good", "mosaic", [], estimator(path))
    assert [(s.contribution, s.source) for s in view.credit.sessions] == [(0.6, "scored"), (0.1, "scored")]
    assert view.credit.sessions[0].advantage > view.credit.sessions[1].advantage
    assert isinstance(estimator(None), GroupStatistics)


@pytest.mark.parametrize("text", [None, "[]", "{", '{"s": {"worth": 1}}'])
def test_a_file_without_contributions_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "odd.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match="holds no contributions"):
        estimator(path)


def test_an_unscored_trajectory_and_an_unknown_rule_are_refused_with_the_next_step(store: Store) -> None:
    group = store.group_of("open")
    with pytest.raises(RequestError, match="open has no credit: open"):
        explain(group, "open", "mosaic", [], GroupStatistics())
    with pytest.raises(SettingsError, match="'mosiac'"):
        explain(group, "good", "mosaic", ["mosiac"], GroupStatistics())
