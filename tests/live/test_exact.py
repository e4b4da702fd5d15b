"""Exact prefix mode against the real vLLM: a session whose template retokenises what was sampled is one sequence.

Tool calls are sampled letter by letter (merged tokens are not allowed), so that the template, which writes words, never
gives their ids back. Before each call the policy thinks, in two tokens that it otherwise uses for words; its template
leaves reasoning out of history.
"""

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import numpy as np
import openai
import pytest

from examples.demo.__main__ import MAX_MODEL_LEN, POLICY
from examples.demo.agent import CHILD_PROMPT
from mosaic.records import Call
from mosaic.settings import Settings
from mosaic.store import Store
from mosaic.store.checking import check
from tests.conftest import serving
from tests.live.conftest import TOOLS, StartEngine
from trainer.engine import Engine
from trainer.engine_control import EngineControl

pytestmark = pytest.mark.engine

SEARCH = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
THINK = {"domain": "<think>", "code": "</think>"}
"""Tokens of the policy that become those of its reasoning."""
LETTERS = [2, *(token for token in range(3, 259) if token != 30), 1006, 1007, 1008, 1022, 1023]
"""The policy's tokens of one byte but `<`, and those that frame a tool call and reasoning."""
CALL = r"<think>[a-z ]{6}</think>"
CALL += r'<tool_call>\{"name": "search", "arguments": \{"query": "country of [a-z]{5}"\}\}</tool_call>'
SAMPLING: dict[str, Any] = {"temperature": 0, "structured_outputs": {"regex": CALL}, "allowed_token_ids": LETTERS}
ASKED: dict[str, Any] = {"model": "policy", "extra_body": SAMPLING}
TURNS = 3

