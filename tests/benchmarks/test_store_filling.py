"""The database that the store's benchmarks fill is one that the store could have written."""

from benchmarks.store_filling import fill, trajectory_id
from mosaic.store import Store
from mosaic.store.checking import check


def test_what_benchmarks_fill_is_sound_and_can_be_read_selected_and_gone_on_with(database_url: str) -> None:
    fill(database_url, 100)
    store = Store(database_url)
    assert check(store.database, deep=True) == []
    trajectory = store.trajectory(trajectory_id(99))
    assert [len(session.calls) for session in trajectory.sessions] == [6, 4]
    assert all(len(call.prompt_ids_P) > 100 for session in trajectory.sessions for call in session.calls)
    assert store.waiting().groups
    store.close()
