"""mini-swe-agent: a linear run with real commands in a real shell."""

from pathlib import Path

import pytest

from tests.conftest import ProxyFactory
from tests.frameworks import runners
from tests.frameworks.errands import ANSWER, Errand, check_continuous, shell, the_trajectory


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It makes a folder for its settings when it is imported, and prints where."""
    monkeypatch.setenv("MSWEA_GLOBAL_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.setenv("MSWEA_SILENT_STARTUP", "1")


async def test_mini_swe_agent_is_one_session_of_exact_calls(start_proxy: ProxyFactory) -> None:
    async with start_proxy(shell) as proxy:
        assert await runners.mini_swe_agent(Errand(proxy.url, "chat", False)) == ANSWER
        (session,) = the_trajectory(proxy).sessions
        assert [len(c.samples[0].message.get("tool_calls") or []) for c in session.calls] == [2, 1, 1]
        check_continuous(session)
