"""A database that takes or tells nothing while many clients call: memory stays bounded, and no call waits for it."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from typing import Any, ClassVar

import pytest
from sqlalchemy import create_engine

from mosaic.store import Store, database
from proxy import app
from proxy.progress import Progress
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Turn
from tests.engine.raw import whole
from tests.engine.tokens import TokenEngine
from tests.proxy.faults import BODIES, before, post, replying, rows, wire_whole
from tests.proxy.test_recorder import health, locked

LARGE = [{"role": "user", "content": "x" * 200_000}]
CALLS, AT_ONCE = 80, 10


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize("commit_first", [False, True])
async def test_what_a_locked_database_cannot_take_waits_on_disk_and_not_in_memory(
    start_proxy: ProxyFactory, commit_first: bool
) -> None:
    body = json.dumps({**BODIES["chat/completions"], "messages": LARGE}).encode()
    answer = replying(whole(wire_whole("chat/completions", Turn("Hi"))))
    async with before(start_proxy, answer, commit_first=commit_first, store_wait_s=0.2) as (proxy, engine):
        await post(proxy, "chat/completions", body)
        held, _ = tracemalloc.get_traced_memory()
        with locked(proxy.store):
            await post(proxy, "chat/completions", body)
            progress = Progress(proxy.settings.spool)
            await until(lambda: progress.refusing)  # from now on the writer holds this one call, and no whole batch
            progress.close()
            for _ in range(CALLS // AT_ONCE):
                answers = await asyncio.gather(*(post(proxy, "chat/completions", body) for _ in range(AT_ONCE)))
                assert {status for status, _ in answers} == {200}
            engine.requests.clear()
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - held
        assert grown < CALLS * len(body) / 2
        await until(lambda: len(rows(proxy)) == CALLS + 2, 60)
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
