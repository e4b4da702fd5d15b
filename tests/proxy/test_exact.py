"""Exact prefix mode: a conversation whose template retokenises what was sampled is one sequence all the same."""

import asyncio
import json
from itertools import pairwise
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from sqlalchemy import text

from tests.conftest import ProxyFactory, until
from tests.engine import Fault, Turn
from tests.engine.tokens import TokenEngine
from tests.proxy.conversations import (
    LOOK,
    QUESTION,
    Chat,
    calls_of,
    check_one_sequence,
    check_one_sequence_of,
    engine_of,
    exact,
    fidelities,
    prompts_of,
    searcher,
)
from tests.proxy.faults import LEAVING_S


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_that_the_template_retokenises_is_one_sequence(
    start_proxy: ProxyFactory, stream: bool
) -> None:
    async with exact(start_proxy, TokenEngine(searcher)) as proxy:
        messages = await Chat(proxy, stream).run(3)
        assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
        assert messages[-1]["content"] == "They are on the shelf."
        assert messages[-1]["reasoning"] == "Found."
        check_one_sequence(proxy, 3)
        assert fidelities(proxy) == [("exact", None), ("spliced", None), ("spliced", None)]
        summary = proxy.store.trajectories()[0]
        assert (summary.fidelity, summary.sessions) == ({"exact": 1, "spliced": 2}, 1)
        assert "completions" not in engine_of(proxy).paths


async def test_in_capture_mode_the_same_conversation_is_not_one_sequence(start_proxy: ProxyFactory) -> None:
    async with start_proxy(TokenEngine(searcher)) as proxy:
        await Chat(proxy).run(3)
        first, second, _ = calls_of(proxy)
        known = [*first.prompt_ids_P.tolist(), *first.samples[0].ids_T.tolist()]
        assert second.prompt_ids_P[: len(known)].tolist() != known
        assert [kind for kind, _ in fidelities(proxy)] == [None] * 3
        assert set(engine_of(proxy).paths) == {"completions"}


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_that_history_lacks_stays_in_the_prompt_unless_it_is_to_be_dropped(
    start_proxy: ProxyFactory, stream: bool
) -> None:
    async with exact(start_proxy, TokenEngine(searcher, drops_reasoning=True)) as proxy:
        await Chat(proxy, stream).run(3)
        await Chat(proxy, stream, "more").run(4)
        check_one_sequence_of(proxy, "run-1", 3)
        assert fidelities(proxy, "more") == [("exact", None), *[("spliced", None)] * 3]


async def test_dropped_reasoning_starts_a_new_sequence_where_it_is_asked_for(start_proxy: ProxyFactory) -> None:
    engine = TokenEngine(searcher, drops_reasoning=True)
    async with exact(start_proxy, engine, exact_reasoning="drop") as proxy:
        await Chat(proxy).run(3)
        assert fidelities(proxy) == [("exact", None), ("spliced", None), ("fell_back", "reasoning_dropped")]
        first, second, third = calls_of(proxy)
        known = [*first.prompt_ids_P.tolist(), *first.samples[0].ids_T.tolist()]
        assert third.prompt_ids_P[: len(known)].tolist() == known  # what does agree stays
        assert third.prompt_ids_P[len(second.prompt_ids_P) :].tolist() != second.samples[0].ids_T.tolist()


async def test_texts_that_differ_are_left_as_the_template_has_them(start_proxy: ProxyFactory) -> None:
    async with exact(start_proxy, TokenEngine(searcher, writes=str.upper)) as proxy:
        await Chat(proxy).run(2)
        assert fidelities(proxy) == [("exact", None), ("fell_back", "text_differs")]
        second = calls_of(proxy)[1]
        assert second.prompt_ids_P.tolist() == prompts_of(proxy)[1]
        assert proxy.store.counters()["exact_mode_fallbacks"] == {"text_differs": 1}
        async with aiohttp.ClientSession() as client, client.get(f"{proxy.url}/api/trajectories") as response:
            assert (await response.json())["items"][0]["fidelity"] == {"exact": 1, "fell_back: text_differs": 1}


def rewritten(arguments: str) -> str:
    return json.dumps({"more": None, **json.loads(arguments)}, indent=1) if "more" in arguments else arguments


