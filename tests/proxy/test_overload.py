"""A database that takes or tells nothing while many clients call: memory stays bounded, and no call waits for it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import pytest
from sqlalchemy import create_engine

from mosaic.store import Store, database
from proxy import app, recorder
from proxy.spool import waiting_calls
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Turn
from tests.engine.tokens import TokenEngine
from tests.proxy.faults import BODIES, post, rows
from tests.proxy.test_recorder import ask, health, locked

LARGE = [{"role": "user", "content": "x" * 10_000}]
BYTES = 40_000
"""At least so many are kept of a call with that: its request, and an answer with an id for each letter."""


@pytest.mark.parametrize("commit_first", [False, True])
async def test_what_a_locked_database_cannot_take_waits_on_disk_and_not_in_memory(
    start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch, commit_first: bool
) -> None:
    monkeypatch.setattr(recorder, "MAX_PENDING_BYTES", 2**20)
    waiting: list[int] = []

    class Watched(recorder.Recorder):
        async def record(self, *call: Any) -> None:
            waiting.append(self.waiting())
            await super().record(*call)

    monkeypatch.setattr(app, "Recorder", Watched)
    async with start_proxy(lambda _: Turn("Hi"), commit_first=commit_first) as proxy:
        await ask(proxy.url, "before")
        body = {**BODIES["chat/completions"], "messages": LARGE}
        with locked(proxy.store):
            answers = await asyncio.gather(*(ask(proxy.url, f"run-{n}", body) for n in range(80)))
            assert all(b"Hi" in answer for answer in answers)
            await until(lambda: waiting_calls(proxy.settings.spool) >= 50)
        assert 5 < max(waiting) <= 2**20 / BYTES + 1
        await until(lambda: waiting_calls(proxy.settings.spool) == 0 and len(rows(proxy)) == 81)
        assert await health(proxy.url) == {"lost": 0, "rejected": {}}


class Held(Store):
    """The proxy's own store, whose connections a test can hold."""

    opened: ClassVar[list[Store]] = []

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.opened.append(self)


@asynccontextmanager
async def two_connections(
    start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch, **more: Any
) -> AsyncIterator[tuple[Proxy, Store]]:
    """A proxy whose pools hold two connections, and its store."""
    small = partial(create_engine, pool_size=2, max_overflow=0, pool_timeout=20)
    monkeypatch.setattr(database, "create_engine", small)
    monkeypatch.setattr(app, "Store", Held)
    async with start_proxy(TokenEngine(lambda _: Turn("Hi")), store_wait_s=0.3, **more) as proxy:
        yield proxy, Held.opened.pop()


async def test_a_pool_of_which_nothing_is_left_delays_no_call_of_two_hundred_clients(
    start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with two_connections(start_proxy, monkeypatch) as (proxy, store):
        _, first = await post(proxy, "responses")
        asked = {"previous_response_id": json.loads(first)["id"]}
        with ExitStack() as taken:
            for _ in range(2):
                taken.enter_context(store.database.reading())
            reads = [asyncio.ensure_future(post(proxy, "responses", None, None, **asked)) for _ in range(20)]
            calls = await asyncio.wait_for(asyncio.gather(*(post(proxy, "chat/completions") for _ in range(200))), 20)
            assert {status for status, _ in calls} == {200}
            refused = await asyncio.gather(*reads)
            assert {status for status, _ in refused} == {503}
        assert (await post(proxy, "responses", None, None, **asked))[0] == 200
        await until(lambda: len(rows(proxy)) == 202)


async def test_exact_mode_falls_back_where_nothing_can_be_looked_up(
    start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = [{"role": role, "content": "Hi"} for role in ("user", "assistant", "user")]
    async with two_connections(start_proxy, monkeypatch, fidelity="exact") as (proxy, store):
        with ExitStack() as taken:
            for _ in range(2):
                taken.enter_context(store.database.reading())
            assert (await post(proxy, "chat/completions", messages=history))[0] == 200
        (found,) = rows(proxy)
        assert (found["fidelity"], found["fidelity_reason"]) == ("fell_back", "not_remembered")
