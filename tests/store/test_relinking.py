"""Lineage that is computed again from the store is what it was live, and what newer tables would have made of it."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text
from typer.testing import CliRunner

from adapters.harnesses import HARNESSES
from mosaic.capture import CapturedCall
from mosaic.store import Store
from mosaic.store.checking import check
from mosaic.store.models import CallRow, LinkRow, SessionRow, TrajectoryRow
from mosaic.store.relinking import relink
from proxy import commands
from tests.lineage.corpus import PLAYBOOKS
from tests.lineage.corpus.stage import Play
from tests.lineage.corpus.variants import interleaved

PICKED = (
    "at_once",
    "nested",
    "alike",
    "in_the_background",
    "twice",
    "inside_a_child",
    "title_first",
    "memory",
    "retried",
    "critic_is_heard",
    "two_without_tools",
    "summary_for_the_user",
    "delegated_in_text",
    "orchestrated",
)


def calls_of(names: list[str], seed: int, *, same: bool) -> list[CapturedCall]:
    """Copies of playbooks, all at once, each under a client's one key."""
    plays = []
    for at, name in enumerate(names):
        play = Play(name.replace("_", " "), at, voice=0 if same else at, ids=at % 2 == 0)
        PLAYBOOKS[name](play)
        plays.append(play.lines)
    return [line.call for line in interleaved(plays, random.Random(seed))]


def placed(store: Store) -> dict[str, Any]:
    """All that lineage decided, as it stands in the database."""
    columns = {
        "calls": (CallRow, ("trajectory_id", "session_id", "parent_call_id", "auxiliary", "rung", "score", "evidence")),
        "sessions": (SessionRow, ("trajectory_id", "kind", "parent_session_id", "position", "ended", "ended_at")),
        "links": (LinkRow, ("trajectory_id", "kind", "parent_call_id", "rung", "score", "evidence", "rivals")),
        "trajectories": (TrajectoryRow, ("task_key", "updated_at", "policy_version")),
    }
    with store.database.reading() as connection:
        return {
            name: {
                row[0]: tuple(row[1:])
                for row in connection.execute(select(KEYS[name], *(getattr(table, column) for column in wanted)))
            }
            for name, (table, wanted) in columns.items()
        }


KEYS = {
    "calls": CallRow.call_id,
    "sessions": SessionRow.session_id,
    "links": LinkRow.session_id,
    "trajectories": TrajectoryRow.trajectory_id,
}


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_lineage_from_the_store_is_that_of_the_live_path(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any playbooks at once, in any batches, with writers that take turns or start anew in between."""
    names = data.draw(st.lists(st.sampled_from(PICKED), min_size=1, max_size=4), label="playbooks")
    calls = calls_of(names, data.draw(st.integers(0, 99), label="seed"), same=data.draw(st.booleans(), label="same"))
    url = f"sqlite:///{tmp_path_factory.mktemp('live')}/mosaic.db"
    stores = [Store(url, harnesses=HARNESSES) for _ in range(2)]
    while calls:
        size = data.draw(st.integers(1, 12), label="batch")
        stores[data.draw(st.integers(0, 1), label="writer")].record(calls[:size])
        calls = calls[size:]
    live = placed(stores[0])
    found = relink(stores[0].database, HARNESSES)
    assert (found.moved, found.links, found.filled) == ((), 0, 0)
    assert placed(stores[0]) == live
    for store in stores:
        store.close()


def test_what_was_recorded_without_tables_is_placed_as_with_them(database_url: str, tmp_path: Path) -> None:
    calls = calls_of(["title_first", "nested", "memory", "twice"], 3, same=False)
    store, known = Store(database_url), Store(f"sqlite:///{tmp_path}/known.db", harnesses=HARNESSES)
    at_work = Store(database_url, harnesses=HARNESSES)
    store.record(calls[:-5])
    at_work.record(calls[-5:])
    known.record(calls)
    told = relink(store.database, HARNESSES, dry_run=True)
    assert told.moved
    assert relink(store.database, HARNESSES).moved == told.moved
    assert placed(store) == placed(known)
    assert check(store.database, deep=True) == []
    # A writer that was at work before goes on from what is there now.
    more = calls_of(["at_once"], 4, same=False)
    at_work.record(more)
    known.record(more)
    assert placed(store) == placed(known)
    for one in (store, at_work, known):
        one.close()


def test_older_calls_learn_why_they_stand_where_they_stand(database_url: str) -> None:
    store = Store(database_url, harnesses=HARNESSES)
    store.record(calls_of(["nested"], 1, same=False))
    before = placed(store)
    with store.database.writing() as connection:
        connection.execute(text("update calls set rung = null, score = null, evidence = null, rivals = null"))
    found = relink(store.database, HARNESSES)
    assert (found.moved, found.filled) == ((), found.calls)
    assert placed(store) == before
    store.close()


def test_a_judged_trajectory_that_lost_its_calls_stays_with_its_reward(database_url: str) -> None:
    store = Store(database_url)
    store.record(calls_of(["title_first"], 1, same=False))
    title = next(t for t in store.trajectories() if t.calls == 1)
    store.reward(title.trajectory_id, 1.0, "test")
    relink(store.database, HARNESSES)
    kept = {t.trajectory_id: (t.calls, t.reward) for t in store.trajectories()}
    assert kept[title.trajectory_id][1] == 1.0
    assert check(store.database, deep=True) == []
    store.close()


def test_the_command_tells_what_it_moved(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mosaic.db"
    store = Store(url)
    store.record(calls_of(["title_first"], 1, same=False))
    store.close()
    app = typer.Typer()
    app.command()(commands.relink)
    runner = CliRunner()
    told = json.loads(runner.invoke(app, ["--dry-run", "--json", "--database", url]).stdout)
    assert told["dry_run"]
    assert told["moved"]
    assert f"moved: {len(told['moved'])}" in runner.invoke(app, ["--database", url]).stdout
    assert json.loads(runner.invoke(app, ["--json", "--database", url]).stdout)["moved"] == []
