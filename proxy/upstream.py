"""The one client that talks to engines. Their addresses come from the configuration and from nowhere else."""

import asyncio
import hashlib
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import aiohttp
import orjson
from multidict import CIMultiDictProxy
from pydantic import SecretStr
from yarl import URL

from mosaic.settings import Settings
from proxy.access import is_secret

KEEP_ALIVE_S = 4.0
"""Idle connections are dropped before uvicorn, on the other side, drops them after 5 s."""
NAMES_S = 60.0
"""Seconds for which the names of an engine's models are believed."""
RETRY_S = 0.25
"""Seconds between tries to reach an engine that does not listen."""
NO_NAMES_S = 5.0
"""Seconds after which an engine that did not say them is asked again."""

MAX_SAID = 2**20
"""Bytes that an engine may say of itself."""

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "host",
        "content-length",
        "content-encoding",
        "accept-encoding",
        "expect",
        "date",
        "server",
    }
)
"""Headers that belong to one connection (RFC 9110, section 7.6.1), or that each side writes itself."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a call goes."""

    base: str
    """URL up to and with /v1."""
    key: SecretStr | None
    model: str | None
    """The name to ask for; None asks for what the client named."""
    trained: bool
    """False for an engine that does not serve the policy."""

    @property
    def shown(self) -> str:
        """The URL without a name and password."""
        return str(URL(self.base).with_user(None))


class Upstream:
    """Connection pools to the policy's replicas and to the engines of other models."""

    def __init__(self, settings: Settings) -> None:
        self._replicas = [url.rstrip("/") for url in (settings.upstream, *settings.replicas)]
        self._settings = settings
        self._names: dict[str, tuple[float, tuple[str, ...]]] = {}
        """Engine -> (when to ask again, names of its models)."""
        self._heard = False
        """Whether any engine of the policy has answered."""
        self._learn_at = 0.0
        """When they may be asked for their names again while none has answered (monotonic)."""
        self._asking = asyncio.Lock()
        self.connections = 0
        """Connections that were opened so far."""
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S, socket_factory=self._socket),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s),
            auto_decompress=True,
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=2**20,
        )

    async def close(self) -> None:
        """Drop all connections."""
        await self._session.close()

    def _socket(self, address: aiohttp.AddrInfoType) -> socket.socket:
        self.connections += 1
        return socket.socket(*address[:3])

    async def target(self, model: object, affinity: Callable[[], str] = str) -> Target:
        """Where a call for `model` goes: to the first pattern of the map that fits, else to the policy.

        Calls of the same `affinity` go to the same replica, whose prefix cache knows them.
        """
        named = model if isinstance(model, str) else ""
        for pattern, other in self._settings.models.items():
            if fnmatchcase(named, pattern):
                return Target(other.upstream.rstrip("/"), other.api_key, other.model, trained=False)
        base = self._replicas[0]
        if len(self._replicas) > 1:
            at = int.from_bytes(hashlib.blake2b(affinity().encode("utf-8", "replace"), digest_size=4).digest(), "big")
            base = self._replicas[at % len(self._replicas)]
        if self._settings.policy_model is not None:
            # The engine's other names (the base model of an adapter) are not the policy.
            return Target(base, self._settings.upstream_api_key, self._settings.policy_model, trained=True)
        names = await self._served(base) or next((found for _, found in self._names.values() if found), ())
        known = not names or named in names
        return Target(base, self._settings.upstream_api_key, None if known else names[0], trained=True)

    async def _served(self, base: str) -> tuple[str, ...]:
        """The names of the models that an engine serves; none while it cannot be asked."""
        again_at, names = self._names.get(base, (0.0, ()))
        if time.monotonic() < again_at or (names and self._asking.locked()):
            return names
        async with self._asking:
            if time.monotonic() >= self._names.get(base, (0.0, ()))[0]:
                found = await self._ask(base)
                # While it is away it is known by the names that it had.
                self._names[base] = time.monotonic() + (NAMES_S if found else NO_NAMES_S), found or names
            return self._names[base][1]

    async def _ask(self, base: str) -> tuple[str, ...]:
        try:
            _, said = await self.get(f"{base}/models")
            found = tuple(str(model["id"]) for model in said["data"])
        except (aiohttp.ClientConnectorError, TimeoutError):
            return ()
        except (aiohttp.ClientError, ValueError, KeyError, TypeError):
            found = ()
        self._heard = True
        return found

    @property
    def named(self) -> bool:
        """Whether it is known under which name the policy is asked for, or cannot be."""
        return self._heard or self._settings.policy_model is not None

    async def learn_names(self) -> None:
        """Return once an engine of the policy has answered for the first time, or after `engine_wait_s`. However many
        calls wait, it is asked every `RETRY_S`."""
        deadline = time.monotonic() + self._settings.engine_wait_s
        while True:
            if time.monotonic() >= self._learn_at:
                self._learn_at = time.monotonic() + RETRY_S
                for base in self._replicas:
                    if found := await self._ask(base):
                        self._names[base] = time.monotonic() + NAMES_S, found
            if self._heard or time.monotonic() > deadline:
                return
            await asyncio.sleep(RETRY_S)

    async def get(self, url: str) -> tuple[int, Any]:
        """Status of what an engine of the policy says of itself at a URL, and its JSON where that is 200.

        Raises `aiohttp.ClientError`, `TimeoutError`, and `ValueError` for what is no JSON.
        """
        async with self._session.get(
            url,
            headers=self._key_header(self._settings.upstream_api_key),
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=self._settings.connect_timeout_s),
        ) as response:
            if response.status != 200:
                return response.status, None
            body = b""
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_SAID:
                    raise ValueError("it says too much")
            return response.status, orjson.loads(body)

    def policy(self) -> Target:
        """The policy's first replica, for what concerns no conversation."""
        return Target(self._replicas[0], self._settings.upstream_api_key, None, trained=True)

    def send(
        self, method: str, target: Target, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> "aiohttp.client._RequestContextManager":
        """One request, never repeated and never redirected.

        `path`, with its query, is relative to /v1/, or absolute on the engine.
        """
        base = target.base.removesuffix("/v1") if path.startswith("/") else f"{target.base}/"
        return self._session.request(
            method,
            f"{base}{path}",
            data=body,
            headers={**_passed_on(headers), **self._key_header(target.key), "accept-encoding": "identity"},
            allow_redirects=False,
        )

    def _key_header(self, key: SecretStr | None) -> dict[str, str]:
        return {} if key is None else {"authorization": f"Bearer {key.get_secret_value()}"}


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    away = HOP_BY_HOP | _named(headers.get("connection"))
    return {k: v for k, v in headers.items() if k not in away and not is_secret(k)}


def _named(connection: str | None) -> frozenset[str]:
    """The headers that a `Connection` header says belong to the connection."""
    return frozenset(name.strip().lower() for name in (connection or "").split(","))


def shown_headers(headers: CIMultiDictProxy[str]) -> list[tuple[bytes, bytes]]:
    """The engine's headers that the client gets."""
    away = HOP_BY_HOP | _named(headers.get("connection")) | {"set-cookie"}
    return [
        (name.lower().encode("latin-1"), value.encode("utf-8", "surrogateescape"))
        for name, value in headers.items()
        if name.lower() not in away
    ]
