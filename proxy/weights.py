"""Whether the engines serve the weights that the database says are live.

An engine that is restarted has the weights that it was started on, whatever the database says. All its connections end
with it, so an engine is asked again once a connection to it was opened, and, while it serves others, every now and
then. What others sampled is recorded as `other_weights`, and never trained.
"""

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from mosaic.errors import StoreError
from mosaic.settings import Settings
from mosaic.store import Store
from mosaic.store.policies import PolicyVersion, serves
from proxy.lookups import Lookups
from proxy.upstream import Target, Upstream

AGAIN_S = 2.0
"""Seconds within which an engine is not asked twice: no vLLM starts in so short a time."""
NO_ANSWER = (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError, AttributeError, StoreError)

log = structlog.get_logger()


@dataclass(slots=True)
class _Known:
    """What is known of one engine."""

    live: bool = True
    connections: int = 0
    """How many had been opened when it was asked."""
    asked_at: float = float("-inf")
    asking: asyncio.Future[None] | None = None


class Weights:
    """One worker's knowledge. Used by one event loop. Engines that do not say what they serve are believed."""

    def __init__(self, settings: Settings, store: Store, upstream: Upstream, lookups: Lookups) -> None:
        self._model = settings.policy_model
        self._store = store
        self._upstream = upstream
        self._lookups = lookups
        self._known: dict[str, _Known] = {}

    def look(self, target: Target) -> None:
        """An engine has begun to answer a call: it is asked meanwhile, if it may have been restarted."""
        if not target.trained:
            return
        if (known := self._known.get(target.base)) is None:
            known = self._known[target.base] = _Known()
        opened, now = self._upstream.connections, time.monotonic()
        if known.asking is None and (known.connections != opened or not known.live) and now > known.asked_at + AGAIN_S:
            known.connections, known.asked_at = opened, now
            known.asking = asyncio.ensure_future(self._ask(target, known))

    async def live(self, target: Target) -> bool:
        """Whether the live weights answered a call that `look` has seen and that ends now."""
        known = self._known.get(target.base)
        if known is None or not target.trained:
            return True
        if known.asking is not None:
            await asyncio.wait([known.asking])
        return known.live

    async def _ask(self, target: Target, known: _Known) -> None:
        before = known.live
        try:
            versions = await self._lookups.ask_now(self._store.versions)
            newest = next((one for one in reversed(versions) if one.state == "live"), None)
            if newest is not None:
                said, root = await self._said(target.base)
                known.live = serves(versions, said, root) is not False
                if known.live != before:
                    _tell(target, newest, known.live, f"version {said}" if (said or "").isdecimal() else str(root))
            known.connections = self._upstream.connections  # asking may have opened some
        except NO_ANSWER as error:
            known.connections = -1
            log.debug("the engine's weights are not known", engine=target.shown, error=str(error) or repr(error))
        finally:
            known.asking = None

    async def _said(self, base: str) -> tuple[str | None, Path | None]:
        """An engine's `weight_version`, None where it does not tell, and the folder that it started on."""
        status, told = await self._upstream.get(f"{base.removesuffix('/v1')}/weight_info")
        said = told.get("weight_version") if status == 200 else None
        _, listed = await self._upstream.get(f"{base}/models")
        return None if said is None else str(said), _root(listed["data"], self._model)


def _tell(target: Target, newest: PolicyVersion, live: bool, has: str) -> None:
    if live:
        log.info("the engine serves the live weights again", engine=target.shown, version=newest.version)
        return
    log.error(
        "the engine serves other weights than the live ones; its calls are recorded, but never trained",
        engine=target.shown,
        has=has,
        version=newest.version,
        next_step=f"restart it with --model {newest.path}",
    )


def _root(models: list[dict[str, Any]], name: str | None) -> Path | None:
    """The folder of the policy; None where it is not said, or is a link that this machine does not see."""
    model = next((one for one in models if name in (None, one["id"])), {})
    root = model.get("root")
    if not isinstance(root, str) or "\0" in root or (model.get("parent") and not Path(root).exists()):
        return None
    return Path(root)
