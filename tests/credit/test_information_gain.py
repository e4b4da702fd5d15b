"""Information gain: which prompts are scored, and what the scores say about chains, subagents, calls and chunks."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic.credit.information_gain import (
    Context,
    Scale,
    call_gains,
    confidence,
    contexts,
    contributions,
    survivals,
)
from mosaic.credit.session_tree import SessionTree
from mosaic.records import Message, Session, SessionKind, Trajectory

from .builders import call, quick, recorded, recorded_session, tool_call, tool_result

COMPACTION, SPAWN = SessionKind.COMPACTION, SessionKind.SPAWN
QUESTION: Message = {"role": "user", "content": "where?"}


def chain() -> Trajectory:
    """Two calls and a summary, then a second session of two calls."""
    first = [call("a1", 1, [QUESTION]), call("a2", 2, [QUESTION]), call("sum", 3, [QUESTION])]
    second = [call("b1", 4, [QUESTION]), call("b2", 5, [QUESTION])]
    title = recorded_session("t", [call("title", 0, auxiliary="title")])
    return recorded("t", [recorded_session("a", first), recorded_session("b", second, COMPACTION, "a", "sum"), title])


def delegation(reports: Mapping[str, Any] | None = None, search: bool = False) -> Trajectory:
    """A lead that sends out two subagents in one call, and answers when their reports are in."""
    reports = reports or {"i1": "it is Oran", "i2": "it is blue"}
    asked = call("lead1", 1, [QUESTION], [tool_call(i, "task") for i in ("i1", "i2")])
    more = [call("lead0", 0, [QUESTION], [tool_call("i0")])] if search else []
    found = [tool_result("i0", "a page")] if search else []
    results = [tool_result(i, text) for i, text in reports.items()]
    lead = recorded_session("lead", [*more, asked, call("lead2", 6, [QUESTION, *found, *results])])
    x = recorded_session("x", [call("x1", 2), call("x2", 4, content="it is Oran")], SPAWN, "lead", "lead1")
    y = recorded_session("y", [call("y1", 3, content="it  is blue")], SPAWN, "lead", "lead1")
    return recorded("t", [lead, x, y])


def at(call_id: str, *hidden: str) -> Context:
    return Context(call_id, frozenset(hidden))


CHAIN = {at("a1"): 0.1, at("a2"): 0.4, at("b1"): 0.3, at("b2"): 0.7, at("sum"): 0.4}
DELEGATED = {
    at("lead1"): 0.1,
    at("lead2"): 0.9,
    at("lead2", "i1"): 0.3,
    at("lead2", "i2"): 0.7,
    at("x1"): 0.0,
    at("x2"): 0.0,
    at("y1"): 0.0,
}


def test_a_chain_is_scored_around_each_session_and_the_gains_add_up() -> None:
    assert set(contexts(chain())) == {at(c) for c in ("a1", "sum", "b1", "b2", "a2")}
    assert contributions(chain(), CHAIN) == pytest.approx({"a": 0.2, "b": 0.4})


@quick
@given(st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_a_chains_contributions_telescope_to_the_gain_over_the_question(values: list[float]) -> None:
    scores = dict(zip((at(c) for c in ("a1", "a2", "sum", "b1", "b2")), values, strict=True))
    found = contributions(chain(), scores)
    assert sum(found.values()) == pytest.approx(scores[at("b2")] - scores[at("a1")])
    raised = contributions(chain(), scores, high_water=True)
    assert sum(raised.values()) == pytest.approx(max(scores[at(c)] for c in ("a1", "b1", "b2")) - scores[at("a1")])
    assert min(raised.values()) >= 0


def test_subagents_share_what_their_reports_brought_and_a_lead_that_only_delegates_has_their_mean() -> None:
    assert set(contexts(delegation())) == set(DELEGATED)
    found = contributions(delegation(), DELEGATED)
    assert found == pytest.approx({"x": 0.6, "y": 0.2, "lead": 0.4})


def test_of_two_subagents_that_found_the_same_neither_was_needed() -> None:
    both = DELEGATED | {at("lead2", "i1"): 0.9, at("lead2", "i2"): 0.9}
    assert contributions(delegation(), both) == pytest.approx({"x": 0.0, "y": 0.0, "lead": 0.0})


def test_a_lead_that_searched_itself_has_what_its_subagents_leave_over_but_not_less_than_minus_one() -> None:
    scores = DELEGATED | {at("lead0"): 0.05}
    assert contributions(delegation(search=True), scores)["lead"] == pytest.approx(0.85 - 0.8)
    assert contributions(delegation(search=True), scores | {at("lead0"): 3.0})["lead"] == -1.0


def test_reports_are_told_by_their_texts_and_else_by_their_order() -> None:
    swapped = delegation({"i2": "it is Oran", "i1": "so: it is blue"})
    assert contributions(swapped, DELEGATED) == pytest.approx({"x": 0.2, "y": 0.6, "lead": 0.4})
    unknown = delegation({"i1": "?", "i2": [{"type": "text", "text": "?"}]})
    assert contributions(unknown, DELEGATED) == pytest.approx({"x": 0.6, "y": 0.2, "lead": 0.4})


def test_a_report_of_nobody_credits_nobody() -> None:
    lead, x, _ = delegation().sessions
    assert contributions(recorded("t", [lead, x]), DELEGATED) == pytest.approx({"x": 0.6, "lead": 0.6})


def test_subagents_that_never_reported_and_sessions_without_calls_are_unknown() -> None:
    lead, x, y = delegation().sessions
    silent = recorded("t", [replace(lead, calls=lead.calls[:1]), x, replace(y, calls=())])
    assert contributions(silent, DELEGATED) == pytest.approx({"lead": 0.0})
    assert contributions(recorded("t", []), {}) == {}
    assert contributions(recorded("t", [recorded_session("s", [])]), {}) == {}
    assert contexts(recorded("t", [recorded_session("s", [])])) == ()


def test_the_sessions_of_a_compacted_subagent_share_its_contribution_by_their_gains() -> None:
    lead, x, y = delegation().sessions
    first = replace(x, calls=(call("x0", 1.5), call("xs", 1.8)))
    second = Session("x'", COMPACTION, "x", "xs", x.calls)
    scores = DELEGATED | {at("x0"): 0.1, at("xs"): 0.2, at("x1"): 0.2, at("x2"): 0.5}
    found = contributions(recorded("t", [lead, first, second, y]), scores)
    assert found == pytest.approx({"x": 0.15, "x'": 0.45, "y": 0.2, "lead": 0.4})
    flat = contributions(recorded("t", [lead, first, second, y]), scores | dict.fromkeys(map(at, ("x0", "x2")), 0.2))
    assert (flat["x"], flat["x'"]) == pytest.approx((0.3, 0.3))


def test_what_is_not_scored_is_left_out() -> None:
    scores = {c: v for c, v in CHAIN.items() if c != at("b2")}
    assert contributions(chain(), scores) == pytest.approx({"a": 0.2})
    partly = contributions(delegation(), {c: v for c, v in DELEGATED.items() if c != at("lead2", "i1")})
    assert partly == pytest.approx({"y": 0.2, "lead": 0.2})
    assert call_gains(chain(), scores) == {"a1": (pytest.approx(0.3),), "a2": (0.0,), "sum": (pytest.approx(-0.1),)}
    assert survivals(chain(), {at("a1"): 0.1}) == ()


def test_every_call_gains_what_the_next_prompt_of_its_context_shows() -> None:
    found = call_gains(chain(), CHAIN)
    assert {c: g for c, (g,) in found.items()} == pytest.approx({"a1": 0.3, "a2": 0.0, "sum": -0.1, "b1": 0.4})
    assert set(contexts(chain(), chunks=True)) == set(CHAIN)


def test_with_chunks_every_tool_result_has_a_number() -> None:
    asked = call("c1", 1, [QUESTION], [tool_call("i1"), tool_call("i2"), tool_call("lost")])
    answered = call("c2", 2, [QUESTION, tool_result("i1", "one"), tool_result("i2", "two")])
    given = recorded("t", [recorded_session("s", [asked, answered])])
    scores = {at("c1"): 0.2, at("c2"): 0.8, at("c2", "i1"): 0.2, at("c2", "i2"): 0.8}
    assert set(contexts(given, chunks=True)) == set(scores)
    assert call_gains(given, scores, chunks=True)["c1"] == pytest.approx((0.6, 0.0))
    assert call_gains(given, scores)["c1"] == pytest.approx((0.6,))


def test_what_of_the_answer_survives_a_compaction() -> None:
    [row] = survivals(chain(), CHAIN)
    assert (row.session_id, row.start, row.before, row.after) == ("b", 0.1, 0.4, 0.3)
    assert row.share == pytest.approx(2 / 3)
    assert replace(row, after=0.0).share == 0.0
    assert replace(row, before=0.1).share is None
    empty = recorded("t", [recorded_session("a", []), recorded_session("b", [], COMPACTION, "a", None)])
    assert survivals(empty, CHAIN) == ()


def test_a_fork_is_neither_a_successor_nor_a_subagent() -> None:
    fork = recorded_session("f", [call("f1", 6, [QUESTION])], SessionKind.FORK, "a", "a2")
    forked = recorded("t", [*chain().sessions, fork])
    assert contributions(forked, CHAIN | {at("f1"): 0.9}) == contributions(chain(), CHAIN)
    assert SessionTree(forked).chain("a") == ["a", "b"]


def test_a_loop_of_successors_ends() -> None:
    loop = recorded("t", [recorded_session(s, [], COMPACTION, p) for s, p in (("a", "b"), ("b", "a"))])
    assert SessionTree(loop).chain("a") == ["a", "b"]


@quick
@given(st.lists(st.floats(-50, 0.001) | st.just(math.nan), max_size=4), st.sampled_from(Scale), st.floats(1, 20))
def test_confidence_is_between_zero_and_one_and_the_best_answer_counts(
    logprobs: list[float], scale: Scale, floor: float
) -> None:
    value = confidence(logprobs, scale, floor)
    assert 0 <= value <= 1
    known = [x for x in logprobs if not math.isnan(x)]
    assert value == max((confidence([x], scale, floor) for x in known), default=0.0)


def test_the_log_scale_tells_small_probabilities_apart_down_to_its_floor() -> None:
    assert confidence([math.log(0.25)]) == pytest.approx(0.25)
    assert confidence([-4.0], Scale.LOG) - confidence([-5.0], Scale.LOG) == pytest.approx(0.1)
    assert confidence([-11.0], Scale.LOG) == confidence([-12.0], Scale.LOG) == 0.0