@pytest.mark.parametrize("drops", [False, True])
async def test_arguments_that_the_template_writes_otherwise_are_the_sampled_ones(
    start_proxy: ProxyFactory, drops: bool
) -> None:
    def at_places(_body: dict[str, Any]) -> Turn:
        arguments = '{"place":"caf\u00e9 {","more":null,"in":{"b":[1,2.0],"a":"x"}}'
        return Turn("I look [", calls=(("look", arguments), ("look", arguments)), reasoning="Where?")

    engine = TokenEngine(at_places, drops_reasoning=drops, writes=rewritten)
    async with exact(start_proxy, engine) as proxy:
        await Chat(proxy).run(3)
        check_one_sequence(proxy, 3)
        assert fidelities(proxy) == [("exact", None), ("spliced", None), ("spliced", None)]


@pytest.mark.parametrize("lacking", ["render", "detokenize"])
async def test_an_engine_without_the_endpoints_is_asked_in_chat(start_proxy: ProxyFactory, lacking: str) -> None:
    async with exact(start_proxy, TokenEngine(searcher, lacks={lacking})) as proxy:
        await Chat(proxy).run(2)
        assert len(calls_of(proxy)) == 2
        assert fidelities(proxy)[-1] == ("fell_back", "engine_lacks_endpoints")
        assert engine_of(proxy).paths[-1] == "completions"


UNSUPPORTED: list[tuple[str, dict[str, Any]]] = [
    ("stop_strings", {"stop": ["Observation:"]}),
    ("special_tokens", {"ignore_eos": True}),
    ("special_tokens", {"include_stop_str_in_output": True}),
    ("no_generation_prompt", {"add_generation_prompt": False}),
    ("continuous_usage", {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}),
    ("logprobs", {"logprobs": True, "top_logprobs": 2}),
    ("logprobs", {"logprobs": True, "stream": True}),
]


@pytest.mark.parametrize(("reason", "fields"), UNSUPPORTED)
async def test_what_these_endpoints_cannot_do_goes_to_chat_completions(
    start_proxy: ProxyFactory, reason: str, fields: dict[str, Any]
) -> None:
    async with exact(start_proxy, TokenEngine(searcher)) as proxy, aiohttp.ClientSession() as client:
        body = {"model": "policy", "messages": [QUESTION], **fields}
        async with client.post(f"{proxy.url}/t/run-1/v1/chat/completions", json=body) as response:
            assert response.status == 200
            await response.read()
        assert fidelities(proxy) == [("fell_back", reason)]
        assert engine_of(proxy).paths == ["completions"]


LOOKS = Turn("", calls=(("look", "{}"),))


@pytest.mark.parametrize(
    ("turn", "fields"),
    [
        (Turn(""), {}),
        (Turn("Here.", reasoning="Where?"), {}),
        (LOOKS, {}),
        (LOOKS, {"tool_choice": {"type": "function", "function": {"name": "look"}}}),
    ],
)
async def test_an_answer_is_the_one_of_chat_completions(
    start_proxy: ProxyFactory, turn: Turn, fields: dict[str, Any]
) -> None:
    said = []
    for mode in ("exact", "capture"):
        async with start_proxy(TokenEngine(lambda _: turn), fidelity=mode) as proxy:
            reply = await Chat(proxy).ask([QUESTION], **fields)
            for call in reply["choices"][0]["message"].get("tool_calls") or ():
                del call["id"]
            said.append({key: value for key, value in reply.items() if key not in ("id", "created")})
    assert said[0] == said[1]


async def test_a_conversation_that_was_not_seen_is_told_apart(start_proxy: ProxyFactory) -> None:
    async with exact(start_proxy, TokenEngine(searcher)) as proxy:
        history = [QUESTION, {"role": "assistant", "content": "Somewhere."}, QUESTION]
        await Chat(proxy).ask(history)
        assert fidelities(proxy) == [("fell_back", "not_remembered")]


@pytest.mark.parametrize("stream", [False, True])
async def test_tool_call_ids_that_repeat_are_the_engines_own_when_it_is_told_of_them(
    start_proxy: ProxyFactory, stream: bool
) -> None:
    async with exact(start_proxy, TokenEngine(searcher, counts_ids=True)) as proxy:
        messages = await Chat(proxy, stream).run(3)
        ids = [call["id"] for message in messages for call in message.get("tool_calls") or ()]
        assert len(set(ids)) == 3
        check_one_sequence(proxy, 3)
        assert fidelities(proxy) == [("exact", None), ("spliced", None), ("spliced", None)]
        told = [call["id"] for m in proxy.engine.requests[-1]["messages"] for call in m.get("tool_calls") or ()]
        assert told == ["functions.look:0", "functions.look:1", "functions.look:0"]


