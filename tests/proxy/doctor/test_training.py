"""Faults of jobs, of weights and of what judges them."""

from pathlib import Path
from typing import Any

import pytest

from mosaic.settings import Settings
from mosaic.store import Store
from proxy.doctor import Level
from tests.proxy.doctor.looking import found, only, settings_of


def test_no_job_has_ended_yet(settings: Settings, store: Store) -> None:
    assert store.policy() == (0, None)
    only(found(settings, "jobs"), Level.NOTE, "no job has ended yet", step="--dry-run")


def test_the_newest_job_failed(settings: Settings, store: Store) -> None:
    store.end_job(store.start_job({}), None)
    assert [one.level for one in found(settings, "jobs")] == [Level.OK]
    store.end_job(store.start_job({}), "the engine died")
    only(found(settings, "jobs"), Level.WRONG, "failed: the engine died", step="mosaic train")


def test_a_job_with_nothing_to_learn_from_is_no_failure_and_left_out_figures_are_the_newest_jobs(
    settings: Settings, store: Store
) -> None:
    for number in (3.0, 2.0):
        store.end_job(store.start_job({}), None, {"left_out_group_no_contrast": number, "loss": 0.5})
    store.skip_job(store.start_job({}), "there is nothing to learn from (groups: 1 no_contrast).")
    skipped, ended, left_out = found(settings, "jobs")
    assert [one.level for one in (skipped, ended, left_out)] == [Level.NOTE, Level.OK, Level.NOTE]
    assert "groups: 1 no_contrast" in skipped.why
    assert ended.what.endswith("0 of the last 2 jobs failed")
    assert left_out.what.endswith("without 2 group_no_contrast")


def test_a_first_job_that_was_skipped_is_a_note(settings: Settings, store: Store) -> None:
    store.skip_job(store.start_job({}), "there is nothing to learn from.")
    only(found(settings, "jobs"), Level.NOTE, "was skipped", step="--dry-run")


def test_a_job_that_was_left_where_it_died(settings: Settings, store: Store) -> None:
    store.end_job(store.start_job({}), None)
    store.start_job({})
    only(found(settings, "jobs"), Level.WARNING, "was left selected", step="mosaic train --fresh")
    assert store.take_lease("training", "somebody", 60)
    assert {one.level for one in found(settings, "jobs")} == {Level.OK}


def test_live_weights_that_are_not_on_disk(settings: Settings, store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "v1"
    store.version_live(store.new_version(str(folder), None))
    only(found(settings, "policy")[:1], Level.WRONG, "checkpoint of live version 1 is not at", step="rollback")
    folder.mkdir()
    assert [one.level for one in found(settings, "policy")] == [Level.OK]


def test_a_version_that_is_held(settings: Settings, store: Store, tmp_path: Path) -> None:
    store.version_live(store.new_version(str(tmp_path), None))
    store.pin(1)
    only(found(settings, "policy"), Level.NOTE, "version 1 is pinned", step="--off")


def test_a_version_that_did_not_go_live(settings: Settings, store: Store, tmp_path: Path) -> None:
    store.version_live(store.new_version(str(tmp_path), None))
    store.version_failed(store.new_version(str(tmp_path / "v2"), None))
    only(found(settings, "policy"), Level.WARNING, "version 2 did not go live; 1 serves on", step="policy show 2")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"train": {"gate": "no-such-program --now"}}, "train.gate cannot be run"),
        ({"held_out": {"tasks": __file__, "agent": ["no-such-agent", "{prompt}"]}}, "held_out.agent cannot be run"),
        ({"held_out": {"tasks": "/no/tasks", "agent": ["sh"]}}, "the tasks of held_out are not at /no/tasks"),
        ({"score": {"command": "'unclosed"}, "train": {"gate": "sh -c true"}}, "score.command cannot be run"),
    ],
)
def test_a_command_that_cannot_be_run(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    only(found(settings_of(tmp_path, **more), "gate"), Level.WRONG, words, step="Correct")


def test_a_gate_of_held_out_tasks_is_one(tmp_path: Path) -> None:
    seen = found(
        settings_of(tmp_path, held_out={"tasks": __file__, "agent": ["sh", "{prompt}"], "score": "sh"}), "gate"
    )
    assert [one.level for one in seen] == [Level.OK, Level.OK]


def test_no_gate_is_set(tmp_path: Path) -> None:
    only(found(settings_of(tmp_path), "gate"), Level.NOTE, "no gate is set")
    variable = settings_of(tmp_path, train={"gate": "SEED=1 python gate.py"})
    assert [one.level for one in found(variable, "gate")] == [Level.OK]
