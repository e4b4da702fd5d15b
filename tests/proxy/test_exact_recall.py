"""Exact prefix mode knows from the store what its own memory does not: after a restart, and with several workers."""

from dataclasses import replace
from typing import Any

import pytest

from mosaic.errors import StoreError
from mosaic.records import Call
from mosaic.store import Store
from tests.conftest import ProxyFactory, serving, until
from tests.engine.tokens import TokenEngine
from tests.proxy.conversations import KEPT, QUESTION, Chat, calls_of, check_one_sequence, exact, fidelities, searcher


@pytest.mark.parametrize("engine_of_run", [TokenEngine(searcher), TokenEngine(searcher, drops_reasoning=True)])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_proxy_that_was_restarted_knows_what_was_sampled_in_a_trajectory(
    start_proxy: ProxyFactory, engine_of_run: TokenEngine, stream: bool
) -> None:
    engine_of_run.counts_ids = True
    async with exact(start_proxy, engine_of_run, commit_first=False) as proxy:
        messages = await Chat(proxy, stream).run(2)
    async with exact(start_proxy, engine_of_run, commit_first=False) as proxy:
        reply = (await Chat(proxy, stream).ask(messages))["choices"][0]["message"]
        assert reply["content"] == "They are on the shelf."
        await until(lambda: len(fidelities(proxy)) == 3)
        assert fidelities(proxy) == [("exact", None), ("spliced", None), ("spliced", None)]
        known = [c.prompt_ids_P.tolist() + c.samples[0].ids_T.tolist() for c in calls_of(proxy)]
        assert known[1][: len(known[0])] == known[0]
        assert known[2][: len(known[1])] == known[1]


async def test_workers_of_one_database_know_what_the_others_sampled(start_proxy: ProxyFactory) -> None:
    engine = TokenEngine(searcher)
    async with exact(start_proxy, engine) as proxy, serving(proxy.settings) as other:
        chats = [Chat(proxy), Chat(replace(proxy, url=other))]
        messages: list[Any] = [QUESTION]
        for turn in range(3):
            reply = (await chats[turn % 2].ask(messages))["choices"][0]["message"]
            messages.append({name: reply[name] for name in KEPT if name in reply})
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": "Nothing."}
                for call in reply.get("tool_calls") or ()
            ]
        check_one_sequence(proxy, 3)
        assert fidelities(proxy) == [("exact", None), ("spliced", None), ("spliced", None)]


async def test_the_store_is_asked_only_for_what_is_not_remembered_and_never_twice_for_a_row(
    start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, int, int]] = []
    sampled = Store.sampled

    def watched(store: Store, trajectory_id: str, after: int = 0, newest: int = 200) -> tuple[list[Call], int]:
        found, last = sampled(store, trajectory_id, after, newest)
        asked.append((trajectory_id, after, len(found)))
        return found, last

    monkeypatch.setattr(Store, "sampled", watched)
    async with exact(start_proxy, TokenEngine(searcher)) as proxy:
        messages = await Chat(proxy).run(3)
        await Chat(proxy, trajectory_id=None).ask([QUESTION, {"role": "assistant", "content": "Here."}, QUESTION])
        assert asked == []
        edited = [*messages[:1], {"role": "assistant", "content": "I looked."}, QUESTION]
        for _ in range(2):
            await Chat(proxy).ask(edited)
        assert asked == [("run-1", 0, 3), ("run-1", 3, 1)]
        assert fidelities(proxy)[-2:] == [("fell_back", "not_remembered")] * 2


async def test_a_store_that_cannot_be_read_costs_a_fall_back_and_no_call(
    start_proxy: ProxyFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def broken(*_: object) -> None:
        asked.append(1)
        raise StoreError("the database is gone.")

    async with exact(start_proxy, TokenEngine(searcher)) as proxy:
        monkeypatch.setattr(Store, "sampled", broken)
        for _ in range(2):
            await Chat(proxy).ask([QUESTION, {"role": "assistant", "content": "Here."}, QUESTION])
        assert fidelities(proxy) == [("fell_back", "not_remembered")] * 2
        assert len(asked) == 1
