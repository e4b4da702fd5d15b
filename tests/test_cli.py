"""The command line as a user meets it: in a process of its own, with good and bad input."""

import json
import os
import socket
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mosaic.capture import CallStatus, Fidelity
from mosaic.store import Store
from tests.lineage.test_lineage import compaction, linear
from tests.playbook import Recording
from tests.proxy.traces import conversation, leave


def mosaic(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mosaic", *arguments]
    path = {"PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **path, **environment}, capture_output=True, text=True, check=False
    )


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/mosaic.db"
    store = Store(url)
    store.record(compaction(Recording("run-17")))
    store.close()
    return url


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


def test_a_reward_may_be_negative_but_not_infinite(tmp_path: Path, database: str) -> None:
    assert mosaic(tmp_path, "reward", "run-17", "-1.0", "--database", database).returncode == 0
    (listed,) = json.loads(mosaic(tmp_path, "trajectories", "--json", "--database", database).stdout)
    assert listed["reward"] == -1
    for odd in ("nan", "inf", "-1e300", "abc"):
        refused = mosaic(tmp_path, "reward", "run-17", odd, "--database", database)
        assert (refused.returncode, "number" in refused.stderr) == (2, True)


FIRST_RELEASE = Path(__file__).parent / "store" / "first_release.sql"


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


def test_a_database_password_is_shown_nowhere(tmp_path: Path) -> None:
    shown = mosaic(tmp_path, "config", MOSAIC_DATABASE="postgresql://me:s3cret@nowhere/x").stdout
    assert "nowhere" in shown
    assert "s3cret" not in shown


def test_no_url_in_the_settings_shows_its_password(tmp_path: Path) -> None:
    given = {
        "MOSAIC_UPSTREAM": "http://u:s3cret@a/v1",
        "MOSAIC_REPLICAS": '["http://u:s3cret@b/v1"]',
        "MOSAIC_MODELS": '{"small-*": {"upstream": "http://u:s3cret@c/v1", "api_key": "s3cret"}}',
        "MOSAIC_SCORE__JUDGE": "http://u:s3cret@d/v1",
        "MOSAIC_WEBHOOK_URL": "http://e/hook?token=s3cret",
        "MOSAIC_DATABASE": "postgresql://me@nowhere/x?password=s3cret",
    }
    done = mosaic(tmp_path, "config", "--json", **given)
    shown = json.loads(done.stdout)
    assert "s3cret" not in done.stdout
    assert [shown[name]["value"] for name in ("upstream", "replicas")] == ["http://***@a/v1", ["http://***@b/v1"]]
    assert shown["models"]["value"]["small-*"]["upstream"] == "http://***@c/v1"
    refused = mosaic(tmp_path, "config", MOSAIC_UPSTREAM="http://u:s3cret@a")
    assert (refused.returncode, "http://***@a/v1" in refused.stderr, "s3cret" in refused.stderr) == (2, True, False)


def test_a_variable_that_names_no_setting_is_refused(tmp_path: Path) -> None:
    done = mosaic(tmp_path, "config", MOSAIC_PROT="1")
    assert (done.returncode, "MOSAIC_PROT names no setting; did you mean 'port'." in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("file", "variables", "said"),
    [
        ('upstreem = "x"', {}, "mosaic.toml: there is no setting 'upstreem'; did you mean 'upstream'."),
        ("[train]\nlearn_rate = 1", {}, "there is no setting 'train.learn_rate'; did you mean 'train.learning_rate'."),
        ("zzz = 1", {}, "mosaic.toml: there is no setting 'zzz'. `mosaic init --file"),
        ('port = "many"', {}, "setting 'port' (from mosaic.toml): Input should be a valid integer"),
        ("port = 1", {"MOSAIC_TRAIN__EPOCHS": "0"}, "setting 'train.epochs' (from MOSAIC_TRAIN__EPOCHS): Input should"),
        ('upstream = "http://a"', {}, "(from mosaic.toml): it must end in /v1; did you mean http://a/v1."),
    ],
)
def test_a_wrong_setting_is_told_with_its_place_and_what_is_meant(
    tmp_path: Path, file: str, variables: dict[str, str], said: str
) -> None:
    (tmp_path / "mosaic.toml").write_text(file)
    done = mosaic(tmp_path, "config", **variables)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


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


def test_what_stands_in_a_table_is_plain_text(tmp_path: Path) -> None:
    gate = 'grep -c "[/a-z]" [bold]x'
    done = mosaic(tmp_path, "config", MOSAIC_TRAIN__GATE=gate, COLUMNS="200")
    assert (done.returncode, gate in done.stdout) == (0, True)


def test_secrets_may_be_files_and_variables_go_before_them(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "mosaic_api_keys").write_text('["very-secret"]\n')
    (tmp_path / "secrets" / "mosaic_database").write_text("sqlite:///here.db\n")
    done = mosaic(tmp_path, "config", "--json", MOSAIC_SECRETS="secrets", MOSAIC_DATABASE="sqlite:///there.db")
    found = json.loads(done.stdout)
    assert found["api_keys"] == {"value": ["**********"], "from": "secret file"}
    assert found["database"] == {"value": "sqlite:///there.db", "from": "MOSAIC_DATABASE"}
    missing = mosaic(tmp_path, "config", MOSAIC_SECRETS="nowhere")
    assert (missing.returncode, "nowhere, which is no folder" in missing.stderr) == (2, True)


CHECKPOINT = str(Path(__file__).parents[1] / "examples" / "demo" / "checkpoint")
BAD = {
    "an unknown setting": (["config"], "prot = 1\n", 2, "prot"),
    "a setting of the wrong type": (["config"], 'port = "many"\n', 2, "port"),
    "a number that is none": (["config"], "engine_wait_s = inf\n", 2, "engine_wait_s"),
    "a number of a section that is none": (["config"], "[train]\nkl = nan\n", 2, "train.kl"),
    "an upstream that is a path": (["config"], 'upstream = "/v1"\n', 2, "http://host:port/path"),
    "an upstream of another protocol": (["config"], 'upstream = "ftp://x/v1"\n', 2, "http://host:port/path"),
    "an upstream with a query": (["config"], 'upstream = "http://h/v1?x=/v1"\n', 2, "leave away the ?"),
    "an upstream with a space": (["config"], 'upstream = "http://h/a b/v1"\n', 2, "without spaces"),
    "an upstream on a port that is none": (["config"], 'upstream = "http://h:x/v1"\n', 2, "http://host:port/path"),
    "a replica that is a path": (["config"], 'replicas = ["/v1"]\n', 2, "http://host:port/path"),
    "a webhook into a file": (["config"], 'webhook_url = "file:///x"\n', 2, "http://host:port/path"),
    "an empty webhook": (["config"], 'webhook_url = ""\n', 2, "http://host:port/path"),
    "an empty database": (["config"], 'database = ""\n', 2, "leave the setting away"),
    "an empty host": (["config"], 'host = ""\n', 2, "leave the setting away"),
    "an empty model": (["config"], 'policy_model = " "\n', 2, "leave the setting away"),
    "a secret of spaces": (["config"], f'trajectory_secret = "{" " * 20}"\n', 2, "leave the setting away"),
    "a credit rule that is none": (["config"], '[train]\ncredit = "luck"\n', 2, "'luck'; choose one of: broadcast"),
    "a credit rule that is none, for the doctor": (["doctor"], '[train]\ncredit = "luck"\n', 2, "'train.credit'"),
    "an option that no rule has": (["config"], "[train.credit_options]\nalhpa = 1\n", 2, "no option 'alhpa'"),
    "an option that is too large": (["config"], "[train.credit_options]\nalpha = 2\n", 2, "alpha = 2.0: must be in"),
    "an option that is text": (["config"], '[train.credit_options]\nalpha = "x"\n', 2, "'train.credit_options'"),
    "a time that is none": (["config"], '[schedule]\ncron = "61 3 * * *"\n', 2, "maximum value (59); write five"),
    "a time in words, for the doctor": (
        ["doctor"],
        '[schedule]\ncron = "at night"\n',
        2,
        "'schedule.cron' (from mosaic",
    ),
    "hours that are none": (["config"], '[schedule]\nhours = "22-6"\n', 2, "write them as 22:00-06:00"),
    "a time on the command line": (["schedule", "--cron", "x"], "", 2, "'schedule.cron' (from a flag): 'x': Wrong"),
    "hours on the command line": (["schedule", "--every", "1h", "--hours", "x"], "", 2, "hours' (from a flag)"),
    "an unreadable file": (["config"], "port = \n", 2, "mosaic.toml"),
    "an unknown trajectory": (["reward", "nowhere", "1"], "", 1, "mosaic trajectories"),
    "an open bind without keys": (["serve", "--host", "0.0.0.0"], "", 2, "MOSAIC_API_KEYS"),
    "an empty key": (["serve"], 'api_keys = [""]\n', 2, "api_keys"),
    "a database without a driver": (["trajectories", "--database", "foo://x"], "", 3, "sqlite:///"),
    "a database on a port that is none": (
        ["trajectories", "--database", "postgresql://h:port/x"],
        "",
        3,
        "postgresql://user:password@host:5432/name",
    ),
    "a followed database on a port that is none": (["tail", "--database", "postgresql://h:port/x"], "", 3, "h:port"),
    "a database that cannot be opened": (
        ["import", "mosaic.toml", "--database", "sqlite:////proc/no/mosaic.db"],
        "",
        3,
        "Check",
    ),
    "nothing to train": (["train", "--model", CHECKPOINT], "", 6, "mosaic train --dry-run"),
    "a checkpoint that is not there": (["train", "--model", "/nowhere"], "", 2, "config.json"),
    "a prune without an age": (["db", "prune"], "", 2, "--older-than 30d --dry-run"),
    "a prune with an odd age": (["db", "prune", "--older-than", "soon"], "", 2, "30d"),
    "an upstream without /v1": (["serve", "--upstream", "http://localhost:8000"], "", 2, "localhost:8000/v1"),
    "no checkpoint to start from": (["train"], "", 2, "--model"),
    "a key for a name that no path can hold": (
        ["key", "run 17"],
        f'trajectory_secret = "{"s" * 20}"\n',
        2,
        "'run 17' is not usable. Use up to 200 of",
    ),
    "a key without a secret": (["key", "run-17"], "", 2, "`mosaic serve` needs the same"),
    "an unknown credit rule": (["train", "--model", "/nowhere", "--credit", "luck"], "", 2, "broadcast"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_one_clear_line_with_the_next_step_and_an_exit_code(tmp_path: Path, what: str) -> None:
    arguments, toml, code, words = BAD[what]
    Store(f"sqlite:///{tmp_path}/var/mosaic.db").close()
    (tmp_path / "mosaic.toml").write_text(toml)
    done = mosaic(tmp_path, *arguments)
    assert done.returncode == code
    said = [line for line in done.stderr.splitlines() if not line.endswith(" ...")]  # progress is no error
    assert len(said) == 1
    assert said[0].startswith("mosaic: ")
    assert words in said[0]


ONLY_READ = (
    *("trajectories", "unlinked", "certificate", "tail", "relink", "show run-17", "explain x", "credit run-17"),
    *("reward run-17 1", "end run-17", "score --command true", "train", "train --dry-run", "export runs.jsonl"),
    *(
        "db stats",
        "db check",
        "db prune --older-than 1d",
        "policy list",
        "policy show",
        "policy pin",
        "policy rollback",
    ),
)


@pytest.mark.parametrize("command", ONLY_READ)
def test_what_needs_a_database_that_is_there_makes_none_and_says_where_it_looked(tmp_path: Path, command: str) -> None:
    done = mosaic(tmp_path, *command.split())
    said = f"mosaic: there is no database at {tmp_path}/var/mosaic.db. `mosaic serve` makes it; --database"
    assert (done.returncode, done.stdout, done.stderr.startswith(said)) == (3, "", True)
    assert list(tmp_path.iterdir()) == []


def test_an_upgrade_makes_the_database(tmp_path: Path) -> None:
    assert mosaic(tmp_path, "db", "upgrade", "--database", f"sqlite:///{tmp_path}/var/new.db").returncode == 0
    assert mosaic(tmp_path, "trajectories", "--json", "--database", f"sqlite:///{tmp_path}/var/new.db").stdout == "[]\n"


def test_a_port_in_use_is_said_before_anything_else_happens(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = mosaic(tmp_path, "serve", "--port", str(port))
    assert done.returncode == 2
    assert done.stderr == f"mosaic: port {port} on 127.0.0.1 is in use. Stop what listens there or pass --port.\n"
    assert not (tmp_path / "var").exists()


def test_a_missing_python_is_said_by_make(tmp_path: Path) -> None:
    root = Path(__file__).parents[1]
    (tmp_path / "requirements").mkdir()
    for file in ("Makefile", "pyproject.toml", "requirements/cpu.txt", "requirements/torch.txt"):
        (tmp_path / file).write_bytes((root / file).read_bytes())
    done = subprocess.run(["make", "install", "PYTHON="], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "Python 3.11 or newer with venv is needed" in done.stderr


@pytest.mark.parametrize(("typed", "meant"), [("trian", "train"), ("pol", "policy"), ("rewrad", "reward")])
def test_a_command_that_is_misspelt_is_suggested_whichever_package_has_it(
    tmp_path: Path, typed: str, meant: str
) -> None:
    assert f"Did you mean '{meant}'" in mosaic(tmp_path, typed).stderr


def test_a_secret_that_is_too_short_is_measured_in_characters(tmp_path: Path) -> None:
    done = mosaic(tmp_path, "key", "run-17", MOSAIC_TRAJECTORY_SECRET="abcde")
    assert "'trajectory_secret' (from MOSAIC_TRAJECTORY_SECRET): it needs at least 16 characters, not 5." in done.stderr


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
