"""What token ids say, asked of the engine and remembered: the store holds ids, and text is never tokenised again.

An engine that cannot be asked leaves the strip with ids alone; nothing waits longer than `WAIT_S` for it.
"""

import asyncio
from collections.abc import Iterable

import aiohttp
import orjson

from proxy.upstream import Upstream

WAIT_S = 3.0
"""Seconds that a page waits for the engine."""
AT_ONCE = 16
"""Questions that are open at the same time."""
MOST = 200_000
"""Ids that are remembered; a vocabulary fits."""


class TokenTexts:
    """One worker's memory of the policy's vocabulary, as far as somebody has looked at it."""

    def __init__(self) -> None:
        self._upstream: Upstream | None = None
        self._known: dict[int, str] = {}

    def use(self, upstream: Upstream | None) -> None:
        """Whom to ask from now on; None asks nobody."""
        self._upstream = upstream

    async def of(self, ids: Iterable[int]) -> dict[int, str]:
        """The text of each id that is known or that the engine tells in time."""
        wanted = set(ids)
        missing = wanted - self._known.keys()
        if missing and self._upstream is not None:
            if len(self._known) > MOST:
                self._known.clear()
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._ask(self._upstream, missing)
            except* (aiohttp.ClientError, TimeoutError, ValueError, KeyError, TypeError):
                pass  # The strip shows ids; the page says so.
        return {one: self._known[one] for one in wanted if one in self._known}

    async def _ask(self, upstream: Upstream, ids: set[int]) -> None:
        target = await upstream.target(None)
        places = asyncio.Semaphore(AT_ONCE)

        async def ask(one: int) -> None:
            body = {"tokens": [one]} if target.model is None else {"model": target.model, "tokens": [one]}
            headers = {"content-type": "application/json"}
            async with places, upstream.send("POST", target, "/detokenize", orjson.dumps(body), headers) as response:
                if response.status == 200:
                    self._known[one] = str(orjson.loads(await response.read())["prompt"])

        async with asyncio.TaskGroup() as group:
            for one in ids:
                group.create_task(ask(one))
