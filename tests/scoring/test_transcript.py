"""Trajectories as others read them: JSON that has everything, text that keeps to its budget."""

import json
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mosaic.capture import CapturedCall
from mosaic.records import Call, Message, Sample, Session, SessionKind, Trajectory, TrajectoryState
from mosaic.scoring.transcript import as_json, render, task_of, tokens_of
from mosaic.store import Store
from tests.lineage.test_lineage import compaction, spawns
from tests.playbook import Recording, assistant, user

MESSAGES = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, st.sampled_from(["user", "tool"]), st.text()),
    min_size=1,
    max_size=6,
)


def told(folder: Path, calls: list[CapturedCall]) -> Trajectory:
    store = Store(f"sqlite:///{folder}/mosaic.db")
    store.record(calls)
    found = store.trajectory("run-1")
    store.close()
    return found


def trajectory_of(*sessions: list[Message]) -> Trajectory:
    """A trajectory of one call per session."""
    return Trajectory(
        "run-1",
        "task",
        None,
        TrajectoryState.CLOSED,
        tuple(
            Session(f"s{n}", SessionKind.ROOT, None, None, (_call(messages, float(n)),))
            for n, messages in enumerate(sessions)
        ),
    )


def _call(messages: list[Message], at: float) -> Call:
    none = np.zeros(0, np.int32)
    sample = Sample(0, none, none.astype(np.float32), assistant("the outcome"), "stop")
    return Call(f"c{at}", none, (sample,), tuple(messages), 0, 0, True, None, at)


def test_every_session_is_shown_with_its_messages_and_reply(tmp_path: Path) -> None:
    trajectory = told(tmp_path, spawns(Recording("run-1"), ("first prompt", "second prompt")))
    found = as_json(trajectory)
    assert json.loads(json.dumps(found)) == found
    assert [s["kind"] for s in found["sessions"]] == [s.kind.value for s in trajectory.sessions]
    prompts = {m["content"] for s in found["sessions"][1:] for m in s["messages"] if m["role"] == "user"}
    assert prompts == {"first prompt", "second prompt"}
    assert found["sessions"][0]["messages"][-1]["content"] == "both"


def test_the_text_has_the_task_first_and_the_outcome_last_and_calls_with_their_arguments(tmp_path: Path) -> None:
    trajectory = told(tmp_path, spawns(Recording("run-1"), ("first prompt", "second prompt")))
    text = render(trajectory, 10_000)
    assert text.rstrip().endswith("[assistant] both")
    assert text.count("== session") == 3
    assert "calls {" in text
    assert "first prompt" in text.partition("calls {")[2].splitlines()[0]
    assert task_of(trajectory) in text
    compacted = render(told(tmp_path / "..", compaction(Recording("run-1"))), 10_000)
    assert "(compaction)" in compacted


def test_what_does_not_fit_is_left_out_in_the_middle_and_counted() -> None:
    messages: list[Message] = [user("the task"), *(user(f"step {n} " + "x" * 100) for n in range(50))]
    text = render(trajectory_of(messages), 200)
    assert text.startswith("[user] the task\n[... ")
    assert text.endswith("[assistant] the outcome\n")
    shown = sum(f"step {n} " in text for n in range(50))
    assert f"[... {50 - shown} messages left out ...]" in text
    assert 0 < shown < 50


@given(st.lists(MESSAGES, min_size=1, max_size=4), st.integers(64, 600))
def test_the_text_keeps_to_its_budget_whatever_was_said(sessions: list[list[Message]], budget: int) -> None:
    text = render(trajectory_of(*sessions), budget)
    assert tokens_of(text) <= budget
    whole = render(trajectory_of(*sessions), 10**9)
    assert tokens_of(whole) > budget or text == whole
