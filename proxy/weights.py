"""Whether the engines serve the weights that the database says are live.

An engine that is restarted has the weights that it was started on, whatever the database says. All its connections end
with it, so an engine is asked again once a connection to it was opened, and, while it serves others, every now and
then. What others sampled is recorded as `other_weights`, what an engine sampled that could not be asked as
`weights_unknown`, and neither is trained.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import structlog

from mosaic.errors import StoreError
from mosaic.lease import is_taken
from mosaic.settings import Settings
from mosaic.store import Store
from mosaic.store.policies import LEASE, PolicyVersion, live_of, serves, started_on
from proxy.lookups import Lookups
from proxy.upstream import Target, Upstream

OTHER, UNKNOWN = "other_weights", "weights_unknown"
AGAIN_S = 2.0
"""Seconds within which an engine is not asked twice: no vLLM starts in so short a time."""
MOST_AGAIN = 4
"""How many times that, at most, between questions that get no answer."""
ASK_S = 5.0
"""Seconds that a question may take, and the first call that waits for it."""
DOES_NOT_TELL = frozenset({404, 405})
"""Statuses of an engine without vLLM's developer mode."""
NO_ANSWER = (
    aiohttp.ClientError,
    TimeoutError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    StoreError,
)

log = structlog.get_logger()

Asked = asyncio.Future[str | None] | str | None
"""Why a call is not the live policy's (None: it is), or the question to the engine that will tell."""


@dataclass(slots=True)
class _Known:
    """What is known of one engine."""

    why: str | None = None
    """Why its calls are not the live policy's; None while they are."""
    connections: int = 0
    """How many had been opened when it was asked."""
    asked_at: float = float("-inf")
    failures: int = 0
    """Questions without an answer since the last one that had one."""
    asking: asyncio.Future[str | None] | None = None

    def due(self, connections: int, now: float) -> bool:
        """Whether it may have been restarted, or may have been put right, since it was asked."""
        if self.asking is not None or (self.why is None and self.connections == connections):
            return False
        return now > self.asked_at + AGAIN_S * min(1 + self.failures, MOST_AGAIN)


class Weights:
    """One worker's knowledge. Used by one event loop. Engines that do not say what they serve are believed."""

    def __init__(self, settings: Settings, store: Store, upstream: Upstream, lookups: Lookups) -> None:
        self._model = settings.policy_model
        self._store = store
        self._upstream = upstream
        self._lookups = lookups
        self._known: dict[str, _Known] = {}
        self._read_last: tuple[Sequence[PolicyVersion], bool] | None = None
        """Versions, and whether anybody may be putting one live; while the database is away, none goes live."""

    def close(self) -> None:
        """Wait for no answer any more."""
        for known in self._known.values():
            if known.asking is not None:
                known.asking.cancel()

    def look(self, target: Target) -> Asked:
        """An engine has begun to answer a call: it is asked meanwhile, if it may have been restarted."""
        if not target.trained:
            return None
        if (known := self._known.get(target.base)) is None:
            known = self._known[target.base] = _Known()
        opened, now = self._upstream.connections, time.monotonic()
        if known.due(opened, now):
            known.connections, known.asked_at = opened, now
            known.asking = asyncio.ensure_future(self._ask(target, known))
        return known.why if known.asking is None else known.asking

    async def told(self, target: Target, asked: Asked) -> str | None:
        """Why a call is not the live policy's, None when it is. `asked` is what `look` said when it began."""
        if not isinstance(asked, asyncio.Future):
            return asked
        if not asked.done() and not self._known[target.base].failures:  # else nobody waits a second time for nothing
            await asyncio.wait([asked])
        return asked.result() if asked.done() and not asked.cancelled() else UNKNOWN

    async def _ask(self, target: Target, known: _Known) -> str | None:
        try:
            async with asyncio.timeout(ASK_S):
                why = await self._why(target)
            known.failures, known.connections = 0, self._upstream.connections  # asking may have opened some
        except NO_ANSWER as error:
            why = UNKNOWN
            known.failures += 1
            log.debug("the engine's weights are not known", engine=target.shown, error=str(error) or repr(error))
        finally:
            known.asking = None
        if why is None and known.why is not None:
            log.info("the engine serves the live weights again", engine=target.shown)
        if why == UNKNOWN and known.why != UNKNOWN:
            log.warning(
                "the engine does not say which weights it has; its calls are recorded, but not trained until it does",
                engine=target.shown,
                next_step="see `mosaic doctor`",
            )
        known.why = why
        return why

    async def _why(self, target: Target) -> str | None:
        versions, at_work = await self._read()
        if not versions:
            return None
        said, root = await self._said(target.base)
        if serves(versions, said, root, at_work=at_work) is not False:
            return None
        live = live_of(versions)
        if self._known[target.base].why != OTHER:
            log.error(
                "the engine serves other weights than the live ones; its calls are recorded, but never trained",
                engine=target.shown,
                has=f"version {said}" if said is not None and said.isdecimal() else str(root),
                version=0 if live is None else live.version,
                next_step=f"restart it with --model {'the first checkpoint' if live is None else live.path}",
            )
        return OTHER

    async def _read(self) -> tuple[Sequence[PolicyVersion], bool]:
        try:
            self._read_last = await self._lookups.ask_now(self._look_up)
        except StoreError:
            if self._read_last is None:
                raise
        return self._read_last

    def _look_up(self) -> tuple[Sequence[PolicyVersion], bool]:
        at_work = is_taken(self._store, LEASE)  # before: who ends meanwhile has put its version live
        return self._store.versions(), at_work

    async def _said(self, base: str) -> tuple[str | None, Path | None]:
        """An engine's `weight_version`, None where it does not tell, and the folder that it started on."""
        status, told = await self._upstream.get(f"{base.removesuffix('/v1')}/weight_info")
        if status != 200 and status not in DOES_NOT_TELL:
            raise ValueError(f"it answered {status}")
        said = told.get("weight_version") if status == 200 else None
        _, listed = await self._upstream.get(f"{base}/models")
        return None if said is None else str(said), started_on(listed["data"], self._model, unseen=False)
