"""Evidence keys: what counts as found, by whom, and what does not."""

from typing import Any

import pytest

from mosaic.credit import SessionEvidence, trajectory_evidence
from mosaic.records import Message, Session, SessionKind

from .builders import call, recorded, recorded_session, tool_call, tool_result


def evidence(*sessions: Session) -> dict[str, SessionEvidence]:
    return trajectory_evidence(recorded("t", sessions))


def counts(*sessions: Session) -> dict[str, tuple[int, int]]:
    """Number of keys and of new keys per session."""
    return {sid: (len(found.keys), len(found.new)) for sid, found in evidence(*sessions).items()}


def one(*messages: Message) -> SessionEvidence:
    return evidence(recorded_session("s", [call("c", 1, messages)]))["s"]


def test_a_result_and_the_call_that_brought_it_are_two_keys() -> None:
    asked = call("c1", 1, tool_calls=[tool_call("i1", arguments={"q": "x"})])
    answered = call("c2", 2, [tool_result("i1", "the moon is round")])
    assert counts(recorded_session("s", [asked, answered])) == {"s": (2, 2)}


def test_a_call_whose_result_never_came_or_was_an_error_is_no_evidence() -> None:
    asked = call("c1", 1, tool_calls=[tool_call("i1"), tool_call("i2", "other"), tool_call(None, "third")])
    answered = call("c2", 2, [tool_result("i1", "Error: no network")])
    assert counts(recorded_session("s", [asked, answered])) == {"s": (0, 0)}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "  \n",
        None,
        "[]",
        "{}",
        "null",
        "Error: not found",
        "Tool call error: timed out",
        "[ERROR] boom",
        "ValueError: bad",
        "<tool_use_error>no such file</tool_use_error>",
        "Traceback (most recent call last):\n  File",
        '{"code": 1, "error": "boom"}',
        '{"isError": true}',
        [{"type": "image_url"}],
        7,
    ],
)
def test_empty_and_failed_results_are_no_evidence(content: Any) -> None:
    assert one(tool_result("i", content)).keys == frozenset()


@pytest.mark.parametrize(
    "content",
    [
        "Errors in French grammar",
        "the last error was fixed",
        "0",
        '{"error": null, "rows": 3}',
        [{"type": "text", "text": "page"}],
        "[" * 100_000,
    ],
)
def test_other_results_are_evidence(content: Any) -> None:
    assert len(one(tool_result("i", content)).new) == 1


def test_a_result_marked_as_an_error_is_no_evidence() -> None:
    assert one(tool_result("i", "all went well", is_error=True)).keys == frozenset()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("a  page\nof text", " a page of text "),
        ('{"a": 1, "b": 2}', '{"b":2,"a":1}'),
        ("parts\nof it", [{"type": "text", "text": "parts"}, {"type": "text", "text": "of it"}]),
    ],
)
def test_layout_makes_no_new_key(first: Any, second: Any) -> None:
    assert one(tool_result("i", first)) == one(tool_result("j", second))


def test_arguments_in_another_order_are_the_same_call_and_other_arguments_or_tools_are_not() -> None:
    def keys(name: str, arguments: Any) -> frozenset[str]:
        asked = call("c1", 1, tool_calls=[tool_call("i", name, arguments)])
        return evidence(recorded_session("s", [asked, call("c2", 2, [tool_result("i", "found")])]))["s"].keys

    base = keys("search", '{"a": 1, "b": 2}')
    assert keys("search", '{"b":2, "a":1}') == base
    assert keys("search", '{"a": 1, "b": 3}') != base
    assert keys("open", '{"a": 1, "b": 2}') != base


@pytest.mark.parametrize("depth", [100, 101, *range(930, 1000), 1024, 5000])
def test_arguments_and_results_are_read_however_deep_they_are(depth: int) -> None:
    def keys(said: str) -> frozenset[str]:
        asked = call("c1", 1, tool_calls=[tool_call("i", "search", said)])
        return evidence(recorded_session("s", [asked, call("c2", 2, [tool_result("i", said)])]))["s"].keys

    deep = "[" * depth + "7" + "]" * depth
    assert keys(deep) == keys(f" {deep}\n")
    assert len(keys(deep) | keys(deep.replace("7", "8"))) == 4


