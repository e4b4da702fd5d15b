"""The command line in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path


def mosaic(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mosaic", *arguments]
    path = {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **path, **environment}, capture_output=True, text=True, check=False
    )
