"""What an agent is told: placeholders, variables, files; and what of a tasks file can be used."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mosaic.errors import SettingsError
from mosaic.keys import TRAJECTORY_ID
from mosaic.rollout import Agent, Task, Work, read_tasks
from mosaic.rollout.attempt import LONGEST_SCRIPT, MAX_VARIABLE, check_placeholders, hides_the_task
from mosaic.rollout.rollout import _slug
from mosaic.settings import load


def work(command: tuple[str, ...], folder: Path = Path("/folder"), **fields: object) -> Work:
    task = Task("t1", "do it", {"id": "t1", "prompt": "do it", **fields})
    return Work("r.t1.2", task, 2, 1, "http://proxy:1", "key", folder, Agent(command, folder))


def test_placeholders_are_the_tasks_fields_and_the_attempts_own() -> None:
    command = ("x", "{prompt}-{n}", "{trajectory} {base_url} {anthropic_base_url}", "{{prompt}}", '{"a": 1}', "{list}")
    arguments = work(command, n=3, list=[1]).arguments()
    assert arguments[1:3] == ["do it-3", "r.t1.2 http://proxy:1/t/r.t1.2/v1 http://proxy:1/t/r.t1.2"]
    assert arguments[3:] == ["{prompt}", '{"a": 1}', "[1]"]


@given(st.text())
def test_what_a_prompt_holds_is_never_filled_in_itself(prompt: str) -> None:
    task = Task("t1", prompt, {"prompt": prompt, "secret": "S"})
    one = Work("r.t1.1", task, 1, 1, "http://proxy", "key", Path("/f"), Agent(("x", "{prompt}"), Path("/f")))
    assert one.arguments()[1] == prompt


def test_a_placeholder_that_a_task_lacks_is_refused_before_anything_runs() -> None:
    with pytest.raises(SettingsError, match=r"\{promt\}, which the task 't1' lacks"):
        check_placeholders(("x", "{promt}"), [Task("t1", "p", {"prompt": "p"})])
    check_placeholders(("x", "{{promt}} {prompt} {api_key}"), [Task("t1", "p", {"prompt": "p"})])


@pytest.mark.parametrize(
    ("command", "hidden"),
    [
        (("python", "plain.py"), True),
        (("true", "{scratch}", "{trajectory}", "{{prompt}}", "é", "a\0b", "x" * 5000), True),
        (("python", "plain.py", "{prompt}"), False),
        (("solve", "--issue={number}"), False),
        (("solve", "{task_file}"), False),
        (("sh", "-c", 'solve "$MOSAIC_TASK"'), False),
        (("python", "told.py"), False),
        (("./told.py",), False),
        (("python", "huge.py"), True),
    ],
)
def test_a_command_that_gives_the_agent_no_task_is_seen(tmp_path: Path, command: tuple[str, ...], hidden: bool) -> None:
    (tmp_path / "plain.py").write_text("print(input())")
    (tmp_path / "told.py").write_text("import os\nopen(os.environ['MOSAIC_TASK_FILE'])")
    (tmp_path / "huge.py").write_text("MOSAIC_TASK" + " " * LONGEST_SCRIPT)
    assert hides_the_task(Agent(command, tmp_path)) is hidden


def test_files_that_the_command_names_are_found_from_where_it_was_started(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text("")
    (tmp_path / "python").write_text("")
    found = work(("python", "agent.py", "./agent.py", "other.py"), tmp_path).arguments()
    assert found == ["python", str(tmp_path / "agent.py"), str(tmp_path / "agent.py"), "other.py"]


def test_the_environment_serves_every_wire_and_a_task_too_long_for_it_is_in_the_file() -> None:
    told = work(("x",), wide="é").environment()
    assert told["OPENAI_BASE_URL"] == told["OPENAI_API_BASE"] == "http://proxy:1/t/r.t1.2/v1"
    assert told["ANTHROPIC_BASE_URL"] == "http://proxy:1/t/r.t1.2"
    assert json.loads(told["MOSAIC_TASK"]) == {"id": "t1", "prompt": "do it", "wide": "é"}
    assert "MOSAIC_TASK" not in work(("x",), wide="x" * MAX_VARIABLE).environment()


def test_what_an_agent_is_told_is_no_unknown_setting_to_a_mosaic_that_it_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**work(("x",)).environment(), "MOSAIC_STATUS": "0"}.items():
        monkeypatch.setenv(name, value)
    assert load().port == 8080


def test_tasks_are_json_objects_or_plain_lines(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": 7, "prompt": "a", "answer": "b"}\n\nwrite a poem\n{"prompt": "c"}\n')
    first, second, third = read_tasks(file)
    assert (first.task_id, first.fields) == ("7", {"id": "7", "prompt": "a", "answer": "b"})
    assert (second.prompt, len(second.task_id), third.prompt) == ("write a poem", 16, "c")


def test_a_byte_order_mark_is_no_part_of_the_first_task(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text('{"id": "a", "prompt": "b"}\n', encoding="utf-8-sig")
    assert [(task.task_id, task.prompt) for task in read_tasks(file)] == [("a", "b")]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "there is no task"),
        ('{"prompt": ', "line 1"),
        ('{"id": "a"}', "needs a `prompt`"),
        ('{"id": [], "prompt": "x"}', "neither text"),
        ("fine\n" + '{"a":' * 100_000, "line 2 .*recursion"),
        ("write a\0poem", "NUL"),
        ('{"id": "a\\u0000", "prompt": "x"}', "NUL"),
        ('{"id": "a", "prompt": "x"}\n{"id": "a", "prompt": "y"}', "twice"),
    ],
)
def test_a_tasks_file_that_cannot_be_used_is_refused_with_its_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(text)
    with pytest.raises(SettingsError, match=complaint):
        read_tasks(file)


@given(st.text(min_size=1), st.text(min_size=1))
def test_trajectory_ids_take_any_task_id_and_keep_different_ones_apart(one: str, other: str) -> None:
    assert TRAJECTORY_ID.fullmatch(f"{'r' * 60}.{_slug(one)}.100000~10")
    assert "." not in _slug(one)
    assert (_slug(one) == _slug(other)) == (one == other)
