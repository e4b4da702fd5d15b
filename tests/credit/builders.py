"""Short ways to write inputs, recorded values and random groups for the credit tests."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from mosaic.credit import CreditSettings, GroupCredit, GroupInput, SessionInput, TrajectoryInput
from mosaic.records import Call, Message, Sample, Session, SessionKind, Trajectory, TrajectoryState

quick = settings(max_examples=60, database=None)
"""Profile of every property test: no time limit per example (the machine is shared), nothing written to disk."""


SPEC = CreditSettings(
    alpha=0.1,
    alpha_f=0.1,
    beta_s=0.25,
    beta_f=0.1,
    gamma=0.8,
    gamma_f=0.4,
    scale_quantile=0.9,
    spawn_usage=1.0,
    epsilon=1e-12,
)
"""Constants with which the worked examples are easy to follow, and no `epsilon` to speak of."""


def session(sid: str, contribution: float | None = None, **fields: Any) -> SessionInput:
    given: dict[str, Any] = {"tokens": 10, "exploration": 1.0, **fields}
    return SessionInput(session_id=sid, contribution=contribution, contribution_source="test", **given)


def trajectory(tid: str, reward: float | None, values: Sequence[float | None], **fields: Any) -> TrajectoryInput:
    """A trajectory with one session per contribution."""
    sessions = tuple(session(f"{tid}.{k}", value, **fields) for k, value in enumerate(values))
    return TrajectoryInput(trajectory_id=tid, reward=reward, sessions=sessions)


def counted_group(rewards: Sequence[float], counts: Sequence[int], key: str = "task") -> GroupInput:
    """A group in which only rewards and session counts matter; every session is effective."""
    pairs = enumerate(zip(rewards, counts, strict=True))
    return group([trajectory(f"{key}.{i}", reward, [None] * count) for i, (reward, count) in pairs], key)


def group(trajectories: Sequence[TrajectoryInput], key: str = "task") -> GroupInput:
    return GroupInput(task_key=key, trajectories=tuple(trajectories))


def advantages(credit: GroupCredit) -> list[float]:
    return [t.advantage for t in credit.trajectories]


def session_advantages(credit: GroupCredit) -> dict[str, float]:
    return {s.session_id: s.advantage for t in credit.trajectories for s in t.sessions}


def map_sessions(given: GroupInput, change: Callable[[SessionInput], SessionInput]) -> GroupInput:
    return group(
        [replace(t, sessions=tuple(change(s) for s in t.sessions)) for t in given.trajectories], given.task_key
    )


# Whole multiples of .05 and .01: graded rewards and contributions as people write them, without subnormal numbers.
binary = st.sampled_from([0.0, 1.0])
graded = st.integers(0, 20).map(lambda n: n / 20)
contribution = st.integers(-100, 100).map(lambda n: n / 100)
few = st.integers(1, 5)


@st.composite
def groups(
    draw: st.DrawFn,
    reward: st.SearchStrategy[float | None] = binary,
    value: st.SearchStrategy[float | None] = contribution,
    count: st.SearchStrategy[int] = few,
    key: str = "task",
) -> GroupInput:
    """A random group of 2 to 8 trajectories with random sessions."""
    trajectories = []
    for i in range(draw(st.integers(2, 8))):
        sessions = tuple(
            session(
                f"{key}.{i}.{k}",
                draw(value),
                tokens=draw(st.integers(1, 30)),
                exploration=draw(st.integers(0, 10)) / 10,
                effective=draw(st.booleans()),
            )
            for k in range(draw(count))
        )
        trajectories.append(TrajectoryInput(trajectory_id=f"{key}.{i}", reward=draw(reward), sessions=sessions))
    return group(trajectories, key)


def mixed(given: GroupInput) -> bool:
    return len({t.reward for t in given.trajectories}) > 1


# Recorded values


def tool_call(call_id: str | None, name: str = "search", arguments: Any = None) -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def tool_result(call_id: str | None, content: Any, **more: Any) -> Message:
    return {"role": "tool", "tool_call_id": call_id, "content": content, **more}


def call(
    call_id: str,
    at: float,
    messages: Sequence[Message] = (),
    tool_calls: Sequence[Any] = (),
    content: str | None = "ok",
    **fields: Any,
) -> Call:
    """A call that sampled three tokens."""
    ids_T = np.arange(3, dtype=np.int32)
    message: Message = {"role": "assistant", "content": content, "tool_calls": list(tool_calls)}
    sample = Sample(0, ids_T, np.zeros(3, dtype=np.float32), message, "stop")
    given: dict[str, Any] = {"samples": (sample,), "exact": True, "auxiliary": None, **fields}
    return Call(
        call_id=call_id,
        prompt_ids_P=np.zeros(1, dtype=np.int32),
        messages=tuple(messages),
        policy_version=0,
        policy_version_end=0,
        started_at=at,
        **given,
    )


def recorded_session(
    sid: str,
    calls: Sequence[Call],
    kind: SessionKind = SessionKind.ROOT,
    parent: str | None = None,
    opened_by: str | None = None,
) -> Session:
    return Session(sid, kind, parent, opened_by, tuple(calls))


def recorded(
    tid: str,
    sessions: Sequence[Session],
    reward: float | None = None,
    state: TrajectoryState = TrajectoryState.SCORED,
) -> Trajectory:
    return Trajectory(tid, "task", reward, state, tuple(sessions))
