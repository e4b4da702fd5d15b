"""`mosaic demo`: what `make demo` runs, in a clone of the source tree."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import typer

from mosaic.errors import SettingsError

ROOT = Path(__file__).parent.parent
NEEDED = ("deepagents", "trl", "vllm")
"""Packages without which the demo cannot run."""


def demo(context: typer.Context) -> None:
    """Run the whole chain on this machine, as `make demo` does: agent, proxy, vLLM, training, reload.

    About ten minutes on two cores, without a GPU. It needs the source tree, in which everything it writes goes to
    var/demo. Options are passed on to `python -m examples.demo`.

        mosaic demo
        mosaic demo --rounds 2 --credit broadcast
        mosaic demo -h
    """
    if not (ROOT / "examples" / "demo" / "__main__.py").is_file():
        raise SettingsError(
            "the demo is part of Mosaic's source tree, and this Mosaic was installed without it.",
            "Clone the repository and run `make demo` there.",
        )
    if lacking := [name for name in NEEDED if find_spec(name) is None]:
        raise SettingsError(f"the demo needs {', '.join(lacking)}.", f"Run `make install` in {ROOT}, or `make demo`.")
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.execv(sys.executable, [sys.executable, "-m", "examples.demo", *context.args])
