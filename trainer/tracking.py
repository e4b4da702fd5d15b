"""What jobs measured, as curves: JSON lines always, TensorBoard, trackio and Weights & Biases by name.

    step/*   one optimizer step       counted on over all jobs of the database
    job/*    one published job        at its policy version

All jobs that write to one folder of checkpoints are one run, so that a curve goes on from job to job. Tracking never
fails a job: a tracker that raises is left out from then on, and counted. The database (`job_metrics`) stays the truth.
"""

import importlib
import importlib.util
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, Protocol, Self

import structlog

from mosaic.errors import SettingsError
from mosaic.job_settings import TrainConfig
from mosaic.store import Store
from trainer.round import StepReport

Kind = Literal["step", "job"]
AXES: Mapping[Kind, str] = {"step": "optimizer_step", "job": "policy_version"}
"""What the x-axis of each kind counts."""

log = structlog.get_logger()


class Tracker(Protocol):
    """Where figures go."""

    def log(self, kind: Kind, at: int, figures: Mapping[str, float]) -> None:
        """Take figures at a place of their axis."""
        ...

    def close(self) -> None:
        """Write what is still to be written."""
        ...


class JsonLines:
    """A line per event: kind, its axis, time (Unix seconds), and the figures by name."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def log(self, kind: Kind, at: int, figures: Mapping[str, float]) -> None:
        """Append a line."""
        line = {"kind": kind, AXES[kind]: at, "time": time.time(), **figures}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Every line is written at once."""


class TensorBoard:
    """Scalars in an event file; several files of one folder are one run."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def log(self, kind: Kind, at: int, figures: Mapping[str, float]) -> None:
        """Add one scalar per figure."""
        for name, value in figures.items():
            self._writer.add_scalar(f"{kind}/{name}", value, at)

    def close(self) -> None:
        """Flush."""
        self._writer.close()


class Hosted:
    """Weights & Biases, or trackio, which has its interface: one run per folder of checkpoints, taken up again."""

    def __init__(self, package: str, project: str, run: str) -> None:
        self._module = importlib.import_module(package)
        named = {"id": run} if package == "wandb" else {}
        with redirect_stdout(sys.stderr):  # They talk, and standard output is the command's.
            self._run: Any = self._module.init(project=project, name=run, resume="allow", **named)
        if package == "wandb":
            for kind, axis in AXES.items():
                self._run.define_metric(f"{kind}/*", step_metric=axis)

    def log(self, kind: Kind, at: int, figures: Mapping[str, float]) -> None:
        """Log the figures with the value of their axis beside them."""
        self._module.log({AXES[kind]: at, **{f"{kind}/{name}": value for name, value in figures.items()}})

    def close(self) -> None:
        """End the run, until the next job takes it up."""
        with redirect_stdout(sys.stderr):
            self._module.finish()


class Tracking:
    """All trackers of one job."""

    def __init__(self, store: Store, trackers: Mapping[str, Tracker]) -> None:
        self._store = store
        self._trackers = dict(trackers)
        self._steps_before = int(store.metric_total("steps"))

    @classmethod
    def of(cls, store: Store, config: TrainConfig, checkpoint: Path) -> Self:
        """Those that are configured, beside the job's checkpoint; one that cannot be opened is left out."""
        folder = checkpoint.parent
        tracking = cls(store, {"jsonl": JsonLines(folder / f"{checkpoint.name}.jsonl")})
        for name in config.trackers:
            with tracking._spared(name):
                tracking._trackers[name] = _opened(name, config, folder)
        return tracking

    def __enter__(self) -> Self:
        """Nothing to open."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close all."""
        for name, tracker in list(self._trackers.items()):
            with self._spared(name):
                tracker.close()

    def step(self, step: StepReport) -> None:
        """An optimizer step is done."""
        figures = {k: float(v) for k, v in asdict(step).items() if v is not None and k not in ("step", "steps")}
        self._log("step", self._steps_before + step.step, figures)

    def job(self, version: int, figures: Mapping[str, float]) -> None:
        """A job is published."""
        self._log("job", version, figures)

    def _log(self, kind: Kind, at: int, figures: Mapping[str, float]) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._spared(name):
                tracker.log(kind, at, figures)

    @contextmanager
    def _spared(self, name: str) -> Iterator[None]:
        """What a tracker raises leaves it out, and is counted."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - No tracker may fail a job, whatever its libraries raise.
            self._trackers.pop(name, None)
            log.warning("tracker left out", tracker=name, error=f"{type(error).__name__}: {error}")
            self._store.count("tracker_failures", name)


def check_trackers(config: TrainConfig) -> None:
    """Raises `SettingsError` for a tracker whose package is not installed, before anything is trained."""
    for name in config.trackers:
        if importlib.util.find_spec(name) is None:
            raise SettingsError(
                f"train.trackers has {name}, and the package {name} is not installed.",
                f"pip install {name}, or leave it out.",
            )


def _opened(name: str, config: TrainConfig, folder: Path) -> Tracker:
    if name == "tensorboard":
        return TensorBoard(folder / "tensorboard")
    return Hosted(name, config.track_project, config.track_run or folder.name)
