"""An engine, or a proxy, as the doctor asks it: one question at a time, with an end to waiting."""

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import SecretStr

from mosaic.errors import EngineError

TIMEOUT_S = 3.0
"""Seconds for a question that needs no generation."""
LONG_S = 30.0
"""Seconds for one that does."""
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


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
            found = json.loads(self.body)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def message(self) -> str:
        """What an error says, on one line."""
        error = self.json.get("error") or self.json.get("detail") or self.body.decode("utf-8", "replace")
        said = error.get("message", error) if isinstance(error, dict) else error
        return " ".join(str(said).split())[:300]


class Server:
    """Something that answers HTTP."""

    def __init__(self, root: str, key: SecretStr | None = None) -> None:
        """`root` is its address without a path."""
        self.root = root.rstrip("/")
        self._key = key

    def ask(self, path: str, body: object = None, timeout_s: float = TIMEOUT_S) -> Answered:
        """What it answers, whatever the status. Raises `EngineError` when nothing comes."""
        headers = {"content-type": "application/json"}
        if self._key is not None:
            headers["authorization"] = f"Bearer {self._key.get_secret_value()}"
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        try:
            request = urllib.request.Request(self.root + path, data, headers)
            with _OPENER.open(request, timeout=timeout_s) as response:
                return _answered(response.status, response)
        except urllib.error.HTTPError as error:
            return _answered(error.code, error)
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise EngineError(f"{self.root}{path} does not answer: {reason}.", "Look at its log.") from error


def _answered(status: int, response: Any) -> Answered:
    with response:
        return Answered(status, response.read(), {name.lower(): value for name, value in response.headers.items()})


class Engine(Server):
    """One vLLM of the policy's."""

    def __init__(self, base: str, key: SecretStr | None = None) -> None:
        """`base` is its address up to and with /v1."""
        super().__init__(base.rstrip("/").removesuffix("/v1"), key)
        self.base = base

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
        return [model for model in found or () if isinstance(model, dict) and "id" in model]

    @cached_property
    def paused(self) -> bool | None:
        """Whether it generates nothing for now; None where its administration is off."""
        found = self.ask("/is_paused")
        return bool(found.json["is_paused"]) if found.status == 200 and "is_paused" in found.json else None