def test_arguments_may_be_an_object_and_the_function_may_be_missing() -> None:
    odd = [{"id": "i", "function": {"name": "f", "arguments": {"a": 1}}}, {"id": "j"}]
    answered = call("c2", 2, [tool_result("i", "one"), tool_result("j", "two")])
    assert counts(recorded_session("s", [call("c1", 1, tool_calls=odd), answered])) == {"s": (4, 4)}


def test_what_a_compaction_kept_is_not_found_again() -> None:
    first = recorded_session(
        "a", [call("c1", 1, tool_calls=[tool_call("i1")]), call("c2", 2, [tool_result("i1", "x")])]
    )
    kept = [tool_result("i1", "x"), tool_result("i2", "y")]
    second = recorded_session("b", [call("c3", 3, kept)], SessionKind.COMPACTION, "a", "c2")
    assert counts(first, second) == {"a": (2, 2), "b": (1, 1)}


def test_a_result_that_the_framework_later_cuts_down_is_not_found_again() -> None:
    calls = [call("c1", 1, [tool_result("i1", "a long page")]), call("c2", 2, [tool_result("i1", "[cleared]")])]
    assert counts(recorded_session("s", calls)) == {"s": (1, 1)}


def test_a_result_belongs_to_the_session_that_asked_even_if_a_successor_received_it() -> None:
    first = recorded_session("a", [call("c1", 1, tool_calls=[tool_call("i1")])])
    second = recorded_session("b", [call("c2", 2, [tool_result("i1", "x")])], SessionKind.COMPACTION, "a")
    assert counts(first, second) == {"a": (2, 2), "b": (0, 0)}


def test_looking_something_up_again_is_known_and_lowers_the_exploration_score() -> None:
    first = recorded_session("a", [call("c1", 1, [tool_result("i1", "x")])])
    second = recorded_session("b", [call("c2", 2, [tool_result("i2", "x"), tool_result("i3", "y")])])
    found = evidence(first, second)
    assert [found["a"].exploration, found["b"].exploration] == [1.0, 0.5]


def test_the_earlier_call_is_the_finder_whichever_session_opened_first() -> None:
    root = recorded_session("root", [call("c1", 1), call("c4", 4, [tool_result("i2", "x")])])
    child = recorded_session("child", [call("c2", 2, [tool_result("i1", "x")])], SessionKind.SPAWN, "root", "c1")
    assert counts(root, child) == {"root": (1, 0), "child": (1, 1)}


def test_results_without_an_id_are_told_apart_by_their_text_alone() -> None:
    calls = [call("c1", 1, [tool_result(None, "x")]), call("c2", 2, [tool_result(None, "x"), tool_result(None, "y")])]
    assert counts(recorded_session("s", calls)) == {"s": (2, 2)}


def test_a_report_is_no_finding_of_the_parent_but_its_task_is_a_key() -> None:
    root_calls = [call("c1", 1, tool_calls=[tool_call("i1", "task")]), call("c3", 3, [tool_result("i1", "report")])]
    child = recorded_session("child", [call("c2", 2)], SessionKind.SPAWN, "root", "c1")
    found = evidence(recorded_session("root", root_calls), child)
    assert [key.split(":")[0] for key in found["root"].keys] == ["call"]


def test_auxiliary_calls_and_other_messages_are_not_read() -> None:
    quiet = call("c1", 1, [tool_result("i", "x")], auxiliary="title")
    talk = call("c2", 2, [{"role": "user", "content": "hello"}])
    assert counts(recorded_session("s", [quiet, talk])) == {"s": (0, 0)}
    assert evidence(recorded_session("s", []))["s"].exploration == 0.0