Where = Callable[[int], Awaitable[str]]
"""Address of the proxy for a turn; awaited before it."""


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's policy with tokens for reasoning."""
    folder = tmp_path_factory.mktemp("policy") / "checkpoint"
    shutil.copytree(POLICY, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        token["content"] = THINK.get(token["content"], token["content"])
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


@pytest.fixture(scope="module")
def engine(start_engine: StartEngine, policy: Path) -> Engine:
    reasoning = ("--reasoning-parser", "deepseek_r1", "--structured-outputs-config.enable_in_reasoning", "true")
    return start_engine(policy, MAX_MODEL_LEN, *TOOLS, *reasoning, "--enable-scale-out")


@pytest.fixture(scope="module")
def plain_engine(start_engine: StartEngine, policy: Path) -> Engine:
    """One that parses tool calls, and no reasoning."""
    return start_engine(policy, MAX_MODEL_LEN, *TOOLS, "--enable-scale-out")


@pytest.fixture(scope="module", params=["engine", "plain_engine"])
def any_engine(request: pytest.FixtureRequest) -> Engine:
    """Each of both."""
    found: Engine = request.getfixturevalue(request.param)
    return found


@asynccontextmanager
async def proxy(engine: Engine, folder: Path, **settings: Any) -> AsyncIterator[tuple[str, Store]]:
    """The proxy's address, and its store."""
    database = f"sqlite:///{folder}/mosaic.db"
    values: dict[str, Any] = {"upstream": f"{engine.base_url}/v1", "database": database, "spool": folder / "spool"}
    values |= {"writer_process": False, "commit_first": True, "fidelity": "exact", **settings}
    async with serving(Settings(**values)) as url:
        store = Store(database)
        yield url, store
        store.close()


def at(url: str) -> Where:
    """Every turn at one address."""

    async def where(_turn: int) -> str:
        return url

    return where


async def chat(where: Where, stream: bool) -> None:
    tools: Any = [{"type": "function", "function": {"name": "search", "parameters": SEARCH}}]
    messages: list[Any] = [{"role": "system", "content": CHILD_PROMPT}, {"role": "user", "content": "Sikasso"}]
    asked: Any = {**ASKED, "tools": tools, "max_tokens": 64}
    async with openai.AsyncOpenAI(api_key="any", max_retries=0) as opened:
        for turn in range(TURNS):
            client = opened.with_options(base_url=f"{await where(turn)}/v1")
            if stream:
                async with client.chat.completions.stream(**asked, messages=messages) as events:
                    reply: Any = await events.get_final_completion()
            else:
                reply = await client.chat.completions.create(**asked, messages=messages)
            (call,) = reply.choices[0].message.tool_calls
            assert reply.choices[0].finish_reason == "tool_calls"
            check_arguments(call.function.arguments)
            function = {"name": call.function.name, "arguments": call.function.arguments}
            calls = [{"id": call.id, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "Mali"})


async def responses(where: Where, stream: bool) -> None:
    tools: Any = [{"type": "function", "name": "search", "parameters": SEARCH, "strict": False}]
    items: list[Any] = [{"role": "user", "content": "Sikasso"}]
    asked: Any = {**ASKED, "instructions": CHILD_PROMPT, "tools": tools, "max_output_tokens": 64}
    async with openai.AsyncOpenAI(api_key="any", max_retries=0) as opened:
        for turn in range(TURNS):
            client = opened.with_options(base_url=f"{await where(turn)}/v1")
            if stream:
                async with client.responses.stream(**asked, input=items) as events:
                    reply: Any = await events.get_final_response()
            else:
                reply = await client.responses.create(**asked, input=items)
            (call,) = [item for item in reply.output if item.type == "function_call"]
            check_arguments(call.arguments)
            items += [item.model_dump(exclude_none=True) for item in reply.output]
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": "Mali"})


async def messages(where: Where, stream: bool) -> None:
    said: list[Any] = [{"role": "user", "content": "Sikasso"}]
    tools: Any = [{"name": "search", "input_schema": SEARCH}]
    asked: Any = {**ASKED, "system": CHILD_PROMPT, "tools": tools, "max_tokens": 64}
    async with anthropic.AsyncAnthropic(api_key="any", max_retries=0) as opened:
        for turn in range(TURNS):
            client = opened.with_options(base_url=await where(turn))
            if stream:
                async with client.messages.stream(**asked, messages=said) as events:
                    reply: Any = await events.get_final_message()
            else:
                reply = await client.messages.create(**asked, messages=said)
            (use,) = [block for block in reply.content if block.type == "tool_use"]
            check_arguments(json.dumps(use.input))
            result = {"type": "tool_result", "tool_use_id": use.id, "content": "Mali"}
            said += [{"role": "assistant", "content": reply.content}, {"role": "user", "content": [result]}]


def check_arguments(arguments: str) -> None:
    assert json.loads(arguments)["query"].startswith("country of ")


WIRES = [chat, responses, messages]


def calls_of(store: Store, trajectory_id: str) -> list[Call]:
    (session,) = store.trajectory(trajectory_id).sessions
    assert all(call.exact for call in session.calls)
    assert len(session.calls) == TURNS
    return list(session.calls)


def continues(before: Call, after: Call) -> bool:
    known = [*before.prompt_ids_P.tolist(), *before.samples[0].ids_T.tolist()]
    return bool(after.prompt_ids_P[: len(known)].tolist() == known)


def sequence(store: Store, trajectory_id: str) -> list[bool]:
    """Whether each call goes on from the ids of the one before."""
    assert check(store.database, deep=True) == []
    return [continues(before, after) for before, after in pairwise(calls_of(store, trajectory_id))]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("converse", WIRES)
async def test_a_retokenised_session_whose_reasoning_history_lacks_is_one_sequence_on_every_wire(
    engine: Engine, tmp_path: Path, converse: Any, stream: bool
) -> None:
    async with proxy(engine, tmp_path) as (url, store):
        await converse(at(f"{url}/t/run"), stream)
        assert sequence(store, "run") == [True, True]
        assert store.fidelity("run") == {"exact": 1, "spliced": 2}
        for call in calls_of(store, "run"):
            assert len(call.samples[0].message["reasoning"]) == 6
            assert {1022, 1023} < set(call.samples[0].ids_T.tolist())


@pytest.mark.parametrize("converse", WIRES)
async def test_reasoning_is_dropped_where_that_is_asked_for(engine: Engine, tmp_path: Path, converse: Any) -> None:
    async with proxy(engine, tmp_path, exact_reasoning="drop") as (url, store):
        await converse(at(f"{url}/t/run"), stream=False)
        assert sequence(store, "run") == [False, False]
        assert store.fidelity("run") == {"exact": 1, "fell_back: reasoning_dropped": 2}


async def test_in_capture_mode_the_same_session_is_not_one_sequence(engine: Engine, tmp_path: Path) -> None:
    for mode in ("exact", "capture"):
        async with proxy(engine, tmp_path, fidelity=mode) as (url, store):
            await chat(at(f"{url}/t/{mode}"), stream=False)
            if mode == "capture":
                assert sequence(store, mode) == [False, False]
                assert store.fidelity(mode) == {}
                check_same(calls_of(store, "exact")[0], calls_of(store, mode)[0])


NAMED = {"type": "function", "function": {"name": "search"}}
TOOL = {"type": "function", "function": {"name": "search", "parameters": SEARCH}}
THINKS: dict[str, Any] = {**SAMPLING, "tools": [TOOL]}
WISHES: list[dict[str, Any]] = [
    {},
    {"tools": [TOOL], "tool_choice": "required"},
    {"tools": [TOOL], "tool_choice": NAMED},
    {"tools": [TOOL], "tool_choice": "none", "max_tokens": 3},
    {"n": 2, "seed": 3, "temperature": 0.7, "stop_token_ids": [67]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "asked", "schema": SEARCH}}},
    {"logit_bias": {"67": 100}, "max_tokens": 4, "min_tokens": 2},
    {**THINKS, "max_tokens": 64},
    {**THINKS, "max_tokens": 64, "include_reasoning": False},
    {**THINKS, "max_tokens": 64, "tool_choice": "none"},
    {**THINKS, "max_tokens": 24},
    {**THINKS, "max_tokens": 4},
    {"temperature": -1},
    {"max_tokens": 100_000},
    {"messages": []},
]


