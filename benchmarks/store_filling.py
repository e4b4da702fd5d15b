"""A database with a million calls, made within minutes: rows as the store writes them, but in bulk and out of order.

While it is filled, indexes and checks are off; afterwards the database is as `Store` would have left it. A trajectory
is ten calls in two sessions; a hundred trajectories run at a time, and ten share a task.
"""

import random
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import psycopg
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeElapsedColumn
from sqlalchemy import Engine, make_url

from mosaic.store import Store
from mosaic.store.codec import digest
from mosaic.store.models import Base

SPAN_S = 50 * 24 * 3600.0
"""Seconds over which the calls are spread, up to now."""
VERSIONS = 50
FRESH = 49
"""Policy version from which a trajectory is new enough to be trained."""
SESSIONS = (6, 4)
"""Calls of a trajectory's root and of the subagent that it spawns."""
GROUP = 10
"""Trajectories of a task."""
TOGETHER = 100
"""Trajectories that run at a time: their calls alternate in the table."""
FIRST = 120
"""Prompt tokens of a session's first call; each later one adds `NEW` and the reply before."""
NEW, SAMPLED = 28, 32
PLAIN = "plain/1.0 00000000"
"""A client that names no trajectories: every fiftieth trajectory is its, found by lineage."""

Rows = dict[str, list[tuple[Any, ...]]]
"""Table -> rows, in the order of `COLUMNS`."""

COLUMNS = {
    "jobs": "job_id state settings attempts policy_from policy_to created_at ended_at",
    "policy_versions": "version path state job_id created_at live_at pinned",
    "params": "params_id body",
    "messages": "message_id parent_id digest depth role body",
    "tasks": "task_key text created_at",
    "trajectories": "trajectory_id task_key state state_at attribution reward created_at updated_at policy_version "
    "trained_version trained_job_id",
    "sessions": "session_id trajectory_id kind parent_session_id opened_by_call_id position created_at",
    "links": "session_id trajectory_id kind parent_session_id parent_call_id rung score evidence rivals",
    "advantages": "job_id session_id value",
    "rewards": "trajectory_id session_id value in_force source note created_at",
    "calls": "call_id trajectory_id session_id parent_call_id rung score evidence wire attribution client headers "
    "retry_count streamed status http_status message_id params params_id exact inexact_reason prompt_tokens "
    "sampled_tokens policy_version policy_version_end started_at first_byte_at ended_at",
    "tokens": "call_id choice base_call_id base_choice prompt_kept prompt_new sampled logprobs message_id "
    "finish_reason",
}
"""Table -> the columns that are filled; the others are NULL."""


def trajectory_id(number: int) -> str:
    """Id of the trajectory that was made as number `number`, from 0."""
    return f"run-{number:06d}"


