"""Server-sent events of what is committed: calls that ended, rewards that came. Any process sees what all have written.

The id of an event is a mark in the database (`mosaic.store.feed`): who comes back with it as `Last-Event-ID` misses
nothing. A stream asks the database again every `EVERY_S`, also one that was put into its place. It ends by itself when
the server stops.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import asdict

import orjson
from starlette.responses import StreamingResponse

from mosaic.errors import RequestError, StoreError
from mosaic.store import Store
from mosaic.store.feed import Event, Followed, Mark

EVERY_S = 0.5
"""Seconds between two looks at the database."""
PING_S = 15.0
"""Seconds of silence after which a comment is sent, so that nobody between closes the connection."""
MOST_READERS = 64
"""Streams that one worker has open at most."""


class Events:
    """One worker's streams of events."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._readers = 0
        self._stopped = False

    def stop(self) -> None:
        """End all streams, soon: a server that drains waits for them."""
        self._stopped = True

    def answer(self, last_event_id: str | None, trajectory_id: str | None) -> StreamingResponse:
        """A stream from a mark on, or from now on. Raises `RequestError` for a mark that is none, or for too many."""
        mark = Mark.read(last_event_id) if last_event_id else None
        if last_event_id and mark is None:
            raise RequestError(f"{last_event_id[:40]!r} is no id of an event.", "Send one as it came, or none.")
        if self._readers >= MOST_READERS:
            raise RequestError(f"{self._readers} streams are open already.", "Try again.", status=503)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._follow(mark, trajectory_id), media_type="text/event-stream", headers=headers)

    async def _follow(self, mark: Mark | None, trajectory_id: str | None) -> AsyncIterator[bytes]:
        self._readers += 1
        followed = Followed(self._store.database, trajectory_id, mark)
        try:
            yield _here(await asyncio.to_thread(self._begin, followed))
            silent = 0.0
            while not self._stopped:
                if said := await asyncio.to_thread(self._since, followed):
                    silent = 0.0
                    yield said
                elif silent >= PING_S:
                    silent = 0.0
                    yield b": still here\n\n"
                await asyncio.sleep(EVERY_S)
                silent += EVERY_S
        finally:
            self._readers -= 1

    def _begin(self, followed: Followed) -> Mark:
        """Where a stream begins: at its mark, else at the newest, which is known once the database answers."""
        if followed.mark is None:
            with contextlib.suppress(StoreError), followed.look():
                pass
        return followed.mark or Mark(0, 0)

    def _since(self, followed: Followed) -> bytes:
        with contextlib.suppress(StoreError), followed.look() as look:
            begin = _here(look.mark, replaced=True) if look.gone else b""
            return begin + b"".join(map(written, look.events))
        return b""  # A database that is away for a moment is asked again.


def _here(mark: Mark, *, replaced: bool = False) -> bytes:
    """Where a stream begins, or goes on after the database was replaced, restored or pruned."""
    return b"retry: 1000\nid: %s\nevent: here\ndata: %s\n\n" % (
        str(mark).encode(),
        orjson.dumps({"replaced": True} if replaced else {}),
    )


def written(event: Event) -> bytes:
    """An event as it stands in a stream."""
    said = {name: value for name, value in asdict(event).items() if name not in ("mark", "kind")}
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (str(event.mark).encode(), event.kind.encode(), orjson.dumps(said))
