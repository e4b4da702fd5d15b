"""What the model path asks the store: beside the event loop, in threads of its own, and never for long.

A database that answers nothing so takes no thread from what else runs beside the loop, such as looking up the engine.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from mosaic.errors import StoreError
from mosaic.settings import Settings
from proxy.recorder import Recorder

T = TypeVar("T")


class Lookups:
    """Reads of one worker. Used by one event loop."""

    def __init__(self, settings: Settings, recorder: Recorder) -> None:
        self._wait_s = settings.store_wait_s
        self._recorder = recorder
        self._threads = ThreadPoolExecutor(4, "lookup")

    async def ask(self, look: Callable[[], T]) -> T:
        """What `look` finds once all that was recorded until now is there. Raises as `ask_now` does."""
        await self._recorder.caught_up()
        return await self.ask_now(look)

    async def ask_now(self, look: Callable[[], T]) -> T:
        """What `look` finds. Raises `StoreError` when the database refuses or takes longer than `store_wait_s`."""
        try:
            async with asyncio.timeout(self._wait_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, look)
        except TimeoutError as error:
            raise StoreError(f"the database did not answer within {self._wait_s:g} s.", "Check its load.") from error

    def close(self) -> None:
        """Take no more questions."""
        self._threads.shutdown(wait=False, cancel_futures=True)
