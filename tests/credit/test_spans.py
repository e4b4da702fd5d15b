"""Decision spans: which calls carry another advantage than their session's."""

from dataclasses import replace

import pytest

from mosaic.credit import CreditSettings, Renorm, SessionInput, SpanCredit, SpanRole, SpawnSpan, TrajectoryInput, assign
from mosaic.records import SessionKind

from .builders import SPEC, group, session, trajectory

SETTINGS = replace(SPEC, renorm=Renorm.OFF)
COMPACTION, SPAWN = SessionKind.COMPACTION, SessionKind.SPAWN


def opened(sid: str, kind: SessionKind, parent: str, by: str | None, value: float = 0.0) -> SessionInput:
    return session(sid, value, kind=kind, parent_session_id=parent, opened_by_call_id=by, last_call_id=f"{sid}-last")


def spans(sessions: list[SessionInput], settings: CreditSettings = SETTINGS) -> dict[str, SpanCredit]:
    """The spans of a success with these sessions, whose own advantage is 1."""
    success = TrajectoryInput(trajectory_id="s", reward=1.0, sessions=tuple(sessions))
    [credit] = assign([group([success, trajectory("f", 0.0, [0.0])])], settings)
    assert credit.trajectories[0].advantage == pytest.approx(1)
    found = credit.trajectories[0].spans
    assert len({span.call_id for span in found}) == len(found)
    return {span.call_id: span for span in found}


ROOT = session("root", 0.0, last_call_id="root-last")


def test_a_summary_carries_the_credit_of_the_session_that_it_opens() -> None:
    found = spans([ROOT, opened("next", COMPACTION, "root", "summary", 0.5)])
    assert found["summary"].role is SpanRole.HANDOFF
    assert found["summary"].opened_session_id == "next"
    assert found["summary"].advantage == pytest.approx(1.0)
    useless = spans([replace(ROOT, contribution=0.5), opened("next", SessionKind.HANDOFF, "root", "summary")])
    assert useless["summary"].advantage == pytest.approx(0.2)


def test_the_answer_is_the_last_call_of_the_last_successor_and_carries_the_trajectorys_advantage() -> None:
    chain = [ROOT, opened("b", COMPACTION, "root", "s1"), opened("c", COMPACTION, "b", "s2")]
    found = spans([*chain, opened("child", SPAWN, "c", "go"), opened("child2", COMPACTION, "child", "s3")])
    assert [call for call, span in found.items() if span.role is SpanRole.ANSWER] == ["c-last"]
    assert found["c-last"].advantage == pytest.approx(1.0)
    assert found["c-last"].opened_session_id is None


def test_of_two_successors_the_later_one_gives_the_answer() -> None:
    found = spans([ROOT, opened("b", COMPACTION, "root", "s1"), opened("c", COMPACTION, "root", "s2")])
    assert "c-last" in found
    assert "b-last" not in found


def test_starting_subagents_carries_the_trajectorys_advantage_or_the_mean_of_the_children() -> None:
    sessions = [ROOT, opened("x", SPAWN, "root", "go", 0.5), opened("y", SPAWN, "root", "go", 0.0)]
    found = spans(sessions)
    assert found["go"].role is SpanRole.SPAWN
    assert found["go"].opened_session_id == "x"
    assert found["go"].advantage == pytest.approx(1.0)
    children = spans(sessions, replace(SETTINGS, spawn_span=SpawnSpan.CHILDREN))
    assert children["go"].advantage == pytest.approx(0.6)


def test_one_call_has_one_span_and_handing_over_goes_first() -> None:
    both = [ROOT, opened("x", SPAWN, "root", "go", 0.5), opened("y", SessionKind.HANDOFF, "root", "go")]
    assert spans(both)["go"].role is SpanRole.HANDOFF
    last = [replace(ROOT, last_call_id="go"), opened("x", SPAWN, "root", "go", 0.5)]
    assert {call: span.role for call, span in spans(last).items()} == {"go": SpanRole.SPAWN}


def test_forks_sessions_that_no_token_opened_and_chains_without_trained_calls_have_no_span() -> None:
    silent = replace(ROOT, last_call_id=None)
    fork = opened("fork", SessionKind.FORK, "root", "call")
    cut = replace(opened("cut", COMPACTION, "root", None), last_call_id=None)
    assert spans([silent, fork, cut]) == {}


def test_a_spawn_bears_a_share_of_the_usage_and_an_answer_all_of_it() -> None:
    slow = TrajectoryInput(trajectory_id="s", reward=1.0, sessions=(ROOT, opened("x", SPAWN, "root", "go", 0.5)))
    given = group([slow, trajectory("fast", 1.0, [0.5]), trajectory("f", 0.0, [0.0])])
    credit = assign([given], replace(SETTINGS, alpha=0.9, spawn_usage=0.25))[0].trajectories[0]
    assert credit.usage < 0
    found = {span.call_id: span.advantage for span in credit.spans}
    assert found["root-last"] == pytest.approx(credit.advantage)
    assert found["go"] == pytest.approx(credit.advantage - 0.75 * credit.usage)
