"""The tasks of a rollout: JSON lines with an id, a prompt and any other fields, or one prompt per line.

A task's id is its key: attempts at one key are compared with each other, in whichever rollout they were made. A task
without an id gets a digest of its prompt, as a passively recorded one does.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic.errors import SettingsError
from mosaic.store.rows import derived_key


@dataclass(frozen=True, slots=True)
class Task:
    """What is to be attempted."""

    task_id: str
    prompt: str
    fields: Mapping[str, Any]
    """All that the file says of it, id and prompt included."""


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a file, in order. Raises `SettingsError` with the line that cannot be used."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"the tasks in {path} cannot be read: {error}.", "Give a file of JSON lines.") from error
    tasks = list(_tasks(text, path))
    if not tasks:
        raise SettingsError(f"there is no task in {path}.", "Write one JSON object, or one prompt, per line.")
    seen: set[str] = set()
    for task in tasks:
        if task.task_id in seen:
            raise SettingsError(f"{path} has the task {task.task_id!r} twice.", "Ask for more with --attempts.")
        seen.add(task.task_id)
    return tasks


def _tasks(text: str, path: Path) -> Iterator[Task]:
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            task = _task(line.strip())
            if "\0" in task.task_id + task.prompt:
                raise ValueError("its id or prompt has a NUL character, which no command line takes")
        except (ValueError, RecursionError) as error:
            raise SettingsError(
                f"line {number} of {path}: {error}.", 'A task is {"id": "t1", "prompt": "...", ...}, or plain text.'
            ) from error
        yield task


def _task(line: str) -> Task:
    """One line. Raises `ValueError`; a line that does not begin as a JSON object is a prompt."""
    if not line.startswith("{"):
        return Task(derived_key(line), line, {"id": derived_key(line), "prompt": line})
    given = json.loads(line)
    prompt = given.get("prompt")
    if not isinstance(prompt, str) or not prompt:
        raise ValueError("a task needs a `prompt`, which is text")
    task_id = given.get("id", derived_key(prompt))
    if not isinstance(task_id, str | int) or isinstance(task_id, bool) or task_id == "":
        raise ValueError(f"the id {task_id!r} is neither text nor a whole number")
    return Task(str(task_id), prompt, {**given, "id": str(task_id)})
