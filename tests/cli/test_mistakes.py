"""Bad input, and what a user may get wrong: one clear line with the next step, and an exit code."""

import json
import socket
from pathlib import Path

import pytest

from mosaic.store import Store
from tests.cli.command import mosaic


def test_a_reward_may_be_negative_but_not_infinite(tmp_path: Path, database: str) -> None:
    assert mosaic(tmp_path, "reward", "run-17", "-1.0", "--database", database).returncode == 0
    (listed,) = json.loads(mosaic(tmp_path, "trajectories", "--json", "--database", database).stdout)
    assert listed["reward"] == -1
    for odd in ("nan", "inf", "-1e300", "abc"):
        refused = mosaic(tmp_path, "reward", "run-17", odd, "--database", database)
        assert (refused.returncode, "number" in refused.stderr) == (2, True)


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


CHECKPOINT = str(Path(__file__).parents[2] / "examples" / "demo" / "checkpoint")
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


@pytest.mark.parametrize(("typed", "meant"), [("trian", "train"), ("pol", "policy"), ("rewrad", "reward")])
def test_a_command_that_is_misspelt_is_suggested_whichever_package_has_it(
    tmp_path: Path, typed: str, meant: str
) -> None:
    assert f"Did you mean '{meant}'" in mosaic(tmp_path, typed).stderr


def test_a_secret_that_is_too_short_is_measured_in_characters(tmp_path: Path) -> None:
    done = mosaic(tmp_path, "key", "run-17", MOSAIC_TRAJECTORY_SECRET="abcde")
    assert "'trajectory_secret' (from MOSAIC_TRAJECTORY_SECRET): it needs at least 16 characters, not 5." in done.stderr
