"""The one client that talks to the engine. Its address comes from the configuration and from nowhere else."""

from collections.abc import Mapping

import aiohttp
from multidict import CIMultiDictProxy

from mosaic.settings import Settings
from proxy.access import is_secret

KEEP_ALIVE_S = 4.0
"""Idle connections are dropped before uvicorn, on the other side, drops them after 5 s."""

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


class Upstream:
    """A connection pool to the engine."""

    def __init__(self, settings: Settings) -> None:
        self._base = settings.upstream.rstrip("/")
        self._key = settings.upstream_api_key
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s),
            auto_decompress=True,
            read_bufsize=2**20,
        )

    async def close(self) -> None:
        """Drop all connections."""
        await self._session.close()

    def send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> "aiohttp.client._RequestContextManager":
        """One request, never repeated and never redirected. `path` is relative to the configured base URL."""
        return self._session.request(
            method,
            f"{self._base}/{path}",
            data=body,
            headers={**self._passed_on(headers), "accept-encoding": "identity"},
            allow_redirects=False,
        )

    def _passed_on(self, headers: Mapping[str, str]) -> dict[str, str]:
        kept = {k: v for k, v in headers.items() if k not in HOP_BY_HOP and not is_secret(k)}
        if self._key is not None:
            kept["authorization"] = f"Bearer {self._key.get_secret_value()}"
        return kept


def shown_headers(headers: CIMultiDictProxy[str]) -> list[tuple[bytes, bytes]]:
    """The engine's headers that the client gets."""
    return [
        (name.lower().encode("latin-1"), value.encode("utf-8", "surrogateescape"))
        for name, value in headers.items()
        if name.lower() not in HOP_BY_HOP and name.lower() != "set-cookie"
    ]
