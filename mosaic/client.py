"""A client of the control API: rewards in, trajectories out, what happens as it happens. For threads and for asyncio.

    with Client("http://localhost:8080", key="...") as mosaic:
        mosaic.reward("run-17", 1.0)
        for trajectory in mosaic.trajectories(state="scored"): ...

Both ask the same questions: `_asked` writes a request, `_answer` reads what came back. Nothing is repeated by itself
but a stream of events, which goes on after the last one that arrived. Proxies of the environment are not used.
"""

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from mosaic.errors import MosaicError, RequestError
from mosaic.redirects import StayHere

if TYPE_CHECKING:
    import aiohttp

Json = dict[str, Any]

LOCAL = "http://127.0.0.1:8080"
SETTLED = ("scored", "unscorable", "failed", "truncated", "trained")
"""States of a trajectory of which somebody has said how it went."""
AGAIN_S = 0.5
"""Seconds between two looks of `wait`, and before a broken stream is opened again."""
SILENT_S = 60.0
"""Seconds without a byte after which a stream counts as broken; the proxy says something every 15."""


@dataclass(frozen=True, slots=True)
class Event:
    """A call that ended, or a reward that came."""

    event_id: str
    """Give it to `events` to go on after it."""
    kind: str
    """`call` or `reward`."""
    data: Json
    """trajectory_id, session_id, call_id, at."""


@dataclass(frozen=True, slots=True)
class _Asked:
    method: str
    path: str
    body: bytes | None = None


def _asked(method: str, *parts: str, query: Mapping[str, Any] | None = None, body: object = None) -> _Asked:
    path = "/api/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)
    given = {name: value for name, value in (query or {}).items() if value is not None}
    said = urllib.parse.urlencode({k: str(v).lower() if isinstance(v, bool) else v for k, v in given.items()})
    return _Asked(method, f"{path}?{said}" if said else path, None if body is None else json.dumps(body).encode())


def _reward(trajectory_id: str, reward: float | None, given: Mapping[str, Any]) -> _Asked:
    body = {"reward": reward, "source": "client", **{k: v for k, v in given.items() if v is not None}}
    return _asked("POST", "trajectories", trajectory_id, "reward", body=body)


def _answer(status: int, body: bytes) -> Json:
    """What was answered. Raises `RequestError` with the API's own words and status."""
    if 300 <= status < 400:
        step = "Give the address to which it redirects."
        raise RequestError("it redirects, which is not followed: the key would go there too.", step, status=status)
    try:
        said: Json = json.loads(body)
    except ValueError:
        said = {"error": {"message": f"the answer is no JSON: {body[:80]!r}."}}
        status = max(status, 502)
    if status >= 400:
        raise RequestError(str(said.get("error", {}).get("message", said)), status=status)
    return said


def _headers(key: str | None) -> dict[str, str]:
    return {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}


def _unreachable(base: str, error: Exception) -> MosaicError:
    return MosaicError(f"the proxy at {base} cannot be reached: {error}.", "Is `mosaic serve` running there?")


class _Reader:
    """Events out of the lines of a stream, and of those that follow it where it broke."""

    def __init__(self, after: str | None) -> None:
        self.after = after
        """The last event that arrived whole; None before any stream has said where it begins."""
        self._event: dict[str, str] = {}

    def headers(self) -> dict[str, str]:
        """What asks for a stream from here on."""
        self._event = {}  # what a broken stream left is sent again
        return {"last-event-id": self.after} if self.after else {}

    def line(self, line: bytes) -> Event | None:
        """The event that this line ends, but for the first, which says only where the stream begins."""
        text = line.decode().rstrip("\r\n")
        if text:
            name, _, value = text.partition(": ")
            self._event[name] = value
            return None
        event, self._event = self._event, {}
        self.after = event.get("id", self.after)
        kind = event.get("event")
        return None if kind in (None, "here") else Event(event["id"], str(kind), json.loads(event["data"]))

    def goes_on(self, error: Exception) -> bool:
        """Whether a stream that ended so is opened again: it had begun, and nobody refuses it."""
        refused = isinstance(error, RequestError) and error.status < 500
        return self.after is not None and not refused