async def test_several_choices_are_each_remembered(start_proxy: ProxyFactory) -> None:
    async with exact(start_proxy, TokenEngine(searcher)) as proxy:
        reply = await Chat(proxy).ask([QUESTION], n=2)
        for choice in reply["choices"]:
            said = {"role": "assistant", "content": choice["message"]["content"]}
            await Chat(proxy).ask([QUESTION, {**said, "tool_calls": choice["message"]["tool_calls"]}, QUESTION])
        assert fidelities(proxy) == [("exact", None), ("spliced", None), ("spliced", None)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("point", ["render", "detokenize", "generate", "derender", "mid-stream"])
async def test_a_client_that_leaves_stops_what_the_engine_does_for_it(
    start_proxy: ProxyFactory, point: str, stream: bool
) -> None:
    engine = TokenEngine(lambda _: Turn("A long answer."))
    async with exact(start_proxy, engine) as proxy:
        chat = Chat(proxy, stream)
        said = (await chat.ask([QUESTION]))["choices"][0]["message"]["content"]
        if point == "mid-stream":
            engine.script = lambda _: Turn("A long answer.", fault=Fault.HANG_MID_STREAM if stream else Fault.HANG)
        else:
            engine.hangs = {point}
        asked = asyncio.ensure_future(chat.ask([QUESTION, {"role": "assistant", "content": said}, QUESTION]))
        await asyncio.wait_for(engine.reached.wait(), 20)
        asked.cancel()
        await asyncio.wait_for(engine.dropped.wait(), LEAVING_S)
        await asyncio.gather(asked, return_exceptions=True)
        await until(lambda: len(fidelities(proxy)) == 2)
        with proxy.store.engine.connect() as connection:
            query = "select status from calls order by seq desc limit 1"
            assert connection.execute(text(query)).scalar_one() == "aborted"


@pytest.mark.parametrize("fault", [Fault.CUT_MID_STREAM, Fault.NO_DONE, Fault.GARBAGE, Fault.IN_BAND_ERROR])
async def test_a_stream_that_breaks_is_a_failed_call(start_proxy: ProxyFactory, fault: Fault) -> None:
    async with exact(start_proxy, TokenEngine(lambda _: Turn("A long answer.", fault=fault))) as proxy:
        with pytest.raises(openai.APIError):
            await Chat(proxy, stream=True).ask([QUESTION])
        await until(proxy.store.trajectories)
        with proxy.store.engine.connect() as connection:
            assert connection.execute(text("select status, exact from calls")).one() == ("failed", 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_anthropic_agent_is_one_sequence(start_proxy: ProxyFactory, stream: bool) -> None:
    tools: Any = [{"name": "look", "description": "Look there.", "input_schema": LOOK}]
    messages: list[Any] = [{"role": "user", "content": "Where is the key?"}]
    async with exact(start_proxy, TokenEngine(searcher, drops_reasoning=True)) as proxy:
        url = f"{proxy.url}/t/run-1"
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
            for _ in range(3):
                asked: Any = {"model": "any", "max_tokens": 100, "messages": messages, "tools": tools}
                if stream:
                    async with client.messages.stream(**asked) as events:
                        reply = await events.get_final_message()
                else:
                    reply = await client.messages.create(**asked)
                uses = [block for block in reply.content if block.type == "tool_use"]
                results = [{"type": "tool_result", "tool_use_id": use.id, "content": "nothing"} for use in uses]
                messages += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": results}]
        assert [block.text for block in reply.content if block.type == "text"] == ["They are on the shelf."]
        check_one_sequence(proxy, 3)
        assert fidelities(proxy) == [("exact", None), ("spliced", None), ("spliced", None)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by_id", [False, True])
async def test_a_responses_agent_is_one_sequence(start_proxy: ProxyFactory, stream: bool, by_id: bool) -> None:
    tools: Any = [{"type": "function", "name": "look", "parameters": LOOK, "strict": False}]
    items: list[Any] = [{"role": "user", "content": "Where is the key?"}]
    previous: str | None = None
    async with exact(start_proxy, TokenEngine(searcher, drops_reasoning=True)) as proxy:
        url = f"{proxy.url}/t/run-1/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            for _ in range(3):
                asked: Any = {"model": "any", "instructions": "Be brief.", "input": items, "tools": tools}
                if previous is not None:
                    asked["previous_response_id"] = previous
                if stream:
                    async with client.responses.stream(**asked) as events:
                        reply: Any = await events.get_final_response()
                else:
                    reply = await client.responses.create(**asked)
                calls = [item for item in reply.output if item.type == "function_call"]
                results = [{"type": "function_call_output", "call_id": c.call_id, "output": "nothing"} for c in calls]
                previous = reply.id if by_id else None
                said = [item.model_dump(exclude_none=True) for item in reply.output]
                items = results if by_id else [*items, *said, *results]
        assert reply.output_text == "They are on the shelf."
        check_one_sequence(proxy, 3)


async def test_parallel_calls_of_one_trajectory_stay_parallel(start_proxy: ProxyFactory) -> None:
    """Two subagents with one question and different instructions, at once, and the calls that go on from them."""

    def echo(body: dict[str, Any]) -> Turn:
        return Turn(f"{body['messages'][0]['content']} {len(body['messages'])}")

    async def subagent(chat: Chat, name: str) -> None:
        messages: list[Any] = [{"role": "system", "content": name}, QUESTION]
        for _ in range(3):
            reply = (await chat.ask(messages))["choices"][0]["message"]
            assert reply["content"].startswith(name)
            messages += [{"role": "assistant", "content": reply["content"]}, QUESTION]

    async with exact(start_proxy, TokenEngine(echo)) as proxy:
        await asyncio.gather(subagent(Chat(proxy), "first"), subagent(Chat(proxy), "second"))
        calls = calls_of(proxy)
        for name in ("first", "second"):
            own = sorted((c for c in calls if c.messages[0]["content"] == name), key=lambda c: len(c.messages))
            for before, after in pairwise(own):
                known = [*before.prompt_ids_P.tolist(), *before.samples[0].ids_T.tolist()]
                assert after.prompt_ids_P[: len(known)].tolist() == known
        assert fidelities(proxy).count(("spliced", None)) == 4


async def test_what_the_client_did_not_ask_for_it_does_not_see(start_proxy: ProxyFactory) -> None:
    async with exact(start_proxy, TokenEngine(searcher)) as proxy, aiohttp.ClientSession() as client:
        for stream in (False, True):
            body = {"model": "policy", "messages": [QUESTION], "stream": stream}
            async with client.post(f"{proxy.url}/v1/chat/completions", json=body) as response:
                seen = await response.read()
            chunks = [seen] if not stream else [e[6:] for e in seen.split(b"\n\n") if e.startswith(b"data: {")]
            for chunk in map(json.loads, chunks):
                assert chunk.get("prompt_token_ids") is None
                assert all(not c.get("logprobs") and not c.get("token_ids") for c in chunk["choices"])
                assert stream is False or "usage" not in chunk


async def test_the_engine_names_the_version_of_each_token(start_proxy: ProxyFactory) -> None:
    spans = [{"version": "1", "start": 0, "end": 3}, {"version": "2", "start": 3, "end": 31}]
    async with exact(start_proxy, TokenEngine(lambda _: Turn("A sentence of thirty bytes ..."))) as proxy:
        engine_of(proxy).versions = spans
        for path in ("one", "two"):
            proxy.store.version_live(proxy.store.new_version(path, None))
        for stream in (False, True):
            await Chat(proxy, stream).ask([QUESTION])
        with proxy.store.engine.connect() as connection:
            kept = connection.execute(text("select versions from tokens")).scalars().all()
        assert [json.loads(one) for one in kept] == [[[1, 0, 3], [2, 3, 31]]] * 2


async def test_what_cannot_be_parsed_is_a_failed_call_and_not_sampled_again(start_proxy: ProxyFactory) -> None:
    async with exact(start_proxy, TokenEngine(searcher, cannot_parse=True)) as proxy:
        for stream in (False, True):
            with pytest.raises(openai.APIError, match="parse"):
                await Chat(proxy, stream).ask([QUESTION])
        assert len(prompts_of(proxy)) == 2


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("endpoint", ["render", "detokenize", "generate", "derender"])
async def test_an_engine_that_answers_otherwise_has_failed_the_call(
    start_proxy: ProxyFactory, endpoint: str, stream: bool
) -> None:
    engine = TokenEngine(searcher)
    async with exact(start_proxy, engine) as proxy:
        messages = await Chat(proxy).run(1)
        engine.garbles = {endpoint}
        with pytest.raises(openai.APIError, match="otherwise than vLLM"):
            await Chat(proxy, stream).ask(messages)
        with proxy.store.engine.connect() as connection:
            assert connection.execute(text("select status from calls order by seq")).scalars().all() == ["ok", "failed"]


async def test_an_overflow_is_told_as_in_capture_mode(start_proxy: ProxyFactory) -> None:
    async with exact(start_proxy, TokenEngine(lambda _: Turn(fault=Fault.OVERFLOW))) as proxy:
        with pytest.raises(openai.BadRequestError) as caught:
            await Chat(proxy).ask([QUESTION])
        assert caught.value.code == "context_length_exceeded"