@pytest.mark.parametrize("wish", WISHES)
async def test_a_whole_answer_is_the_one_that_vllm_alone_would_send(
    any_engine: Engine, tmp_path: Path, wish: dict[str, Any]
) -> None:
    told = [{"role": "system", "content": CHILD_PROMPT}, {"role": "user", "content": "capital of Mali"}]
    body = {"model": "policy", "temperature": 0, "max_tokens": 48, "messages": told, **wish}
    async with proxy(any_engine, tmp_path) as (url, _), aiohttp.ClientSession() as client:
        seen = []
        for address in (url, any_engine.base_url):
            async with client.post(f"{address}/v1/chat/completions", json=body) as response:
                seen.append((response.status, comparable(await response.json())))
        assert seen[0] == seen[1]


NEVER_SAME = ("id", "created", "system_fingerprint")
NOT_COUNTED = "completion_tokens_details"
"""How many tokens were reasoning: vLLM counts them in chat completions alone, where it parses reasoning."""


def comparable(answer: Any) -> Any:
    """The answer without what differs from answer to answer."""
    if isinstance(answer, list):
        return [comparable(one) for one in answer]
    if not isinstance(answer, dict):
        return answer
    return {k: comparable(v) for k, v in answer.items() if k not in (*NEVER_SAME, NOT_COUNTED)}


def check_same(one: Call, other: Call) -> None:
    """From the same prompt both ways sample the same, with the same logprobs."""
    assert one.prompt_ids_P.tolist() == other.prompt_ids_P.tolist()
    assert one.samples[0].ids_T.tolist() == other.samples[0].ids_T.tolist()
    np.testing.assert_allclose(one.samples[0].logprobs_T, other.samples[0].logprobs_T, atol=1e-4)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("converse", WIRES)
async def test_a_session_stays_one_sequence_over_new_weights_and_another_worker(
    engine: Engine, policy: Path, tmp_path: Path, converse: Any, stream: bool
) -> None:
    """The second turn is sampled by new weights, the third by newer ones, and asked for through another worker."""
    async with proxy(engine, tmp_path) as (url, store), proxy(engine, tmp_path) as (other, _):

        async def where(turn: int) -> str:
            if turn:
                version = store.new_version(str(policy), None)
                await asyncio.to_thread(swap, EngineControl(engine.base_url), policy, version, store)
            return f"{url if turn < 2 else other}/t/run"

        await converse(where, stream)
        assert sequence(store, "run") == [True, True]
        versions = [(call.policy_version, call.policy_version_end) for call in calls_of(store, "run")]
        assert versions == [(0, 0), (1, 1), (2, 2)]
        assert store.fidelity("run") == {"exact": 1, "spliced": 2}


def swap(control: EngineControl, checkpoint: Path, version: int, store: Store) -> None:
    control.pause()
    try:
        control.load(checkpoint, version)
        store.version_live(version)
    finally:
        control.resume()
