"""Keys that name a trajectory: whoever has one can make calls of that trajectory, and of no other.

`mosaic-t-<trajectory>.<mark>`, where the mark is a keyed digest of the id: nothing has to be remembered or looked up.
"""

import hmac
import re

from pydantic import SecretStr

from mosaic.errors import SettingsError
from mosaic.settings import Settings

TRAJECTORY_KEY = "mosaic-t-"
"""How a key begins that names its trajectory."""
TRAJECTORY_ID = re.compile(r"(?!\.{1,2}$)[\w.:@+~-]{1,200}", re.ASCII)
"""What a client may name a trajectory, in path, header or key."""
TRAJECTORY_ID_RULE = "Use up to 200 of A-Z a-z 0-9 . _ : @ + ~ -"


def trajectory_key(settings: Settings, trajectory_id: str) -> str:
    """A key with which an agent can make calls, and only of this trajectory. Raises `SettingsError`."""
    if settings.trajectory_secret is None:
        raise SettingsError(
            "no trajectory_secret is set.",
            "Set MOSAIC_TRAJECTORY_SECRET to a long random text; `mosaic serve` needs the same.",
        )
    if not TRAJECTORY_ID.fullmatch(trajectory_id):
        raise SettingsError(f"trajectory id {trajectory_id!r} is not usable.", TRAJECTORY_ID_RULE)
    return f"{TRAJECTORY_KEY}{trajectory_id}.{mark_of(settings.trajectory_secret, trajectory_id)}"


def agent_key(settings: Settings, trajectory_id: str) -> str:
    """What an agent that Mosaic starts sends as its key: never one that opens the control routes.

    Raises `SettingsError` when keys are wanted and there is only one of that kind.
    """
    if settings.trajectory_secret is not None:
        return trajectory_key(settings, trajectory_id)
    if settings.agent_keys:
        return settings.agent_keys[0].get_secret_value()
    if settings.api_keys:
        raise SettingsError(
            "agents would need a key, and only api_keys are set, which open the control API as well.",
            "Set MOSAIC_TRAJECTORY_SECRET (a key for each attempt) or MOSAIC_AGENT_KEYS.",
        )
    return "none-needed"


def mark_of(secret: SecretStr, trajectory_id: str) -> str:
    """The part of a key that only who knows the secret can write."""
    return hmac.new(secret.get_secret_value().encode(), trajectory_id.encode(), "sha256").hexdigest()[:32]
