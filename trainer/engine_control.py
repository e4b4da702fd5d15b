"""The control endpoints of one vLLM replica: pause, load, count versions, resume, and read logprobs.

They exist only with `VLLM_SERVER_DEV_MODE=1`, and must never be reachable through the proxy. Run against vLLM 0.32.
"""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mosaic.errors import EngineError
from mosaic.records import IdArray, LogprobArray
from mosaic.settings import Settings
from mosaic.store.policies import started_on
from mosaic.urls import shown_url

PauseMode = Literal["keep", "wait", "abort"]
PROBE_SAMPLES = 64
"""Most tokens that a probe of an adapter samples."""


@dataclass(frozen=True, slots=True)
class EngineControl:
    """One replica."""

    base_url: str
    """Root of the server, without /v1."""
    model: str = "policy"
    """Served model name; an adapter's own, where the policy is one."""
    adapter: bool = False
    """Whether `load` gives `model`, a LoRA adapter, other weights, instead of loading the engine's own in place."""
    pause_mode: PauseMode = "keep"
    nccl_workers: int = 0
    """GPUs of the engine, to which weights are sent by NCCL; 0: it reads them from the checkpoint's folder."""
    api_key: str | None = None
    """Sent as a bearer token; None sends none."""
    timeout: float = 120.0
    """Seconds for one request; pausing waits for the running batch, and a probe for its turn."""
    load_timeout: float = 900.0
    """Seconds for loading a checkpoint."""

    @property
    def shown(self) -> str:
        """Its address without what opens its door."""
        return shown_url(self.base_url)

    def pause(self) -> None:
        """Stop generation; new requests wait for `resume`. Those that run are frozen (`keep`), ended first (`wait`: as
        long as the longest takes), or cut short with what they have (`abort`: their clients see an early end)."""
        self._call(f"/pause?mode={self.pause_mode}", {}, self.load_timeout)

    def resume(self) -> None:
        """Let frozen requests go on; harmless when nothing is paused."""
        self._call("/resume", {})

    def is_paused(self) -> bool:
        """Return whether generation is paused."""
        return bool(self._call("/is_paused", None)["is_paused"])

    def load(self, checkpoint: Path, version: int) -> None:
        """Load a checkpoint (its weights in place, or as the adapter), name it `version` and drop every KV value of the
        old ones.

        Frozen requests give up their KV cache as well and are prefilled again with the new weights. Otherwise they
        would keep its blocks, vLLM would then keep the whole prefix cache (`success: false`), and new tokens would be
        sampled from a mixture of old and new weights whose logprobs no trainer can reproduce.
        """
        if self.adapter:
            self._switch_adapter(checkpoint.resolve())
        elif self.nccl_workers:
            from trainer.nccl import send

            send(self.base_url, checkpoint, self.nccl_workers)
        else:
            self._call_workers("reload_weights", weights_path=str(checkpoint.resolve()))
        self._call("/update_weight_version", {"new_version": str(version)})
        if not self._call("/reset_prefix_cache?reset_running_requests=true", {})["success"]:
            raise EngineError(f"{self.shown} did not drop the KV cache of the old weights.", "Restart the engine.")

    def _switch_adapter(self, folder: Path) -> None:
        """Point the adapter's link to another folder and let the engine forget what it has read: its next step reads
        the adapter anew, for all requests.

        vLLM's own in-place load would not do. In 0.32 each request keeps the path that it began with and, once an
        adapter was loaded in place, reads it again at every step: a frozen request brings the old weights back, for the
        whole batch (run; vllm-project/vllm#33791).
        """
        link = self.adapter_link()
        if not (folder / "adapter_model.safetensors").is_file():
            raise EngineError(f"{folder} holds no adapter.", "Give a folder with adapter_model.safetensors.")
        beside = link.with_name(f".{link.name}-{os.getpid()}")
        beside.unlink(missing_ok=True)
        beside.symlink_to(folder)
        beside.replace(link)
        for adapter_id in self._call_workers("list_loras")[0]:
            self._call_workers("remove_lora", lora_id=adapter_id)

    def adapter_link(self) -> Path:
        """Return the symbolic link from which the engine reads the adapter. Raises EngineError when it is none."""
        root = self.root() or Path()
        if not root.is_absolute() or not root.is_symlink():
            raise EngineError(
                f"{self.shown} reads the adapter {self.model!r} from {root}, which is no absolute symbolic link.",
                f"Make one (ln -s FOLDER LINK; `mosaic policy adapter` does) and start vLLM with --lora-modules "
                f"{self.model}=LINK.",
            )
        return root

    def root(self) -> Path | None:
        """Return the folder from which the engine says that it had the model when it started."""
        served = self._call("/v1/models", None).get("data") or []
        return started_on(served, self.model)

    def version(self) -> str | None:
        """Return the version that the engine believes to serve, as set by `load`; a word of its own before that."""
        value = self._call("/weight_info", None)["weight_version"]
        return None if value is None else str(value)

    def served_models(self) -> list[str]:
        """Return the model names that the engine serves: the base model's first, then adapters'."""
        served = self._call("/v1/models", None).get("data") or []
        if not served:
            raise EngineError(f"{self.shown} serves no model.", "Start it with --model.")
        return [str(model["id"]) for model in served]

    def checksums(self) -> dict[str, str] | None:
        """Return a checksum per weight tensor, in the engine's own layout; works while paused. None for an adapter,
        whose weights vLLM does not count among the model's."""
        if self.adapter:
            return None
        reply = self._call("/weight_checker", {"action": "checksum"}, self.load_timeout)
        return dict(reply["checksums"])

    def probe(self, ids_L: IdArray) -> tuple[IdArray, LogprobArray]:
        """Return token ids (L,) and the natural-log probabilities (n,) of the last n of them, n < L.

        They are the given ids and all but the first, or, for an adapter, some of them and a greedy continuation:
        `prompt_logprobs` beside other requests ends vLLM 0.32's CPU engine when LoRA is enabled (run).
        """
        return self._continued(ids_L) if self.adapter else (ids_L, self.logprobs(ids_L))

    def _continued(self, ids_L: IdArray) -> tuple[IdArray, LogprobArray]:
        n_sampled = min(PROBE_SAMPLES, max(1, len(ids_L) // 2))
        given = ids_L[: max(1, len(ids_L) - n_sampled)].tolist()
        body = {"model": self.model, "prompt": given, "max_tokens": n_sampled, "temperature": 0, "logprobs": 0}
        choice = self._call("/v1/completions", {**body, "return_token_ids": True, "ignore_eos": True})["choices"][0]
        whole_L = np.asarray(given + choice["token_ids"], dtype=np.int32)
        return whole_L, np.asarray(choice["logprobs"]["token_logprobs"], dtype=np.float32)

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

    def _call_workers(self, method: str, **arguments: Any) -> list[Any]:
        """Call a method of the engine's workers; return what each of them answered."""
        answer = self._call("/collective_rpc", {"method": method, "kwargs": arguments}, self.load_timeout)
        return list(answer.get("results") or [])

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
            raise EngineError(f"{self.shown}{path} answered {error.code}: {detail}", hint) from error
        except OSError as error:  # URLError and time-outs included
            reason = getattr(error, "reason", error)
            raise EngineError(
                f"the engine at {self.shown} cannot be reached ({reason}).",
                "Check that the engine runs (`upstream` in mosaic.toml, or --upstream).",
            ) from error
        try:
            parsed = json.loads(content) if content else {}
        except ValueError as error:
            raise EngineError(f"{self.shown}{path} answered with no JSON.", "Check that it is vLLM.") from error
        return parsed if isinstance(parsed, dict) else {"value": parsed}


def engine_control(settings: Settings) -> EngineControl:
    """The engine of the settings, by the name of what it serves. Raises `EngineError` when it is down."""
    key = settings.upstream_api_key.get_secret_value() if settings.upstream_api_key is not None else None
    control = EngineControl(settings.upstream.rstrip("/").removesuffix("/v1"), api_key=key)
    return replace(control, model=settings.policy_model or control.served_models()[0])
