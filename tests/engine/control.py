"""An engine's control endpoints on a real socket, with a checkpoint behind them, as vLLM 0.32 has them.

Its logprobs are the checkpoint's own, computed by transformers; a paused one answers no completion until it is resumed.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from trainer.probe import checkpoint_logprobs


@dataclass
class ServedCheckpoint:
    """One replica. Use as `with ServedCheckpoint(folder).serving() as url`."""

    path: Path
    version: str | None = None
    names: tuple[str, ...] = ("policy",)
    """Models that it serves; an adapter is asked for by the last of them."""
    link: Path | None = None
    """Where it reads its adapter, if it has one."""
    refuses: Callable[[Path], bool] = lambda _path: False
    """Which checkpoints it says that it loaded, and does not."""
    paused: bool = False
    journal: list[str] = field(default_factory=list)
    """What was asked of it, in order."""
    on_load: Callable[[Path], None] = lambda _path: None
    """Called when a checkpoint is to be loaded, before it is."""
    resumed: threading.Event = field(default_factory=threading.Event)
    started_on: Path = field(init=False)

    def __post_init__(self) -> None:
        self.started_on = self.path
        self.resumed.set()

    def restart(self, path: Path, version: str | None) -> None:
        """Come up anew on a checkpoint, saying this of its weights (`default`; nothing, in an older release)."""
        self.path, self.started_on, self.version = path, path, version

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Serve on a free loopback port; yields the URL up to and with /v1."""
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            self.resumed.set()
            server.shutdown()
            thread.join()
            server.server_close()

    def answer(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """What the engine does and says."""
        match path:
            case "/v1/models":
                return {"data": [{"id": name, "root": str(self.link or self.started_on)} for name in self.names]}
            case "/weight_info":
                return {"weight_version": self.version}
            case "/is_paused":
                return {"is_paused": self.paused}
            case "/v1/completions":
                return self._logprobs(body)
            case "/weight_checker":
                return {"checksums": {"weight": str(self.path)}}
        self.journal.append(path)
        results: list[Any] = []
        if path == "/pause":
            self.paused = True
            self.resumed.clear()
        elif path == "/resume":
            self.paused = False
            self.resumed.set()
        elif path == "/collective_rpc":
            results = self._call_worker(body["method"], body["kwargs"])
        elif path == "/update_weight_version":
            self.version = body["new_version"]
        return {"success": True, "results": results}

    def _call_worker(self, method: str, arguments: dict[str, Any]) -> list[Any]:
        if method == "list_loras":
            return [[1]]
        if method == "remove_lora":
            assert self.link is not None
            self._load(self.link.resolve())  # the real one reads it at its next step
        else:
            self._load(Path(arguments["weights_path"]))
        return [None]

    def _load(self, path: Path) -> None:
        self.on_load(path)
        if not self.refuses(path):
            self.path = path

    def _logprobs(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self.resumed.wait(20), "asked while it was paused, and never resumed"
        if "prompt_logprobs" not in body:
            return self._continuation(body)
        ids_L = np.asarray(body["prompt"], np.int32)
        values = checkpoint_logprobs(self.path, ids_L).tolist()
        entries = [{str(i): {"logprob": v}} for i, v in zip(ids_L[1:].tolist(), values, strict=True)]
        return {"choices": [{"prompt_logprobs": [None, *entries]}]}

    def _continuation(self, body: dict[str, Any]) -> dict[str, Any]:
        """As many tokens as are asked for: not what a model would sample, but with the checkpoint's logprobs."""
        sampled = [(body["prompt"][-1] + 7 * n) % 256 for n in range(1, body["max_tokens"] + 1)]
        values = checkpoint_logprobs(self.path, np.asarray(body["prompt"] + sampled, np.int32))[-len(sampled) :]
        return {"choices": [{"token_ids": sampled, "logprobs": {"token_logprobs": values.tolist()}}]}


def _handler(engine: ServedCheckpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply({})

        def do_POST(self) -> None:
            self._reply(json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}"))

        def _reply(self, body: dict[str, Any]) -> None:
            path = urlsplit(self.path).path
            answer = engine.answer(path, body)
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            """Tests read what happens from the journal."""

    return Handler
