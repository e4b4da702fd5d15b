"""Faults that show in what was recorded."""

import time
from dataclasses import replace

import pytest
from sqlalchemy import update

from mosaic.records import TrajectoryState
from mosaic.settings import Settings
from mosaic.store import Store
from mosaic.store.models import LinkRow
from proxy.doctor import Level
from proxy.doctor.recorded import LOUD
from tests.lineage.test_lineage import compaction, linear
from tests.playbook import Recording
from tests.proxy.doctor.looking import found, only


@pytest.mark.parametrize("name", LOUD)
def test_what_is_counted_is_told_with_what_it_means(settings: Settings, store: Store, name: str) -> None:
    assert [one.level for one in found(settings, "counters")] == [Level.OK]
    store.count(name, "some_reason", 3)
    level = {
        "rejected_calls": Level.WRONG,
        "journal_calls_unreadable": Level.WARNING,
        "journal_files_unreadable": Level.WARNING,
    }.get(name, Level.NOTE)
    reason = "some reason" if name == "inexact_calls" else "some_reason"
    (one,) = found(settings, "counters")
    assert (one.level, one.what) == (level, f"{name.replace('_', ' ')}: 3 {reason}")
    assert one.next_step == LOUD[name]


def recorded(store: Store, names: list[str], reason: str | None, age_s: float = 60.0) -> None:
    """Trajectories of four calls each that ended so long ago."""
    ended = time.time() - age_s
    for name in names:
        calls = linear(Recording(name), turns=4)
        store.record([replace(c, inexact_reason=reason, started_at=ended - 1, ended_at=ended) for c in calls])


def test_nothing_was_recorded_lately(settings: Settings, store: Store) -> None:
    recorded(store, ["old"], None, age_s=3 * 86400)
    only(found(settings, "trainable"), Level.NOTE, "no call of the task has ended in the last day")


@pytest.mark.parametrize(("bad", "level", "share"), [(1, Level.WARNING, "75%"), (3, Level.WRONG, "25%")])
def test_calls_of_the_last_day_that_cannot_be_trained(
    settings: Settings, store: Store, bad: int, level: Level, share: str
) -> None:
    recorded(store, ["long ago"], "cut", age_s=3 * 86400)
    recorded(store, [f"good-{n}" for n in range(4 - bad)], None)
    recorded(store, [f"bad-{n}" for n in range(bad)], "no_token_ids")
    seen = found(settings, "trainable")
    only(seen, level, f"can be trained ({share}); the others: {4 * bad} no token ids", step="mosaic certificate")


def test_a_day_on_which_all_is_well(settings: Settings, store: Store) -> None:
    recorded(store, ["good"], None)
    (one,) = found(settings, "trainable")
    assert (one.level, one.what) == (Level.OK, "4 of the 4 calls of the last day can be trained (100%)")


def test_sessions_for_which_something_spoke_and_not_enough(settings: Settings, store: Store) -> None:
    store.record(compaction(Recording("run-1")))
    (one,) = found(settings, "lineage")
    assert (one.level, one.what.partition(" are linked")[0]) == (Level.OK, "of the newest 2 sessions 1")
    with store.database.writing() as connection:
        connection.execute(update(LinkRow).values(kind="root", rivals='[{"call":"c1"}]'))
    only(found(settings, "lineage"), Level.WARNING, "for 2 something spoke", step="mosaic unlinked")


def test_nobody_says_how_trajectories_went(settings: Settings, store: Store) -> None:
    recorded(store, ["run-1"], None)
    assert found(settings, "rewards") == []
    store.end("run-1", TrajectoryState.CLOSED, "test")
    only(found(settings, "rewards"), Level.NOTE, "of the newest 1 trajectories that are over 0", step="mosaic reward")


def test_a_scorer_that_tells_nothing_apart(settings: Settings, store: Store) -> None:
    names = [f"run-{n}" for n in range(8)]
    recorded(store, names, None)
    for name in names:
        store.reward(name, 1.0, "test")
    only(found(settings, "rewards"), Level.WARNING, "it is 1 every time", step="scorer")
    store.reward("run-0", 0.0, "test")
    assert [one.level for one in found(settings, "rewards")] == [Level.OK]
