"""Exact prefix mode: a conversation whose template retokenises what was sampled is one sequence all the same."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import openai
import pytest
from sqlalchemy import text

from mosaic.records import Call
from mosaic.store.checking import check
from tests.conftest import Proxy, ProxyFactory, until
from tests.engine import Fault, Turn
from tests.engine.tokens import TokenEngine, logprob

LOOK = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}
TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": LOOK}}
KEPT = ("role", "content", "tool_calls", "reasoning")
"""Of a reply, what a client sends back."""
QUESTION: dict[str, Any] = {"role": "user", "content": "Where are the keys?"}


def searcher(body: dict[str, Any]) -> Turn:
    """Looks three times, the first time at two places at once, then answers."""
    looked = sum(m["role"] == "tool" for m in body["messages"])
    if looked < 2:
        return Turn("I look — twice.", calls=(("look", '{"place":"table"}'), ("look", '{"place":"drawer"}')))
    if looked < 3:
        return Turn("", calls=(("look", '{"place":"shelf"}'),), reasoning="Not there.")
    return Turn("They are on the shelf.", reasoning="Found.")


@asynccontextmanager
async def exact(start_proxy: ProxyFactory, engine: TokenEngine, **settings: object) -> AsyncIterator[Proxy]:
    async with start_proxy(engine, fidelity="exact", **settings) as proxy:
        yield proxy


def calls_of(proxy: Proxy, trajectory_id: str = "run-1") -> list[Call]:
    """All calls of a trajectory, each checked against what the engine did."""
    assert check(proxy.store.database, deep=True) == []
    calls = [call for session in proxy.store.trajectory(trajectory_id).sessions for call in session.calls]
    for call in calls:
        assert call.exact
        for sample in call.samples:
            known = [logprob(at, int(token)) for at, token in enumerate(sample.ids_T)]
            assert sample.logprobs_T.tolist() == known
    return calls


def check_one_sequence(proxy: Proxy, turns: int) -> None:
    calls = calls_of(proxy)
    assert len(calls) == turns
    assert [c.prompt_ids_P.tolist() for c in calls] == prompts_of(proxy)
    for before, after in pairwise(calls):
        known = [*before.prompt_ids_P.tolist(), *before.samples[0].ids_T.tolist()]
        assert after.prompt_ids_P[: len(known)].tolist() == known


def engine_of(proxy: Proxy) -> TokenEngine:
    assert isinstance(proxy.engine, TokenEngine)
    return proxy.engine


def prompts_of(proxy: Proxy) -> list[list[int]]:
    return engine_of(proxy).prompts


def fidelities(proxy: Proxy, trajectory_id: str = "run-1") -> list[tuple[str | None, str | None]]:
    """(what was made of it, why it fell back) of each call, in order."""
    query = "select fidelity, fidelity_reason from calls where trajectory_id = :id order by seq"
    with proxy.store.engine.connect() as connection:
        return [(row[0], row[1]) for row in connection.execute(text(query), {"id": trajectory_id})]


@dataclass
class Chat:
    """A conversation by hand, over plain HTTP."""

    proxy: Proxy
    stream: bool = False
    trajectory_id: str | None = "run-1"

    async def ask(self, messages: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """The answer, put together from its chunks where it is a stream."""
        way = f"/t/{self.trajectory_id}" if self.trajectory_id else ""
        url = f"{self.proxy.url}{way}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="any", max_retries=0) as client:
            asked: Any = {"model": "policy", "messages": messages, "tools": [TOOL], **more}
            if not self.stream:
                whole = await client.chat.completions.create(**asked)
                return whole.model_dump(exclude_none=True)
            async with client.chat.completions.stream(**asked) as events:
                said: dict[str, Any] = (await events.get_final_completion()).model_dump(exclude_none=True)
                return said

    async def run(self, turns: int, keep: tuple[str, ...] = KEPT) -> list[Any]:
        """So many turns; of replies the client sends back what it keeps. Returns the conversation."""
        messages: list[Any] = [QUESTION]
        for _ in range(turns):
            reply = (await self.ask(messages))["choices"][0]["message"]
            for call in reply.get("tool_calls") or ():
                call.pop("index", None)
                call["function"].pop("parsed_arguments", None)
            messages.append({name: reply[name] for name in keep if name in reply})
            for call in reply.get("tool_calls") or ():
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": "Nothing."})
        return messages


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


def check_one_sequence_of(proxy: Proxy, trajectory_id: str, turns: int) -> None:
    calls = calls_of(proxy, trajectory_id)
    assert len(calls) == turns
    for before, after in pairwise(calls):
        known = [*before.prompt_ids_P.tolist(), *before.samples[0].ids_T.tolist()]
        assert after.prompt_ids_P[: len(known)].tolist() == known


async def test_dropped_reasoning_starts_a_new_sequence_where_it_is_asked_for(start_proxy: ProxyFactory) -> None:
    engine = TokenEngine(searcher, drops_reasoning=True)
    async with exact(start_proxy, engine, exact_reasoning="drop") as proxy:
        await Chat(proxy).run(3)
        assert fidelities(proxy)[-1] == ("spliced", None)
        await Chat(proxy, trajectory_id="more").run(4)
        assert fidelities(proxy, "more")[-1] == ("fell_back", "reasoning_dropped")


async def test_texts_that_differ_are_left_as_the_template_has_them(start_proxy: ProxyFactory) -> None:
    async with exact(start_proxy, TokenEngine(searcher, reserialises=True)) as proxy:
        await Chat(proxy).run(2)
        assert fidelities(proxy) == [("exact", None), ("fell_back", "text_differs")]
        second = calls_of(proxy)[1]
        assert second.prompt_ids_P.tolist() == prompts_of(proxy)[1]
        assert proxy.store.counters()["exact_mode_fallbacks"] == {"text_differs": 1}


@pytest.mark.parametrize("lacking", ["render", "detokenize"])
async def test_an_engine_without_the_endpoints_is_asked_in_chat(start_proxy: ProxyFactory, lacking: str) -> None:
    async with exact(start_proxy, TokenEngine(searcher, lacks={lacking})) as proxy:
        await Chat(proxy).run(2)
        assert len(calls_of(proxy)) == 2
        assert fidelities(proxy)[-1] == ("fell_back", "engine_lacks_endpoints")
        assert engine_of(proxy).paths[-1] == "completions"


async def test_stop_strings_go_to_chat_completions(start_proxy: ProxyFactory) -> None:
    async with exact(start_proxy, TokenEngine(searcher)) as proxy:
        await Chat(proxy).ask([QUESTION], stop=["Observation:"])
        assert fidelities(proxy) == [("fell_back", "stop_strings")]
        assert engine_of(proxy).paths == ["completions"]


async def test_a_conversation_that_was_not_seen_is_told_apart(start_proxy: ProxyFactory) -> None:
    async with exact(start_proxy, TokenEngine(searcher)) as proxy:
        history = [QUESTION, {"role": "assistant", "content": "Somewhere."}, QUESTION]
        await Chat(proxy).ask(history)
        assert fidelities(proxy) == [("fell_back", "not_remembered")]


async def test_several_choices_are_each_remembered(start_proxy: ProxyFactory) -> None:
    async with exact(start_proxy, TokenEngine(searcher)) as proxy:
        reply = await Chat(proxy).ask([QUESTION], n=2)
        for choice in reply["choices"]:
            said = {"role": "assistant", "content": choice["message"]["content"]}
            await Chat(proxy).ask([QUESTION, {**said, "tool_calls": choice["message"]["tool_calls"]}, QUESTION])
        assert fidelities(proxy) == [("exact", None), ("spliced", None), ("spliced", None)]


@pytest.mark.parametrize("fault", [Fault.HANG, Fault.HANG_MID_STREAM])
async def test_a_client_that_leaves_stops_the_generation(start_proxy: ProxyFactory, fault: Fault) -> None:
    async with exact(start_proxy, TokenEngine(lambda _: Turn("A long answer.", fault=fault))) as proxy:
        asked = asyncio.ensure_future(Chat(proxy, stream=True).ask([QUESTION]))
        await asyncio.wait_for(proxy.engine.reached.wait(), 20)
        asked.cancel()
        await asyncio.wait_for(proxy.engine.dropped.wait(), 1)
        await asyncio.gather(asked, return_exceptions=True)
        await until(proxy.store.trajectories)
        with proxy.store.engine.connect() as connection:
            assert connection.execute(text("select status from calls")).scalar_one() == "aborted"


@pytest.mark.parametrize("fault", [Fault.CUT_MID_STREAM, Fault.NO_DONE, Fault.GARBAGE, Fault.IN_BAND_ERROR])
async def test_a_stream_that_breaks_is_a_failed_call(start_proxy: ProxyFactory, fault: Fault) -> None:
    async with exact(start_proxy, TokenEngine(lambda _: Turn("A long answer.", fault=fault))) as proxy:
        with pytest.raises(openai.APIError):
            await Chat(proxy, stream=True).ask([QUESTION])
        await until(proxy.store.trajectories)
        with proxy.store.engine.connect() as connection:
            assert connection.execute(text("select status, exact from calls")).one() == ("failed", 0)
