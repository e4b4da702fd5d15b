"""The Python client before a real proxy: both kinds do the same."""

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from mosaic import client as client_module
from mosaic.client import AsyncClient, Client
from mosaic.errors import MosaicError, RequestError
from proxy import events
from proxy.trace import captured
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Turn
from tests.proxy.traces import conversation
from tests.sending import answer, sending

Use = Callable[..., Any]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "EVERY_S", 0.02)
    monkeypatch.setattr(client_module, "AGAIN_S", 0.05)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """An address at which there is no proxy."""

    url: str


@pytest.fixture(params=["threads", "asyncio"])
def use(request: pytest.FixtureRequest) -> Use:
    """Call a method of either client and get its answer; an iterator comes as a list, of `most` items at most."""

    async def called(proxy: Proxy | Elsewhere, name: str, *args: Any, most: int | None = None, **given: Any) -> Any:
        keys = {"key": given.pop("key", None)}
        if request.param == "asyncio":
            async with AsyncClient(proxy.url, **keys) as one:
                answer = getattr(one, name)(*args, **given)
                return await answer if inspect.isawaitable(answer) else await taken(answer, most)
        return await asyncio.to_thread(in_thread, Client(proxy.url, **keys), name, args, given, most)

    return called


async def taken(items: Any, most: int | None) -> list[Any]:
    found = []
    async for item in items:
        found.append(item)
        if len(found) == most:
            await items.aclose()
            break
    return found


def in_thread(one: Client, name: str, args: Any, given: Any, most: int | None) -> Any:
    answer = getattr(one, name)(*args, **given)
    if not inspect.isgenerator(answer):
        return answer
    found = []
    for item in answer:
        found.append(item)
        if len(found) == most:
            answer.close()
            break
    return found


def told(proxy: Proxy, number: int) -> None:
    for n in range(number):
        proxy.store.record([captured(trace) for trace in conversation(2, f"run-{n:03d}")])


async def test_a_reward_is_given_and_the_trajectory_tells_it(start_proxy: ProxyFactory, use: Use) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        told(proxy, 1)
        outcome = await use(proxy, "reward", "run-000", 0.5, note="ok")
        assert (outcome["state"], outcome["in_force"]) == ("scored", True)
        found = await use(proxy, "trajectory", "run-000")
        assert (found["reward"], found["rewards"][0]["source"], found["rewards"][0]["note"]) == (0.5, "client", "ok")
        session = found["sessions"][0]["session_id"]
        await use(proxy, "reward", "run-000", None, session_id=session)
        assert (await use(proxy, "trajectory", "run-000"))["reward"] == 0.5
        assert (await use(proxy, "end", "run-000", "failed", "test"))["state"] == "failed"


async def test_a_task_that_is_named_takes_the_place_of_the_derived_one(start_proxy: ProxyFactory, use: Use) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        told(proxy, 2)
        for name in ("run-000", "run-001"):
            assert (await use(proxy, "name_task", name, "swe-17", "Fix it."))["task_key"] == "swe-17"
        group = proxy.store.group_of("run-000")
        assert (group.task_key, len(group.trajectories)) == ("swe-17", 2)
        proxy.store.record([captured(trace) for trace in conversation(3, "run-000")])
        assert (await use(proxy, "trajectory", "run-000"))["task_key"] == "swe-17"
        with pytest.raises(RequestError, match="no trajectory"):
            await use(proxy, "name_task", "run-9", "swe-17")


async def test_lists_are_read_to_their_end_whatever_their_length(start_proxy: ProxyFactory, use: Use) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        told(proxy, 7)
        proxy.store.reward("run-003", 1.0, "test")
        everything = await use(proxy, "trajectories", limit=2)
        assert len({t["trajectory_id"] for t in everything}) == len(everything) == 7
        assert [t["trajectory_id"] for t in await use(proxy, "trajectories", scored=True)] == ["run-003"]
        assert len(await use(proxy, "calls", "run-001")) == 2
        assert await use(proxy, "trajectories", q="no such") == []


async def test_who_waits_gets_the_trajectory_once_it_is_settled(start_proxy: ProxyFactory, use: Use) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        waiting = asyncio.ensure_future(use(proxy, "wait", "run-000", timeout_s=20))
        told(proxy, 1)
        await asyncio.to_thread(proxy.store.reward, "run-000", 1.0, "test")
        assert (await waiting)["reward"] == 1.0
        with pytest.raises(TimeoutError, match="was not trained"):
            await use(proxy, "wait", "run-000", ["trained"], timeout_s=0.01)


