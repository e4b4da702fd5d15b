"""Subagents and handoffs: the sessions that are found are what the framework did, without a path or an id."""

import asyncio

import pytest

from mosaic.records import SessionKind
from tests.conftest import ProxyFactory
from tests.frameworks import runners
from tests.frameworks.errands import (
    LEAD_ANSWER,
    LEAD_TASK,
    Errand,
    check_continuous,
    count,
    lead,
    the_trajectory,
    unlike,
)
from tests.frameworks.runners import Run

CASES = [
    (runners.openai_agents, "responses", False),
    (runners.openai_agents, "chat", True),
    (runners.pydantic_ai, "chat", False),
    (runners.pydantic_ai, "messages", True),
    (runners.strands, "chat", True),
    (runners.strands, "responses", True),
    (runners.deepagents, "chat", False),
    (runners.deepagents, "messages", True),
]
IDS = [f"{run.__name__}-{wire}-{'stream' if stream else 'whole'}" for run, wire, stream in CASES]


@pytest.mark.parametrize(("run", "wire", "stream"), CASES, ids=IDS)
async def test_two_subagents_at_once_are_sessions_of_their_own_under_the_call_that_started_them(
    start_proxy: ProxyFactory, run: Run, wire: str, stream: bool
) -> None:
    errand = {"tools": (count,), "task": LEAD_TASK, "system": "You are the lead.", "expert": True}
    async with start_proxy(lead) as proxy:
        assert await run(Errand(proxy.url, wire, stream, **errand)) == LEAD_ANSWER  # type: ignore[arg-type]
        root, *children = the_trajectory(proxy).sessions
        assert (root.kind, len(root.calls)) == (SessionKind.ROOT, 2)
        assert [(c.kind, len(c.calls)) for c in children] == [(SessionKind.SPAWN, 2)] * 2
        assert {c.parent_session_id for c in children} == {root.session_id}
        assert {c.opened_by_call_id for c in children} == {root.calls[0].call_id}
        for session in (root, *children):
            check_continuous(session)


@pytest.mark.parametrize("run", [runners.pydantic_ai, runners.deepagents, runners.openai_agents])
async def test_attempts_at_once_keep_their_subagents(start_proxy: ProxyFactory, run: Run) -> None:
    """Four leads with one task, at once and without a path; what they say differs, as a sampled policy's words do."""
    async with start_proxy(unlike(lead)) as proxy:
        errand = Errand(proxy.url, "chat", False, (count,), LEAD_TASK, "You are the lead.", expert=True)
        assert await asyncio.gather(*(run(errand) for _ in range(4))) == [LEAD_ANSWER] * 4
        summaries = proxy.store.trajectories()
        assert len(summaries) == 4
        for summary in summaries:
            root, *children = proxy.store.trajectory(summary.trajectory_id).sessions
            assert [len(s.calls) for s in (root, *children)] == [2, 2, 2]
            assert [(c.kind, c.opened_by_call_id) for c in children] == [(SessionKind.SPAWN, root.calls[0].call_id)] * 2


async def test_a_managed_agent_of_smolagents_is_a_session_of_its_own(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lead) as proxy:
        errand = Errand(f"{proxy.url}/t/run-1", "chat", False, (count,), LEAD_TASK, "You are the lead.", expert=True)
        assert await runners.smolagents(errand) == LEAD_ANSWER
        sessions = the_trajectory(proxy).sessions
        assert [(s.kind, len(s.calls)) for s in sessions] == [
            (SessionKind.ROOT, 3),
            (SessionKind.SPAWN, 2),
            (SessionKind.SPAWN, 2),
        ]


@pytest.mark.parametrize("wire", ["chat", "responses"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_handoff_opens_a_session_of_the_same_trajectory(
    start_proxy: ProxyFactory, wire: str, stream: bool
) -> None:
    task = "Count all the keys in the house."
    async with start_proxy(lead) as proxy:
        errand = Errand(proxy.url, wire, stream, (count,), task, "You are the lead.", handoff=True)
        assert await runners.openai_agents(errand) == "There are 7 keys."
        root, expert = the_trajectory(proxy).sessions
        assert (root.kind, len(root.calls)) == (SessionKind.ROOT, 1)
        assert (expert.kind, len(expert.calls)) == (SessionKind.HANDOFF, 2)
        assert expert.parent_session_id == root.session_id
        check_continuous(expert)
