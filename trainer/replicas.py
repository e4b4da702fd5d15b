"""The engines that serve the policy: all of them, in one state, before a job does anything to them.

A process that died inside a swap leaves engines paused. No token is sampled by a paused engine, so what the database
says is live is loaded into it again before it goes on, and all replicas are back in one state.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import structlog

from mosaic.errors import EngineError
from mosaic.records import IdArray
from mosaic.settings import Settings
from trainer.engine_control import EngineControl
from trainer.probe import checkpoint_logprobs

MAX_GAP = 0.1
"""Largest mean |engine - checkpoint| logprob in nats at which an engine counts as serving that checkpoint."""

log = structlog.get_logger()


def controls(settings: Settings) -> list[EngineControl]:
    """The replicas, reached and asked for the name that they serve. Raises `EngineError`."""
    key = settings.upstream_api_key.get_secret_value() if settings.upstream_api_key is not None else None
    found = []
    for url in (settings.upstream, *settings.replicas):
        control = EngineControl(url.rstrip("/").removesuffix("/v1"), api_key=key)
        control.version()
        found.append(replace(control, model=control.served_model()))
    return found


def running_engines(settings: Settings, live: Path, version: int, probe_ids_L: IdArray) -> list[EngineControl]:
    """The replicas, all serving what is said to be live. Raises `EngineError`, before anything is trained, when one
    cannot take new weights or serves others: an engine that was restarted on older ones says nothing of it."""
    engines = controls(settings)
    recover(engines, live, version)
    expected_L = checkpoint_logprobs(live, probe_ids_L)
    for engine in engines:
        gap = float(np.abs(engine.logprobs(probe_ids_L) - expected_L).mean())
        if not gap <= MAX_GAP:
            raise EngineError(
                f"the engine {engine.base_url} does not serve version {version}: its logprobs are {gap:.2g} nats off "
                f"{live}, and its newest calls carry a wrong version.",
                f"Restart it with --model {live}.",
            )
    return engines


def recover(engines: Sequence[EngineControl], live: Path, version: int) -> None:
    """Let engines that a dead process left paused serve the live version again; hold the training lease meanwhile."""
    for engine in engines:
        if engine.is_paused():
            log.warning("an engine was left paused", engine=engine.base_url, loading=version)
            engine.load(live, version)
            engine.resume()