class Client:
    """For scripts and threads. Raises `RequestError` for what the proxy refuses, `MosaicError` where there is none."""

    def __init__(self, base: str = LOCAL, key: str | None = None, timeout_s: float = 30.0) -> None:
        self._base = base.rstrip("/")
        self._headers = _headers(key)
        self._timeout_s = timeout_s
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), StayHere())

    def __enter__(self) -> Self:
        """Nothing is held open between questions; the form is that of `AsyncClient`."""
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def reward(
        self,
        trajectory_id: str,
        reward: float | None,
        *,
        session_id: str | None = None,
        note: str | None = None,
        source: str | None = None,
    ) -> Json:
        """Say how it went; None says that it cannot be scored. A later one corrects an earlier one."""
        given = {"session_id": session_id, "note": note, "source": source}
        return self._ask(_reward(trajectory_id, reward, given))

    def name_task(self, trajectory_id: str, task: str, text: str = "") -> Json:
        """Say what it attempted, in place of what its first user message suggests."""
        body = {"task": task, "text": text}
        return self._ask(_asked("PUT", "trajectories", trajectory_id, "task", body=body))

    def end(self, trajectory_id: str, state: str = "closed", reason: str = "client") -> Json:
        """Say that a trajectory is over: closed, failed or truncated."""
        return self._ask(_asked("POST", "trajectories", trajectory_id, "end", body={"state": state, "reason": reason}))

    def trajectory(self, trajectory_id: str) -> Json:
        """One trajectory with its sessions and rewards."""
        return self._ask(_asked("GET", "trajectories", trajectory_id))

    def trajectories(self, **wanted: str | float | bool | None) -> Iterator[Json]:
        """All that fit (`state`, `task`, `q`, `min_reward`, `below_reward`, `scored`), newest first, page by page."""
        return self._pages("trajectories", query=wanted)

    def calls(self, trajectory_id: str) -> Iterator[Json]:
        """The calls of a trajectory in the order in which they ended."""
        return self._pages("trajectories", trajectory_id, "calls", query={})

    def call(self, call_id: str) -> Json:
        """One call: its parameters, what came back, how long it took."""
        return self._ask(_asked("GET", "calls", call_id))

    def wait(self, trajectory_id: str, states: Iterable[str] = SETTLED, timeout_s: float = 600.0) -> Json:
        """The trajectory, once it is in one of the states. Raises `TimeoutError`."""
        wanted, until = set(states), time.monotonic() + timeout_s
        while True:
            found = self._look(trajectory_id)
            if found is not None and found["state"] in wanted:
                return found
            if time.monotonic() + AGAIN_S > until:
                raise _late(trajectory_id, wanted, timeout_s)
            time.sleep(AGAIN_S)

    def _look(self, trajectory_id: str) -> Json | None:
        try:
            return self.trajectory(trajectory_id)
        except RequestError as error:
            if error.status != 404:
                raise
            return None  # Its first call has not ended yet.

    def events(self, trajectory_id: str | None = None, after: str | None = None) -> Iterator[Event]:
        """What happens from now on, or after an event, without an end; a broken stream goes on where it broke."""
        asked, reader = _asked("GET", "events", query={"trajectory": trajectory_id}), _Reader(after)
        while True:
            try:
                yield from self._stream(asked, reader)
            except (OSError, http.client.HTTPException, MosaicError) as error:
                if not reader.goes_on(error):
                    raise
            time.sleep(AGAIN_S)

    def _stream(self, asked: _Asked, reader: _Reader) -> Iterator[Event]:
        with self._open(asked, reader.headers(), SILENT_S) as response:
            if response.status != 200:
                _answer(response.status, response.read())
            for line in response:
                if event := reader.line(line):
                    yield event

    def _pages(self, *parts: str, query: Mapping[str, Any]) -> Iterator[Json]:
        cursor = None
        while True:
            page = self._ask(_asked("GET", *parts, query={"limit": 200, **query, "cursor": cursor}))
            yield from page["items"]
            cursor = page["next"]
            if cursor is None:
                return

    def _ask(self, asked: _Asked) -> Json:
        with self._open(asked, {}, self._timeout_s) as response:
            return _answer(response.status, response.read())

    def _open(self, asked: _Asked, headers: Mapping[str, str], timeout_s: float) -> Any:
        address = self._base + asked.path
        request = urllib.request.Request(address, asked.body, {**self._headers, **headers}, method=asked.method)
        try:
            return self._opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            return error
        except OSError as error:
            raise _unreachable(self._base, error) from error


