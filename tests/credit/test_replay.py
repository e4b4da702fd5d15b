"""Replay: what is answered as recorded with and without a session, and what the rewards say."""

import pytest

from mosaic.credit.replay import NO_RESULT, Removal, removals, replayed
from mosaic.records import SessionKind, Trajectory

from .builders import call, recorded, recorded_session, tool_call, tool_result
from .test_information_gain import COMPACTION, QUESTION, SPAWN, chain, delegation


def by_session(trajectory: Trajectory) -> dict[str, Removal]:
    return {row.session_id: row for row in removals(trajectory)}


def test_without_a_subagent_its_siblings_and_what_came_before_its_report_stay() -> None:
    found = by_session(delegation())
    assert found.keys() == {"x", "y"}
    x = found["x"]
    assert x.recorded == {"lead1", "y1"}
    assert x.own == {"x1", "x2"}
    assert (x.replaced_call_id, x.placeholder) == ("x1", NO_RESULT)


def test_below_a_subagent_everything_goes_with_it_and_what_was_opened_after_its_report_is_made_anew() -> None:
    lead, x, y = delegation().sessions
    nested = recorded_session("n", [call("n1", 3.5)], SPAWN, "x", "x1")
    late = recorded_session("late", [call("late1", 7)], SPAWN, "lead", "lead2")
    found = by_session(recorded("t", [lead, x, y, nested, late]))
    assert found["x"].own == {"x1", "x2", "n1"}
    assert found["x"].recorded == {"lead1", "y1"}
    assert found["n"].recorded == {"lead1", "x1", "y1"}
    assert found["late"].recorded == {"lead1", "lead2", "x1", "x2", "y1", "n1"}


def test_without_a_session_of_a_chain_its_summary_is_the_one_it_started_from() -> None:
    a, b, title = chain().sessions
    middle = recorded_session("b", [*b.calls, call("sum2", 6, content="both")], COMPACTION, "a", "sum")
    last = recorded_session("c", [call("c1", 7, [QUESTION])], COMPACTION, "b", "sum2")
    found = by_session(recorded("t", [a, middle, last, title]))
    assert found.keys() == {"a", "b"}
    assert found["a"].recorded == {"a1", "a2"}
    assert found["a"].own == {"sum"}
    assert found["a"].placeholder == NO_RESULT
    assert found["b"].recorded == {"a1", "a2", "sum", "b1", "b2"}
    assert found["b"].own == {"sum2"}
    assert found["b"].placeholder == "ok"


def test_a_summary_that_no_call_of_the_task_wrote_cannot_be_removed() -> None:
    a, b, _ = chain().sessions
    unknown = recorded_session("b", b.calls, COMPACTION, "a", None)
    assert removals(recorded("t", [a, unknown])) == ()
    assert removals(recorded("t", [recorded_session("a", []), recorded_session("c", [], SPAWN, "a", "?")])) == ()


def test_a_subagent_of_a_later_session_of_the_chain_leaves_the_earlier_ones_as_they_were() -> None:
    a, b, _ = chain().sessions
    asks = call("b3", 6, [QUESTION], [tool_call("i", "task")])
    b = recorded_session("b", [*b.calls, asks, call("b4", 8, [tool_result("i", "ok")])], COMPACTION, "a", "sum")
    child = recorded_session("x", [call("x1", 7)], SessionKind.SPAWN, "b", "b3")
    found = by_session(recorded("t", [a, b, child]))
    assert found["x"].recorded == {"a1", "a2", "sum", "b1", "b2", "b3"}
    assert found["x"].own == {"x1"}


def test_the_contribution_is_the_difference_of_the_arms_with_an_error_that_shrinks() -> None:
    few, many = replayed([1, 1], [0, 1]), replayed([1, 1] * 8, [0, 1] * 8)
    assert few.value == many.value == pytest.approx(0.5)
    assert few.variance > many.variance > 0
    assert few.source == "replay"
    assert replayed([1], [1]).variance > 0
