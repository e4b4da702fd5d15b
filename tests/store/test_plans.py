"""No statement that runs beside a live proxy reads a table from end to end, and every reference has its index."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, Index, event

from mosaic.records import TrajectoryState
from mosaic.store import Store, browsing, call_browsing, feed, progress
from mosaic.store.models import Base
from mosaic.store.pruning import PruneRule, prune
from tests.lineage.test_lineage import compaction, linear
from tests.playbook import Recording

Statement = tuple[str, Any]
SCAN = re.compile(r"\bSCAN (?!CONSTANT ROW|\(|chain\b|looked_at\b|needed\b|ancestors\b|ancestor_ids\b|anon_)")
"""A table read from end to end, be it by an index. What a statement makes itself may be read whole."""

NEWEST = "SCAN trajectories USING INDEX ix_trajectories_created_at"
"""With a limit and in the index's order, this reads no more rows than it returns."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path}/mosaic.db")
    opened.record([*compaction(Recording("one")), *linear(Recording("two")), *linear(Recording("three"))])
    opened.reward("one", 1.0, "test")
    opened.reward("two", 1.0, "test")
    opened.end("three", TrajectoryState.CLOSED, "over")
    yield opened
    opened.close()


@contextmanager
def heard(engine: Engine) -> Iterator[list[Statement]]:
    """The statements with their parameters that run meanwhile."""
    said: list[Statement] = []

    def listen(_c: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        if re.match(r"\s*(select|delete|update|with|insert)\b", statement, re.IGNORECASE):
            said.append((statement, parameters[0] if many else parameters))

    event.listen(engine, "before_cursor_execute", listen)
    yield said
    event.remove(engine, "before_cursor_execute", listen)


def scans(engine: Engine, said: list[Statement]) -> list[str]:
    """The steps that read a table from end to end, each with its statement."""
    found = []
    with engine.connect() as connection:
        for statement, parameters in said:
            plan = connection.exec_driver_sql(f"explain query plan {statement}", parameters)
            limited = "ORDER BY trajectories.created_at DESC" in statement and "LIMIT" in statement
            seen = [row[3] for row in plan if SCAN.search(row[3])]
            found += [f"{step}: {statement}" for step in seen if not (limited and step == NEWEST)]
    return found


def restarted(store: Store, trajectory_id: str | None) -> None:
    """What a process does that knows nothing yet: it reads back what the call belongs to, and goes on with it."""
    large = {"model": "policy", "tools": [{"function": {"name": "look", "description": "looks " * 100}}]}
    store.record([replace(call, params=large) for call in linear(Recording(trajectory_id), 3)])
    again = Store(store.engine.url.render_as_string(hide_password=False))
    with heard(again.engine) as said:
        again.record(linear(Recording(trajectory_id), 6))
    again.close()
    found = {table for statement, _ in said for table in re.findall(r"FROM (\w+)", statement)}
    assert {"calls", "tokens", "messages", "params", "links", "sessions"} <= found
    assert scans(store.engine, said) == []


def beside_another(store: Store) -> None:
    """Another process has written in a trajectory since this one did."""
    other = Store(store.engine.url.render_as_string(hide_password=False))
    other.record(linear(Recording("two"), 6))
    other.close()
    store.record(linear(Recording("two"), 8))


DONE: dict[str, Callable[[Store], object]] = {
    "pruning": lambda store: prune(store.database, PruneRule(older_than_s=1.0, keep_trained_since=1, batch=1)),
    "a dry run": lambda store: prune(store.database, PruneRule(older_than_s=1.0, dry_run=True)),
    "a listing": lambda store: store.trajectories(),
    "a listing by name": lambda store: store.trajectories(like="t%"),
    "a page of trajectories": lambda store: browsed(store, lambda c: browsing.page(c, browsing.Filter(), None, 2)),
    "a later page that is searched": lambda store: browsed(store, searched),
    "attempts at a task": lambda store: browsed(
        store, lambda c: browsing.page(c, browsing.Filter(task_key="x"), None, 2)
    ),
    "a trajectory to look at": lambda store: browsed(store, looked_at),
    "a call to look at": lambda store: browsed(store, call_looked_at),
    "what happened since": lambda store: browsed(
        store, lambda c: (feed.newest(c), feed.since(c, feed.Mark(1, 0), "one"))
    ),
    "how training goes": lambda store: browsed(store, lambda c: (progress.recent(c, 5), progress.attempts(c, "x"))),
    "a batch to train": lambda store: store.groups(store.waiting(oldest_version=0)),
    "a batch to train by name": lambda store: store.groups(store.waiting("t%", oldest_version=1, limit=1)),
    "a trajectory": lambda store: (store.trajectory("one"), store.links("one")),
    "recording": lambda store: store.record(linear(Recording("two"), 6)),
    "recording without ids": lambda store: store.record(compaction(Recording(None))),
    "recording after a restart": lambda store: restarted(store, "four"),
    "recording without ids after a restart": lambda store: restarted(store, None),
    "recording beside another process": beside_another,
    "a reward": lambda store: store.reward("one", 0.5, "test"),
    "a session's reward": lambda store: store.reward("one", 0.5, "test", session_id=session_of(store, "one")),
    "an ending": lambda store: store.end("three", TrajectoryState.FAILED, "test"),
    "closing": lambda store: store.close_silent(1.0),
}


def browsed(store: Store, ask: Callable[[Connection], object]) -> None:
    """What a page of the dashboard's asks for."""
    with store.database.reading() as connection:
        ask(connection)


def searched(connection: Connection) -> object:
    first = browsing.page(connection, browsing.Filter(), None, 1)
    return browsing.page(connection, browsing.Filter(text="o", state="scored"), first.next, 1)


def attempted(connection: Connection) -> object:
    return browsing.page(connection, browsing.Filter(task_key="x"), None, 2)


def happened(connection: Connection) -> object:
    return feed.newest(connection), feed.since(connection, feed.Mark(1, 0), "one")


def looked_at(connection: Connection) -> None:
    assert browsing.trajectory_of(connection, "nothing") is None
    browsing.overview(connection, "one")
    browsing.sessions(connection, "one")
    browsing.rewards(connection, "one")
    lines = call_browsing.call_lines(connection, "one", "1", 10).items
    call_browsing.call_lines(connection, "one", None, 10, lines[0].session_id)


def call_looked_at(connection: Connection) -> None:
    row = call_browsing.call_row(connection, call_browsing.call_lines(connection, "one", "2", 10).items[0].call_id)
    call_browsing.neighbours(connection, row)
    call_browsing.params(connection, row)
    call_browsing.replies(connection, row["call_id"])
    call_browsing.chain(connection, row["message_id"], 2)
    call_browsing.choice_tokens(connection, row["call_id"], 0)


def session_of(store: Store, trajectory_id: str) -> str:
    return store.trajectory(trajectory_id).sessions[0].session_id


@pytest.mark.parametrize("what", DONE)
def test_nothing_reads_a_table_from_end_to_end(store: Store, what: str) -> None:
    with heard(store.engine) as said:
        DONE[what](store)
    assert said
    assert scans(store.engine, said) == []


@pytest.mark.parametrize(
    "statement",
    [
        "select count(*) from calls",
        "select * from messages where depth = 1",
        "delete from sessions where kind = 'x'",
        "select c.seq from tokens t join calls c on c.call_id = t.call_id",
    ],
)
def test_a_scan_is_seen(store: Store, statement: str) -> None:
    assert len(scans(store.engine, [(statement, ())])) == 1


def test_every_reference_to_what_is_pruned_has_an_index() -> None:
    """Else the check of each removed row reads the referring table from end to end: no query plan shows that."""
    kept = {"jobs"}
    missing = []
    for table in Base.metadata.tables.values():
        leading = {next(iter(index.columns)).name for index in table.indexes if isinstance(index, Index)}
        for constraint in table.constraints:
            columns = [column.name for column in getattr(constraint, "columns", [])]
            if columns and type(constraint).__name__ in ("PrimaryKeyConstraint", "UniqueConstraint"):
                leading.add(columns[0])
        for reference in table.foreign_keys:
            if reference.column.table.name not in kept and reference.parent.name not in leading:
                missing.append(str(reference.parent))
    assert missing == []
