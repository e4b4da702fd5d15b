"""The proxy and the agent worker as processes of their own: started here, watched, and stopped whatever happens."""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from mosaic.errors import EngineError, MosaicError


class DemoError(MosaicError):
    """A link of the chain failed; the message says which."""


class _Process:
    """A child process with a log, terminated on exit."""

    name = ""

    def __init__(self, command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._command = command
        self._log = log
        self._environment = {**os.environ, **(environment or {})}
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.communicate()

    def check(self) -> None:
        """Raise `DemoError` when the process has died."""
        if self.process is not None and self.process.poll() is not None:
            raise DemoError(f"{self.name} died with code {self.process.returncode}.", f"Its log is {self._log}.")


class ProxyProcess(_Process):
    """`mosaic serve` on a given port."""

    name = "the proxy"

    def __init__(self, port: int, upstream: str, database: str, folder: Path) -> None:
        command = [sys.executable, "-m", "mosaic", "serve", "--port", str(port), "--upstream", upstream]
        environment = {"MOSAIC_DATABASE": database, "MOSAIC_SPOOL": str(folder / "spool")}
        super().__init__(command, folder / "proxy.log", environment)
        self.url = f"http://127.0.0.1:{port}"

    def wait(self, seconds: float = 60) -> None:
        """Return once it answers."""
        deadline = time.monotonic() + seconds
        while True:
            self.check()
            try:
                self.get("/api/health")
                return
            except (urllib.error.URLError, ConnectionError):
                if time.monotonic() > deadline:
                    raise DemoError(
                        f"the proxy did not answer in {seconds:.0f} s.", f"Its log is {self._log}."
                    ) from None
                time.sleep(0.1)

    def get(self, path: str) -> Any:
        """Read from the control API."""
        with urllib.request.urlopen(self.url + path, timeout=30) as response:
            return json.load(response)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Write to the control API."""
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"content-type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            raise DemoError(f"the proxy answered {error.code} to {path}: {error.read().decode()}") from error
        except OSError as error:
            self.check()
            raise DemoError(f"the proxy cannot be reached: {error}.", f"Its log is {self._log}.") from error


class AgentWorker(_Process):
    """deepagents, many attempts at once: jobs in, results out."""

    name = "the agent worker"

    def __init__(self, folder: Path, concurrency: int) -> None:
        command = [sys.executable, "-m", "examples.demo.agent", "--concurrency", str(concurrency)]
        super().__init__(command, folder / "agent.log")

    def work(self, jobs: Iterable[Mapping[str, Any]], on_result: Callable[[dict[str, Any]], None]) -> None:
        """Hand in the jobs and report each result as it comes."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        waiting = 0
        for job in jobs:
            self.process.stdin.write(json.dumps(job) + "\n")
            waiting += 1
        self.process.stdin.flush()
        while waiting:
            line = self.process.stdout.readline()
            if not line:
                self.process.wait(20)
                self.check()
                raise EngineError("the agent worker closed its output.", f"Its log is {self._log}.")
            on_result(json.loads(line))
            waiting -= 1
