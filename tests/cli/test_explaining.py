"""Why a call stands where it stands, what is exact, and what nothing links."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mosaic.capture import CallStatus
from mosaic.store import Store
from tests.cli.command import mosaic
from tests.lineage.test_lineage import compaction, linear
from tests.playbook import Recording


def test_why_a_call_stands_where_it_stands_is_told(tmp_path: Path, database: str) -> None:
    where = ("--database", database)
    shown = json.loads(mosaic(tmp_path, "show", "run-17", "--json", *where).stdout)
    opening = shown["sessions"][1]["calls"][0]
    told = json.loads(mosaic(tmp_path, "explain", opening, "--json", *where).stdout)
    assert (told["opens_session"], told["session"]["kind"], told["rung"]) == (True, "compaction", "summary")
    assert "compaction" in mosaic(tmp_path, "explain", opening, *where).stdout
    following = json.loads(mosaic(tmp_path, "explain", shown["sessions"][0]["calls"][1], "--json", *where).stdout)
    assert following["extends"]["call"] == shown["sessions"][0]["calls"][0]
    missing = mosaic(tmp_path, "explain", "run-17", *where)
    assert missing.returncode != 0
    assert "mosaic show TRAJECTORY --calls" in missing.stderr
    listed = mosaic(tmp_path, "show", "run-17", "--calls", *where).stdout
    assert all(call in listed for session in shown["sessions"] for call in session["calls"])
    assert opening not in mosaic(tmp_path, "show", "run-17", *where).stdout


@pytest.mark.parametrize("command", ["show", "certificate", "credit", "reward 1", "end", "explain"])
def test_an_id_without_its_middle_is_taken_by_every_command(tmp_path: Path, database: str, command: str) -> None:
    store = Store(database)
    store.record(compaction(Recording("run-18")))
    store.reward("run-17", 1, "test")
    name, *more = command.split()
    shown = {"explain": "c1-r…n-17"}.get(name, "ru…7")
    done = mosaic(tmp_path, name, shown, *more, "--database", database)
    assert (done.returncode, done.stderr) == (0, "")
    refused = mosaic(tmp_path, name, "c1…" if name == "explain" else "run…", *more, "--database", database)
    assert (refused.returncode, "run-17, " in refused.stderr) == (1, True)
    store.close()


def test_the_first_call_of_a_trajectory_and_one_that_nothing_links_are_explained_in_words(
    tmp_path: Path, database: str
) -> None:
    where = ("--database", database)
    store = Store(database)
    (alone,) = [replace(c, call_id=f"again-{c.call_id}") for c in linear(Recording("run-17"), 1, "again")]
    store.record([alone])
    first = store.trajectory("run-17").sessions[0].calls[0].call_id
    store.close()
    told = mosaic(tmp_path, "explain", first, *where).stdout
    assert told.count("first call of its trajectory") == 1  # the call's reason is its session's
    told = mosaic(tmp_path, "explain", alone.call_id, *where).stdout
    assert told.count("nothing links it to an earlier call") == 1


def test_a_call_that_failed_is_shown_and_explained_with_what_failed(tmp_path: Path, database: str) -> None:
    where = ("--database", database)
    store = Store(database)
    (asked,) = linear(Recording("run-17"), 1, "again")
    failed: dict[str, Any] = {
        "status": CallStatus.FAILED,
        "http_status": 404,
        "choices": (),
    }
    store.record(
        [
            replace(asked, call_id="call-404", inexact_reason="call_failed", error="no model\n'x\x1b[2J'", **failed),
            replace(asked, call_id="call-other", inexact_reason="other_weights"),
        ]
    )
    store.close()
    shown = mosaic(tmp_path, "show", "run-17", "--calls", *where).stdout
    assert "call-404  inexact: call_failed  failed (HTTP 404): no model 'x?[2J'\n" in shown
    assert "call-other  inexact: other_weights\n" in shown
    told = mosaic(tmp_path, "explain", "call-404", *where).stdout
    assert "  ended    failed (HTTP 404): no model 'x?[2J'\n  worth    inexact: call_failed\n" in told
    assert "answers" not in told


def test_evidence_is_told_in_words(tmp_path: Path, database: str) -> None:
    where = ("--database", database)
    shown = mosaic(tmp_path, "show", "run-17", "--calls", *where)
    told = mosaic(tmp_path, "explain", "c2-run-17", *where)
    assert "(summary, score 0.97: carried yes, kept no, summary calls c4-run-17)" in shown.stdout
    assert "  why      prefix, score 0.99 (items 2, of 3)\n" in told.stdout
    assert not set('{}"') & set(shown.stdout + told.stdout)


def test_every_call_is_counted_once_in_the_certificate(tmp_path: Path, database: str) -> None:
    where = ("--database", database)
    one = json.loads(mosaic(tmp_path, "certificate", "run-17", "--json", *where).stdout)
    (listed,) = json.loads(mosaic(tmp_path, "trajectories", "--json", *where).stdout)
    assert (
        one["exact"] + one["spliced"] + sum(one["inexact"].values()) + sum(one["auxiliary"].values()) == listed["calls"]
    )
    assert json.loads(mosaic(tmp_path, "certificate", "--json", *where).stdout) == one
    assert f"{one['exact']} exact" in mosaic(tmp_path, "certificate", *where).stdout


def test_sessions_without_a_link_are_listed_for_review(tmp_path: Path, database: str) -> None:
    where = ("--database", database)
    assert json.loads(mosaic(tmp_path, "unlinked", "--json", *where).stdout) == []
    assert mosaic(tmp_path, "unlinked", *where).stdout.startswith("none: ")
    store = Store(database)
    again = [replace(c, call_id=f"again-{c.call_id}") for c in linear(Recording("run-17"), 1, "again")]
    store.record(again)
    store.close()
    (found,) = json.loads(mosaic(tmp_path, "unlinked", "--json", *where).stdout)
    assert (found["call_id"], found["trajectory_id"]) == (again[0].call_id, "run-17")
    assert again[0].call_id in mosaic(tmp_path, "unlinked", *where).stdout
