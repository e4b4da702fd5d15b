"""Conversations through a proxy in exact prefix mode, and what became of their tokens."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import openai
from sqlalchemy import text

from mosaic.records import Call
from mosaic.store.checking import check
from tests.conftest import Proxy, ProxyFactory
from tests.engine import Turn
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
                whole: dict[str, Any] = (await client.chat.completions.create(**asked)).model_dump(exclude_none=True)
                return whole
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


def check_one_sequence_of(proxy: Proxy, trajectory_id: str, turns: int) -> None:
    calls = calls_of(proxy, trajectory_id)
    assert len(calls) == turns
    for before, after in pairwise(calls):
        known = [*before.prompt_ids_P.tolist(), *before.samples[0].ids_T.tolist()]
        assert after.prompt_ids_P[: len(known)].tolist() == known
