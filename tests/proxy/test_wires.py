"""The clients of three wires, unmodified: they get what they ask for, and every token is recorded."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from mosaic.keys import trajectory_key
from mosaic.records import Call
from mosaic.settings import OtherModel
from mosaic.store.checking import check
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Fault, ScriptedEngine, Turn

LOOK = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}


def agent_turn(body: dict[str, Any]) -> Turn:
    """Looks twice at once, then answers."""
    if any(m["role"] == "tool" for m in body["messages"]):
        return Turn("It is in the drawer — done.")
    return Turn("I look.", calls=(("look", '{"place":"table"}'), ("look", '{"place":"drawer"}')))


def calls_of(proxy: Proxy, trajectory_id: str = "run-1") -> list[Call]:
    (session,) = proxy.store.trajectory(trajectory_id).sessions
    assert check(proxy.store.database, deep=True) == []
    return list(session.calls)


def check_one_session(proxy: Proxy, turns: int) -> None:
    """Every call is exact, and each prompt goes on where the one before and its reply ended."""
    calls = calls_of(proxy)
    assert len(calls) == turns
    assert all(call.exact for call in calls)
    for before, after in pairwise(calls):
        so_far = [*before.messages, before.samples[0].message]
        assert [m["role"] for m in after.messages[: len(so_far)]] == [m["role"] for m in so_far]
        known = [*before.prompt_ids_P, *before.samples[0].ids_T]
        assert after.prompt_ids_P[: len(known)].tolist() == [int(i) for i in known]


@asynccontextmanager
async def claude(proxy: Proxy, **options: Any) -> AsyncIterator[anthropic.AsyncAnthropic]:
    url = f"{proxy.url}/t/run-1"
    async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0, **options) as client:
        yield client


@asynccontextmanager
async def gpt(proxy: Proxy, **options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{proxy.url}/t/run-1/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0, **options) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
async def test_an_anthropic_agent_uses_tools_in_one_session(start_proxy: ProxyFactory, stream: bool) -> None:
    tools: Any = [{"name": "look", "description": "Look there.", "input_schema": LOOK}]
    messages: list[Any] = [{"role": "user", "content": "Where is the key?"}]
    async with start_proxy(agent_turn) as proxy, claude(proxy) as client:
        for _ in range(2):
            asked: Any = {"model": "claude-any", "max_tokens": 100, "system": "Be brief.", "messages": messages}
            if stream:
                async with client.messages.stream(**asked, tools=tools) as events:
                    reply = await events.get_final_message()
            else:
                reply = await client.messages.create(**asked, tools=tools)
            uses = [block for block in reply.content if block.type == "tool_use"]
            results = [{"type": "tool_result", "tool_use_id": use.id, "content": "nothing"} for use in uses]
            messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
        assert [use.input for use in uses] == []
        assert reply.stop_reason == "end_turn"
        assert reply.content[0].type == "text"
        assert reply.content[0].text == "It is in the drawer — done."
        assert reply.usage.output_tokens > 0
        check_one_session(proxy, 2)
        first = calls_of(proxy)[0]
        assert [c["function"]["arguments"] for c in first.samples[0].message["tool_calls"]] == [
            '{"place":"table"}',
            '{"place":"drawer"}',
        ]
        counted = await client.messages.count_tokens(model="any", messages=[{"role": "user", "content": "Hi"}])
        assert counted.input_tokens == len('<user>"Hi"') + 1 + len("<assistant>")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
async def test_a_responses_agent_uses_tools_in_one_session(
    start_proxy: ProxyFactory, stream: bool, by_id: bool
) -> None:
    tools: Any = [{"type": "function", "name": "look", "parameters": LOOK, "strict": False}]
    items: list[Any] = [{"role": "user", "content": "Where is the key?"}]
    previous: str | None = None
    async with start_proxy(agent_turn) as proxy, gpt(proxy) as client:
        for _ in range(2):
            asked: Any = {"model": "any", "instructions": "Be brief.", "input": items, "tools": tools}
            if previous is not None:
                asked["previous_response_id"] = previous
            if stream:
                async with client.responses.stream(**asked) as events:
                    reply = await events.get_final_response()
            else:
                reply = await client.responses.create(**asked)
            calls = [item for item in reply.output if item.type == "function_call"]
            results = [{"type": "function_call_output", "call_id": c.call_id, "output": "nothing"} for c in calls]
            previous = reply.id if by_id else None
            said = [item.model_dump(exclude_none=True) for item in reply.output]
            items = results if by_id else [*items, *said, *results]
        assert reply.output_text == "It is in the drawer — done."
        assert reply.status == "completed"
        check_one_session(proxy, 2)


async def test_a_legacy_completion_is_recorded_and_shows_no_more_than_was_asked_for(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("there was")) as proxy, gpt(proxy) as client:
        reply = await client.completions.create(model="policy", prompt="Once")
        assert (reply.choices[0].text, reply.choices[0].logprobs) == ("there was", None)
        (call,) = calls_of(proxy)
        assert call.exact
        assert bytes(call.prompt_ids_P.tolist()) == b"Once"
        assert list(call.messages) == [{"role": "user", "content": "Once"}]


async def test_a_response_that_is_not_there_cannot_be_continued(start_proxy: ProxyFactory) -> None:
    async with start_proxy(agent_turn) as proxy, gpt(proxy) as client:
        with pytest.raises(openai.BadRequestError, match="no response"):
            await client.responses.create(model="any", input="Hi", previous_response_id="resp_nowhere")


async def test_an_engine_that_comes_up_late_is_waited_for(start_proxy: ProxyFactory) -> None:
    engine = ScriptedEngine(lambda _: Turn("Hi"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with start_proxy(lambda _: Turn(), upstream=f"http://127.0.0.1:{port}/v1") as proxy, gpt(proxy) as client:
        asking = asyncio.ensure_future(
            client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Hello"}])
        )
        await asyncio.sleep(0.3)
        async with engine.serve(port):
            reply = await asking
        assert reply.choices[0].message.content == "Hi"
        assert len(engine.requests) == 1


Ask = Callable[[Proxy], Any]


async def ask_chat(proxy: Proxy) -> Any:
    async with gpt(proxy) as client:
        return await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Hi"}])


async def ask_responses(proxy: Proxy) -> Any:
    async with gpt(proxy) as client:
        return await client.responses.create(model="policy", input="Hi")


async def ask_messages(proxy: Proxy) -> Any:
    async with claude(proxy) as client:
        return await client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize(
    ("ask", "error", "words"),
    [
        (ask_chat, openai.BadRequestError, "context_length_exceeded"),
        (ask_responses, openai.BadRequestError, "context_length_exceeded"),
        (ask_messages, anthropic.BadRequestError, "exceed context limit"),
    ],
)
async def test_an_overflow_is_said_in_the_words_on_which_agents_compact(
    start_proxy: ProxyFactory, ask: Ask, error: type[Exception], words: str
) -> None:
    async with start_proxy(lambda _: Turn("Hi", fault=Fault.OVERFLOW)) as proxy:
        with pytest.raises(error) as caught:
            await ask(proxy)
        assert words in json.dumps(caught.value.body)  # type: ignore[attr-defined]
        (call,) = calls_of(proxy)
        assert not call.exact


@pytest.mark.parametrize("ask", [ask_chat, ask_responses, ask_messages])
async def test_a_busy_engine_says_when_to_come_again(start_proxy: ProxyFactory, ask: Ask) -> None:
    async with start_proxy(lambda _: Turn("Hi", fault=Fault.REFUSE)) as proxy:
        with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as caught:
            await ask(proxy)
        assert caught.value.response.headers["retry-after"] == "1"  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages", "completions"])
async def test_a_quiet_stream_is_kept_alive_from_the_start(start_proxy: ProxyFactory, path: str) -> None:
    async with start_proxy(lambda _: Turn("Hi", fault=Fault.HANG), ping_s=0.05) as proxy:
        asked = {"responses": {"input": "Hi"}, "completions": {"prompt": "Hi"}}
        question = {"max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
        body = {"model": "m", "stream": True, **asked.get(path, question)}
        url = f"{proxy.url}/v1/{path}"
        async with aiohttp.ClientSession() as client, client.post(url, json=body) as response:
            assert response.status == 200
            got = b""
            while got.count(b"ping") < 3:
                got += await asyncio.wait_for(response.content.readany(), 5)
    assert "ping" not in json.dumps(proxy.engine.requests)


async def test_models_go_where_the_map_says_and_other_engines_are_never_trained(start_proxy: ProxyFactory) -> None:
    other = ScriptedEngine(lambda _: Turn("small"))
    async with other.serve() as url:
        models = {"*-mini": OtherModel(upstream=url, model="policy")}
        async with start_proxy(lambda _: Turn("policy"), models=models) as proxy, gpt(proxy) as client:
            for model, said in (("gpt-9-mini", "small"), ("gpt-9", "policy"), ("policy", "policy")):
                question: Any = [{"role": "user", "content": f"Hello {model}"}]
                reply = await client.chat.completions.create(model=model, messages=question)
                assert reply.choices[0].message.content == said
            assert [r["model"] for r in proxy.engine.requests] == ["policy", "policy"]
            assert [r["model"] for r in other.requests] == ["policy"]
            sessions = proxy.store.trajectory("run-1").sessions
            exact = {str(c.messages[0]["content"]): c.exact for s in sessions for c in s.calls}
            assert exact == {"Hello gpt-9-mini": False, "Hello gpt-9": True, "Hello policy": True}


async def test_calls_of_one_conversation_stay_on_one_replica(start_proxy: ProxyFactory) -> None:
    other = ScriptedEngine(lambda _: Turn("Hi"))
    async with other.serve() as url, start_proxy(lambda _: Turn("Hi"), replicas=[url]) as proxy:
        for name in range(12):
            async with openai.AsyncOpenAI(base_url=f"{proxy.url}/t/run-{name}/v1", api_key="a") as client:
                for _ in range(3):
                    question: Any = [{"role": "user", "content": f"Hello {name}"}]
                    await client.chat.completions.create(model="policy", messages=question)
        seen = [{str(r["messages"]) for r in engine.requests} for engine in (proxy.engine, other)]
        assert not seen[0] & seen[1]
        assert all(seen)


async def test_keys_have_scopes_and_may_name_their_trajectory(start_proxy: ProxyFactory) -> None:
    keys = {"api_keys": ["control"], "agent_keys": ["agent"], "trajectory_secret": "x" * 32}
    async with start_proxy(lambda _: Turn("Hi"), **keys) as proxy:
        named = trajectory_key(proxy.settings, "run-7")
        routes = {"/v1/models": "GET", "/api/trajectories": "GET", "/metrics": "GET", "/api/health": "GET"}
        for key, agent, control in [("control", 200, 200), ("agent", 200, 401), (named, 200, 401), (None, 401, 401)]:
            headers = {} if key is None else {"authorization": f"Bearer {key}"}
            async with aiohttp.ClientSession(headers=headers) as client:
                for path, method in routes.items():
                    async with client.request(method, proxy.url + path) as response:
                        assert response.status == (agent if path.startswith("/v1") else control), (key, path)
        forged = named[:-1] + ("0" if named[-1] != "0" else "1")
        async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=forged, max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError):
                await client.models.list()
        async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key=named) as client:
            await client.chat.completions.create(model="policy", messages=[{"role": "user", "content": "Hi"}])
        await until(proxy.store.trajectories)
        assert [t.trajectory_id for t in proxy.store.trajectories()] == ["run-7"]


async def test_the_root_and_embeddings_answer(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi")) as proxy, aiohttp.ClientSession() as client:
        async with client.head(proxy.url + "/") as response:
            assert response.status == 200
        async with client.post(proxy.url + "/v1/embeddings", json={"input": "a"}) as response:
            assert (await response.json())["asked"] == {"input": "a"}
        for path in ("/v1/../metrics", "/v1/load_lora_adapter", "/pause", "/v1//pause", "/t/a/v1/../../pause"):
            async with client.post(proxy.url + path, json={}) as response:
                assert response.status in (404, 405)


async def test_too_many_open_calls_are_refused_with_when_to_come_again(start_proxy: ProxyFactory) -> None:
    async with start_proxy(lambda _: Turn("Hi", fault=Fault.HANG), max_calls=1) as proxy, gpt(proxy) as client:
        question: Any = [{"role": "user", "content": "Hello"}]
        first = asyncio.ensure_future(client.chat.completions.create(model="policy", messages=question))
        await proxy.engine.reached.wait()
        with pytest.raises(openai.InternalServerError) as caught:
            await client.chat.completions.create(model="policy", messages=question)
        assert caught.value.response.headers["retry-after"] == "2"
        first.cancel()
