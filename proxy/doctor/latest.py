"""One look at a time for all that ask a proxy what the doctor finds."""

import asyncio
import time

from mosaic.settings import Settings
from proxy.doctor.checks import findings
from proxy.doctor.finding import Finding

KEPT_S = 5.0
"""Seconds for which what was found is told again."""


class Latest:
    """What the checks find. A slow engine holds one thread, however many ask, and none of the control API's."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._look: asyncio.Task[list[Finding]] | None = None
        self._fresh_until = 0.0

    async def findings(self) -> list[Finding]:
        """Those of the look that runs, or has just ended; else of a new one."""
        look = self._look
        if look is None or (look.done() and (look.cancelled() or time.monotonic() > self._fresh_until)):
            look = self._look = asyncio.ensure_future(self._looked())
        return await asyncio.shield(look)  # Who goes away leaves the others their look.

    async def _looked(self) -> list[Finding]:
        try:
            return await asyncio.to_thread(findings, self._settings)
        finally:
            self._fresh_until = time.monotonic() + KEPT_S
