"""The model path against the scripted engine: what the client sees, what the store holds."""

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.wires.chat import Answer, Shown, Wanted
from adapters.wires.sse import EventSplitter
from mosaic.records import Call, Trajectory
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Fault, Turn
from tests.engine.scripted import render

HELLO = [{"role": "user", "content": "Hello, wörld"}]
CALLS = (("search", '{"q":"a"}'), ("search", '{"q":"bé"}'))


async def post(proxy: Proxy, body: dict[str, Any], path: str = "/t/run-1/v1/chat/completions") -> tuple[int, bytes]:
    async with aiohttp.ClientSession() as client, client.post(proxy.url + path, json=body) as response:
        return response.status, await response.read()


async def direct(proxy: Proxy, body: dict[str, Any]) -> bytes:
    """What the engine itself answers."""
    url = proxy.settings.upstream + "/chat/completions"
    async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
        return await response.read()


def recorded(proxy: Proxy, trajectory_id: str = "run-1") -> Trajectory:
    return proxy.store.trajectory(trajectory_id)


def only_call(proxy: Proxy) -> Call:
    (session,) = recorded(proxy).sessions
    (call,) = session.calls
    return call


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("turn", [Turn("Hi, thére"), Turn("", CALLS), Turn("Look", CALLS), Turn("Pick", n=3)])
async def test_a_call_is_recorded_exactly_and_the_client_sees_only_what_it_asked_for(
    start_proxy: ProxyFactory, stream: bool, turn: Turn
) -> None:
    async with start_proxy(lambda _: turn) as proxy:
        status, body = await post(proxy, {"model": "policy", "messages": HELLO, "stream": stream})
        assert status == 200
        assert all(e == "DONE" or not e.get("prompt_token_ids") for e in events(body))
        assert all(e == "DONE" or not any(c.get("token_ids") for c in e["choices"]) for e in events(body))
        assert b'"logprob"' not in body
        assert b"usage" not in body or not stream
        call = only_call(proxy)
        assert call.exact
        assert call.prompt_ids_P.tolist() == render(HELLO)
        assert [s.index for s in call.samples] == list(range(turn.n))
        for sample in call.samples:
            assert len(sample.ids_T) == len(sample.logprobs_T) > 0
            assert (sample.message.get("content") or "").startswith(turn.content)
            calls = sample.message.get("tool_calls") or []
            assert [(c["function"]["name"], c["function"]["arguments"]) for c in calls] == list(turn.calls)
            np.testing.assert_allclose(sample.logprobs_T[:3], [-1 / 8, -2 / 8, -3 / 8])


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_asks_for_everything_gets_everything(start_proxy: ProxyFactory, stream: bool) -> None:
    wish: dict[str, Any] = {"logprobs": True, "return_token_ids": True, "stream": stream, "odd": {"nested": [1, None]}}
    if stream:
        wish["stream_options"] = {"include_usage": True, "mine": 1}
    async with start_proxy(lambda _: Turn("Hi there, friend")) as proxy:
        body = {"model": "policy", "messages": HELLO, **wish}
        _, got = await post(proxy, body)
        want = await direct(proxy, body)
        assert events(got) == events(want)
        assert proxy.engine.requests[0] == proxy.engine.requests[1] == body


@pytest.mark.parametrize("stream", [False, True])
async def test_an_ordinary_client_sees_what_the_engine_would_have_sent_it(
    start_proxy: ProxyFactory, stream: bool
) -> None:
    async with start_proxy(lambda _: Turn("Hi there, friend")) as proxy:
        body = {"model": "policy", "messages": HELLO, "stream": stream}
        _, got = await post(proxy, body)
        want = await direct(proxy, body)
        assert events(got) == events(want)


def events(body: bytes) -> list[Any]:
    if not body.startswith(b"data:"):
        return [json.loads(body)]
    return [json.loads(e[6:]) if e != b"data: [DONE]" else "DONE" for e in body.split(b"\n\n") if e]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault.GARBAGE, "unreadable_chunk"),
        (Fault.LOST_IDS, "logprobs_differ"),
        (Fault.NO_USAGE, "no_usage"),
        (Fault.NO_DONE, "call_failed"),
        (Fault.CUT_MID_STREAM, "call_failed"),
        (Fault.IN_BAND_ERROR, "call_failed"),
    ],
)
async def test_a_broken_stream_is_recorded_with_its_reason_and_never_trained(
    start_proxy: ProxyFactory, fault: Fault, reason: str
) -> None:
    async with start_proxy(lambda _: Turn("A longer text of many pieces", fault=fault)) as proxy:
        _, body = await post(proxy, {"model": "policy", "messages": HELLO, "stream": True})
        assert not only_call(proxy).exact
        assert proxy.store.counters()["inexact_calls"] == {reason: 1}
        if reason == "call_failed":
            assert b"error" in body
            assert b"data: [DONE]" not in body or fault is Fault.IN_BAND_ERROR


