"""A vLLM server of our own, as a child process: start, wait until healthy, stop.

The demo and the tests use it; in production the engine is somebody else's. The child runs in a process group of its
own, so that stopping it takes its workers along; it is stopped when the `with` block ends, however that comes about
(Ctrl-C included), and at the latest when this interpreter exits. A signal that ends this process without an exception
(SIGKILL, or SIGTERM without a handler) leaves it running.
"""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from mosaic.errors import EngineError

_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Pinned threads of two processes on two cores wait for each other.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Opens the endpoints that swap weights; they must never be reachable through the proxy.
    "VLLM_SERVER_DEV_MODE": "1",
}
GONE_S = 5.0
"""Seconds that killed processes get to be gone."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How to start the engine."""

    model_dir: Path
    log_path: Path
    """Takes the output of the engine; appended to."""
    port: int = 0
    """Loopback port; 0 picks a free one."""
    served_model_name: str = "policy"
    max_model_len: int = 4096
    """Longest context in tokens, prompt and completion."""
    max_num_seqs: int = 64
    """Most requests in one batch."""
    dtype: str = "float32"
    threads: int = 2
    """CPU threads of the engine."""
    kv_cache_gib: int = 2
    """Memory for the KV cache on the CPU, in GiB."""
    extra_args: tuple[str, ...] = field(default=())
    """Further command-line arguments, for example `("--enable-lora", "--max-lora-rank", "16")`."""
    start_deadline: float = 300.0
    """Seconds within which the engine must be healthy."""


class Engine:
    """A running vLLM; use it as a context manager.

    with Engine(EngineSettings(model_dir, log_path)) as engine:
        post(engine.base_url + "/v1/completions", ...)
    """

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.port = settings.port or free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        """Root of the server; the OpenAI API is under /v1."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id, which is also the process group's; None while it is not running."""
        return None if self._process is None else self._process.pid

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:  # Ctrl-C while it loads must not leave it behind either
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def command(self) -> list[str]:
        """Return the command line; the `vllm` script itself does not work with the CPU build."""
        settings = self.settings
        return [
            *(sys.executable, "-m", "vllm.entrypoints.openai.api_server"),
            *("--model", str(settings.model_dir), "--served-model-name", settings.served_model_name),
            *("--host", "127.0.0.1", "--port", str(self.port), "--dtype", settings.dtype, "--enforce-eager"),
            *("--max-model-len", str(settings.max_model_len), "--max-num-seqs", str(settings.max_num_seqs)),
            *settings.extra_args,
        ]

    def start(self) -> None:
        """Start the engine and return once it is healthy.

        Raises EngineError when it dies or misses its deadline, with the path and the end of its log.
        """
        settings = self.settings
        environment = os.environ | _ENVIRONMENT
        environment |= {"VLLM_CPU_KVCACHE_SPACE": str(settings.kv_cache_gib), "OMP_NUM_THREADS": str(settings.threads)}
        settings.log_path.parent.mkdir(parents=True, exist_ok=True)
        atexit.register(self.stop)
        with settings.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + settings.start_deadline
        while not self.is_healthy():
            if self._process.poll() is not None:
                raise self._failure(f"The engine exited with status {self._process.returncode} while starting")
            if time.monotonic() > deadline:
                raise self._failure(f"The engine was not healthy within {settings.start_deadline:.0f} s")
            time.sleep(0.25)

    def is_healthy(self) -> bool:
        """Return whether the engine answers."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback: never through a web proxy
        try:
            with opener.open(self.base_url + "/health", timeout=2) as reply:
                return int(reply.status) == 200
        except (OSError, urllib.error.URLError):
            return False

    def stop(self, patience: float = 15.0) -> None:
        """Stop the engine and all its children: SIGTERM, and SIGKILL after `patience` seconds. Harmless if stopped."""
        process, self._process = self._process, None
        atexit.unregister(self.stop)
        if process is None:
            return
        try:
            _signal_group(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(patience)
        finally:  # also when a second Ctrl-C falls into the wait
            _signal_group(process.pid, signal.SIGKILL)
            process.wait()
            _await_end(process.pid)

    def _failure(self, what: str) -> EngineError:
        tail = self.settings.log_path.read_bytes()[-1500:].decode(errors="replace")
        return EngineError(f"{what}. Its log ends with:\n{tail}\n", f"See {self.settings.log_path}.")


def free_port() -> int:
    """Return a loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _signal_group(group: int, number: int) -> bool:
    """Whether anybody is left to hear it: the group outlives its leader while a worker is there."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


def _await_end(group: int) -> None:
    """Wait for killed processes to be gone; where nobody reaps them they stay, and are not waited for long."""
    deadline = time.monotonic() + GONE_S
    while _signal_group(group, 0) and time.monotonic() < deadline:
        time.sleep(0.02)
