"""Leases held by processes: one owner, renewed by itself, free at once when the owner is dead."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mosaic.errors import LeaseTaken
from mosaic.lease import Lease, held, is_gone
from mosaic.store import Store
from tests.trainer.test_schedule import until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(f"sqlite:///{tmp_path}/mosaic.db")
    yield opened
    opened.close()


def test_one_process_has_it_at_a_time(store: Store) -> None:
    with held(store, "work") as mine:
        assert store.lease_holder("work") == mine.owner
        with pytest.raises(LeaseTaken, match="work"), held(store, "work"):
            pass
        with held(store, "other work"):
            pass
    with held(store, "work"):
        pass
    assert store.lease_holder("work") is None


def test_it_is_renewed_while_it_is_held(store: Store) -> None:
    with held(store, "work", seconds=0.3) as mine:
        renewed: list[float] = []
        take = store.take_lease

        def count(name: str, owner: str, seconds: float) -> bool:
            renewed.append(seconds)
            return take(name, owner, seconds)

        store.take_lease = count  # type: ignore[method-assign]
        until(lambda: len(renewed) >= 5)
        mine.check()
        assert store.lease_holder("work") == mine.owner


def test_who_lost_it_is_told(store: Store) -> None:
    with held(store, "work", seconds=0.3) as mine:
        store.give_lease("work", mine.owner)
        assert store.take_lease("work", "somebody else", 60)
        until(mine._lost.is_set)
        with pytest.raises(LeaseTaken, match="lost its lease"):
            mine.check()
    assert store.lease_holder("work") == "somebody else"


def test_a_dead_owner_of_this_host_does_not_keep_it(store: Store, tmp_path: Path) -> None:
    script = (
        "import os, signal; from mosaic.lease import Lease; from mosaic.store import Store\n"
        f"assert Lease(Store('sqlite:///{tmp_path}/mosaic.db'), 'work').take(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -9
    owner = store.lease_holder("work")
    assert owner is not None
    assert is_gone(owner)
    with held(store, "work"):
        pass


def test_a_living_owner_and_one_of_another_host_are_not_gone(store: Store) -> None:
    mine = Lease(store, "work")
    assert not is_gone(mine.owner)
    assert is_gone(mine.owner.replace(f"/{os.getpid()}@", f"/{os.getpid()}@1"))
    assert not is_gone(f"elsewhere/pid:[1]/{2**22 + 1}@5/abc")