async def test_garbage_in_a_stream_reaches_the_client_unchanged(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("A longer text", fault=Fault.GARBAGE)) as proxy:
        _, body = await post(proxy, {"model": "policy", "messages": HELLO, "stream": True})
        assert b'data: {"choices": [nonsense\n\n' in body
        assert body.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize(("fault", "stream"), [(Fault.HANG, False), (Fault.HANG, True), (Fault.HANG_MID_STREAM, True)])
async def test_when_the_client_leaves_the_engine_is_told_and_the_call_is_recorded(
    start_proxy: ProxyFactory, fault: Fault, stream: bool
) -> None:
    async with start_proxy(lambda _: Turn("A longer text of many pieces", fault=fault)) as proxy:
        body = {"model": "policy", "messages": HELLO, "stream": stream}
        leaving = asyncio.ensure_future(post(proxy, body))
        await proxy.engine.reached.wait()
        leaving.cancel()
        await asyncio.wait_for(proxy.engine.dropped.wait(), 0.2)
        await until(proxy.store.trajectories)
        call = only_call(proxy)
        assert not call.exact
        assert proxy.store.counters()["inexact_calls"] == {"call_aborted": 1}
        if fault is Fault.HANG_MID_STREAM:
            assert len(call.samples[0].ids_T) > 0


@pytest.mark.parametrize(
    ("raw", "status", "words"),
    [
        (b"{not json", 400, "not valid JSON"),
        (b"[]", 400, "not a JSON object"),
        (b'{"messages": "hi"}', 400, "list of objects"),
        (b'{"messages": [], "stream_options": "x"}', 400, "stream_options"),
    ],
)
async def test_bad_requests_get_one_clear_line(start_proxy: ProxyFactory, raw: bytes, status: int, words: str) -> None:
    async with (
        start_proxy(lambda _: Turn("Hi")) as proxy,
        aiohttp.ClientSession() as client,
        client.post(proxy.url + "/v1/chat/completions", data=raw) as response,
    ):
        assert response.status == status
        assert words in (await response.json())["error"]["message"]


