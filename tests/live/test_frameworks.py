"""Frameworks and plain clients against the real vLLM with the demo's tiny policy: what was sampled is what is recorded.

The policy was taught one tool, `search`, and its ways are its own: a run has to end as the framework ends a run, with
whatever the policy answers. The engine samples greedily by default, so that a run is the same every time.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from sqlalchemy import text

from examples.demo.__main__ import MAX_MODEL_LEN, POLICY
from examples.demo.agent import CHILD_PROMPT, MAX_TOKENS
from examples.demo.corpus import Corpus
from examples.demo.questions import questions
from mosaic.settings import Settings
from mosaic.store import Store
from mosaic.store.checking import check
from tests.conftest import serving
from tests.frameworks import runners
from tests.frameworks.errands import Errand
from tests.frameworks.runners import Run
from tests.live.conftest import TOOLS, StartEngine
from trainer.engine import Engine

pytestmark = pytest.mark.engine

CHAIN = next(q for q in questions("train") if q.kind == "fork").chains[0].text
"""What the policy knows well: one chain of relations, as a subagent gets it."""


@pytest.fixture(scope="module")
def engine(start_engine: StartEngine) -> Engine:
    return start_engine(POLICY, MAX_MODEL_LEN, *TOOLS, "--override-generation-config", '{"temperature": 0}')


@asynccontextmanager
async def proxy(engine: Engine, folder: Path) -> AsyncIterator[tuple[str, Store]]:
    """The proxy's address, and its store."""
    upstream = f"{engine.base_url}/v1"
    database, spool = f"sqlite:///{folder}/mosaic.db", folder / "spool"
    # In this process: while a writer of its own starts, calls wait in the spool, and the tests look at once.
    async with serving(
        Settings(upstream=upstream, database=database, spool=spool, writer_process=False, commit_first=True)
    ) as url:
        store = Store(database)
        yield url, store
        store.close()


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus()


Case = tuple[Run, str, bool]
"""A framework, the wire on which it speaks, and whether it streams."""

CASES: list[Case] = [
    (runners.openai_agents, "responses", True),
    (runners.openai_agents, "chat", False),
    (runners.pydantic_ai, "chat", True),
    (runners.pydantic_ai, "responses", False),
    (runners.pydantic_ai, "messages", True),
    (runners.strands, "chat", True),
    (runners.langchain, "responses", True),
    (runners.langchain, "messages", False),
    (runners.deepagents, "chat", False),
]
IDS = [f"{run.__name__}-{wire}-{'stream' if stream else 'whole'}" for run, wire, stream in CASES]


@pytest.mark.parametrize("case", CASES, ids=IDS)
async def test_a_run_ends_normally_and_every_token_of_it_is_known(
    engine: Engine, corpus: Corpus, tmp_path: Path, case: Case
) -> None:
    run, wire, stream = case
    searched: list[str] = []

    def search(query: str) -> str:
        """Search the library for one fact, for example: capital of France."""
        searched.append(query)
        return corpus.search(query)

    async with proxy(engine, tmp_path) as (url, store):
        errand = Errand(url, wire, stream, (search,), CHAIN, CHILD_PROMPT, max_tokens=MAX_TOKENS)
        assert await asyncio.wait_for(run(errand), 120)
        assert searched
        assert check_recorded(store) > len(searched)


def check_recorded(store: Store) -> int:
    """Every call is exact, its ids as many as the usage says, in one session; returns how many there are."""
    assert check(store.database, deep=True) == []
    (summary,) = store.trajectories()
    (session,) = store.trajectory(summary.trajectory_id).sessions
    with store.engine.connect() as connection:
        query = "select call_id, prompt_tokens, sampled_tokens from calls"
        usage = {str(row[0]): (row[1], row[2]) for row in connection.execute(text(query))}
    assert len(session.calls) == len(usage)
    for call in session.calls:
        assert call.exact
        assert (len(call.prompt_ids_P), sum(len(s.ids_T) for s in call.samples)) == usage[call.call_id]
        assert all(len(s.ids_T) == len(s.logprobs_T) for s in call.samples)
    return len(session.calls)


