"""Exact prefix mode against the real vLLM: a session whose template retokenises what was sampled is one sequence.

Tool calls are sampled letter by letter (merged tokens are not allowed), so that the template, which writes words, never
gives their ids back.
"""

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

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
from trainer.engine import Engine, EngineSettings

pytestmark = pytest.mark.engine

SEARCH = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
LETTERS = [2, *range(3, 259), 1006, 1007, 1008]
"""The policy's tokens of one byte, and those that frame a tool call."""
CALL = r'<tool_call>\{"name": "search", "arguments": \{"query": "country of [a-z]{5}"\}\}</tool_call>'
ASKED: dict[str, Any] = {
    "model": "policy",
    "tools": [{"type": "function", "function": {"name": "search", "parameters": SEARCH}}],
    "max_tokens": 64,
    "temperature": 0,
    "extra_body": {"structured_outputs": {"regex": CALL}, "allowed_token_ids": LETTERS},
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    settings = EngineSettings(
        POLICY,
        tmp_path_factory.mktemp("engine") / "engine.log",
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=8,
        kv_cache_gib=1,
        threads=1,
        extra_args=("--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--enable-scale-out"),
    )
    with Engine(settings) as running:
        yield running


async def converse(url: str, trajectory_id: str, stream: bool) -> list[str]:
    """Three turns, each a tool call; returns the arguments."""
    messages: list[Any] = [{"role": "system", "content": CHILD_PROMPT}, {"role": "user", "content": "Sikasso"}]
    said = []
    async with openai.AsyncOpenAI(base_url=f"{url}/t/{trajectory_id}/v1", api_key="any", max_retries=0) as client:
        for _ in range(3):
            if stream:
                async with client.chat.completions.stream(**ASKED, messages=messages) as events:
                    reply: Any = await events.get_final_completion()
            else:
                reply = await client.chat.completions.create(**ASKED, messages=messages)
            (call,) = reply.choices[0].message.tool_calls
            assert reply.choices[0].finish_reason == "tool_calls"
            said.append(call.function.arguments)
            function = {"name": call.function.name, "arguments": call.function.arguments}
            calls = [{"id": call.id, "type": "function", "function": function}]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "Mali"})
    return said


def calls_of(store: Store, trajectory_id: str) -> list[Call]:
    (session,) = store.trajectory(trajectory_id).sessions
    assert all(call.exact for call in session.calls)
    return list(session.calls)


def continues(before: Call, after: Call) -> bool:
    known = [*before.prompt_ids_P.tolist(), *before.samples[0].ids_T.tolist()]
    return bool(after.prompt_ids_P[: len(known)].tolist() == known)


async def test_a_retokenised_session_is_one_sequence_in_exact_mode_alone(engine: Engine, tmp_path: Path) -> None:
    database = f"sqlite:///{tmp_path}/mosaic.db"
    for mode in ("exact", "capture"):
        values: Any = {"upstream": f"{engine.base_url}/v1", "database": database, "fidelity": mode}
        async with serving(Settings(**values, spool=tmp_path / "spool", writer_process=False)) as url:
            for stream in (False, True):
                said = await converse(url, f"{mode}-{stream}", stream)
                assert all(json.loads(arguments)["query"].startswith("country of ") for arguments in said)
    store = Store(database)
    assert check(store.database, deep=True) == []
    for stream in (False, True):
        exact, capture = (calls_of(store, f"{mode}-{stream}") for mode in ("exact", "capture"))
        assert all(continues(before, after) for before, after in pairwise(exact))
        assert not any(continues(before, after) for before, after in pairwise(capture))
        assert store.fidelity(f"exact-{stream}") == {"exact": 1, "spliced": 2}
        assert store.fidelity(f"capture-{stream}") == {}
        check_same(exact[0], capture[0])
    store.close()


def check_same(one: Call, other: Call) -> None:
    """From the same prompt both ways sample the same, with the same logprobs."""
    assert one.prompt_ids_P.tolist() == other.prompt_ids_P.tolist()
    assert one.samples[0].ids_T.tolist() == other.samples[0].ids_T.tolist()
    np.testing.assert_allclose(one.samples[0].logprobs_T, other.samples[0].logprobs_T, atol=1e-4)
