"""The command line as a user meets it: in a process of its own."""

import json
import sqlite3
import subprocess
from dataclasses import replace
from pathlib import Path

from mosaic.capture import Fidelity
from mosaic.store import Store
from tests.cli.command import mosaic
from tests.lineage.test_lineage import linear
from tests.playbook import Recording
from tests.proxy.traces import conversation, leave


def test_a_trajectory_is_listed_shown_and_rewarded(tmp_path: Path, database: str) -> None:
    done = mosaic(tmp_path, "reward", "run-17", "1", "--database", database)
    assert (done.returncode, done.stdout) == (0, "run-17: 1.0\n")  # as every listing writes it
    listed = json.loads(mosaic(tmp_path, "trajectories", "--json", "--database", database).stdout)
    assert [(t["trajectory_id"], t["reward"], t["sessions"], t["compactions"]) for t in listed] == [("run-17", 1, 2, 1)]
    shown = json.loads(mosaic(tmp_path, "show", "run-17", "--json", "--database", database).stdout)
    assert [(s["kind"], s["rung"]) for s in shown["sessions"]] == [("root", "none"), ("compaction", "summary")]
    tree = mosaic(tmp_path, "show", "run-17", "--database", database).stdout
    assert "compaction" in tree
    assert shown["task"]
    assert " ".join(shown["task"].split())[:40] in tree.splitlines()[0]


def test_what_exact_mode_made_of_a_trajectory_is_listed_and_shown_with_its_reasons(tmp_path: Path) -> None:
    where = ("--database", f"sqlite:///{tmp_path}/mosaic.db")
    made = [Fidelity("exact"), Fidelity("spliced"), Fidelity("fell_back", "text_differs"), Fidelity("spliced")]
    store = Store(where[1])
    calls = linear(Recording("run-17"), turns=4)
    store.record([replace(call, fidelity=fidelity) for call, fidelity in zip(calls, made, strict=True)])
    store.close()
    counted = {"exact": 1, "spliced": 2, "fell_back: text_differs": 1}
    (listed,) = json.loads(mosaic(tmp_path, "trajectories", "--json", *where).stdout)
    assert listed["fidelity"] == counted
    assert json.loads(mosaic(tmp_path, "show", "run-17", "--json", *where).stdout)["fidelity"] == counted
    shown = mosaic(tmp_path, "show", "run-17", *where).stdout
    assert "exact prefix mode: 1 exact, 1 fell_back: text_differs, 2 spliced" in shown


FIRST_RELEASE = Path(__file__).parents[1] / "store" / "first_release.sql"


def test_a_database_of_the_first_release_is_refused_then_upgraded(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "mosaic.db") as made:
        made.executescript(FIRST_RELEASE.read_text(encoding="utf-8"))
    made.close()
    where = ("--database", f"sqlite:///{tmp_path}/mosaic.db")
    refused = mosaic(tmp_path, "trajectories", *where)
    assert (refused.returncode, "run `mosaic db upgrade`" in refused.stderr) == (3, True)
    done = mosaic(tmp_path, "db", "upgrade", *where)
    assert (done.returncode, "upgraded from 0001 to" in done.stdout) == (0, True)
    assert "already" in mosaic(tmp_path, "db", "upgrade", *where).stdout
    assert mosaic(tmp_path, "db", "check", "--deep", *where).stdout == "sound\n"


def test_a_sound_database_passes_and_a_broken_one_exits_with_3(tmp_path: Path, database: str) -> None:
    assert mosaic(tmp_path, "db", "check", "--database", database).returncode == 0
    with sqlite3.connect(tmp_path / "mosaic.db") as raw:
        raw.execute("delete from messages where depth = 0")
    raw.close()
    done = mosaic(tmp_path, "db", "check", "--json", "--database", database)
    assert done.returncode == 3
    found = json.loads(done.stdout)
    assert {finding["severity"] for finding in found} == {"broken"}
    assert all(finding["how_many"] and finding["next_step"] for finding in found)
    shown = mosaic(tmp_path, "db", "check", "--deep", "--database", database, COLUMNS="200")
    assert (shown.returncode, "lost the one before" in shown.stdout) == (3, True)


