"""The views, without a server or a store: what is drawn, and that no input breaks the drawing."""

import json
import shlex
import subprocess
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mosaic.store.browsing import SessionLine
from mosaic.store.call_browsing import CallLine, ChoiceTokens, StoredMessage
from mosaic.store.progress import Attempt, Job, Version
from mosaic.store.schedules import ScheduleState
from proxy.ui import rendering
from proxy.ui.call_view import curl, message_view, request_body, strip, tools_of
from proxy.ui.schedule_view import schedule_view
from proxy.ui.training_view import plots_json, task_lines, training_view
from proxy.ui.trajectory_view import WIDTH, Axis, gist, trajectory_view

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
MEMBERS = st.sampled_from(["role", "content", "tool_calls", "tool_call_id", "name", "reasoning", "refusal", "other"])
MESSAGES = st.dictionaries(MEMBERS, JSON, max_size=6)
SPANS = st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 100)).map(lambda p: (p[0], p[0] + p[1])), max_size=20)


def session(session_id: str, position: int, parent: str | None = None, **changes: Any) -> SessionLine:
    values: dict[str, Any] = {
        "session_id": session_id,
        "position": position,
        "kind": "spawn" if parent else "root",
        "parent_session_id": parent,
        "opened_by_call_id": None,
        "created_at": float(position),
        "ended_at": None,
        "ended": None,
        "calls": 1,
        "auxiliary_calls": 0,
        "inexact_calls": 0,
        "sampled_tokens": 1,
        "link": None,
        "advantage": None,
        "trained_by": None,
        "reward": None,
    }
    return SessionLine(**{**values, **changes})


def line(call_id: str, session_id: str, start: float, end: float, **changes: Any) -> CallLine:
    values: dict[str, Any] = {
        "seq": 1,
        "call_id": call_id,
        "session_id": session_id,
        "parent_call_id": None,
        "auxiliary": None,
        "wire": "chat",
        "status": "ok",
        "http_status": 200,
        "exact": True,
        "inexact_reason": None,
        "prompt_tokens": 1,
        "sampled_tokens": 1,
        "policy_version": 0,
        "policy_version_end": 0,
        "started_at": start,
        "first_byte_at": start,
        "ended_at": end,
        "finish_reason": "stop",
        "head": None,
    }
    return CallLine(**{**values, **changes})


def test_a_session_stands_below_its_parent_and_before_its_parents_next_child() -> None:
    told = [session("r", 0), session("a", 1, "r"), session("b", 2, "r"), session("c", 3, "a")]
    lanes = trajectory_view(told, []).lanes
    assert [(lane.session.session_id, lane.depth) for lane in lanes] == [("r", 0), ("a", 1), ("c", 2), ("b", 1)]
    assert [lane.y for lane in lanes] == sorted(lane.y for lane in lanes)


def test_sessions_whose_parents_are_unknown_or_themselves_are_shown_all_the_same() -> None:
    lanes = trajectory_view([session("a", 0, "gone"), session("b", 1, "b")], []).lanes
    assert [(lane.session.session_id, lane.depth) for lane in lanes] == [("a", 0), ("b", 0)]


@given(SPANS)
@example([(0.0, 7.9e-308), (1.0, 1.0)])
@example([(0.0, 0.0), (262144.0, 262144.0078125)])
def test_time_runs_to_the_right_inside_the_picture(spans: list[tuple[float, float]]) -> None:
    axis = Axis(spans)
    places = [axis.x(when) for when in sorted(when for span in spans for when in span)]
    assert places == sorted(places)
    assert all(-1e-6 <= place <= WIDTH + 1e-6 for place in places)


def test_waiting_takes_little_room() -> None:
    axis = Axis([(0.0, 1.0), (100_000.0, 100_001.0)])
    assert axis.x(1.0) > 0.45 * WIDTH
    assert axis.busy_s == 2.0


def test_a_thousand_short_calls_are_few_blocks_and_all_are_counted() -> None:
    calls = [line(f"c{n}", "r", n / 1000, n / 1000 + 0.001) for n in range(5000)]
    lane = trajectory_view([session("r", 0)], calls).lanes[0]
    assert sum(block.calls for block in lane.blocks) == 5000
    assert len(lane.blocks) < 1500


