"""Server-sent events on a real socket: what happens arrives, who comes back misses nothing, nobody holds the server."""

import asyncio
import json
import signal
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from sqlalchemy import delete

from mosaic.store import Store
from mosaic.store.models import CallRow
from proxy import events
from tests.conftest import Proxy, ProxyFactory
from tests.engine import Turn
from tests.proxy.test_recorder import start

WAIT_S = 20.0


class Stream:
    """A reader of events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response

    async def next(self, kind: str | None = None) -> dict[str, Any]:
        """The next event, of that kind."""
        async with asyncio.timeout(WAIT_S):
            while True:
                event: dict[str, Any] = {}
                while (line := (await self.response.content.readline()).decode().rstrip("\n")) or not event:
                    name, _, value = line.partition(": ")
                    event[name] = value
                if kind is None or event.get("event") == kind:
                    return {**event, "data": json.loads(event["data"])}


@asynccontextmanager
async def reading(proxy: Proxy, query: str = "", **headers: str) -> AsyncIterator[Stream]:
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{proxy.url}/api/events{query}", headers=headers) as response,
    ):
        assert response.status == 200, await response.text()
        assert response.content_type == "text/event-stream"
        yield Stream(response)


async def called(proxy: Proxy, trajectory_id: str) -> None:
    body = {"model": "policy", "messages": [{"role": "user", "content": "Hello"}]}
    address = f"{proxy.url}/t/{trajectory_id}/v1/chat/completions"
    async with aiohttp.ClientSession() as client, client.post(address, json=body) as response:
        assert response.status == 200
        await response.read()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVERY_S", 0.02)


async def test_a_call_and_a_reward_arrive_while_somebody_reads(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy, reading(proxy) as stream:
        assert (await stream.next())["event"] == "here"
        await called(proxy, "run-1")
        event = await stream.next("call")
        assert event["data"]["trajectory_id"] == "run-1"
        assert event["data"]["call_id"]
        await asyncio.to_thread(proxy.store.reward, "run-1", 1.0, "test")
        assert (await stream.next("reward"))["data"]["trajectory_id"] == "run-1"


async def test_who_comes_back_with_the_last_id_gets_what_came_meanwhile_and_nothing_twice(
    start_proxy: ProxyFactory,
) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        async with reading(proxy) as stream:
            await stream.next("here")
            await called(proxy, "run-1")
            last = (await stream.next("call"))["id"]
        await called(proxy, "run-2")
        await called(proxy, "run-3")
        async with reading(proxy, **{"Last-Event-ID": last}) as stream:
            await stream.next("here")
            assert [(await stream.next("call"))["data"]["trajectory_id"] for _ in range(2)] == ["run-2", "run-3"]


async def test_a_reader_of_one_trajectory_hears_of_no_other(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy, reading(proxy, "?trajectory=run-2") as stream:
        await stream.next("here")
        await called(proxy, "run-1")
        await called(proxy, "run-2")
        assert (await stream.next("call"))["data"]["trajectory_id"] == "run-2"


async def test_silence_is_broken_by_a_comment(start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PING_S", 0.05)
    async with start_proxy(lambda _: Turn("Hi")) as proxy, reading(proxy) as stream:
        await stream.next("here")
        async with asyncio.timeout(WAIT_S):
            assert await stream.response.content.readline() == b": still here\n"


async def test_an_id_that_is_none_and_a_reader_too_many_are_refused(
    start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MOST_READERS", 1)
    async with start_proxy(lambda _: Turn("Hi")) as proxy, aiohttp.ClientSession() as client:
        async with client.get(f"{proxy.url}/api/events", headers={"Last-Event-ID": "x"}) as response:
            assert response.status == 400
        async with reading(proxy) as stream:
            await stream.next("here")
            async with client.get(f"{proxy.url}/api/events") as response:
                assert response.status == 503
                assert (await response.json())["error"]["type"] == "RequestError"


async def test_a_file_that_takes_the_place_of_the_one_followed_is_followed_on(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await called(proxy, "before-1")
        await called(proxy, "before-2")
        async with reading(proxy) as stream:
            begun = await stream.next("here")
            file = Path(proxy.settings.database.removeprefix("sqlite:///"))
            for part in list(file.parent.glob(f"{file.name}*")):
                part.rename(part.with_name(part.name.replace("mosaic", "away")))
            Store(proxy.settings.database).close()
            assert (await stream.next("here"))["data"] == {"replaced": True}
            await called(proxy, "anew")
            event = await stream.next("call")
            assert event["data"]["trajectory_id"] == "anew"
        async with reading(proxy, **{"Last-Event-ID": begun["id"]}) as stream:
            assert (await stream.next("here"))["data"] == {}
            assert await stream.next("here") == {**event, "event": "here", "data": {"replaced": True}, "retry": "1000"}
            await called(proxy, "later")
            assert (await stream.next("call"))["data"]["trajectory_id"] == "later"


async def test_numbers_that_are_given_again_are_followed(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        await called(proxy, "before")
        async with reading(proxy) as stream:
            await stream.next("here")
            with proxy.store.database.writing() as connection:
                connection.execute(delete(CallRow))
            assert (await stream.next("here"))["data"] == {"replaced": True}
            await called(proxy, "again")
            assert (await stream.next("call"))["data"]["trajectory_id"] == "again"


def test_a_server_that_is_told_to_stop_does_not_wait_for_those_who_only_listen(tmp_path: Path) -> None:
    process, url = start(tmp_path, "http://127.0.0.1:9/v1", f"sqlite:///{tmp_path}/mosaic.db")
    try:
        with urllib.request.urlopen(f"{url}/api/events", timeout=WAIT_S) as stream:
            assert stream.readline().startswith(b"retry")
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=8) == 0  # drain_s is 10
    finally:
        process.kill()
        process.wait()
