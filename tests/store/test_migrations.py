"""Migrating arrives at the models, on both databases, and a database of the first release is read back after it.

`first_release.sql` is the dump (`iterdump`) of a file that the code of commit 0136aba wrote: the playbooks `linear`,
`compaction` and `spawns`, odd texts, rewards, and one training job.
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Boolean, Connection, Engine, MetaData, create_engine, func, insert, select, text

from mosaic.capture import CapturedCall
from mosaic.errors import StoreError
from mosaic.records import TrajectoryState
from mosaic.store import Store, migrations, upgrade
from mosaic.store.checking import check
from mosaic.store.database import HEAD, Database, revision
from mosaic.store.models import Base, CallRow
from mosaic.store.pruning import PruneRule, prune
from mosaic.store.views import NAMES
from tests.lineage.test_lineage import compaction, linear, spawns
from tests.playbook import Recording
from tests.store.test_store import check_kept

FIRST = Path(__file__).parent / "first_release.sql"
FOLDER = Path(migrations.__file__).parent


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    made = create_engine(database_url)
    yield made
    made.dispose()


def differences(connection: Connection) -> list[Any]:
    """What autogenerate would change to make the database equal to the models."""
    context = MigrationContext.configure(connection, opts={"compare_type": True})
    return list(compare_metadata(context, Base.metadata))


def migrate(connection: Connection, to: str) -> None:
    """Upgrade an empty database to a revision, as `migrations.run` does to the newest."""
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    config.attributes["connection"] = connection
    command.upgrade(config, to)


def load_first(engine: Engine) -> None:
    """Fill an empty database with what the first release wrote; it had no table of revisions."""
    dumped = sqlite3.connect(":memory:")
    dumped.executescript(FIRST.read_text(encoding="utf-8"))
    dumped.row_factory = sqlite3.Row
    with engine.begin() as connection:
        migrate(connection, "0001")
        connection.execute(text("drop table alembic_version"))
        held = MetaData()
        held.reflect(connection)
        for table in held.sorted_tables:
            flags = [c.name for c in table.columns if isinstance(c.type, Boolean)]
            rows = [dict(row) for row in dumped.execute(f"select * from {table.name}")]
            rows = [{**row, **{flag: bool(row[flag]) for flag in flags}} for row in rows]
            if rows:
                connection.execute(insert(table), rows)
            key = table.primary_key.columns[0].name
            if engine.dialect.name == "postgresql" and key in ("seq", "reward_id"):
                sequence = f"pg_get_serial_sequence('{table.name}', '{key}')"
                connection.execute(text(f"select setval({sequence}, (select max({key}) from {table.name}))"))
    dumped.close()


def test_migrating_from_nothing_equals_the_models(engine: Engine) -> None:
    with engine.begin() as connection:
        migrations.run(connection, "base")
        assert differences(connection) == []
        assert revision(connection) == HEAD
        for name in NAMES:
            assert connection.execute(text(f"select * from {name}")).all() == []


def test_a_new_database_equals_the_models(database_url: str) -> None:
    database = Database(database_url)
    with database.reading() as connection:
        assert differences(connection) == []
    database.close()


def test_a_difference_to_the_models_is_seen(engine: Engine) -> None:
    with engine.begin() as connection:
        migrations.run(connection, "base")
        connection.execute(text("drop index ix_messages_first"))
        assert len(differences(connection)) == 1


def test_the_head_that_the_code_names_is_the_newest_revision_and_the_chain_is_whole() -> None:
    config = Config()
    config.set_main_option("script_location", str(FOLDER))
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [HEAD]
    assert [r.revision for r in script.walk_revisions()][::-1] == migrations.known()


@pytest.mark.parametrize("way", ["new", "migrated"])
def test_sqlite_never_gives_a_row_number_of_calls_twice(tmp_path: Path, way: str) -> None:
    url = f"sqlite:///{tmp_path}/mosaic.db"
    if way == "migrated":
        write_dump(tmp_path / "mosaic.db")
        upgrade(url)
    store = Store(url)
    calls = linear(Recording("run"), 4)
    store.record(calls[:3])
    newest = select(func.max(CallRow.seq))
    with store.database.reading() as connection:
        before = connection.scalar(newest) or 0
    store.end("run", TrajectoryState.CLOSED, "over")
    prune(store.database, PruneRule(older_than_s=0.0))
    store.record(calls[3:])
    with store.database.reading() as connection:
        assert connection.scalar(newest) == before + 1
    store.close()


def test_an_upgrade_of_sqlite_gives_no_row_number_that_was_pruned_before(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mosaic.db"
    made = create_engine(url)
    with made.begin() as connection:
        migrate(connection, "0005")
        connection.execute(text("update sqlite_sequence set seq = 41 where name = 'calls'"))
    made.dispose()
    upgrade(url)
    store = Store(url)
    store.record(linear(Recording("run"), 1))
    with store.database.reading() as connection:
        assert connection.scalar(select(func.max(CallRow.seq))) == 42
    store.close()


def write_dump(path: Path) -> None:
    """The very file that the first release wrote."""
    with sqlite3.connect(path) as connection:
        connection.executescript(FIRST.read_text(encoding="utf-8"))
    connection.close()


def check_first_release(url: str) -> None:
    """All that was recorded is there: calls with prompts, samples and messages, sessions, rewards, the job."""
    store = Store(url)
    recorded: dict[str, list[CapturedCall]] = {
        "linear": linear(Recording("linear"), 3),
        "compaction": compaction(Recording("compaction"), 1, "k"),
        "spawns": spawns(Recording("spawns"), ("capital of the first", "capital of the second")),
    }
    (passive,) = (t.trajectory_id for t in store.trajectories() if t.trajectory_id.startswith("tr-"))
    recorded[passive] = compaction(Recording(None, "passive"), tag="p")
    for name, calls in recorded.items():
        check_kept(store, calls, name)
    nasty, aborted = store.trajectory("odd").sessions[0].calls + store.trajectory("odd").sessions[1].calls
    assert [s.message["content"] for s in nasty.samples] == ["nul \0 and \ud800 alone", "other"]
    assert (nasty.prompt_ids_P.tolist(), [s.ids_T.tolist() for s in nasty.samples]) == ([7, 8], [[1, 2], [3]])
    assert (aborted.exact, aborted.samples) == (False, ())
    states = {t.trajectory_id: (t.state, t.reward) for t in store.trajectories()}
    assert states["linear"] == ("scored", 1.0)
    assert states["compaction"] == ("unscorable", None)
    assert states["spawns"] == ("trained", 0.5)
    assert [link["kind"] for link in store.links("spawns")] == ["root", "spawn", "spawn"]
    assert store.policy() == (1, "/checkpoint")
    assert check(store.database, deep=True) == []
    go_on(store, recorded)
    store.close()


def go_on(store: Store, recorded: dict[str, list[CapturedCall]]) -> None:
    """An upgraded database takes more calls of the same trajectories, rewards and endings."""
    assert store.record([call for calls in recorded.values() for call in calls]) == []
    more = linear(Recording("linear"), 4)
    assert len(store.record(more)) == 1
    check_kept(store, more, "linear")
    assert store.reward("spawns", 1.0, "test", now=1e10).state is TrajectoryState.TRAINED
    assert store.reward("linear", 0.25, "test").in_force


def test_a_file_of_the_first_release_is_upgraded_and_read_back(tmp_path: Path) -> None:
    write_dump(tmp_path / "mosaic.db")
    url = f"sqlite:///{tmp_path}/mosaic.db"
    with pytest.raises(StoreError, match="mosaic db upgrade"):
        Store(url)
    assert upgrade(url) == ("0001", HEAD)
    assert upgrade(url) == (HEAD, HEAD)
    check_first_release(url)


def test_a_database_of_the_first_release_is_upgraded_and_read_back_on_both(engine: Engine, database_url: str) -> None:
    load_first(engine)
    assert upgrade(database_url) == ("0001", HEAD)
    with engine.connect() as connection:
        assert differences(connection) == []
    check_first_release(database_url)


def test_two_sessions_in_one_position_are_parted(engine: Engine, database_url: str) -> None:
    load_first(engine)
    with engine.begin() as connection:
        connection.execute(text("update sessions set position = 1 where trajectory_id = 'spawns' and position = 2"))
    upgrade(database_url)
    with engine.connect() as connection:
        found = connection.scalars(text("select position from sessions where trajectory_id = 'spawns' order by 1"))
        assert found.all() == [0, 1, 2]


@pytest.mark.parametrize(
    ("found", "step"), [("0001", "mosaic db upgrade"), ("0000", "mosaic db upgrade"), ("9999", "Upgrade Mosaic")]
)
def test_another_schema_is_refused_with_the_next_step(database_url: str, found: str, step: str) -> None:
    Database(database_url).close()
    set_revision(database_url, found)
    with pytest.raises(StoreError, match=f"schema {found}.*{step}") as caught:
        Database(database_url)
    assert caught.value.exit_code == 3


def test_an_upgrade_refuses_a_schema_that_it_does_not_know(database_url: str) -> None:
    upgrade(database_url)
    set_revision(database_url, "9999")
    with pytest.raises(StoreError, match="newer than this Mosaic"):
        upgrade(database_url)


def test_an_upgrade_that_fails_changes_nothing(engine: Engine, database_url: str) -> None:
    load_first(engine)
    with engine.begin() as connection:
        connection.execute(text("create table leases (other integer)"))
    with pytest.raises(StoreError, match="leases"):
        upgrade(database_url)
    with engine.begin() as connection:
        assert revision(connection) == "0001"
        connection.execute(text("drop table leases"))
    upgrade(database_url)
    check_first_release(database_url)


def set_revision(url: str, to: str) -> None:
    made = create_engine(url)
    with made.begin() as connection:
        connection.execute(text("update alembic_version set version_num = :to"), {"to": to})
    made.dispose()
