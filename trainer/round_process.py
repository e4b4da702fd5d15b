"""A training round where it is asked for: in this process, or in those that a launcher starts (`accelerate launch`).

    python -m trainer.round_process FOLDER      what a launcher starts, once per process

The folder holds the request as this version of Mosaic pickled it: nobody else's is ever read. Steps come back as lines
of JSON on standard output, everything else as the checkpoint that appears whole or not at all.
"""

import json
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from mosaic.errors import MosaicError, TrainError
from trainer.round import REPORT_FILE, StepReport, TrainReport, TrainSettings
from trainer.sequences import Sequence as TrainingSequence

STEP = "mosaic-step "
REQUEST = "request.pickle"
FAILURE = "failure.json"


@dataclass(frozen=True, slots=True)
class RoundRequest:
    """What a round is told; see `policy_trainer.train`."""

    model_dir: Path
    sequences: list[TrainingSequence]
    settings: TrainSettings
    output_dir: Path
    optimizer_state: Path | None = None


def run_round(
    request: RoundRequest, launch: Sequence[str], on_step: Callable[[StepReport], None] | None = None
) -> TrainReport:
    """Train; without a launcher in this process. Raises `TrainError`."""
    if not launch:
        return _train(request, on_step)
    request.output_dir.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{request.output_dir.name}-", dir=request.output_dir.parent))
    try:
        (folder / REQUEST).write_bytes(pickle.dumps(request))
        _launched([*launch, "-m", "trainer.round_process", str(folder)], folder, on_step)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return TrainReport.load(request.output_dir / REPORT_FILE)


def _launched(command: list[str], folder: Path, on_step: Callable[[StepReport], None] | None) -> None:
    log = folder / "log"
    try:
        with (
            log.open("wb") as errors,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as process,
        ):
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    if line.startswith(STEP) and on_step is not None:
                        on_step(StepReport(**json.loads(line.removeprefix(STEP))))
            except BaseException:
                process.terminate()
                raise
    except OSError as error:
        raise TrainError(f"{command[0]} cannot be started: {error}.", "Correct `launch` under [train].") from error
    if process.returncode:
        if (folder / FAILURE).exists():
            said = json.loads((folder / FAILURE).read_text(encoding="utf-8"))
            raise TrainError(said["message"], said["next_step"])
        tail = log.read_text(encoding="utf-8", errors="replace").strip()[-6000:]
        raise TrainError(f"the trainer ended with status {process.returncode}: {tail}", "See `launch` under [train].")


def _train(request: RoundRequest, on_step: Callable[[StepReport], None] | None) -> TrainReport:
    # Importing TRL takes seconds: only what trains pays for it.
    from trainer.policy_trainer import train

    return train(
        request.model_dir,
        request.sequences,
        request.settings,
        request.output_dir,
        optimizer_state=request.optimizer_state,
        on_step=on_step,
    )


def main(folder: Path) -> None:
    """Run the round that lies in a folder; the first process tells what happens."""
    request: RoundRequest = pickle.loads((folder / REQUEST).read_bytes())

    def say(step: StepReport) -> None:
        sys.stdout.write(STEP + json.dumps(asdict(step)) + "\n")
        sys.stdout.flush()

    from accelerate import PartialState
    from torch.cuda import is_available

    first = PartialState(cpu=not is_available()).is_main_process
    try:
        _train(request, say if first else None)
    except MosaicError as error:
        if first:
            said = {"message": error.message, "next_step": error.next_step}
            (folder / FAILURE).write_text(json.dumps(said), encoding="utf-8")
        raise


if __name__ == "__main__":
    main(Path(sys.argv[1]))
