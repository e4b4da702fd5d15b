"""What may load what: proven in fresh interpreters, since imports of one test would hide those of another."""

import subprocess
import sys

import pytest


def loaded_by(statement: str, *names: str) -> list[str]:
    code = f"import sys\n{statement}\nprint(*[n for n in {names!r} if n in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    "statement",
    [
        "import proxy.app, proxy.commands",
        "import mosaic.cli, mosaic.rollout, mosaic.scoring.passive",
        "import trainer.commands, trainer.job",
        "import adapters.wires.chat",
    ],
)
def test_nothing_but_training_itself_loads_torch(statement: str) -> None:
    assert loaded_by(statement, "torch", "transformers", "trl", "vllm") == []


def test_a_function_that_is_an_agent_starts_with_nothing_but_itself() -> None:
    assert loaded_by("import mosaic.function_agent", "sqlalchemy", "pydantic", "numpy", "aiohttp", "ray") == []


def test_templates_are_loaded_with_the_first_page_and_not_before() -> None:
    assert loaded_by("import proxy.app, proxy.commands", "jinja2") == []


def test_the_core_loads_no_web_framework() -> None:
    assert (
        loaded_by("import mosaic.cli, mosaic.lineage, mosaic.credit, mosaic.client", "fastapi", "aiohttp", "uvicorn")
        == []
    )