def test_a_failed_call_is_not_hidden_among_its_neighbours() -> None:
    calls = [line(f"c{n}", "r", n / 1000, n / 1000 + 0.001, status="failed" if n == 500 else "ok") for n in range(5000)]
    marks = [block.mark for block in trajectory_view([session("r", 0)], calls).lanes[0].blocks]
    assert marks.count("failed") == 1


@given(MESSAGES, st.integers(1, 400))
def test_a_reply_cut_anywhere_has_a_gist(body: dict[str, Any], length: int) -> None:
    gist(json.dumps(body)[:length])


def test_the_gist_of_a_cut_reply_is_the_beginning_of_its_text() -> None:
    head = json.dumps({"content": 'He said "no"\nand left. ' * 50, "role": "assistant"})[:400]
    assert gist(head).text.startswith('He said "no"\nand left. He')
    call = {"function": {"name": "search", "arguments": '{"query": "x", "limit": 3}'}}
    assert gist(json.dumps({"content": None, "tool_calls": [call]})).tools == (("search", "x, 3"),)


@given(MESSAGES)
def test_no_message_breaks_its_view_and_none_of_its_members_is_lost(body: dict[str, Any]) -> None:
    view = message_view(body)
    if body.get("other") is not None:
        assert "other" in view.rest
    if isinstance(body.get("content"), str) and body["content"]:
        assert view.text == body["content"]


@given(st.lists(MESSAGES, max_size=3), st.text(max_size=40))
def test_a_shell_reads_the_copied_command_as_the_request_that_it_was(messages: list[Any], model: str) -> None:
    stored = [StoredMessage(n, n, "user", message) for n, message in enumerate(messages)]
    body = request_body({"model": model, "client_request": {"x": 1}}, stored)
    words = shlex.split(curl("http://127.0.0.1:1/t/run", body).replace("\\\n", " "))
    assert json.loads(words[-1]) == json.loads(json.dumps(body))
    assert "client_request" not in body


