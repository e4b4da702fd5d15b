"""Several writers on one database answer as one alone would: the same sessions, links, tokens."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mosaic.capture import CapturedCall
from mosaic.store import Store
from mosaic.store.database import HEAD, Database
from tests.lineage.test_lineage import compaction, linear, spawns
from tests.playbook import Recording

Playbook = Callable[[Recording], list[CapturedCall]]


def spawning(recording: Recording) -> list[CapturedCall]:
    return spawns(recording, ("capital of the first", "capital of the second"))


PLAYBOOKS: list[Playbook] = [linear, compaction, spawning]


def picture(store: Store) -> dict[str, object]:
    """All that lineage and the token deltas decide."""
    found: dict[str, object] = {}
    for summary in store.trajectories(1000):
        trajectory = store.trajectory(summary.trajectory_id)
        calls = {
            call.call_id: (session.session_id, call.auxiliary, call.prompt_ids_P.tolist())
            for session in trajectory.sessions
            for call in session.calls
        }
        found[summary.trajectory_id] = (calls, store.links(summary.trajectory_id))
    return found


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(data=st.data())
def test_any_division_of_calls_among_writers_gives_one_answer(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("division")
    runs = [
        play(Recording(f"run-{at}" if keyed else None, client=f"agent-{data.draw(st.integers(0, 1))}"))
        for at, (play, keyed) in enumerate(
            data.draw(st.lists(st.tuples(st.sampled_from(PLAYBOOKS), st.booleans()), min_size=1, max_size=3))
        )
    ]
    calls = [call for run in runs for call in run]
    calls = list({call.call_id: call for call in calls}.values())
    chosen = data.draw(st.lists(st.integers(0, 3), min_size=len(calls), max_size=len(calls)))
    alone = Store(f"sqlite:///{folder}/alone.db")
    alone.record(calls)
    writers = [Store(f"sqlite:///{folder}/shared.db") for _ in range(3)]
    for call, writer in zip(calls, chosen, strict=True):
        if writer == 3:  # one dies, and another takes its place
            writers[0].close()
            writers[0] = Store(f"sqlite:///{folder}/shared.db")
        writers[writer % 3].record([call])
    assert picture(writers[1]) == picture(alone)
    for store in [alone, *writers]:
        store.close()


@pytest.mark.parametrize("play", PLAYBOOKS)
@pytest.mark.parametrize("keyed", [True, False])
def test_two_writers_that_take_turns_give_one_answer(
    database_url: str, tmp_path: Path, play: Playbook, keyed: bool
) -> None:
    calls = play(Recording("run-1" if keyed else None))
    alone = Store(f"sqlite:///{tmp_path}/alone.db")
    alone.record(calls)
    writers = [Store(database_url), Store(database_url)]
    for number, call in enumerate(calls):
        writers[number % 2].record([call])
    assert picture(writers[0]) == picture(alone)
    for store in [alone, *writers]:
        store.close()


def test_a_clients_oldest_calls_may_be_out_of_reach(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mosaic.store.recording.RESTORE_CALLS", 2)
    calls = compaction(Recording(None))
    for call in calls:
        store = Store(database_url)
        store.record([call])
        store.close()
    store = Store(database_url)
    assert sum(t.calls for t in store.trajectories()) == len(calls)
    store.close()


def test_a_lease_has_one_owner_until_it_expires_or_is_given_back(database_url: str) -> None:
    one, other = Store(database_url), Store(database_url)
    assert one.take_lease("schedule", "one", 60)
    assert one.take_lease("schedule", "one", 60)
    assert not other.take_lease("schedule", "other", 60)
    assert other.take_lease("retention", "other", 60)
    one.give_lease("schedule", "one")
    assert other.take_lease("schedule", "other", -1)
    assert one.take_lease("schedule", "one", 60)
    one.close()
    other.close()


def test_processes_that_open_an_empty_database_together_make_it_once(database_url: str) -> None:
    with ThreadPoolExecutor(6) as pool:
        opened = list(pool.map(Database, [database_url] * 6))
    with opened[0].reading() as connection:
        assert connection.exec_driver_sql("select version_num from alembic_version").scalars().all() == [HEAD]
    for database in opened:
        database.close()


def test_a_new_file_is_opened_by_several_at_once_every_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        for number in range(100):  # 3 in 100 were refused
            for database in list(pool.map(Database, [f"sqlite:///{tmp_path}/{number}.db"] * 6)):
                database.close()
