"""The views show plain columns, those that docs/database.md lists, whatever the messages hold; on both databases."""

import importlib
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from sqlalchemy import text

from mosaic.capture import CallStatus
from mosaic.store import Store
from mosaic.store.models import Base
from mosaic.store.views import NAMES
from tests.lineage.test_lineage import SEARCH, compaction, linear, spawns
from tests.playbook import Message, Recording, assistant, choice, user

PAGE = Path(__file__).parents[2] / "docs" / "database.md"


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    opened = Store(database_url)
    yield opened
    opened.close()


def query(store: Store, sql: str) -> list[dict[str, Any]]:
    with store.database.reading() as connection:
        return [dict(row) for row in connection.execute(text(sql)).mappings()]


def speak(store: Store, asked: Message, reply: Message) -> dict[str, Any]:
    """Record one call with these messages and return its row of `v_calls`."""
    call = Recording("run").call([asked], assistant("x"))
    store.record([replace(call, choices=(choice(reply, [1, 2]),))])
    (row,) = query(store, "select * from v_calls")
    return row


def documented(name: str) -> list[str]:
    """The columns that the page lists under a view's heading."""
    section = PAGE.read_text(encoding="utf-8").split(f"### {name}\n")[1].split("\n#")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_the_page_lists_exactly_the_views_columns(store: Store, name: str) -> None:
    with store.database.reading() as connection:
        assert documented(name) == list(connection.execute(text(f"select * from {name}")).keys())


def test_the_page_names_every_table_and_a_function_that_exists() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert all(re.search(rf"\b{name}\b", page) for name in Base.metadata.tables)
    for module, name in re.findall(r"`(mosaic\.store\.codec)\.(\w+)`", page):
        assert hasattr(importlib.import_module(module), name)


def test_the_pages_queries_run(store: Store) -> None:
    queries = re.findall(r'^(?:sqlite3|psql) .*"(select .*)"$', PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(queries) == 4
    store.record(linear(Recording("run-17")))
    for sql in queries:
        query(store, sql)


def test_a_call_is_shown_with_what_was_asked_and_answered(store: Store) -> None:
    calls = linear(Recording("run"), 2)
    store.record(calls)
    first, second = query(store, "select * from v_calls order by seq")
    assert (first["call_id"], first["session"], first["session_kind"]) == (calls[0].call_id, 0, "root")
    assert (first["model"], first["messages"], first["last_role"]) == ("policy", 2, "user")
    assert first["last_content"] == calls[0].messages[-1]["content"]
    assert (first["started"], first["seconds"], first["seconds_to_first_byte"]) == (
        "1970-01-01 00:00:01.000",
        0.5,
        0.25,
    )
    assert orjson.loads(first["reply_tool_calls"])[0]["function"]["name"] == "search"
    assert (second["parent_call_id"], second["last_role"], second["last_content"]) == (
        calls[0].call_id,
        "tool",
        "found 0",
    )
    assert (bool(first["exact"]), first["prompt_tokens"]) == (True, len(calls[0].prompt_ids_P))


def test_a_call_without_an_answer_is_shown(store: Store) -> None:
    call = Recording("run").call([user("hello")], assistant("x"), status=CallStatus.ABORTED, inexact_reason="cut")
    store.record([replace(call, choices=(), error="the client left")])
    (row,) = query(store, "select * from v_calls")
    assert (row["status"], row["reply"], row["inexact_reason"], row["error"]) == (
        "aborted",
        None,
        "cut",
        "the client left",
    )


def test_only_the_first_choice_is_shown(store: Store) -> None:
    call = Recording("run").call([user("hello")], assistant("x"))
    store.record([replace(call, choices=(choice(assistant("a"), [1]), choice(assistant("b"), [2, 3], 1)))])
    assert [(r["reply"], r["sampled_tokens"]) for r in query(store, "select * from v_calls")] == [("a", 3)]


@pytest.mark.parametrize("said", ["nul \0 inside", "\ud800 alone", "\U0001f600 \udc00 alone", "\\u0000 spelt out"])
def test_texts_that_databases_hate_are_shown(store: Store, said: str) -> None:
    row = speak(store, user(said), assistant(said))
    for shown in (row["last_content"], row["reply"]):
        assert "alone" in shown or "nul" in shown or "spelt out" in shown
    assert query(store, "select task from v_trajectories")
    assert len(query(store, "select * from v_sessions")) == 1


@pytest.mark.parametrize(
    "content", [[{"type": "text", "text": "one"}, {"type": "image_url", "image_url": {"url": "data:"}}], {"odd": 1}, 7]
)
def test_content_that_is_no_text_is_shown_as_json(store: Store, content: Any) -> None:
    row = speak(store, {"role": "user", "content": content}, {"role": "assistant", "content": content})
    assert orjson.loads(row["last_content"]) == orjson.loads(row["reply"]) == content


@pytest.mark.parametrize("reply", [assistant(None, SEARCH), {"role": "assistant", "tool_calls": [{"id": "id-1"}]}])
def test_a_reply_of_tool_calls_alone_has_no_content(store: Store, reply: Message) -> None:
    row = speak(store, user("hello"), reply)
    assert row["reply"] is None
    assert orjson.loads(row["reply_tool_calls"])[0]["id"] == "id-1"


@pytest.mark.parametrize("odd", [{}, {"role": 5, "content": None}, {"content": True, "tool_calls": 5}])
def test_messages_that_make_no_sense_are_shown_all_the_same(store: Store, odd: Message) -> None:
    assert speak(store, odd, odd)["messages"] == 1


def test_emoji_and_quotes_are_shown_as_they_are(store: Store) -> None:
    said = 'é💥 "quoted" \\ \n %s :name'
    row = speak(store, user(said), assistant(said))
    assert (row["last_content"], row["reply"]) == (said, said)


def test_a_session_is_shown_with_its_place_its_totals_and_its_newest_advantage(store: Store) -> None:
    store.record([*compaction(Recording("run")), *linear(Recording("other"))])
    root, after = store.trajectory("run").sessions
    for advantage in (0.25, 0.5):
        job = store.start_job({})
        store.finish_training(job, 1, {}, {after.session_id: advantage}, {})
    found = query(store, "select * from v_sessions where trajectory_id = 'run' order by session")
    assert [(r["session"], r["kind"], r["rung"], r["calls"]) for r in found] == [
        (0, "root", "none", 4),
        (1, "compaction", "summary", 1),
    ]
    assert [r["advantage"] for r in found] == [None, 0.5]
    assert (found[1]["parent_session"], found[1]["parent_session_id"]) == (0, root.session_id)
    assert found[1]["opened_by_call_id"] == root.calls[-1].call_id
    assert isinstance(orjson.loads(found[1]["evidence"]), dict)


def test_a_trajectory_is_shown_with_what_its_listing_says(store: Store) -> None:
    store.record(spawns(Recording("run"), ("capital of the first", "capital of the second")))
    store.reward("run", 0.5, "test")
    (row,) = query(store, "select * from v_trajectories")
    (listed,) = store.trajectories()
    for column in ("trajectory_id", "task_key", "state", "reward", "sessions", "compactions", "spawns", "calls"):
        assert row[column] == getattr(listed, column)
    for column in ("inexact_calls", "sampled_tokens", "policy_version"):
        assert row[column] == getattr(listed, column)
    assert row["task"] == "Which sea does the harbour town lie at?"
