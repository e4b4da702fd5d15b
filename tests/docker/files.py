"""The deployment files as data: what an image is made from and runs, what a service runs, what refers to what.

Only the forms that our files use are read: instructions whose arguments are JSON (`CMD`, `ENTRYPOINT`, `HEALTHCHECK ...
CMD`), `ENV` with one `NAME=value` a word, and `${NAME:-default}` in the compose file.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"
DOCKERFILES = sorted(DOCKER.glob("*.Dockerfile"))


@dataclass(frozen=True, slots=True)
class Image:
    """What a Dockerfile's last stage says about running it."""

    entrypoint: list[str]
    command: list[str]
    health: list[str]
    environment: dict[str, str]
    user: str


def instructions(file: Path) -> list[tuple[str, str]]:
    """(instruction, arguments) of all stages, lines that go on joined, comments left out."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def image(file: Path) -> Image:
    """The last stage of a Dockerfile."""
    said = instructions(file)
    last = said[max(at for at, (name, _) in enumerate(said) if name == "FROM") :]
    found = dict(last)
    words = [word.partition("=") for name, rest in last if name == "ENV" for word in rest.split()]
    health = found.get("HEALTHCHECK", "CMD []").partition("CMD ")[2]
    return Image(
        entrypoint=json.loads(found.get("ENTRYPOINT", "[]")),
        command=json.loads(found.get("CMD", "[]")),
        health=json.loads(health),
        environment={name: value for name, _, value in words},
        user=found.get("USER", "root"),
    )


def compose() -> dict[str, Any]:
    """The compose file, with every variable at its default."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", (DOCKER / "compose.yaml").read_text())
    assert "${" not in text
    read: dict[str, Any] = yaml.safe_load(text)
    return read


def manifests() -> list[dict[str, Any]]:
    """All Kubernetes objects."""
    files = sorted((DOCKER / "kubernetes").glob("*.yaml"))
    return [found for file in files for found in yaml.safe_load_all(file.read_text())]


def image_of(service: dict[str, Any]) -> Image:
    """The image that a service is built from."""
    return image(ROOT / service["build"]["dockerfile"])


def command_of(service: dict[str, Any]) -> list[str]:
    """What a service runs: its own words, or else those of its image."""
    made = image_of(service)
    return [*service.get("entrypoint", made.entrypoint), *service.get("command", made.command)]
