"""Frameworks that compact their context: each summary closes a session, and the next one goes on from it."""

import pytest

from mosaic.records import SessionKind
from tests.conftest import Proxy, ProxyFactory
from tests.engine.scripted import Script
from tests.frameworks import runners
from tests.frameworks.errands import TOUR, TOUR_ANSWER, Errand, cramped_porter, porter, survey
from tests.frameworks.runners import Run

CASES: list[tuple[Run, str, bool, Script]] = [
    (runners.strands, "chat", True, cramped_porter),
    (runners.strands, "responses", True, cramped_porter),
    (runners.deepagents, "chat", False, cramped_porter),
    (runners.langchain, "messages", True, porter),
    (runners.langchain, "chat", False, porter),
    (runners.langchain, "responses", True, porter),
    (runners.pydantic_ai, "chat", False, porter),
    (runners.pydantic_ai, "responses", True, porter),
]
IDS = [f"{run.__name__}-{wire}-{'stream' if stream else 'whole'}" for run, wire, stream, _ in CASES]


def true_sessions(proxy: Proxy) -> list[int]:
    """Calls of each session: one ends with each request that the script answered with a summary."""
    sessions = [0]
    for request in proxy.engine.requests:
        sessions[-1] += 1
        if not request.get("tools"):
            sessions.append(0)
    return sessions


@pytest.mark.parametrize(("run", "wire", "stream", "script"), CASES, ids=IDS)
async def test_each_summary_closes_a_session_and_opens_the_next(
    start_proxy: ProxyFactory, run: Run, wire: str, stream: bool, script: Script
) -> None:
    async with start_proxy(script) as proxy:
        errand = Errand(proxy.url, wire, stream, (survey,), TOUR, "You are a porter.", compacts=True)
        assert await run(errand) == TOUR_ANSWER
        (summary,) = proxy.store.trajectories()
        sessions = proxy.store.trajectory(summary.trajectory_id).sessions
        assert [len(s.calls) for s in sessions] == true_sessions(proxy)
        assert len(sessions) >= 3
        assert [s.kind for s in sessions] == [SessionKind.ROOT, *[SessionKind.COMPACTION] * (len(sessions) - 1)]
        assert [s.parent_session_id for s in sessions] == [None, *[s.session_id for s in sessions[:-1]]]
        assert [s.opened_by_call_id for s in sessions[1:]] == [s.calls[-1].call_id for s in sessions[:-1]]
        assert [c.auxiliary for s in sessions for c in s.calls if c.auxiliary] == []