class AsyncClient:
    """The same for asyncio; use it as `async with AsyncClient(...) as mosaic`."""

    def __init__(self, base: str = LOCAL, key: str | None = None, timeout_s: float = 30.0) -> None:
        self._base = base.rstrip("/")
        self._headers = _headers(key)
        self._timeout_s = timeout_s
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        """Open a pool of connections."""
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=self._timeout_s)
        self._session = aiohttp.ClientSession(headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        await self._session.close()

    async def reward(
        self,
        trajectory_id: str,
        reward: float | None,
        *,
        session_id: str | None = None,
        note: str | None = None,
        source: str | None = None,
    ) -> Json:
        """Say how it went; None says that it cannot be scored. A later one corrects an earlier one."""
        given = {"session_id": session_id, "note": note, "source": source}
        return await self._ask(_reward(trajectory_id, reward, given))

    async def name_task(self, trajectory_id: str, task: str, text: str = "") -> Json:
        """Say what it attempted, in place of what its first user message suggests."""
        body = {"task": task, "text": text}
        return await self._ask(_asked("PUT", "trajectories", trajectory_id, "task", body=body))

    async def end(self, trajectory_id: str, state: str = "closed", reason: str = "client") -> Json:
        """Say that a trajectory is over: closed, failed or truncated."""
        body = {"state": state, "reason": reason}
        return await self._ask(_asked("POST", "trajectories", trajectory_id, "end", body=body))

    async def trajectory(self, trajectory_id: str) -> Json:
        """One trajectory with its sessions and rewards."""
        return await self._ask(_asked("GET", "trajectories", trajectory_id))

    def trajectories(self, **wanted: str | float | bool | None) -> AsyncIterator[Json]:
        """All that fit (`state`, `task`, `q`, `min_reward`, `below_reward`, `scored`), newest first, page by page."""
        return self._pages("trajectories", query=wanted)

    def calls(self, trajectory_id: str) -> AsyncIterator[Json]:
        """The calls of a trajectory in the order in which they ended."""
        return self._pages("trajectories", trajectory_id, "calls", query={})

    async def call(self, call_id: str) -> Json:
        """One call: its parameters, what came back, how long it took."""
        return await self._ask(_asked("GET", "calls", call_id))

    async def wait(self, trajectory_id: str, states: Iterable[str] = SETTLED, timeout_s: float = 600.0) -> Json:
        """The trajectory, once it is in one of the states. Raises `TimeoutError`."""
        import asyncio

        wanted, until = set(states), time.monotonic() + timeout_s
        while True:
            found = await self._look(trajectory_id)
            if found is not None and found["state"] in wanted:
                return found
            if time.monotonic() + AGAIN_S > until:
                raise _late(trajectory_id, wanted, timeout_s)
            await asyncio.sleep(AGAIN_S)

    async def _look(self, trajectory_id: str) -> Json | None:
        try:
            return await self.trajectory(trajectory_id)
        except RequestError as error:
            if error.status != 404:
                raise
            return None  # Its first call has not ended yet.

    async def events(self, trajectory_id: str | None = None, after: str | None = None) -> AsyncIterator[Event]:
        """What happens from now on, or after an event, without an end; a broken stream goes on where it broke."""
        import asyncio

        import aiohttp

        asked, reader = _asked("GET", "events", query={"trajectory": trajectory_id}), _Reader(after)
        while True:
            try:
                async for event in self._stream(asked, reader):
                    yield event
            except (aiohttp.ClientError, TimeoutError) as error:
                if not reader.goes_on(error):
                    raise _unreachable(self._base, error) from error
            except RequestError as error:
                if not reader.goes_on(error):
                    raise
            await asyncio.sleep(AGAIN_S)

    async def _stream(self, asked: _Asked, reader: _Reader) -> AsyncIterator[Event]:
        import aiohttp

        silence = aiohttp.ClientTimeout(total=None, sock_read=SILENT_S)
        url, headers = self._url(asked), reader.headers()
        async with self._session.get(url, headers=headers, timeout=silence, allow_redirects=False) as response:
            if response.status != 200:
                _answer(response.status, await response.read())
            async for line in response.content:
                if event := reader.line(line):
                    yield event

    async def _pages(self, *parts: str, query: Mapping[str, Any]) -> AsyncIterator[Json]:
        cursor = None
        while True:
            page = await self._ask(_asked("GET", *parts, query={"limit": 200, **query, "cursor": cursor}))
            for item in page["items"]:
                yield item
            cursor = page["next"]
            if cursor is None:
                return

    async def _ask(self, asked: _Asked) -> Json:
        import aiohttp

        try:
            url, body = self._url(asked), asked.body
            async with self._session.request(asked.method, url, data=body, allow_redirects=False) as response:
                return _answer(response.status, await response.read())
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unreachable(self._base, error) from error

    def _url(self, asked: _Asked) -> Any:
        import yarl

        return yarl.URL(self._base + asked.path, encoded=True)


def _late(trajectory_id: str, states: Iterable[str], timeout_s: float) -> TimeoutError:
    wanted = ", ".join(sorted(states))
    return TimeoutError(f"trajectory {trajectory_id!r} was not {wanted} within {timeout_s:g} s")
