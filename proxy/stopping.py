"""What happens as soon as the server is told to stop, while uvicorn still waits for open calls."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


@contextlib.contextmanager
def at_once(tell: Callable[[], None]) -> Iterator[None]:
    """`tell` is called inside this context when a signal asks to stop, before the server's own handler.

    It runs in a signal handler: it may set a flag or hand work to an event loop, and nothing more.
    """
    told = (signal.SIGTERM, signal.SIGINT) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in told}
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, _first(tell, handler))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _first(tell: Callable[[], None], handler: Handler) -> Handler:
    def handle(number: int, frame: FrameType | None) -> None:
        tell()
        handler(number, frame)

    return handle
