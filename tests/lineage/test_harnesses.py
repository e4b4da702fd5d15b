"""What frameworks say of themselves is used, and never believed against content."""

from dataclasses import replace
from typing import Any

import pytest

from adapters.harnesses import HARNESSES
from mosaic.capture import CapturedCall
from mosaic.lineage import Lineage, Placement, Rung
from mosaic.lineage.harness import Harnesses
from mosaic.records import SessionKind
from tests.playbook import Recording, assistant, result, system, user

TASK = user("Which river does the old mill stand at?")
ROLE = system("You look things up.")


def place(calls: list[CapturedCall]) -> list[Placement]:
    lineage = Lineage(HARNESSES)
    return [lineage.place(c) for c in calls]


CLAIMS = [
    ({"x-claude-code-session-id": "s"}, {}, ("s/-", None, "s")),
    ({"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"}, {}, ("s/a", "s/-", "s")),
    ({}, {"client_request": {"metadata": {"user_id": '{"session_id": "s"}'}}}, ("s/-", None, "s")),
    ({"session-id": "root", "thread-id": "t", "x-codex-parent-thread-id": "root"}, {}, ("t", "root", "root")),
    ({"x-opencode-session-id": "c", "x-opencode-parent-session-id": "p"}, {}, ("c", "p", None)),
    ({"x-litellm-session-id": "c"}, {"prompt_cache_key": "root"}, ("c", None, "root")),
    ({"x-openwebui-chat-id": "c"}, {}, ("c", None, None)),
    ({"x-session-id": "c"}, {}, ("c", None, None)),
    ({"user-agent": "any"}, {"model": "policy"}, (None, None, None)),
]


@pytest.mark.parametrize(("headers", "params", "said"), CLAIMS)
def test_ids_are_read_where_frameworks_put_them(
    headers: dict[str, str], params: dict[str, object], said: tuple[str | None, ...]
) -> None:
    claims = Harnesses(HARNESSES).claims(headers, params)
    assert (claims.agent, claims.parent, claims.trajectory) == said


def test_calls_that_came_back_as_text_are_found_by_the_ids_in_it() -> None:
    recording = Recording(None)
    first = recording.call([TASK], assistant("I look.", ("call_77ab12", "look", '{"place": "map"}')), "look")
    told = {"role": "assistant", "content": "I look.\nCalling tools:\n[{'id': 'call_77ab12', 'name': 'look'}]"}
    second = recording.call([TASK, told, user("Observation: the Wey")], assistant("The Wey."), "look")
    one, other = place([first, second])
    assert (other.session_id, other.why.rung) == (one.session_id, Rung.ECHO)


def titled(recording: Recording, **changes: Any) -> list[CapturedCall]:
    asked = [system("You are a title generator."), user("Generate a title for this conversation:"), TASK]
    title = recording.call(asked, assistant("The mill"), **changes)
    return [title, recording.call([ROLE, TASK], assistant("The Wey."), "look", **changes)]


def test_a_title_that_comes_first_waits_in_the_session_that_it_names() -> None:
    title, main = place(titled(Recording(None)))
    assert (title.auxiliary, main.auxiliary) == ("title", None)
    assert title.session_id == main.session_id
    assert (title.names_task, main.names_task) == (False, True)


def test_a_title_of_another_agent_is_not_taken_for_ones_own() -> None:
    title, _ = titled(Recording(None), headers={"x-session-id": "one"})
    _, main = titled(Recording(None), headers={"x-session-id": "other"})
    main = replace(main, call_id="c9-agent", ended_at=9.0)
    assert len({p.trajectory_id for p in place([title, main])}) == 2


def test_a_child_is_known_by_its_parents_id_when_two_parents_asked_for_the_same() -> None:
    calls = []
    for parent in ("a", "b"):
        recording = Recording(None)
        spawning = assistant(None, (f"id-{parent}", "task", '{"prompt": "Count the mills on the river."}'))
        headers = {"x-opencode-session-id": parent}
        made = recording.call([ROLE, TASK], spawning, "task", headers=headers)
        calls.append(replace(made, call_id=f"parent-{parent}-call-of-its-own"))
    headers = {"x-opencode-session-id": "child", "x-opencode-parent-session-id": "a"}
    child = Recording(None).call([user("Count the mills on the river.")], assistant("4"), "look", headers=headers)
    one, _, placed = place([*calls, replace(child, call_id="child")])
    assert placed.opened is not None
    assert (placed.opened.kind, placed.opened.parent_session_id) == (SessionKind.SPAWN, one.session_id)
    (stripped,) = place([*(replace(c, headers={}) for c in calls), replace(child, call_id="child", headers={})])[2:]
    assert stripped.opened is not None
    assert stripped.opened.kind is SessionKind.ROOT
    assert {r["session"] for r in stripped.opened.rivals} == {f"s-{c.call_id}" for c in calls}


def test_an_id_that_contradicts_the_content_lowers_the_score() -> None:
    recording = Recording(None)
    step = assistant(None, ("id-1", "look", '{"place": "map"}'))
    first = recording.call([ROLE, TASK], step, "look", headers={"x-session-id": "one"})
    history = [ROLE, TASK, step, result("id-1", "the Wey")]
    second = recording.call(history, assistant("The Wey."), "look", headers={"x-session-id": "other"})
    _, after = place([first, second])
    assert after.opened is not None
    assert (after.opened.kind, after.opened.evidence["claims"]) == (SessionKind.FORK, "contradict")
    assert after.opened.score <= 0.8
