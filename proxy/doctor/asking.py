"""An engine, or a proxy, as the doctor asks it: one question at a time, with an end to waiting."""

import asyncio
import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import aiohttp
import orjson
from pydantic import SecretStr
from yarl import URL

from mosaic.errors import EngineError
from mosaic.urls import shown_url

TIMEOUT_S = 3.0
"""Seconds for a question that needs no generation, from its beginning to the last byte of the answer."""
LONG_S = 30.0
"""Seconds for one that does."""
MAX_BYTES = 8 * 2**20
"""Largest answer that is read."""
LOOK = "Look at its log."


@dataclass(frozen=True, slots=True)
class Answered:
    """What came back."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    """Names are in lower case."""

    @property
    def json(self) -> dict[str, Any]:
        """The body as a JSON object; empty when it is none."""
        try:
            found = orjson.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def message(self) -> str:
        """What an error says, on one line."""
        if 300 <= self.status < 400:
            # A password in it is not for the screen.
            where = re.sub(r"//[^/]*@", "//", self.headers.get("location", ""))
            return f"it redirects to {where[:200] or 'nowhere'}, and redirects are not followed"
        error = self.json.get("error") or self.json.get("detail") or self.body.decode("utf-8", "replace")
        said = error.get("message", error) if isinstance(error, dict) else error
        return " ".join(str(said).split())[:300]


class Server:
    """Something that answers HTTP."""

    def __init__(self, root: str, key: SecretStr | None = None, until: float = math.inf) -> None:
        """`root` is its address without a path; it is asked nothing after `until`, by the monotonic clock."""
        self._address = root.rstrip("/")
        self.root = shown_url(self._address)
        """The address as it may be shown."""
        self._key = key
        self._until = until

    def ask(self, path: str, body: object = None, timeout_s: float = TIMEOUT_S) -> Answered:
        """What it answers, whatever the status. Raises `EngineError` when nothing whole comes in time."""
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key.get_secret_value()}"
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise EngineError(f"{self.root}{path} was not asked: the time for all checks is over.", LOOK)
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            return asyncio.run(_ask(self._address + path, data, headers, min(timeout_s, left_s)))
        except (OSError, ValueError, aiohttp.ClientError) as error:
            raise EngineError(f"{self.root}{path} does not answer: {_reason(error)}.", LOOK) from error


async def _ask(address: str, data: bytes | None, headers: Mapping[str, str], timeout_s: float) -> Answered:
    """Redirects are not followed: they would take the key, and the question, to another server."""
    try:
        url = URL(address)
    except ValueError as error:
        raise aiohttp.InvalidURL("") from error
    method = "GET" if data is None else "POST"
    async with (
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
        session.request(method, url, data=data, headers=headers, allow_redirects=False) as response,
    ):
        body = bytearray()
        async for part in response.content.iter_any():
            body += part
            if len(body) > MAX_BYTES:
                raise aiohttp.ClientPayloadError(f"its answer is larger than {MAX_BYTES // 2**20} MiB")
        return Answered(response.status, bytes(body), {k.lower(): v for k, v in response.headers.items()})


def _reason(error: Exception) -> str:
    if isinstance(error, aiohttp.InvalidURL):
        return "that is no address"  # It may hold a password, so it is not repeated.
    if isinstance(error, TimeoutError):
        return "timed out"
    said = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return " ".join(str(said).split())[:300] or type(error).__name__


class Engine(Server):
    """One vLLM of the policy's."""

    def __init__(self, base: str, key: SecretStr | None = None, until: float = math.inf) -> None:
        """`base` is its address up to and with /v1."""
        super().__init__(base.rstrip("/").removesuffix("/v1"), key, until)
        self.base = shown_url(base)
        """The address as it may be shown."""

    @cached_property
    def listed(self) -> Answered | EngineError:
        """What it says to the question for its models, or why it does not."""
        try:
            return self.ask("/v1/models")
        except EngineError as error:
            return error

    @property
    def answers(self) -> bool:
        """Whether it can be asked more."""
        return not isinstance(self.listed, EngineError) and self.listed.status == 200

    @cached_property
    def models(self) -> list[dict[str, Any]]:
        """What it serves, as it lists it; nothing while it does not answer."""
        found = [] if isinstance(self.listed, EngineError) else self.listed.json.get("data")
        listed = found if isinstance(found, list) else []
        return [model for model in listed if isinstance(model, dict) and isinstance(model.get("id"), str)]

    @cached_property
    def paused(self) -> bool | None:
        """Whether it generates nothing for now; None where its administration is off."""
        found = self.ask("/is_paused")
        return bool(found.json["is_paused"]) if found.status == 200 and "is_paused" in found.json else None
