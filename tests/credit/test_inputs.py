"""From recorded groups to the input of the rules, and all the way to credit."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from mosaic.credit import DropReason, Estimate, Gate, GroupInput, SessionInput, SpanRole, assign, group_input
from mosaic.records import Call, Group, Session, SessionKind, Trajectory, TrajectoryState

from .builders import call, recorded, recorded_session, tool_call, tool_result


class Seen:
    """An estimator that knows one session and remembers which trajectories it was shown."""

    def __init__(self) -> None:
        self.trajectories: list[str] = []

    def contributions(self, group: Group) -> Mapping[str, Estimate]:
        self.trajectories = [t.trajectory_id for t in group.trajectories]
        return {"a": Estimate(0.5, 0.1, "fixed")}


def build(*trajectories: Trajectory) -> GroupInput:
    return group_input(Group("task", trajectories))


def only(*calls: Call) -> SessionInput:
    return build(recorded("t", [recorded_session("s", calls)], 1.0)).trajectories[0].sessions[0]


def test_only_sampled_tokens_of_exact_task_calls_count() -> None:
    twice = call("d", 2)
    twice = replace(twice, samples=twice.samples * 2)
    given = only(call("a", 0, exact=False), call("b", 1), twice, call("c", 3, auxiliary="title"))
    assert given.tokens == 9
    assert given.last_call_id == "d"
    assert only(call("a", 0, exact=False)).last_call_id is None


def test_every_session_of_the_task_counts_but_none_of_the_frameworks_own() -> None:
    sessions = [
        recorded_session("root", [call("a", 0)]),
        recorded_session("failed", [], SessionKind.SPAWN, "root", "a"),
        recorded_session("inexact", [call("b", 1, exact=False)], SessionKind.COMPACTION, "root", "a"),
        recorded_session("title", [call("c", 2, auxiliary="title")]),
    ]
    [t] = build(recorded("t", sessions, 1.0)).trajectories
    assert [s.session_id for s in t.sessions] == ["root", "failed", "inexact"]
    assert [s.tokens for s in t.sessions] == [3, 0, 0]
    failed = t.sessions[1]
    assert (failed.kind, failed.parent_session_id, failed.opened_by_call_id) == (SessionKind.SPAWN, "root", "a")


def test_a_session_without_output_is_not_effective() -> None:
    speaks, acts = call("a", 0), call("a", 0, content=None, tool_calls=[tool_call("i")])
    assert [only(c).effective for c in (speaks, acts)] == [True, True]
    cut = call("b", 1, samples=())
    empty = call("b", 1, content="")
    assert [only(speaks, c).effective for c in (cut, empty)] == [False, False]
    assert only(speaks, call("b", 1, content="", auxiliary="title")).effective
    assert not only().effective


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (TrajectoryState.OPEN, DropReason.OPEN),
        (TrajectoryState.FAILED, DropReason.FAILED),
        (TrajectoryState.TRUNCATED, DropReason.TRUNCATED),
        (TrajectoryState.UNSCORABLE, DropReason.UNSCORABLE),
        (TrajectoryState.CLOSED, None),
        (TrajectoryState.SCORED, None),
        (TrajectoryState.TRAINED, None),
    ],
)
def test_the_state_decides_whether_a_reward_counts(state: TrajectoryState, reason: DropReason | None) -> None:
    given = build(recorded("t", [recorded_session("s", [call("a", 0)])], 1.0, state))
    assert given.trajectories[0].exclusion is reason


def test_the_estimator_is_shown_what_can_be_compared_and_its_name_is_kept() -> None:
    def attempt(tid: str, reward: float | None, state: TrajectoryState = TrajectoryState.SCORED) -> Trajectory:
        return recorded(tid, [recorded_session(tid, [call(tid, 0)])], reward, state)

    bare = recorded("bare", [], 1.0)
    rows = [
        attempt("a", 1.0),
        attempt("b", 0.0),
        attempt("c", None),
        attempt("d", 0.0, TrajectoryState.TRUNCATED),
        bare,
    ]
    estimator = Seen()
    given = group_input(Group("task", tuple(rows)), estimator)
    assert estimator.trajectories == ["a", "b"]
    known = {s.session_id: (s.contribution, s.contribution_source) for t in given.trajectories for s in t.sessions}
    unknown = (None, "none")
    assert known == {"a": (0.5, "fixed"), "b": unknown, "c": unknown, "d": unknown}
    assert given.task_key == "task"


def compacting(tid: str, reward: float, first: str, second: str) -> Trajectory:
    """Looks something up, summarises, looks something else up and answers."""

    def lookup(name: str, at: float, text: str) -> list[Call]:
        call_id = f"{tid}.{name}"
        asked = call(call_id, at, tool_calls=[tool_call(call_id, arguments={"q": text})])
        return [asked, call(f"{call_id}.end", at + 1, [tool_result(call_id, text)])]

    sessions: list[Session] = [
        recorded_session(f"{tid}.0", lookup("x", 0, first)),
        recorded_session(f"{tid}.1", lookup("y", 2, second), SessionKind.COMPACTION, f"{tid}.0", f"{tid}.x.end"),
    ]
    return recorded(tid, sessions, reward)


def test_a_recorded_group_becomes_credit_that_follows_what_was_found() -> None:
    rows = [compacting("a", 1, "gold", "dust"), compacting("b", 1, "gold", "sand"), compacting("c", 0, "sand", "dust")]
    [credit] = assign([build(*rows)], "mosaic")
    good, _, bad = credit.trajectories
    assert good.sessions[0].advantage > good.sessions[1].advantage == 0
    assert {s.gate for s in bad.sessions} == {Gate.EXPLORATION}
    assert [s.source for s in good.sessions] == ["group", "group"]
    roles = {span.call_id: (span.role, span.advantage) for span in good.spans}
    assert roles == {
        "a.x.end": (SpanRole.HANDOFF, good.sessions[1].advantage),
        "a.y.end": (SpanRole.ANSWER, good.advantage),
    }
