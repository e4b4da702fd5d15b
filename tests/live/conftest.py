"""The real vLLM, for one module at a time."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from trainer.engine import Engine, EngineSettings

StartEngine = Callable[..., Engine]

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")
"""How vLLM is told to parse the demo policy's tool calls."""


@pytest.fixture(scope="module")
def start_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEngine]:
    """Call with a checkpoint, the longest context and vLLM's own arguments; it is stopped after the module."""
    with ExitStack() as running:

        def start(checkpoint: Path, max_model_len: int, *arguments: str) -> Engine:
            log = tmp_path_factory.mktemp("engine") / "engine.log"
            settings = EngineSettings(
                checkpoint,
                log,
                max_model_len=max_model_len,
                max_num_seqs=8,
                kv_cache_gib=1,
                threads=1,
                extra_args=arguments,
            )
            return running.enter_context(Engine(settings))

        yield start
