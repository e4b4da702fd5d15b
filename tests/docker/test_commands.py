"""What the images and the compose file run, run here without Docker: the very words, read from the files.

Only what a container has of its own is put in place of it: addresses of other services, folders, ports. Whatever the
proxy's image runs sees no package but those of `requirements/proxy.txt`.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from mosaic.store import Store
from tests.conftest import until
from tests.docker import files
from tests.engine import ScriptedEngine, Turn
from tests.postgres import Server

KEY = "a-key-of-the-test"


@dataclass
class Machine:
    """A stand-in for the containers' world: `places` maps what the files say to what there is here."""

    folder: Path
    database: str
    upstream: str
    port: int
    places: dict[str, str] = field(init=False)
    services: dict[str, Any] = field(default_factory=lambda: files.compose()["services"])

    def __post_init__(self) -> None:
        secrets = self.folder / "secrets"
        secrets.mkdir()
        (secrets / "mosaic_database").write_text(self.database + "\n")
        (secrets / "mosaic_api_keys").write_text(f'["{KEY}"]\n')
        self.places = {
            "http://vllm:8000/v1": self.upstream,
            "127.0.0.1:8080": f"127.0.0.1:{self.port}",
            "0.0.0.0": "127.0.0.1",
            "/checkpoints": str(self.folder / "checkpoints"),
            "/models/policy": str(files.ROOT / "examples" / "demo" / "checkpoint"),
        }
        (self.folder / "data").mkdir()

    @property
    def url(self) -> str:
        """Where the proxy of the compose file is here."""
        return f"http://127.0.0.1:{self.port}"

    def here(self, word: str) -> str:
        """A word of the files as it must be here."""
        for there, place in self.places.items():
            word = word.replace(there, place)
        return word

    def command(self, words: list[str]) -> list[str]:
        """A command of the files as it must be here."""
        program = {"mosaic": [sys.executable, "-m", "mosaic"], "python": [sys.executable]}[words[0]]
        return [*program, *(self.here(word) for word in words[1:])]

    def environment(self, image: files.Image, service: Mapping[str, Any], *, locked: bool) -> dict[str, str]:
        """A container's variables: the image's, the service's, and nothing of the developer's own settings."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("MOSAIC_")}
        ours = {**image.environment, **service.get("environment", {})}
        ours = {k: self.here(v) for k, v in ours.items() if k != "PATH"}
        path = [str(files.ROOT)]
        if locked:
            stand_in = self.folder / "locked"
            stand_in.mkdir(exist_ok=True)
            shutil.copy(Path(__file__).with_name("only_locked.py"), stand_in / "sitecustomize.py")
            path.insert(0, str(stand_in))
            ours["ONLY_LOCKED"] = str(files.ROOT / "requirements" / "proxy.txt")
        secrets = str(self.folder / "secrets")
        ports = {"MOSAIC_SECRETS": secrets, "MOSAIC_PORT": str(self.port), "OMP_NUM_THREADS": "1"}
        return {**kept, **ours, **ports, "PYTHONPATH": os.pathsep.join(path)}

    def start(self, name: str, words: list[str] | None = None) -> subprocess.Popen[bytes]:
        """Start what a service of the compose file runs, or `words` in its container."""
        service = self.services[name]
        image = files.image_of(service)
        locked = service["build"]["dockerfile"].endswith("proxy.Dockerfile")
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                self.command(words or files.command_of(service)),
                cwd=self.folder / "data",
                env=self.environment(image, service, locked=locked),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def run(self, name: str, words: list[str] | None = None) -> int:
        """The exit code of what a service runs."""
        with self.start(name, words) as process:
            return process.wait(120)

    def said(self, name: str) -> str:
        """What the service printed."""
        return (self.folder / f"{name}.log").read_text()


@pytest.fixture
def postgres_url(postgres_server: Server) -> Iterator[str]:
    postgres_server.start()
    name = f"compose_{os.getpid()}"
    # As the secret has it: without a driver.
    yield postgres_server.create(name).replace("+psycopg", "")
    postgres_server.drop(name)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def stopped(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """As `docker stop` does it."""
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


async def trajectories(client: aiohttp.ClientSession, url: str) -> list[str]:
    async with client.get(f"{url}/api/trajectories") as response:
        return [found["trajectory_id"] for found in (await response.json())["items"]]


@pytest.mark.timeout(300)
async def test_the_compose_file_migrates_serves_and_schedules(postgres_url: str, tmp_path: Path) -> None:
    async with ScriptedEngine(lambda _: Turn("Hello")).serve() as upstream:
        machine = Machine(tmp_path, postgres_url, upstream, free_port())
        health = files.image(files.DOCKER / "proxy.Dockerfile").health
        assert machine.run("proxy", health) == 1, "nothing serves yet"
        assert machine.run("migrate") == 0, machine.said("migrate")
        with stopped(machine.start("proxy")) as proxy:
            await until(lambda: "mosaic serves" in machine.said("proxy") or proxy.poll() is not None, 60)
            call = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}
            headers = {"authorization": f"Bearer {KEY}"}
            async with aiohttp.ClientSession(headers=headers) as client:
                async with client.post(f"{machine.url}/t/run-17/v1/chat/completions", json=call) as response:
                    assert response.status == 200, machine.said("proxy")
                    assert response.headers["x-mosaic-call-id"].startswith("call-")
                async with asyncio.timeout(60):  # a writer that has just been started may take a while
                    while (listed := await trajectories(client, machine.url)) == []:  # noqa: ASYNC110 - one has to ask
                        await asyncio.sleep(0.1)
                assert listed == ["run-17"]
            async with aiohttp.ClientSession() as stranger, stranger.get(f"{machine.url}/metrics") as response:
                assert response.status == 401
            assert machine.run("proxy", health) == 0
            assert machine.run("proxy", ["mosaic", "--help"]) == 0, machine.said("proxy")
            with stopped(machine.start("trainer")) as trainer:
                await until(lambda: "mosaic schedules training jobs" in machine.said("trainer"), 60)
                assert trainer.poll() is None
                assert machine.run("trainer", files.image(files.DOCKER / "trainer.Dockerfile").health) == 0
                assert machine.run("trainer", ["mosaic", "train"]) == 6, "there is nothing to train"
            assert trainer.returncode == 0, machine.said("trainer")
        assert proxy.returncode == 0, machine.said("proxy")
    store = Store(postgres_url)
    assert [t.calls for t in store.trajectories()] == [1]
    store.close()


async def test_the_proxys_image_alone_serves_with_a_file_of_its_own(tmp_path: Path) -> None:
    """`docker run` without compose: what the image says, SQLite, one worker."""
    async with ScriptedEngine(lambda _: Turn("Hello")).serve() as upstream:
        machine = Machine(tmp_path, "unused", upstream, free_port())
        (tmp_path / "secrets" / "mosaic_database").unlink()
        build = {"dockerfile": "docker/proxy.Dockerfile"}
        machine.services["alone"] = {"build": build, "environment": {"MOSAIC_UPSTREAM": upstream}}
        with stopped(machine.start("alone")) as process:
            await until(lambda: "mosaic serves" in machine.said("alone") or process.poll() is not None, 60)
            call = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}
            async with (
                aiohttp.ClientSession(headers={"x-api-key": KEY}) as client,
                client.post(f"{machine.url}/v1/chat/completions", json=call) as response,
            ):
                assert response.status == 200
            assert machine.run("alone", ["python", "-c", "import hypothesis"]) == 1, "it is not in the lock"
        assert process.returncode == 0, machine.said("alone")
    assert (tmp_path / "data" / "var" / "mosaic.db").is_file()


def test_the_demos_image_runs_a_target_that_is_there() -> None:
    program, *rest = files.image(files.DOCKER / "demo.Dockerfile").command
    done = subprocess.run([program, "--dry-run", *rest], cwd=files.ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "examples.demo" in done.stdout) == (0, True), done.stderr


def test_secrets_are_made_once_and_fit_each_other(tmp_path: Path) -> None:
    script = tmp_path / "secrets.sh"
    shutil.copy(files.DOCKER / "secrets.sh", script)
    made = subprocess.run([script], capture_output=True, text=True, check=True)
    read = {file.name: file.read_text() for file in (tmp_path / "secrets").iterdir()}
    assert read["postgres_password"] in read["mosaic_database"]
    assert read["metrics_key"] in read["mosaic_api_keys"]
    assert made.stdout.strip() in read["mosaic_api_keys"]
    again = subprocess.run([script], capture_output=True, text=True, check=False)
    assert (again.returncode, "nothing is changed" in again.stderr) == (1, True)