async def test_an_engine_that_cannot_be_reached_is_a_502_and_a_failed_call(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi"), upstream="http://127.0.0.1:9/v1", engine_wait_s=0.2) as proxy:
        status, body = await post(proxy, {"model": "policy", "messages": HELLO})
        assert status == 503
        assert "Check that vLLM runs there" in json.loads(body)["error"]["message"]
        assert not only_call(proxy).exact


async def test_the_engines_own_refusal_passes_through(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi", fault=Fault.REFUSE)) as proxy:
        status, body = await post(proxy, {"model": "policy", "messages": HELLO})
        assert (status, json.loads(body)) == (503, {"error": {"message": "busy"}})


async def test_credentials_are_neither_forwarded_nor_stored(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy, aiohttp.ClientSession() as client:
        headers = {"authorization": "Bearer client-secret", "x-api-key": "client-secret", "x-session-id": "s1"}
        url = proxy.url + "/t/run-1/v1/chat/completions"
        async with client.post(url, json={"model": "policy", "messages": HELLO}, headers=headers) as response:
            await response.read()
            assert response.status == 200
        assert "client-secret" not in str(proxy.engine.headers)
        database = Path(proxy.settings.database.removeprefix("sqlite:///"))
        kept = b"".join(p.read_bytes() for p in database.parent.glob("mosaic.db*"))
        assert b"client-secret" not in kept
        assert b"x-session-id" in kept


async def test_keys_are_demanded_when_set(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi"), api_keys=["k1"]) as proxy, aiohttp.ClientSession() as client:
        body = {"model": "policy", "messages": HELLO}
        for path in ("/v1/chat/completions", "/api/trajectories/x/reward"):
            async with client.post(proxy.url + path, json=body) as response:
                assert response.status in (401, 422)
        async with client.get(proxy.url + "/api/trajectories") as response:
            assert response.status == 401
        good = {"authorization": "Bearer k1"}
        async with client.post(proxy.url + "/v1/chat/completions", json=body, headers=good) as response:
            assert response.status == 200


async def test_engine_administration_is_unreachable_through_the_proxy(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy, aiohttp.ClientSession() as client:
        for path in ("/pause", "/collective_rpc", "/v1/../pause", "/v1/load_lora_adapter", "/t/x/v1/%2e%2e/pause"):
            async with client.post(proxy.url + path, json={}) as response:
                assert response.status == 404


async def test_parallel_calls_are_all_recorded(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda b: Turn("Echo " + b["messages"][0]["content"])) as proxy:
        bodies = [
            {"model": "policy", "messages": [{"role": "user", "content": f"{i}"}], "stream": bool(i % 2)}
            for i in range(60)
        ]
        await asyncio.gather(*(post(proxy, b, f"/t/run-{i}/v1/chat/completions") for i, b in enumerate(bodies)))
        found = {t.trajectory_id: t for t in proxy.store.trajectories(100)}
        assert len(found) == 60
        assert all(t.calls == 1 and t.inexact_calls == 0 for t in found.values())
        for i in range(60):
            (sample,) = proxy.store.trajectory(f"run-{i}").sessions[0].calls[0].samples
            assert sample.message["content"] == f"Echo {i}"


async def test_the_models_of_the_engine_are_listed(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy, aiohttp.ClientSession() as client:
        for path in ("/v1/models", "/t/run-1/v1/models"):
            async with client.get(proxy.url + path) as response:
                assert (await response.json())["data"][0]["id"] == "policy"
        assert proxy.store.trajectories() == []


async def test_chunks_reach_the_client_while_the_engine_is_still_busy(start_proxy: ProxyFactory) -> None:
    script = Turn("A longer text of many pieces", fault=Fault.HANG_MID_STREAM)
    async with start_proxy(lambda _: script) as proxy, aiohttp.ClientSession() as client:
        body = {"model": "policy", "messages": HELLO, "stream": True}
        async with client.post(proxy.url + "/v1/chat/completions", json=body) as response:
            received = b""
            while received.count(b"\n\n") < 3:
                received += await asyncio.wait_for(response.content.readany(), 5)
            assert proxy.engine.reached.is_set()
            assert not proxy.engine.dropped.is_set()


@pytest.mark.parametrize("count", ["99999999999999999999", "\u00b2", "-1", ""])
async def test_an_odd_retry_count_changes_nothing(start_proxy: ProxyFactory, count: str) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy, aiohttp.ClientSession() as client:
        headers = {"x-stainless-retry-count": count}
        url = proxy.url + "/t/run-1/v1/chat/completions"
        async with client.post(url, json={"model": "policy", "messages": HELLO}, headers=headers) as response:
            assert json.loads(await response.read())["choices"][0]["message"]["content"] == "Hi"
        assert only_call(proxy).exact


STRANGE = [
    {"choices": [{"index": 0, "message": {"content": "Hi"}, "token_ids": ["a"], "logprobs": None}]},
    {"choices": [{"index": 0, "message": {"content": "Hi"}, "token_ids": [2**40], "logprobs": None}]},
    {"choices": [{"index": None, "message": None}]},
    {"choices": [{"index": "a", "message": "x", "finish_reason": {"b": 1}}]},
    {"choices": 5, "usage": []},
    [1, 2],
]


@pytest.mark.parametrize("strange", STRANGE)
def test_an_answer_that_makes_no_sense_passes_and_is_never_exact(strange: object) -> None:
    wanted = Wanted(logprobs=False, token_ids=False, stream=False, stream_usage=False)
    body, answer = json.dumps(strange).encode(), Answer("call-1")
    shown = json.loads(Shown(wanted, "call-1").whole(body))
    answer.whole(body)
    assert answer.captured().inexact_reason is not None
    assert type(shown) is type(strange)


@given(st.lists(st.integers(1, 40)))
def test_any_chunking_of_a_stream_gives_the_same_events(sizes: list[int]) -> None:
    stream = 'data: {"ä": 1}\n\n: ping\n\ndata: two\r\n\r\ndata: [DONE]\n\n'.encode()
    splitter, found, at = EventSplitter(), list[bytes](), 0
    for size in [*sizes, len(stream)]:
        found += splitter.feed(stream[at : at + size])
        at += size
    assert b"".join(found) == stream
    assert len(found) == 4
    assert splitter.last() == b""
