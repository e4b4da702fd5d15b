"""Loading a checkpoint says nothing: a command's standard error has its own lines and no others."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.mark.parametrize("adapter", [False, True])
def test_loading_a_checkpoint_prints_nothing(
    model_dir: Path, save_adapter: Callable[[Path], Path], tmp_path: Path, adapter: bool
) -> None:
    """In a process of its own: the bar is turned off for a whole process."""
    folder = save_adapter(tmp_path / "adapter") if adapter else model_dir
    script = (
        "import sys; from pathlib import Path; from trainer.checkpoints import load_model; "
        "load_model(Path(sys.argv[1]), trainable=True)"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
