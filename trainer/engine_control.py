"""The control endpoints of one vLLM replica: pause, load, count versions, resume, and read logprobs.

They exist only with `VLLM_SERVER_DEV_MODE=1`, and must never be reachable through the proxy. Run against vLLM 0.32.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mosaic.errors import EngineError
from mosaic.records import IdArray, LogprobArray
from mosaic.settings import Settings


@dataclass(frozen=True, slots=True)
class EngineControl:
    """One replica."""

    base_url: str
    """Root of the server, without /v1."""
    model: str = "policy"
    """Served model name."""
    api_key: str | None = None
    """Sent as a bearer token; None sends none."""
    timeout: float = 120.0
    """Seconds for one request; pausing waits for the running batch, and a probe for its turn."""
    load_timeout: float = 900.0
    """Seconds for loading a checkpoint."""

    def pause(self) -> None:
        """Freeze all requests, running and new; they go on after `resume`."""
        self._call("/pause?mode=keep", {})

    def resume(self) -> None:
        """Let frozen requests go on; harmless when nothing is paused."""
        self._call("/resume", {})

    def is_paused(self) -> bool:
        """Return whether generation is paused."""
        return bool(self._call("/is_paused", None)["is_paused"])

    def load(self, checkpoint: Path, version: int) -> None:
        """Load a checkpoint's weights in place, name them `version` and drop every KV value of the old ones.

        Frozen requests give up their KV cache as well and are prefilled again with the new weights. Otherwise they
        would keep its blocks, vLLM would then keep the whole prefix cache (`success: false`), and new tokens would be
        sampled from a mixture of old and new weights whose logprobs no trainer can reproduce.
        """
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(checkpoint.resolve())}}
        self._call("/collective_rpc", body, self.load_timeout)
        self._call("/update_weight_version", {"new_version": str(version)})
        if not self._call("/reset_prefix_cache?reset_running_requests=true", {})["success"]:
            raise EngineError(f"{self.base_url} did not drop the KV cache of the old weights.", "Restart the engine.")

    def version(self) -> str | None:
        """Return the version that the engine believes to serve, as set by `load`."""
        value = self._call("/weight_info", None)["weight_version"]
        return None if value is None else str(value)

    def served_model(self) -> str:
        """Return the first model name that the engine serves: the base model, not an adapter."""
        served = self._call("/v1/models", None).get("data") or []
        if not served:
            raise EngineError(f"{self.base_url} serves no model.", "Start it with --model.")
        return str(served[0]["id"])

    def checksums(self) -> dict[str, str]:
        """Return a checksum per weight tensor, in the engine's own layout; works while paused."""
        reply = self._call("/weight_checker", {"action": "checksum"}, self.load_timeout)
        return dict(reply["checksums"])

    def logprobs(self, ids_L: IdArray) -> LogprobArray:
        """Return the natural-log probability of each given token after the first: float32, (L-1,)."""
        body = {"model": self.model, "prompt": ids_L.tolist(), "max_tokens": 1, "prompt_logprobs": 0, "temperature": 0}
        choice = self._call("/v1/completions", body)["choices"][0]
        entries = choice["prompt_logprobs"][1:]
        values = [entry[str(token)]["logprob"] for entry, token in zip(entries, ids_L[1:].tolist(), strict=True)]
        return np.asarray(values, dtype=np.float32)

    def tokenize(self, body: Mapping[str, Any]) -> list[int]:
        """Return the token ids of a text (`prompt`) or of a rendered conversation (`messages`, `tools`)."""
        ids: list[int] = self._call("/tokenize", {"model": self.model, **body})["tokens"]
        return ids

    def continuation_logprobs(self, ids_L: Sequence[int], continuation: Sequence[int]) -> tuple[list[float], int]:
        """Return the natural-log probability of each token of a continuation, and how many prompt tokens were cached.

        One request with a prompt per token, each asking for the logprob of the token that comes next: unlike
        `prompt_logprobs`, which makes vLLM compute the whole prompt again, this reads the prefix cache.
        """
        prompts = [[*ids_L, *continuation[:n]] for n in range(len(continuation))]
        wanted = sorted(set(continuation))
        body = {"model": self.model, "prompt": prompts, "max_tokens": 1, "temperature": 0, "logprobs": len(wanted)}
        reply = self._call("/v1/completions", {**body, "logprob_token_ids": wanted, "return_tokens_as_token_ids": True})
        choices = sorted(reply["choices"], key=lambda choice: choice["index"])
        rows = [choice["logprobs"]["top_logprobs"][0] for choice in choices]
        details = (reply.get("usage") or {}).get("prompt_tokens_details") or {}
        values = [float(row[f"token_id:{token}"]) for row, token in zip(rows, continuation, strict=True)]
        return values, int(details.get("cached_tokens") or 0)

    def _call(self, path: str, body: dict[str, Any] | None, timeout: float | None = None) -> dict[str, Any]:
        """POST the body, or GET without one; raise EngineError unless the answer is a 2xx."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        if self.api_key is not None:
            headers["authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(self.base_url + path, data, headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout or self.timeout) as reply:
                content = reply.read()
        except urllib.error.HTTPError as error:
            detail = error.read()[:500].decode(errors="replace")
            hint = "Start vLLM with VLLM_SERVER_DEV_MODE=1." if error.code == 404 else "See the engine's log."
            raise EngineError(f"{self.base_url}{path} answered {error.code}: {detail}", hint) from error
        except OSError as error:  # URLError and time-outs included
            reason = getattr(error, "reason", error)
            raise EngineError(
                f"the engine at {self.base_url} cannot be reached ({reason}).",
                "Check that the engine runs (`upstream` in mosaic.toml, or --upstream).",
            ) from error
        try:
            parsed = json.loads(content) if content else {}
        except ValueError as error:
            raise EngineError(f"{self.base_url}{path} answered with no JSON.", "Check that it is vLLM.") from error
        return parsed if isinstance(parsed, dict) else {"value": parsed}


def engine_control(settings: Settings) -> EngineControl:
    """The engine of the settings, by the name of what it serves. Raises `EngineError` when it is down."""
    key = settings.upstream_api_key.get_secret_value() if settings.upstream_api_key is not None else None
    control = EngineControl(settings.upstream.rstrip("/").removesuffix("/v1"), api_key=key)
    return replace(control, model=control.served_model())