def test_stats_count_rows_and_calls(tmp_path: Path, database: str) -> None:
    found = json.loads(mosaic(tmp_path, "db", "stats", "--json", "--database", database).stdout)
    assert (found["calls"]["exact"], found["calls"]["by_status"]) == (5, {"ok": 5})
    assert (found["tables"]["sessions"]["rows"], found["trajectories"]) == (2, {"open": 1})
    shown = mosaic(tmp_path, "db", "stats", "--database", database).stdout
    assert "KiB" in shown
    assert "bytes/token" in shown


def test_old_trajectories_are_pruned_by_age_and_state_and_a_dry_run_removes_nothing(
    tmp_path: Path, database: str
) -> None:
    def prune(*arguments: str) -> dict[str, int]:
        done = mosaic(tmp_path, "db", "prune", "--older-than", "30d", *arguments, "--json", "--database", database)
        assert (done.returncode, done.stderr) == (0, "")
        found: dict[str, int] = json.loads(done.stdout)
        return found

    assert prune()["trajectories"] == 0  # It is open.
    assert prune("--state", "open", "--dry-run")["calls"] == 5
    mosaic(tmp_path, "reward", "run-17", "1", "--database", database)
    assert prune("--state", "trained", "--state", "failed")["trajectories"] == 0
    assert prune("--keep-trained-since", "0")["calls"] == 5
    assert json.loads(mosaic(tmp_path, "trajectories", "--json", "--database", database).stdout) == []


def test_a_prune_says_what_it_did(tmp_path: Path, database: str) -> None:
    arguments = ("db", "prune", "--older-than", "1w", "--state", "open", "--database", database)
    assert mosaic(tmp_path, *arguments, "--dry-run").stdout.startswith(
        "would remove 1 trajectories, 2 sessions, 5 calls"
    )
    assert mosaic(tmp_path, *arguments).stdout.startswith("removed 1 trajectories, 2 sessions, 5 calls")


def test_a_trajectory_is_said_to_be_over_only_as_nobody_scored_it(tmp_path: Path) -> None:
    done = mosaic(tmp_path, "end", "run-1", "--as", "scored", COLUMNS="200")
    assert (done.returncode, "not one of 'closed', 'failed', 'truncated'" in done.stderr) == (2, True), done.stderr


def test_help_lists_the_commands_of_every_package(tmp_path: Path) -> None:
    listed = mosaic(tmp_path, "--help", COLUMNS="200").stdout
    for command in ("serve", "train", "trajectories", "show", "reward", "config", "db"):
        assert command in listed


async def test_the_doctor_says_that_calls_wait_and_that_nobody_stores_them(tmp_path: Path, database: str) -> None:
    await leave(tmp_path / "var" / "spool", conversation(2))
    engine = "http://127.0.0.1:1/v1"
    done = mosaic(tmp_path, "doctor", "--json", MOSAIC_DATABASE=database, MOSAIC_UPSTREAM=engine)
    assert done.returncode == 1
    wrong = [finding["what"] for finding in json.loads(done.stdout) if finding["level"] == "wrong"]
    assert len(wrong) == 2
    assert "does not answer" in wrong[0]
    assert wrong[1].startswith("2 calls wait in ")
    assert wrong[1].endswith("no writer is at work")


def test_config_says_where_each_value_came_from(tmp_path: Path) -> None:
    (tmp_path / "mosaic.toml").write_text('port = 9999\nupstream_api_key = "very-secret"\n[train]\nepochs = 3\n')
    done = mosaic(tmp_path, "config", "--json", MOSAIC_TRAIN__LEARNING_RATE="0.5")
    found = json.loads(done.stdout)
    assert found["port"] == {"value": 9999, "from": "mosaic.toml"}
    assert found["train.epochs"] == {"value": 3, "from": "mosaic.toml"}
    assert found["train.learning_rate"] == {"value": 0.5, "from": "MOSAIC_TRAIN__LEARNING_RATE"}
    assert found["host"]["from"] == "default"
    assert "very-secret" not in done.stdout


def test_a_missing_python_is_said_by_make(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    (tmp_path / "requirements").mkdir()
    for file in ("Makefile", "pyproject.toml", "requirements/cpu.txt", "requirements/torch.txt"):
        (tmp_path / file).write_bytes((root / file).read_bytes())
    done = subprocess.run(["make", "install", "PYTHON="], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Python 3.11 or newer with venv is needed" in done.stderr
