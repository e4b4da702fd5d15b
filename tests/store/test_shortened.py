"""Ids without their middle, as narrow tables show them, are looked up by both ends."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic.errors import RequestError
from mosaic.store import Store
from mosaic.terminal import shortened
from tests.playbook import Recording, assistant, user

NAMES = (
    "tasks-2.charities.3",
    "tasks-2.properties.3",
    "Tasks-2.cities.3",
    "tasks_2.ties.3",
    "aba",
    "a%…b",
    "100%.ties.3",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder: Path = tmp_path_factory.mktemp("shortened")
    opened = Store(f"sqlite:///{folder}/mosaic.db")
    for name in NAMES:
        opened.record([Recording(name).call([user(name)], assistant("Done."))])
    yield opened
    opened.close()


@given(name=st.sampled_from(NAMES), width=st.integers(4, 24))
def test_what_a_table_shows_finds_its_trajectory_or_says_which_it_may_be(store: Store, name: str, width: int) -> None:
    shown = shortened(name, width)
    assert name in _meant(store, shown)


def _meant(store: Store, shown: str) -> list[str]:
    try:
        return [store.whole_trajectory_id(shown)]
    except RequestError as error:
        return re.split(r", |\.$", error.message.partition(" may be ")[2])


@pytest.mark.parametrize(
    ("shown", "found"),
    [
        ("tasks-2.c…ties.3", "tasks-2.charities.3"),
        ("Tasks-2…ties.3", "Tasks-2.cities.3"),
        ("tasks_…ties.3", "tasks_2.ties.3"),
        ("100%…3", "100%.ties.3"),
        ("a%…b", "a%…b"),
        ("unknown", "unknown"),
    ],
)
def test_both_ends_are_taken_as_they_are_written(store: Store, shown: str, found: str) -> None:
    assert store.whole_trajectory_id(shown) == found


def test_several_are_listed_and_none_is_said(store: Store) -> None:
    with pytest.raises(RequestError, match=r"may be tasks-2\.charities\.3, tasks-2\.properties\.3\."):
        store.whole_trajectory_id("tasks-2…ties.3")
    for nothing in ("nothing…3", "ab…ba"):
        with pytest.raises(RequestError, match="no id begins and ends like"):
            store.whole_trajectory_id(nothing)


def test_a_call_is_found_as_well(store: Store) -> None:
    assert store.whole_call_id("c1-tasks_…3") == "c1-tasks_2.ties.3"
