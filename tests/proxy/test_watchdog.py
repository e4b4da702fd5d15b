"""A writer that is stuck is replaced; one that works, on a machine that gives it little time, is not."""

import os
import signal

import aiohttp
import pytest
from structlog.testing import capture_logs

from proxy import beside, recorder
from proxy.beside import STARVED_S, STUCK_S, Watchdog
from proxy.progress import Progress
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Turn

BODY = {"model": "policy", "messages": [{"role": "user", "content": "hello"}]}


@pytest.mark.parametrize(
    ("silent_s", "worked_s", "stuck"),
    [
        (STUCK_S - 1, 0.0, False),
        (STUCK_S + 1, 0.0, True),
        (STUCK_S + 1, STARVED_S / 2, True),
        (STUCK_S + 1, 2 * STARVED_S, False),
        (100 * STUCK_S, STUCK_S / 2, False),
        (100 * STUCK_S, STUCK_S + 1, True),
    ],
)
def test_what_has_had_some_processor_time_is_not_stuck(silent_s: float, worked_s: float, stuck: bool) -> None:
    watchdog = Watchdog()
    assert not watchdog.stuck(1000.0, 7.0, 1001.0)
    assert watchdog.stuck(1000.0, 7.0 + worked_s, 1000.0 + silent_s) is stuck


def test_a_sign_of_life_begins_the_time_anew() -> None:
    watchdog = Watchdog()
    watchdog.stuck(0.0, 0.0, 1.0)
    assert not watchdog.stuck(STUCK_S, 3.0, STUCK_S + 1)
    assert watchdog.stuck(STUCK_S, 3.0, 2 * STUCK_S + 1)


async def test_a_writer_that_stands_still_is_replaced_and_no_call_is_lost(
    start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "STUCK_S", 3.0)
    monkeypatch.setattr(recorder, "WATCH_S", 0.2)
    with capture_logs() as said:
        async with start_proxy(lambda _: Turn("Hi"), writer_process=True, commit_first=False) as proxy:
            await _replaced(proxy)
    assert [line["event"] for line in said].count("writer ended: it had done nothing for long") == 1


async def _replaced(proxy: Proxy) -> None:
    progress = Progress(proxy.settings.spool)
    await until(lambda: progress.alive[0] != 0)
    writer, _ = progress.alive
    assert writer != os.getpid()
    os.kill(writer, signal.SIGSTOP)
    async with (
        aiohttp.ClientSession() as client,
        client.post(f"{proxy.url}/t/run-1/v1/chat/completions", json=BODY) as response,
    ):
        assert response.status == 200
    await until(lambda: [t.calls for t in proxy.store.trajectories()] == [1], 30)
    assert progress.alive[0] not in (0, writer)
    progress.close()