def fill(url: str, trajectories: int) -> None:
    """Make the database and all that is in it."""
    store = Store(url)
    indexes = [index for table in Base.metadata.sorted_tables for index in table.indexes]
    for index in indexes:
        index.drop(store.engine)
    store.engine.dispose()
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress("{task.description}", *columns, console=Console(stderr=True)) as progress:
        rows = progress.track(_blocks(trajectories), total=trajectories // TOGETHER + 1, description="fill")
        if store.engine.dialect.name == "sqlite":
            _insert_sqlite(url, rows)
        else:
            _copy_postgresql(url, rows)
        for index in progress.track(indexes, description="index"):
            index.create(store.engine)
        _settle(store.engine)
    store.close()


def _insert_sqlite(url: str, blocks: Iterable[Rows]) -> None:
    connection = sqlite3.connect(make_url(url).database or "", isolation_level=None)
    for pragma in ("journal_mode=MEMORY", "synchronous=OFF", "foreign_keys=OFF", "cache_size=-1000000"):
        connection.execute(f"PRAGMA {pragma}")
    for block in blocks:
        connection.execute("BEGIN")
        for table, rows in block.items():
            names = COLUMNS[table].split()
            marks = ", ".join("?" * len(names))
            connection.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", rows)
        connection.execute("COMMIT")
    connection.close()


def _copy_postgresql(url: str, blocks: Iterable[Rows]) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")  # no checks of references
        connection.execute("set synchronous_commit to off")
        for block in blocks:
            for table, rows in block.items():
                copied = f"copy {table} ({', '.join(COLUMNS[table].split())}) from stdin"
                with connection.cursor() as cursor, cursor.copy(copied.encode()) as copy:
                    for row in rows:
                        copy.write_row(row)


def _settle(engine: Engine) -> None:
    """What PostgreSQL's autovacuum does in time; SQLite has nothing of the kind."""
    if engine.dialect.name == "postgresql":
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("vacuum analyze")
            connection.exec_driver_sql("checkpoint")


def _blocks(trajectories: int) -> Iterator[Rows]:
    """What everything shares, then the trajectories that run together, in the order of their calls."""
    made = _Made(time.time() - SPAN_S, trajectories)
    yield made.shared()
    for first in range(0, trajectories, TOGETHER):
        yield made.block(first)


@dataclass(slots=True)
class _Opened:
    """A trajectory as far as it has come."""

    trajectory: str
    attribution: str
    client: str
    session: str = ""
    opener: str | None = None
    """The root's call that spawns the subagent."""


class _Message(NamedTuple):
    """A message that others stand on."""

    number: int
    digest: str


class _Made:
    """Draws rows. Text and arrays are cut from pools: to draw them would take longer than to write them."""

    def __init__(self, began: float, trajectories: int) -> None:
        self._began, self._trajectories = began, trajectories
        self._draw = random.Random(0)
        words = ["".join(self._draw.choices("etaoinshrdlu", k=self._draw.randint(2, 9))) for _ in range(4096)]
        self._text = " ".join(self._draw.choices(words, k=100_000))
        draw = np.random.default_rng(0)
        self._ids = draw.integers(0, 150_000, 500_000, np.int32).astype("<i4").tobytes()
        self._logprobs = (-draw.exponential(0.5, 500_000)).astype("<f4").tobytes()
        self._rows: Rows = {}
        self._messages = 0

    def shared(self) -> Rows:
        """Versions with their jobs, tools, and the system messages with which sessions begin."""
        self._rows = defaultdict(list)
        for version in range(1, VERSIONS + 1):
            at = self._live_at(version)
            self._rows["jobs"].append((_job(version), "done", "{}", 1, version - 1, version, at - 600, at))
            self._rows["policy_versions"].append((version, f"/v{version}", "live", _job(version), at - 60, at, False))
        self._rows["params"].append(("0" * 32, '{"tools":[]}'))
        self._systems = [self._message(None, 0, "system", self._words(800)) for _ in SESSIONS]
        return self._rows

    def block(self, first: int) -> Rows:
        """Trajectories that run together."""
        self._rows, calls = defaultdict(list), []
        for number in range(first, min(first + TOGETHER, self._trajectories)):
            if number % GROUP == 0:
                self._next_task(number)
            calls += self._trajectory(number)
        calls.sort(key=lambda call: call[0])
        for _, call, tokens in calls:
            self._rows["calls"].append(call)
            self._rows["tokens"].append(tokens)
        return self._rows

    def _live_at(self, version: int) -> float:
        return self._began + SPAN_S * (version - 1) / VERSIONS

    def _next_task(self, number: int) -> None:
        """A new task, and what becomes of its trajectories: 60 % trained, 20 % scored, 10 % open, others ended."""
        self._version = 1 + VERSIONS * number // self._trajectories
        kinds = ("trained", "scored", "open", "closed", "failed")
        weights = (55, 25, 10, 5, 5) if self._version >= FRESH else (60, 20, 10, 5, 5)
        self._state = self._draw.choices(kinds, weights)[0]
        self._task, said = f"{number // GROUP:016x}", self._words(300)
        self._asked = self._message(self._systems[0], 1, "user", said)
        self._rows["tasks"].append((self._task, said, self._began + SPAN_S * number / self._trajectories))

    def _trajectory(self, number: int) -> list[tuple[float, tuple[Any, ...], tuple[Any, ...]]]:
        """The calls with their tokens, each after the time at which it ended."""
        found = number % 50 == 0
        how = ("lineage", PLAIN) if found else ("path", f"agent/{number % 4} 00000000")
        at = begin = self._began + SPAN_S * (number // TOGETHER * TOGETHER) / self._trajectories + self._draw.random()
        made, opened = [], _Opened(trajectory_id(number), *how)
        for position, number_of in enumerate(SESSIONS):
            head = self._message(self._systems[1], 1, "user", self._words(200)) if position else self._asked
            depth, before, kept = 1, None, 0
            for turn in range(number_of):
                call = f"call-{self._draw.getrandbits(128):032x}"
                at += 5 + 10 * self._draw.random()
                if turn:
                    head, depth = self._message(head, depth + 1, "user", self._words(4 * NEW)), depth + 1
                else:
                    self._session(opened, f"s-{call}", position, at)
                reply = self._message(head, depth + 1, "assistant", self._words(4 * SAMPLED))
                size = (kept + NEW if turn else FIRST, SAMPLED)
                row = self._call((call, before, head), opened, size, at)
                made.append((at + 2, row, self._tokens(call, before, kept, reply)))
                head, depth, before, kept = reply, depth + 1, call, sum(size)
                if position == 0 and turn == 2:
                    opened.opener = call
        self._outcome(opened, begin, at + 2)
        return made

    def _session(self, opened: "_Opened", session: str, position: int, at: float) -> None:
        kind, rung, parent = ("spawn", "argument", opened.session) if position else ("root", "none", None)
        opened.session = session
        parents = (parent, opened.opener)
        self._rows["sessions"].append((session, opened.trajectory, kind, *parents, position, at))
        self._rows["links"].append((session, opened.trajectory, kind, *parents, rung, 1.0, "{}", "[]"))
        if self._state == "trained":
            self._rows["advantages"].append((_job(self._version), session, self._draw.random() - 0.5))

    def _outcome(self, opened: "_Opened", begin: float, end: float) -> None:
        name, state, reward = opened.trajectory, self._state, None
        if state in ("trained", "scored"):
            reward = float(self._draw.random() < 0.5)
            self._rows["rewards"].append((name, None, reward, True, "grader", None, end + 10))
        trained = (self._version, _job(self._version)) if state == "trained" else (None, None)
        row = (name, self._task, state, end + 10, opened.attribution, reward, begin, end, self._version, *trained)
        self._rows["trajectories"].append(row)

    def _call(
        self, ids: tuple[str, str | None, "_Message"], opened: "_Opened", size: tuple[int, int], at: float
    ) -> tuple[Any, ...]:
        """`ids`: of the call, the one before it, and the newest message."""
        call, before, head = ids
        inexact = "the engine sent no ids" if self._draw.random() < 0.01 else None
        why = ("prefix", 1.0, "{}") if before else ("none", 0.0, "{}")
        row = (call, opened.trajectory, opened.session, before, *why, "chat", opened.attribution, opened.client)
        answered = ('{"x-request-id":"1"}', 0, True, "ok", 200)
        asked = (head.number, '{"max_tokens":512,"model":"policy","temperature":1.0}', "0" * 32)
        versions = (self._version, self._version)
        return (*row, *answered, *asked, inexact is None, inexact, *size, *versions, at, at + 0.2, at + 2)

    def _tokens(self, call: str, before: str | None, kept: int, reply: "_Message") -> tuple[Any, ...]:
        prompt = self._array(self._ids, NEW if before else FIRST)
        sampled, logprobs = self._array(self._ids, SAMPLED), self._array(self._logprobs, SAMPLED)
        base = (before, 0 if before else None, kept, prompt)
        return (call, 0, *base, sampled, logprobs, reply.number, "stop")

    def _message(self, parent: "_Message | None", depth: int, role: str, text: str) -> "_Message":
        body = f'{{"content":"{text}","role":"{role}"}}'
        self._messages += 1
        before = (None, None) if parent is None else parent
        message = _Message(self._messages, digest(body.encode(), before[1]))
        self._rows["messages"].append((message.number, before[0], message.digest, depth, role, body))
        return message

    def _words(self, length: int) -> str:
        """A text of its own: of the pool's cuts alone, a million would now and then be the same."""
        at = int(self._draw.random() * (len(self._text) - length))
        return f"{self._draw.getrandbits(48):x} {self._text[at : at + length - 12]}"

    def _array(self, pool: bytes, length: int) -> bytes:
        at = 4 * int(self._draw.random() * (len(pool) // 4 - length))
        return b"r" + pool[at : at + 4 * length]


def _job(version: int) -> str:
    return f"job-{version:012x}"
