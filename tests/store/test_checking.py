"""A sound database has no findings; whatever is missing or damaged is one; what there is is counted."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from mosaic.capture import CallStatus
from mosaic.records import TrajectoryState
from mosaic.store import Store, stats
from mosaic.store.checking import Severity, check
from mosaic.store.models import Base
from tests.lineage.test_lineage import compaction, linear, spawns
from tests.playbook import Recording, assistant, choice, user


@pytest.fixture
def store(database_url: str) -> Iterator[Store]:
    """A store that holds a bit of everything."""
    opened = Store(database_url)
    opened.record([*compaction(Recording("one")), *spawns(Recording("two"), ("first", "second"))])
    several = Recording("several").call([user("hello \ud800 \0")], assistant("a"))
    several = replace(several, choices=(choice(assistant("a"), [1]), choice(assistant("b"), [2, 3], 1)))
    aborted = Recording("aborted").call([user("hello")], assistant("x"), status=CallStatus.ABORTED, choices=())
    cut = Recording("cut").call([user("hello")], assistant("x"), inexact_reason="cut")
    opened.record([several, replace(aborted, inexact_reason="call_aborted"), cut])
    opened.record([replace(c, params={"tools": ["x" * 500]}) for c in linear(Recording("long"), 20)])
    opened.reward("one", 1.0, "test")
    yield opened
    opened.close()


def damage(url: str, statement: str) -> None:
    """Change the database as no constraint would let anyone."""
    if url.startswith("sqlite"):
        with sqlite3.connect(str(make_url(url).database)) as raw:
            raw.execute(statement)
        raw.close()
        return
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("set session_replication_role = replica"))
        connection.execute(text(statement))
    engine.dispose()


def test_a_sound_database_has_no_findings(store: Store) -> None:
    assert check(store.database) == []
    told: list[tuple[int, int]] = []
    assert check(store.database, deep=True, on_progress=lambda done, total: told.append((done, total))) == []
    assert told == [(n, 6) for n in range(1, 7)]


def test_an_empty_database_is_sound(database_url: str) -> None:
    empty = Store(database_url)
    assert check(empty.database, deep=True) == []
    assert stats.stats(empty.database).bytes_per_sampled_token is None
    empty.close()


FIRST_CALL = "(select min(seq) from calls where trajectory_id = 'long')"
FIRST_ID = f"(select call_id from calls where seq = {FIRST_CALL})"
BROKEN = {
    "their session": "delete from sessions where trajectory_id = 'long'",
    "calls have lost their messages": "delete from messages where message_id in (select message_id from calls)",
    "their tokens": f"delete from tokens where call_id = {FIRST_ID}",
    "the call that they continue": f"delete from tokens where call_id = {FIRST_ID} ",
    "other numbers of tokens": f"update tokens set logprobs = substr(logprobs, 1, 5) where call_id = {FIRST_ID}",
    "replies have lost": "delete from messages where message_id in (select message_id from tokens)",
    "the one before": "delete from messages where depth = 0",
    "lost the one before": "update messages set depth = depth + 1 where depth > 3",
}
DEEP = {
    "another length": f"update calls set prompt_tokens = prompt_tokens + 1 where seq = {FIRST_CALL}",
    "of another length": f"update calls set sampled_tokens = 1, exact = {{no}} where seq = {FIRST_CALL}",
    "what their digest says": 'update messages set body = \'{{"role": "user"}}\' where depth = 1',
    "cannot be read back": "update tokens set prompt_new = {blob} where base_call_id is not null",
    "be read back": "update messages set body = 'no json' where depth = 1",
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_missing_is_found(store: Store, database_url: str, what: str) -> None:
    damage(database_url, BROKEN[what])
    found = [finding for finding in check(store.database) if what in finding.what]
    assert [finding.severity for finding in found] == [Severity.BROKEN]
    assert found[0].how_many > 0
    assert found[0].next_step
    assert check(store.database, deep=True)


@pytest.mark.parametrize("what", DEEP)
def test_what_only_reading_shows_is_found_by_a_deep_check(store: Store, database_url: str, what: str) -> None:
    sqlite = database_url.startswith("sqlite")
    terms = {"no": "0" if sqlite else "false", "blob": "x'7a00'" if sqlite else "'\\x7a00'"}
    damage(database_url, DEEP[what].format(**terms))
    assert check(store.database) == []
    assert [f.how_many > 0 for f in check(store.database, deep=True) if what in f.what] == [True]


LEFT = {
    "tokens belong": "insert into tokens (call_id, choice, prompt_kept, sampled, logprobs) values ('x', 0, 0, '', '')",
    "message chains belong": "insert into messages (message_id, digest, depth, role, body) "
    "values (-1, 'x', 0, 'user', '{}')",
    "parameters belong": "insert into params (params_id, body) values ('x', '{}')",
}


@pytest.mark.parametrize("what", LEFT)
def test_what_nothing_needs_is_waste_and_not_broken(store: Store, database_url: str, what: str) -> None:
    damage(database_url, LEFT[what])
    (finding,) = check(store.database)
    assert (finding.severity, finding.how_many) == (Severity.WASTE, 1)
    assert what in finding.what


def test_a_damaged_page_of_the_file_is_found(tmp_path: Path) -> None:
    path = tmp_path / "mosaic.db"
    store = Store(f"sqlite:///{path}")
    store.record(linear(Recording("run")))
    store.close()
    with sqlite3.connect(path) as raw:
        (page,) = raw.execute("select pageno from dbstat where name = 'ix_calls_client_attribution_seq'").fetchone()
    raw.close()
    content = bytearray(path.read_bytes())
    content[(page - 1) * 4096 : page * 4096] = bytes(4096)
    path.write_bytes(content)
    store = Store(f"sqlite:///{path}")
    (finding,) = check(store.database)
    store.close()
    assert (finding.severity, "the file" in finding.what) == (Severity.BROKEN, True)


def test_the_certificate_counts_every_call_once(store: Store) -> None:
    found = stats.stats(store.database)
    assert found.calls.by_status == {"ok": 31, "aborted": 1}
    assert (found.calls.exact, found.calls.inexact) == (30, {"call_aborted": 1, "cut": 1})
    assert found.calls.exact + sum(found.calls.inexact.values()) == found.tables["calls"].rows
    assert found.trajectories == {"open": 5, "scored": 1}
    samples = [
        len(sample.ids_T)
        for t in store.trajectories()
        for session in store.trajectory(t.trajectory_id).sessions
        for call in session.calls
        for sample in call.samples
    ]
    assert found.calls.sampled_tokens == sum(samples)


def test_every_table_is_counted_and_measured(store: Store) -> None:
    found = stats.stats(store.database)
    assert found.tables.keys() == Base.metadata.tables.keys()
    assert found.tables["rewards"].rows == 1
    sizes = [table.bytes for table in found.tables.values()]
    assert all(sizes)
    assert sum(size or 0 for size in sizes) <= found.bytes
    assert found.bytes_per_sampled_token == found.bytes / found.calls.sampled_tokens


def test_a_file_that_is_too_large_is_measured_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "DBSTAT_LIMIT", 0)
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    store.end(store.record(linear(Recording("run")))[0].trajectory_id, TrajectoryState.CLOSED, "over")
    found = stats.stats(store.database)
    store.close()
    assert found.bytes > 0
    assert {table.bytes for table in found.tables.values()} == {None}
    assert found.tables["calls"].rows == 4
