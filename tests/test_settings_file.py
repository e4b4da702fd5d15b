"""The file that `mosaic init` writes says what the settings say."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from mosaic.settings import Settings, load
from mosaic.settings_file import text
from tests.cli.command import mosaic


def names(model: type[BaseModel], prefix: str = "") -> set[str]:
    """All settings of a model by dotted name."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            found |= names(inner, f"{name}.")
        else:
            found.add(prefix + name)
    return found


def uncommented() -> str:
    """The file with every setting that has a default in force."""
    lines = text().partition('#[models."NAME"]')[0].splitlines()
    later = text().partition('#[models."NAME"]')[2].partition("\n\n\n")[2].splitlines()
    return "\n".join(re.sub(r"^#(?=\w)", "", line) for line in [*lines, *later] if not re.fullmatch(r"#\w+ =", line))


@pytest.fixture
def plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.chdir(tmp_path)
    return load()


def test_the_written_file_changes_nothing(tmp_path: Path, plain: Settings) -> None:
    done = mosaic(tmp_path, "init")
    assert (done.returncode, "mosaic.toml is written" in done.stdout) == (0, True)
    assert load() == plain


def test_with_every_line_uncommented_it_says_the_defaults_and_each_setting_is_there(
    tmp_path: Path, plain: Settings
) -> None:
    (tmp_path / "mosaic.toml").write_text(uncommented())
    assert load() == plain
    said: dict[str, Any] = tomllib.loads(uncommented())
    flat = {f"{name}.{inner}" for name, part in said.items() if isinstance(part, dict) for inner in part}
    flat |= said.keys()
    unset = {name for name in names(Settings) if _value(plain, name) is None}
    assert names(Settings) - flat == unset | {"models"}
    assert all(re.search(rf"^#{name.rpartition('.')[2]} =$", text(), re.MULTILINE) for name in unset)


def _value(settings: Settings, dotted: str) -> object:
    found: object = settings
    for part in dotted.split("."):
        found = getattr(found, part)
    return found


def test_every_setting_is_explained_with_the_values_that_it_takes() -> None:
    written = text()
    assert written.count("\n#") > 80
    assert "One of capture, exact.\n#fidelity" in written
    assert "At least 1. At most 64.\n#workers = 1" in written
    for before, line in zip(written.splitlines(), written.splitlines()[1:], strict=False):
        if re.match(r"#\w+ =", line):
            assert before.startswith("# ")
            assert len(before) > 20


def test_a_file_that_is_there_is_kept_unless_force_is_given(tmp_path: Path) -> None:
    (tmp_path / "mosaic.toml").write_text("port = 9999\n")
    refused = mosaic(tmp_path, "init")
    assert (refused.returncode, "--force" in refused.stderr) == (2, True)
    assert (tmp_path / "mosaic.toml").read_text() == "port = 9999\n"
    assert mosaic(tmp_path, "init", "--force").returncode == 0
    assert "#port = 8080" in (tmp_path / "mosaic.toml").read_text()


def test_a_file_that_cannot_be_read_does_not_keep_a_new_one_from_being_written(tmp_path: Path) -> None:
    (tmp_path / "mosaic.toml").write_text("port = \n")
    assert mosaic(tmp_path, "init", "--force").returncode == 0
    assert mosaic(tmp_path, "config").returncode == 0
