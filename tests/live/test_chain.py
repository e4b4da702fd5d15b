"""The whole chain against the real vLLM, the real deepagents and the real TRL, on a small task."""

import json
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, text
from transformers import AutoTokenizer

from examples.demo.__main__ import POLICY, Plan, run
from mosaic.records import Message
from mosaic.store import Store
from mosaic.store.checking import check
from mosaic.store.reading import read_placed

PLAN = Plan(rounds=1, tasks=4, attempts=6, held_out=8, concurrency=16, minibatches=2)


@pytest.mark.engine
def test_an_unmodified_agent_is_recorded_credited_trained_and_served_again(tmp_path: Path) -> None:
    summary = run(PLAN, tmp_path)
    assert summary.failures == []
    (trained,) = summary.rounds
    assert trained.published_version == 1
    assert trained.trained_tokens > 0
    assert trained.logprob_gap < 1e-3 < trained.logprob_change
    assert summary.before.policy_version == trained.batch.policy_version == 0
    assert summary.after.policy_version == 1
    assert sum(b.inexact_calls for b in summary.batches()) == 0
    check_store(Store(f"sqlite:///{tmp_path}/mosaic.db"), summary.before.attempts)


def check_store(store: Store, held_out: int) -> None:
    """The database says the same: kinds of sessions, states, versions, and each sampled token in one place."""
    with store.engine.connect() as connection:
        kinds = counted(connection, "select kind, count(*) from sessions group by kind")
        assert kinds["root"] == 2 * held_out + PLAN.tasks * PLAN.attempts
        assert kinds["compaction"] > 0
        assert kinds["spawn"] > 0
        states = counted(connection, "select state, count(*) from trajectories group by state")
        assert states["trained"] > 0
        assert states["trained"] + states["scored"] == kinds["root"]
        jobs = [tuple(row) for row in connection.execute(text("select state, policy_to from jobs"))]
        assert jobs == [("published", 1)]
    weak = [
        link
        for summary in store.trajectories(500)
        for link in store.links(summary.trajectory_id)
        if link["kind"] != "root" and link["score"] < 0.8
    ]
    assert weak == []
    # Every prompt of every call is rebuilt from what was new in it, and every message from its digest.
    assert check(store.database, deep=True) == []
    check_prompts(store)
    store.close()


def check_prompts(store: Store) -> None:
    """The rebuilt prompt of every call is what the policy's own template makes of its messages and tools."""
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    with store.database.reading() as connection:
        calls = [call for call, _ in read_placed(connection)]
    assert len(calls) > 100
    for call in calls:
        ids = tokenizer.apply_chat_template(
            [as_rendered(message) for message in call.messages],
            tools=call.params.get("tools"),
            add_generation_prompt=True,
            return_dict=False,
        )
        assert call.prompt_ids_P.tolist() == ids


def as_rendered(message: Message) -> dict[str, Any]:
    """A message as vLLM gives it to the template: the arguments of tool calls are objects."""
    rendered = dict(message)
    if calls := message.get("tool_calls"):
        rendered["tool_calls"] = [
            {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
            for call in calls
        ]
    return rendered


def counted(connection: Connection, query: str) -> dict[str, int]:
    return {str(row[0]): int(row[1]) for row in connection.execute(text(query))}
