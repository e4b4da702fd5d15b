"""Stores with trajectories of every shape, and what export and import make of them."""

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import typer
from typer.testing import CliRunner

from mosaic.capture import CallStatus, CapturedCall, Fidelity
from mosaic.records import LogprobArray, TrajectoryState
from mosaic.store import Store, portable_files, portable_rows
from mosaic.store.portable import Record
from mosaic.store.portable_files import FileFormat
from mosaic.transfer_commands import export_, import_
from tests.lineage.test_lineage import compaction, linear, spawns
from tests.playbook import Recording, assistant, choice, system, user

OUTPUTS = {"x.jsonl": FileFormat.JSONL, "x.jsonl.gz": FileFormat.JSONL, "x.parquet": FileFormat.PARQUET, "x": "hf"}


def odd(recording: Recording) -> list[CapturedCall]:
    """Two choices, a logprob of minus infinity, large tools, headers, a swap in the stream, a failure without reply."""
    replies = assistant("one"), assistant("two")
    first = choice(replies[0], [5, 6, 7])
    several = replace(first, logprobs_T=np.asarray([-np.inf, -0.1, -0.0], np.float32), arrivals=((1, 1.0), (3, 4e9)))
    asked = [system("s" * 10), user("question")]
    tools = [{"type": "function", "function": {"name": f"tool_{n}", "description": "d" * 50}} for n in range(20)]
    call = recording.call(asked, replies[0])
    call = replace(
        call,
        choices=(several, choice(replies[1], [8], index=1)),
        params={"model": "policy", "tools": tools},
        headers={"x-session": "é\ud800"},
        fidelity=Fidelity("spliced"),
    )
    again = [*asked, replies[1], user("and?")]
    grown = np.concatenate([call.prompt_ids_P, [8, 300, 301]]).astype(np.int32)
    more = replace(
        recording.call(again, assistant("three")),
        params=call.params,
        prompt_ids_P=grown,
        fidelity=Fidelity("fell_back", "ambiguous"),
    )
    lost = recording.call([user("nobody answers")], assistant("?"))
    failed = replace(lost, choices=(), status=CallStatus.FAILED, error="gone\0", http_status=502, inexact_reason="none")
    return [call, more, failed]


MAKERS: list[Callable[[Recording], list[CapturedCall]]] = [
    linear,
    compaction,
    lambda recording: spawns(recording, ("capital of the first", "capital of the second")),
    odd,
]


def fill(store: Store) -> None:
    """Trajectories of every shape, some rewarded, one trained."""
    version = store.new_version("/checkpoint", None)
    store.version_live(version)
    for number, make in enumerate(MAKERS):
        store.record(make(Recording(f"run-{number}")))
        store.reward(f"run-{number}", 0.1 + number, "test", note="first")
        store.reward(f"run-{number}", 1.0 / 3 + number, "test")
    session = store.trajectory("run-2").sessions[1].session_id
    store.reward("run-2", 0.5, "judge", session_id=session)
    store.record(linear(Recording(None, "passive")))
    job = store.start_job({"a": 1})
    store.finish_training(job, version, {"run-0": 1.0 / 3}, {"s-c1-run-0": -0.7}, {})
    store.end(store.trajectories(1, like="tr-%")[0].trajectory_id, TrajectoryState.TRUNCATED, "test")


def all_records(store: Store) -> dict[str, Any]:
    """Every record by its id, comparable."""
    return {r["trajectory_id"]: comparable(r) for r in portable_rows.records(store.database)}


def comparable(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    if isinstance(value, dict):
        return {key: comparable(one) for key, one in value.items()}
    return [comparable(one) for one in value] if isinstance(value, list | tuple) else value


def export(store: Store, out: Path, form: str = "jsonl", **options: bool) -> int:
    return portable_files.write(portable_rows.records(store.database), out, FileFormat(form), **options)


def bring_in(store: Store, path: Path) -> list[bool]:
    done = []
    for _, record in portable_files.read(path):
        with store.database.writing() as connection:
            done.append(portable_rows.insert(connection, record))
    return done


def groups(store: Store) -> Any:
    """What training sees, in an order that does not depend on ties."""
    found = store.groups(store.waiting())
    return {
        group.task_key: comparable(sorted(map(asdict, group.trajectories), key=lambda t: str(t["trajectory_id"])))
        for group in found
    }


def with_logprobs(record: Record, logprobs: LogprobArray) -> list[Record]:
    first, *rest = record["calls"]
    return [{**first, "choices": [{**first["choices"][0], "logprobs": logprobs}]}, *rest]


def three_lines(folder: Path) -> list[bytes]:
    source = Store(f"sqlite:///{folder}/three.db")
    for number in range(3):
        source.record([replace(c, started_at=c.started_at + number) for c in linear(Recording(f"run-{number}"))])
        source.reward(f"run-{number}", 0.5, "test")
    export(source, folder / "three.jsonl")
    source.close()
    return (folder / "three.jsonl").read_bytes().splitlines(keepends=True)


app = typer.Typer()
app.command("export")(export_)
app.command("import")(import_)


def run(store: Store, *arguments: str) -> Any:
    url = store.engine.url.render_as_string(hide_password=False)
    return CliRunner().invoke(app, [*arguments, "--database", url])