Usage = tuple[int, int]
"""Prompt and sampled tokens, as the client is told."""
MESSAGES: list[Any] = [{"role": "system", "content": CHILD_PROMPT}, {"role": "user", "content": CHAIN}]
SEARCH = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}


async def chat(client: openai.AsyncOpenAI, stream: bool) -> Usage:
    tools: Any = [{"type": "function", "function": {"name": "search", "parameters": SEARCH}}]
    asked: Any = {"model": "policy", "messages": MESSAGES, "tools": tools, "max_tokens": MAX_TOKENS}
    if stream:
        async with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as events:
            reply: Any = await events.get_final_completion()
    else:
        reply = await client.chat.completions.create(**asked)
    assert [call.function.name for call in reply.choices[0].message.tool_calls] == ["search"]
    return reply.usage.prompt_tokens, reply.usage.completion_tokens


async def responses(client: openai.AsyncOpenAI, stream: bool) -> Usage:
    tools: Any = [{"type": "function", "name": "search", "parameters": SEARCH, "strict": False}]
    asked: Any = {"model": "policy", "instructions": CHILD_PROMPT, "input": CHAIN, "tools": tools}
    if stream:
        async with client.responses.stream(**asked, max_output_tokens=MAX_TOKENS) as events:
            reply: Any = await events.get_final_response()
    else:
        reply = await client.responses.create(**asked, max_output_tokens=MAX_TOKENS)
    assert [item.name for item in reply.output if item.type == "function_call"] == ["search"]
    return reply.usage.input_tokens, reply.usage.output_tokens


async def completions(client: openai.AsyncOpenAI, stream: bool) -> Usage:
    asked: Any = {"model": "policy", "prompt": CHAIN, "max_tokens": 12}
    if not stream:
        reply = await client.completions.create(**asked)
        assert reply.usage is not None
        return reply.usage.prompt_tokens, reply.usage.completion_tokens
    events = await client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    (usage,) = [event.usage async for event in events if event.usage is not None]
    return usage.prompt_tokens, usage.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("ask", [chat, responses, completions])
async def test_the_usage_that_an_openai_client_sees_is_what_is_recorded(
    engine: Engine, tmp_path: Path, ask: Any, stream: bool
) -> None:
    async with proxy(engine, tmp_path) as (url, store):
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            usage = await ask(client, stream)
        assert check_recorded(store) == 1
        check_usage(store, usage)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_usage_that_an_anthropic_client_sees_is_what_is_recorded(
    engine: Engine, tmp_path: Path, stream: bool
) -> None:
    asked: Any = {"model": "any", "system": CHILD_PROMPT, "messages": MESSAGES[1:], "max_tokens": MAX_TOKENS}
    asked["tools"] = [{"name": "search", "input_schema": SEARCH}]
    async with proxy(engine, tmp_path) as (url, store):
        async with anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client:
            if stream:
                async with client.messages.stream(**asked) as events:
                    reply: Any = await events.get_final_message()
            else:
                reply = await client.messages.create(**asked)
            assert [block.name for block in reply.content if block.type == "tool_use"] == ["search"]
            del asked["max_tokens"]
            counted = await client.messages.count_tokens(**asked)
        assert counted.input_tokens == reply.usage.input_tokens
        assert check_recorded(store) == 1
        check_usage(store, (reply.usage.input_tokens, reply.usage.output_tokens))


def check_usage(store: Store, usage: Usage) -> None:
    (summary,) = store.trajectories()
    (session,) = store.trajectory(summary.trajectory_id).sessions
    (call,) = session.calls
    assert (len(call.prompt_ids_P), len(call.samples[0].ids_T)) == usage
