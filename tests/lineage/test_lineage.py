"""Lineage on compact playbooks: sessions and links are found in traffic that says nothing about them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic.capture import CallStatus, CapturedCall
from mosaic.lineage import Lineage, Placement, Rung
from mosaic.records import SessionKind
from tests.playbook import Message, Recording, assistant, choice, result, system, user

TASK = user("Which sea does the harbour town lie at?")
ROLE = system("You look things up.")
SEARCH = ("id-1", "search", '{"query": "harbour town"}')


def place(calls: list[CapturedCall]) -> list[Placement]:
    lineage = Lineage()
    return [lineage.place(c) for c in calls]


def kinds(placements: list[Placement]) -> list[SessionKind]:
    return [p.opened.kind for p in placements if p.opened]


def linear(recording: Recording, turns: int = 4, tag: str = "") -> list[CapturedCall]:
    history: list[Message] = [ROLE, TASK]
    calls = []
    for turn in range(turns):
        reply = assistant(None, (f"id-{tag}{turn}", "search", f'{{"query": "step {turn}"}}'))
        calls.append(recording.call(list(history), reply, "search"))
        history += [reply, result(f"id-{tag}{turn}", f"found {turn}")]
    return calls


def test_calls_that_extend_each_other_are_one_session() -> None:
    placements = place(linear(Recording()))
    assert kinds(placements) == [SessionKind.ROOT]
    assert [p.parent_call_id for p in placements] == [None, *(p.call_id for p in placements[:-1])]


REWRITES = {
    "blocks for a string": lambda m: {**m, "content": [{"type": "text", "text": m["content"]}]},
    "a moved cache mark": lambda m: {
        **m,
        "content": [{"type": "text", "text": m["content"], "cache_control": {"type": "ephemeral"}}],
    },
    "other whitespace": lambda m: {**m, "content": f"  {m['content']}\n"},
    "a name": lambda m: {**m, "name": "someone"},
    "an inserted reminder": lambda m: {**m, "content": m["content"] + "<system-reminder>be brief</system-reminder>"},
}


@pytest.mark.parametrize("rewrite", REWRITES)
def test_a_harmless_rewrite_of_the_history_does_not_end_a_session(rewrite: str) -> None:
    first, second, *_ = linear(Recording())
    messages = [REWRITES[rewrite](m) if m["role"] == "user" else m for m in second.messages]
    placements = place([first, replace(second, messages=tuple(messages))])
    assert placements[1].session_id == placements[0].session_id


def test_re_serialised_arguments_dropped_reasoning_and_a_new_system_line_do_not_end_a_session() -> None:
    recording = Recording()
    sent = {**assistant("", ("id-1", "search", '{"a": 1, "b": "x"}')), "reasoning_content": "hm"}
    first = recording.call([ROLE, TASK], sent, "search")
    returned = assistant(None, ("id-1", "search", '{"b":"x","a":1}'))
    now = system("You look things up. It is Tuesday.")
    second = recording.call([now, TASK, returned, result("id-1", "found")], assistant("done"), "search")
    placements = place([first, second])
    assert placements[1].session_id == placements[0].session_id
    assert placements[1].parent_call_id == first.call_id


def test_results_in_another_order_do_not_end_a_session() -> None:
    recording = Recording()
    both = assistant(None, ("id-1", "search", '{"q": "a"}'), ("id-2", "search", '{"q": "b"}'))
    first = recording.call([TASK], both, "search")
    more = assistant(None, ("id-3", "search", '{"q": "c"}'))
    head = [TASK, both, result("id-2", "B"), result("id-1", "A")]
    second = recording.call(head, more, "search")
    tail = [TASK, both, result("id-1", "A"), result("id-2", "B"), more, result("id-3", "C")]
    third = recording.call(tail, assistant("done"), "search")
    assert len({p.session_id for p in place([first, second, third])}) == 1


def compaction(recording: Recording, keep: int = 0, tag: str = "") -> list[CapturedCall]:
    calls = linear(recording, 3, tag)
    last = calls[-1]
    transcript = "\n".join(str(m) for m in last.messages)
    text = f"The goal is the sea{tag}. Known so far: the town is Oran."
    summary = recording.call([user(f"Condense this conversation:\n{transcript}")], assistant(text))
    reply = dict(last.choices[0].message)
    tail = [reply, result(f"id-{tag}2", "found 2")] if keep else []
    opening = user(f"The conversation was condensed.\n<summary>\n{text}\n</summary>")
    return [*calls, summary, recording.call([ROLE, opening, *tail], assistant("It is blue."), "search")]


@pytest.mark.parametrize("keep", [0, 1])
def test_a_session_that_opens_with_a_summary_is_a_compaction_and_the_summary_serves_the_task(keep: int) -> None:
    calls = compaction(Recording(), keep)
    *_, summary, after = place(calls)
    assert summary.session_id == f"s-{calls[0].call_id}"
    assert summary.auxiliary is not None
    assert after.opened is not None
    assert (after.opened.kind, after.opened.rung) == (SessionKind.COMPACTION, Rung.SUMMARY)
    assert after.opened.parent_session_id == summary.session_id
    assert (after.opened.parent_call_id, after.confirmed) == (summary.call_id, (summary.call_id,))


def test_a_summary_asked_for_at_the_end_of_the_history_without_tools_closes_that_session() -> None:
    recording = Recording()
    *calls, last = linear(recording)
    asked = [*last.messages, user("Write down what matters.")]
    summary = recording.call(asked, assistant("We know that the town is Oran."))
    after = recording.call([ROLE, user("Go on from: We know that the town is Oran.")], assistant("ok"), "search")
    placements = place([*calls, summary, after])
    assert placements[-2].session_id == placements[0].session_id
    assert kinds(placements) == [SessionKind.ROOT, SessionKind.COMPACTION]


def spawns(recording: Recording, prompts: tuple[str, str], tag: str = "") -> list[CapturedCall]:
    """A parent sends out two children at once; the second one ends first."""
    arguments = [f'{{"description": "{p}", "kind": "general"}}' for p in prompts]
    calls = assistant(None, (f"id-{tag}a", "task", arguments[0]), (f"id-{tag}b", "task", arguments[1]))
    parent = recording.call([ROLE, TASK], calls, "search task")
    child = system("You help.")
    second = recording.call([child, user(prompts[1])], assistant("The capital is Rabat."), "search")
    first = recording.call([child, user(prompts[0])], assistant("The capital is Tunis."), "search")
    results = [result(f"id-{tag}a", "The capital is Tunis."), result(f"id-{tag}b", "The capital is Rabat.")]
    return [parent, second, first, recording.call([ROLE, TASK, calls, *results], assistant("both"), "search task")]


def test_a_session_whose_prompt_is_an_open_calls_argument_is_a_spawn() -> None:
    calls = spawns(Recording(), ("capital of the first", "capital of the second"))
    parent, second, first, end = place(calls)
    assert kinds([second, first]) == [SessionKind.SPAWN] * 2
    assert second.opened is not None
    assert first.opened is not None
    assert second.opened.evidence["tool_call"] == "id-b"
    assert first.opened.parent_session_id == parent.session_id == end.session_id
    assert {link.rung for link in end.relinked} == {Rung.RESULT}
    assert all(link.score == 0.99 for link in end.relinked)


def test_siblings_with_the_same_prompt_are_told_apart_by_their_results() -> None:
    calls = spawns(Recording(), ("find the capital", "find the capital"))
    placements = place(calls)
    claimed = {p.session_id: p.opened.evidence["tool_call"] for p in placements[1:3] if p.opened}
    claimed |= {link.session_id: link.evidence["tool_call"] for link in placements[3].relinked}
    assert claimed == {f"s-{calls[1].call_id}": "id-b", f"s-{calls[2].call_id}": "id-a"}


def test_a_spawn_prompt_that_quotes_another_childs_report_is_no_compaction() -> None:
    recording = Recording()
    one = assistant(None, ("id-a", "task", '{"description": "find the first capital"}'))
    parent = recording.call([ROLE, TASK], one, "search task")
    first = recording.call([user("find the first capital")], assistant("The capital is Tunis."), "search")
    prompt = "The capital is Tunis. Find its currency."
    two = assistant(None, ("id-b", "task", f'{{"description": "{prompt}"}}'))
    again = recording.call([ROLE, TASK, one, result("id-a", "The capital is Tunis.")], two, "search task")
    second = recording.call([user(prompt)], assistant("It is the dinar."), "search")
    placements = place([parent, first, again, second])
    assert kinds(placements) == [SessionKind.ROOT, SessionKind.SPAWN, SessionKind.SPAWN]


def test_two_continuations_of_one_call_fork() -> None:
    recording = Recording()
    first, second, *_ = linear(recording)
    other = recording.call([*second.messages[:3], result("id-0", "something else")], assistant("x"), "search")
    placements = place([first, second, other])
    assert kinds(placements) == [SessionKind.ROOT, SessionKind.FORK]
    assert placements[2].opened is not None
    assert placements[2].opened.parent_call_id == first.call_id


def test_another_agent_with_the_same_history_is_a_handoff() -> None:
    recording = Recording()
    calls = linear(recording, 2)
    messages = [system("You are the second agent."), *calls[1].messages[1:]]
    placements = place([calls[0], recording.call(messages, assistant("mine now"), "transfer")])
    assert kinds(placements) == [SessionKind.ROOT, SessionKind.HANDOFF]


def test_an_edited_history_that_echoes_our_ids_stays_in_its_session() -> None:
    recording = Recording()
    *calls, last = linear(recording)
    cleared = [m if m["role"] != "tool" else {**m, "content": "[cleared]"} for m in last.messages]
    placements = place([*calls, recording.call(cleared, assistant("done"), "search")])
    assert kinds(placements) == [SessionKind.ROOT]


def test_a_repeated_request_is_a_sample_of_its_own_unless_there_is_evidence_of_a_retry() -> None:
    recording = Recording()
    first = recording.call([ROLE, TASK], assistant("a"), "search")
    again = recording.call([ROLE, TASK], assistant("b"), "search")
    assert kinds(place([first, again])) == [SessionKind.ROOT, SessionKind.ROOT]
    assert kinds(place([first, replace(again, retry_count=1)])) == [SessionKind.ROOT]
    failed = replace(first, status=CallStatus.FAILED, choices=())
    assert kinds(place([failed, again])) == [SessionKind.ROOT]
    passive = [replace(c, trajectory_id=None) for c in (replace(first, status=CallStatus.ABORTED), again)]
    assert kinds(place(passive)) == [SessionKind.ROOT, SessionKind.ROOT]


def passive(calls: list[CapturedCall]) -> list[CapturedCall]:
    return [replace(c, trajectory_id=None, client="agent") for c in calls]


def test_an_attempt_at_a_task_that_another_attempt_searched_for_is_not_its_child() -> None:
    task = str(TASK["content"])
    one, other = Recording("one"), Recording("other")
    first = one.call([TASK], assistant(None, ("id-1", "search", f'{{"query": "{task}"}}')), "search")
    second = other.call([TASK], assistant("It is blue."), "search")
    assert len({p.trajectory_id for p in place(passive([first, second]))}) == 2


def test_tool_call_ids_that_repeat_merge_no_attempts() -> None:
    calls = [linear(Recording(name), 3) for name in ("one", "other")]
    placements = place(passive([c for pair in zip(*calls, strict=True) for c in pair]))
    by_attempt = {p.call_id.partition("-")[2]: set[str]() for p in placements}
    for placement in placements:
        by_attempt[placement.call_id.partition("-")[2]].add(placement.trajectory_id)
    assert not by_attempt["one"] & by_attempt["other"]


def test_a_prompt_that_contains_a_common_reply_is_no_compaction_of_another_attempt() -> None:
    reply = "I do not know the answer."
    first = Recording("one").call([TASK], assistant(reply), "search")
    second = Recording("other").call([user(f'If you must, say: "{reply}"')], assistant("Fine."), "search")
    assert len({p.trajectory_id for p in place(passive([first, second]))}) == 2


ODD = [
    {"tools": 5},
    {"tools": [{"function": None}, "x", {"function": {"name": None}}]},
    {"messages": [{"role": "assistant", "tool_calls": 5}]},
    {"messages": [{"role": "assistant", "tool_calls": ["x", {"id": {}, "function": "f"}]}]},
    {"messages": [{"role": ["a"], "content": {"b": 1}}, {}]},
    {"messages": [{"role": "tool", "tool_call_id": 7, "content": [None, 3, {"type": "image"}]}]},
]


@pytest.mark.parametrize("odd", ODD)
def test_requests_that_make_no_sense_are_placed_all_the_same(odd: dict[str, Any]) -> None:
    call = Recording().call([TASK], assistant("ok"))
    messages = tuple(odd.get("messages", call.messages))
    assert kinds(place([replace(call, messages=messages, params=odd)])) == [SessionKind.ROOT]


def test_a_continuation_of_any_choice_extends_the_call() -> None:
    recording = Recording()
    replies = [assistant("one"), assistant("two")]
    first = recording.call([TASK], replies[0])
    first = replace(first, choices=tuple(choice(r, [i], i) for i, r in enumerate(replies)))
    second = recording.call([TASK, replies[1], user("go on")], assistant("three"))
    placements = place([first, second])
    assert placements[1].parent_call_id == first.call_id


def test_without_an_operators_key_every_root_is_a_trajectory_and_clients_never_mix() -> None:
    one, other = Recording(None, "one"), Recording(None, "other")
    placements = place([*compaction(one, tag="x"), *compaction(other, tag="x")])
    assert len({p.trajectory_id for p in placements}) == 2
    assert kinds(placements) == [SessionKind.ROOT, SessionKind.COMPACTION] * 2


@given(st.data())
def test_attempts_interleaved_in_any_order_are_never_merged(data: st.DataObject) -> None:
    """Eight attempts at the same task, same texts but for what was sampled, without any key."""
    recordings = [Recording(None, "agent") for _ in range(8)]
    scripts = []
    for number, recording in enumerate(recordings):
        make = data.draw(st.sampled_from(["linear", "compaction", "spawns"]))
        tag = f"{number}-"
        prompts = (f"first for {number}", f"second for {number}")
        script = (
            linear(recording, tag=tag)
            if make == "linear"
            else compaction(recording, tag=tag)
            if make == "compaction"
            else spawns(recording, prompts, tag)
        )
        scripts.append([replace(c, call_id=f"{number}/{c.call_id}") for c in script])
    lineage = Lineage()
    owners: dict[str, set[str]] = {}
    while any(scripts):
        script = data.draw(st.sampled_from([s for s in scripts if s]))
        call = script.pop(0)
        owners.setdefault(lineage.place(call).trajectory_id, set()).add(call.call_id.partition("/")[0])
    assert sorted(owners.values(), key=min) == [{str(n)} for n in range(8)]
