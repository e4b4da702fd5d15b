"""Rewards that come by webhook: signed instead of keyed, so that a CI or a grader needs no key to the control API.

The sender signs what it sends with `webhook_secret`: HMAC-SHA256 over the time (Unix seconds, as it stands in
`x-mosaic-timestamp`), a full stop and the body; hex, after `sha256=`, in `x-mosaic-signature`. A signature is good for
`GOOD_S`; whoever repeats one within that time says again what was said.
"""

import hashlib
import hmac
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter
from pydantic import Field

from mosaic.errors import RequestError
from mosaic.settings import Settings
from mosaic.store import Store
from proxy.api import REFUSALS, RewardIn

PREFIX = "/api/webhooks/"
GOOD_S = 300.0
"""Seconds by which the sender's clock may differ from ours."""


class SignedReward(RewardIn):
    """A reward, and for what."""

    source: str = Field("webhook", max_length=64, description="Who says so.")
    trajectory_id: str = Field(max_length=200, description="The trajectory that is judged.")


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """What `x-mosaic-signature` must hold."""
    return "sha256=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def check(settings: Settings, headers: Mapping[str, str], body: bytes) -> None:
    """Raises `RequestError` (401) unless the body is signed, and lately."""
    timestamp = headers.get("x-mosaic-timestamp", "")
    if settings.webhook_secret is None:
        raise RequestError(
            "no webhook_secret is set, so no webhook is taken.", "Set MOSAIC_WEBHOOK_SECRET.", status=401
        )
    good = signature(settings.webhook_secret.get_secret_value(), timestamp, body)
    if not hmac.compare_digest(headers.get("x-mosaic-signature", "").encode(), good.encode()):
        raise RequestError("the signature is missing or wrong.", "See docs/dashboard.md for how to sign.", status=401)
    if not timestamp.isdigit() or len(timestamp) > 15 or abs(time.time() - int(timestamp)) > GOOD_S:
        raise RequestError("the signature is too old, or of a clock that is wrong.", "Sign it anew.", status=401)


def router(store: Store) -> APIRouter:
    """The routes, bound to one store. Whoever serves them has checked the signature (`Application`)."""
    hooks = APIRouter(prefix=PREFIX.rstrip("/"), responses=REFUSALS)

    @hooks.post("/reward")
    def take_reward(given: SignedReward) -> dict[str, Any]:
        """Append a reward that was signed with `webhook_secret`."""
        outcome = store.reward(given.trajectory_id, given.reward, given.source, given.note, session_id=given.session_id)
        return {"reward": given.reward, **asdict(outcome)}

    return hooks
