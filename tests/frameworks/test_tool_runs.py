"""Multi-turn runs with tools: each ends as it would against its usual server, and is one session of exact calls."""

import asyncio
from typing import Any

import pytest

from tests.conftest import ProxyFactory
from tests.frameworks import runners
from tests.frameworks.errands import ANSWER, Errand, check_continuous, finder, the_trajectory
from tests.frameworks.runners import Run

WIRES: list[tuple[Run, tuple[str, ...]]] = [
    (runners.openai_agents, ("chat", "responses")),
    (runners.pydantic_ai, ("chat", "responses", "messages")),
    (runners.strands, ("chat", "responses", "messages")),
    (runners.langchain, ("chat", "responses", "messages")),
    (runners.deepagents, ("chat", "responses", "messages")),
]


def cases() -> list[Any]:
    """Every wire of every framework, whole and streamed; Strands only streams on Responses and Messages."""
    return [
        pytest.param(run, wire, stream, id=f"{run.__name__}-{wire}-{'stream' if stream else 'whole'}")
        for run, wires in WIRES
        for wire in wires
        for stream in (False, True)
        if run is not runners.strands or wire == "chat" or stream
    ]


@pytest.mark.parametrize(("run", "wire", "stream"), cases())
async def test_a_run_with_tools_is_one_session_of_exact_calls(
    start_proxy: ProxyFactory, run: Run, wire: str, stream: bool
) -> None:
    async with start_proxy(finder) as proxy:
        assert await run(Errand(proxy.url, wire, stream)) == ANSWER
        (session,) = the_trajectory(proxy).sessions
        assert [tools_called(c.samples[0].message) for c in session.calls] == [["look", "look"], ["count"], []]
        assert [bool(request.get("stream")) for request in proxy.engine.requests] == [stream] * 3
        check_continuous(session)


@pytest.mark.parametrize("run", [runners.openai_agents, runners.pydantic_ai, runners.langchain])
async def test_attempts_at_one_task_at_once_are_told_apart_without_a_path(start_proxy: ProxyFactory, run: Run) -> None:
    """They say the same, word for word: only the ids of their tool calls differ."""
    async with start_proxy(finder) as proxy:
        answers = await asyncio.gather(*(run(Errand(proxy.url, "chat", False)) for _ in range(4)))
        assert answers == [ANSWER] * 4
        assert len(proxy.store.trajectories()) == 4
        for summary in proxy.store.trajectories():
            (session,) = proxy.store.trajectory(summary.trajectory_id).sessions
            assert len(session.calls) == 3
            check_continuous(session)


def tools_called(message: Any) -> list[str]:
    return [call["function"]["name"] for call in message.get("tool_calls") or []]


@pytest.mark.parametrize("stream", [False, True])
async def test_smolagents_with_a_url_for_the_attempt_is_one_trajectory(start_proxy: ProxyFactory, stream: bool) -> None:
    async with start_proxy(finder) as proxy:
        assert await runners.smolagents(Errand(f"{proxy.url}/t/run-1", "chat", stream)) == ANSWER
        trajectory = the_trajectory(proxy)
        assert trajectory.trajectory_id == "run-1"
        calls = sorted((c for s in trajectory.sessions for c in s.calls), key=lambda c: c.started_at)
        called = [tools_called(c.samples[0].message) for c in calls]
        assert called == [["look", "look"], ["count"], ["final_answer"]]
        assert [bool(request.get("stream")) for request in proxy.engine.requests] == [stream] * 3


@pytest.mark.parametrize("url", ["{}", "{}/t/run-1"])
async def test_smolagents_is_one_session(start_proxy: ProxyFactory, url: str) -> None:
    async with start_proxy(finder) as proxy:
        assert await runners.smolagents(Errand(url.format(proxy.url), "chat", False)) == ANSWER
        (session,) = the_trajectory(proxy).sessions
        assert len(session.calls) == 3
