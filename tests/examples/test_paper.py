"""The recipe for the paper's scale: nobody can run it here, but its settings must be ones that exist."""

import tomllib
from dataclasses import replace
from pathlib import Path

from mosaic.credit import RULES
from mosaic.settings import Settings

RECIPE = Path(__file__).parents[2] / "examples" / "paper" / "mosaic.toml"


def test_the_recipe_has_only_settings_that_exist() -> None:
    told = tomllib.loads(RECIPE.read_text())
    train = Settings(**told).train
    assert (train.credit, train.contribution) == ("mosaic", "blend")
    assert replace(RULES[train.credit], **train.credit_options).alpha_f == 0.3  # type: ignore[arg-type]
    assert "NOT RUN HERE" in RECIPE.read_text()
