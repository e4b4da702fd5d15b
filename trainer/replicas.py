"""The engines that serve the policy: all of them, in one state, before a job does anything to them.

A process that died inside a swap leaves engines paused. No token is sampled by a paused engine, so what the database
says is live is loaded into it again before it goes on, and all replicas are back in one state.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import structlog

from mosaic.errors import EngineError, SettingsError
from mosaic.records import IdArray
from mosaic.settings import Settings
from trainer.engine_control import EngineControl
from trainer.nccl import check_devices
from trainer.probe import CheckpointLogprobs
from trainer.round import ADAPTER_CONFIG

MAX_GAP = 0.1
"""Largest mean |engine - checkpoint| logprob in nats at which an engine counts as serving that checkpoint."""
GAP_GROWTH, GAP_FLOOR = 4.0, 1e-3
"""An engine that does not say which weights it has may be so many times further off than when they were published; a
gap up to the floor, in nats, always counts as the checkpoint's. A small step of training moves logprobs by 0.01."""

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Live:
    """What engines have to serve."""

    checkpoint: Path
    version: int
    numbers: frozenset[int]
    """Every version that has these weights."""
    gap: float | None = None
    """Mean |engine - checkpoint| logprob in nats when these weights were published; None where that is not known."""


def controls(settings: Settings, policy: Path) -> list[EngineControl]:
    """The replicas, reached and asked for the name that they serve; `policy` tells weights from an adapter.

    Raises `EngineError`, and `SettingsError` where the names do not fit.
    """
    key = settings.upstream_api_key.get_secret_value() if settings.upstream_api_key is not None else None
    workers = 0
    if settings.train.transport == "nccl":
        check_devices()
        workers = settings.train.nccl_workers
    adapter, name = (policy / ADAPTER_CONFIG).is_file(), settings.policy_model
    found = []
    for url in (settings.upstream, *settings.replicas):
        control = EngineControl(
            base_url=url.rstrip("/").removesuffix("/v1"),
            api_key=key,
            adapter=adapter,
            pause_mode=settings.train.pause,
            nccl_workers=workers,
        )
        control.version()
        served = control.served_models()
        if adapter and (name is None or name not in served[1:]):
            raise SettingsError(
                f"{policy} is a LoRA adapter, but {control.shown} serves {', '.join(served)} and policy_model is "
                f"{name!r}.",
                'Start vLLM with --enable-lora --lora-modules policy=LINK, and set policy_model = "policy".',
            )
        found.append(replace(control, model=name or served[0]))
        if adapter:
            found[-1].adapter_link()
    return found


def running_engines(settings: Settings, live: Live, probe_ids_L: IdArray) -> list[EngineControl]:
    """The replicas, all serving what is said to be live. Raises `EngineError`, before anything is trained, when one
    cannot take new weights or serves others, as after a restart on older ones."""
    engines = controls(settings, live.checkpoint)
    recover(engines, live.checkpoint, live.version)
    own = CheckpointLogprobs()
    for engine in engines:
        allowed = _allowed_gap(engine, live)
        ids_L, said_N = engine.probe(probe_ids_L)
        gap = float(np.abs(said_N - own.last(live.checkpoint, ids_L, len(said_N))).mean())
        if not gap <= allowed:
            raise _refusal(engine, live, f"its logprobs are {gap:.2g} nats off {live.checkpoint}")
    return engines


def _allowed_gap(engine: EngineControl, live: Live) -> float:
    """How far off an engine may be, by what it says of its weights. Raises `EngineError` when it names others."""
    said = engine.version()
    if live.version and said is not None:
        root = engine.root()
        if said.isdecimal():
            if int(said) not in live.numbers:
                raise _refusal(engine, live, f"it says that it has version {said}")
        elif root is None or root.resolve() != live.checkpoint.resolve():
            raise _refusal(engine, live, f"it was started on {root} and given no weights since")
    elif live.gap is not None:
        return min(MAX_GAP, max(GAP_FLOOR, GAP_GROWTH * live.gap))
    return MAX_GAP


def _refusal(engine: EngineControl, live: Live, why: str) -> EngineError:
    return EngineError(
        f"the engine {engine.shown} does not serve version {live.version}: {why}, so its newest calls are not "
        "the live policy's.",
        f"Restart it with --model {live.checkpoint}."
        if not engine.adapter
        else f"Let the link of --lora-modules {engine.model}=LINK point to {live.checkpoint}, and restart it.",
    )


def recover(engines: Sequence[EngineControl], live: Path, version: int) -> None:
    """Let engines that a dead process left paused serve the live version again; hold the training lease meanwhile."""
    for engine in engines:
        if engine.is_paused():
            log.warning("an engine was left paused", engine=engine.base_url, loading=version)
            engine.load(live, version)
            engine.resume()