def test_a_real_shell_runs_nothing_that_a_message_says() -> None:
    said = '\'; touch /tmp/never; echo $(id) `id` "$HOME" \\'
    command = curl("http://127.0.0.1:1", {"messages": [{"role": "user", "content": said}]})
    shown = subprocess.run(
        ["sh", "-c", command.replace("curl ", "printf '%s\\0' ", 1)], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(shown.split("\0")[-2])["messages"][0]["content"] == said


def test_tools_are_told_from_any_form() -> None:
    given_tools = [
        {"type": "function", "function": {"name": "a", "description": "x"}},
        {"name": "b"},
        {"type": "web"},
        3,
    ]
    assert [tool.name for tool in tools_of({"tools": given_tools})] == ["a", "b", "web"]


def test_a_strip_says_of_every_token_who_sampled_it() -> None:
    tokens = ChoiceTokens(
        np.arange(200, dtype=np.int32),
        np.arange(4, dtype=np.int32),
        np.array([0.0, -1.0, -np.inf, np.nan], np.float32),
        [[3, 0, 2], [4, 2, 4]],
        np.array([-0.5, np.nan, -1.5, np.nan], np.float32),
    )
    drawn = strip(tokens, trained=True, advantage=0.5)
    assert drawn["versions"] == [3, 3, 4, 4]
    assert drawn["logprobs"] == [0.0, -1.0, None, None]
    assert drawn["training_logprobs"] == [-0.5, None, -1.5, None]
    assert drawn["prompt_tokens"] == 200
    assert drawn["prompt"][-1] == 199
    assert drawn["perplexity"] == pytest.approx(np.exp(0.5))
    json.dumps(drawn, allow_nan=False)


def attempt(number: int, reward: float | None, task: str = "t", trained: int | None = None) -> Attempt:
    return Attempt(f"r{number}", task, float(number), "scored", reward, 1, trained, 2)


def test_training_is_told_by_its_rewards_groups_and_versions() -> None:
    attempts = [attempt(n, float(n % 2), f"t{n % 3 == 0}", 3) for n in range(40)]
    attempts += [attempt(50, 1.0, "same"), attempt(51, 1.0, "same"), attempt(52, None)]
    jobs = [Job("j", "published", 0, 1, None, 5.0, 9.0, {"entropy": 1.5})]
    versions = [Version(1, "live", "j", "p", 8.0, 9.0, {}), Version(2, "loading", None, "p", 9.0, None, {})]
    view = training_view(attempts, jobs, versions)
    assert (view.scored, view.staleness, view.markers) == (42, 1.0, [(9.0, 1)])
    assert view.zero_variance == pytest.approx(1 / 3)
    assert [plot.title for plot in view.plots][-1] == "Entropy, nats"
    for plot in plots_json(view)["plots"]:
        assert len({len(column) for column in plot["columns"]}) == 1
        assert plot["columns"][0] == sorted(plot["columns"][0])


@pytest.mark.parametrize(("scored", "lately"), [(11, 11), (42, 20), (300, 30)])
def test_success_lately_is_of_the_newest_tenth_but_of_twenty_where_there_are_so_many(scored: int, lately: int) -> None:
    attempts = [attempt(n, float(n >= scored - lately // 2)) for n in range(scored)]
    view = training_view(attempts, [], [])
    assert (view.lately, view.success) == (lately, lately // 2 / lately)


def test_utility_is_the_reward_per_session() -> None:
    plots = {plot.title: plot for plot in training_view([attempt(0, 1.0)] * 8, [], []).plots}
    assert list(plots["Utility"].lines.values()) == [[0.5] * len(plots["Utility"].times)]


@pytest.mark.parametrize(
    ("state", "owner", "owned", "said"),
    [
        (ScheduleState(next_at=5.0), None, False, "No schedule runs"),
        (ScheduleState(next_at=5.0), "p", True, ""),
        (ScheduleState(asked_at=1.0, due="cron", held_up="hours"), "p", True, "A run is asked for"),
        (ScheduleState(due="when_scored"), "p", True, "A run is due (when_scored)."),
        (ScheduleState(due="every", held_up="calls"), "p", True, "waits until no call has ended for a while"),
    ],
)
def test_a_schedule_says_what_it_waits_for(state: ScheduleState, owner: str | None, owned: bool, said: str) -> None:
    view = schedule_view(state, owner)
    assert (view.owned, said in view.said, bool(view.said)) == (owned, True, bool(said))


def test_nothing_recorded_is_an_empty_page_and_no_fault() -> None:
    view = training_view([], [], [])
    assert (view.plots, view.success, view.zero_variance, view.staleness) == ([], None, None, None)
    assert task_lines([]) == []


def test_a_group_without_contrast_is_marked() -> None:
    first, second = task_lines([attempt(0, 1.0, "a"), attempt(1, 1.0, "a"), attempt(2, 0.0, "b"), attempt(3, 1.0, "b")])
    assert (first.task_key, first.no_contrast, second.no_contrast) == ("b", False, True)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (rendering.figure(1.0), "1"),
        (rendering.figure(-0.5), "−0.5"),
        (rendering.figure(1e-9), "1.00e-09"),
        (rendering.figure(float("nan")), "–"),
        (rendering.signed(0.0), "+0.00"),
        (rendering.share(0.9979), "99.8 %"),
        (rendering.share(0.99999), "99.9 %"),
        (rendering.share(1.0), "100 %"),
        (rendering.share(0.5), "50 %"),
        (rendering.lasting(0.0421), "42 ms"),
        (rendering.lasting(3725), "1 h 02 m"),
        (rendering.count(12345), "12,345"),
        (rendering.moment(0.0), "1970-01-01 00:00:00"),
        (rendering.moment(1e30), "–"),
        (rendering.ago(10.0, 3700.0), "1 h"),
        (rendering.ago(None, 0.0), "–"),
    ],
)
def test_figures_are_written_as_people_read_them(written: str, said: str) -> None:
    assert written == said


@given(st.floats(0, 1))
def test_a_share_is_all_or_nothing_only_when_it_is(value: float) -> None:
    assert (rendering.share(value) == "100 %") is (value == 1)