async def test_events_go_on_after_the_one_that_is_named(start_proxy: ProxyFactory, use: Use) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        told(proxy, 2)
        first = await use(proxy, "events", after="0.0", most=3)
        assert [event.kind for event in first] == ["call"] * 3
        (last,) = await use(proxy, "events", after=first[-1].event_id, most=1)
        assert last.data["call_id"] == "call-run-001-1"


async def test_a_stream_that_breaks_goes_on_where_it_broke(
    start_proxy: ProxyFactory, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[events.Events] = []
    answer = events.Events.answer

    def seen(self: events.Events, *args: Any) -> Any:
        streams.append(self)
        return answer(self, *args)

    monkeypatch.setattr(events.Events, "answer", seen)
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        told(proxy, 1)
        reading = asyncio.ensure_future(use(proxy, "events", after="0.0", most=4))
        await until(lambda: streams)
        streams[0].stop()
        told(proxy, 2)
        await until(lambda: len(streams) > 1)
        streams[0]._stopped = False
        assert [event.data["trajectory_id"] for event in await reading] == ["run-000"] * 2 + ["run-001"] * 2


async def test_a_stream_that_breaks_before_anything_has_happened_goes_on_too(
    start_proxy: ProxyFactory, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams: list[events.Events] = []
    readers: list[Any] = []

    class Seen(client_module._Reader):
        def __init__(self, after: str | None) -> None:
            super().__init__(after)
            readers.append(self)

    def answer(self: events.Events, *args: Any) -> Any:
        streams.append(self)
        return original(self, *args)

    original = events.Events.answer
    monkeypatch.setattr(events.Events, "answer", answer)
    monkeypatch.setattr(client_module, "_Reader", Seen)
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        reading = asyncio.ensure_future(use(proxy, "events", most=2))
        await until(lambda: readers and readers[0].after)
        streams[0].stop()
        told(proxy, 1)
        await until(lambda: len(streams) > 1)
        streams[0]._stopped = False
        assert [event.data["trajectory_id"] for event in await reading] == ["run-000"] * 2


async def test_a_call_is_shown_by_its_id(start_proxy: ProxyFactory, use: Use) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        told(proxy, 1)
        found = await use(proxy, "call", "call-run-000-1")
        assert (found["trajectory_id"], found["choices"][0]["body"]["content"]) == ("run-000", "This is reply 1")


async def test_refusals_are_told_in_the_apis_own_words(start_proxy: ProxyFactory, use: Use) -> None:
    async with start_proxy(lambda _: Turn("Hi"), api_keys=["good"]) as proxy:
        for name, args in (("trajectories", ()), ("trajectory", ("x",)), ("events", ())):
            with pytest.raises(RequestError, match="key is missing or wrong") as refused:
                await use(proxy, name, *args, key="bad")
            assert refused.value.status == 401
        with pytest.raises(RequestError, match="there is no trajectory") as missing:
            await use(proxy, "trajectory", "b?c#d e", key="good")
        assert missing.value.status == 404


@pytest.mark.parametrize("name", ["trajectory", "reward", "trajectories", "events"])
async def test_a_redirect_takes_the_key_nowhere(use: Use, name: str) -> None:
    given = {"trajectory": ("run-1",), "reward": ("run-1", 1.0)}.get(name, ())
    async with sending(answer(b"{}")) as (other, taken):
        there = b"location: %b/api/events\r\n" % other.encode()
        async with sending(answer(b"", "302 Found", there)) as (url, asked):
            with pytest.raises(RequestError, match="redirects") as refused:
                await use(Elsewhere(url), name, *given, key="the key")
    assert (refused.value.status, taken) == (302, [])
    assert all(b"the key" in one for one in asked)


async def test_where_nobody_answers_the_error_says_so(start_proxy: ProxyFactory, use: Use) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy:
        proxy.url = "http://127.0.0.1:9"
        with pytest.raises(MosaicError, match="cannot be reached"):
            await use(proxy, "trajectory", "run-000")
        with pytest.raises(MosaicError, match="cannot be reached"):
            await use(proxy, "events", most=1)
