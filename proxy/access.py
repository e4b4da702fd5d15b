"""Who may call: keys compared in constant time, and no open proxy on anything but loopback."""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping

from mosaic.errors import RequestError, SettingsError
from mosaic.settings import Settings


def check_bind(settings: Settings) -> None:
    """Raises `SettingsError` for an address that others can reach while no key is set."""
    if settings.api_keys or settings.host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(settings.host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise SettingsError(
            f"host {settings.host} can be reached by others, and no api_keys are set.",
            "Set MOSAIC_API_KEYS='[\"...\"]' or listen on 127.0.0.1.",
        )


def check_key(settings: Settings, headers: Mapping[str, str]) -> None:
    """Raises `RequestError` (401) unless the request carries one of the keys, when there are any."""
    if not settings.api_keys:
        return
    sent = key_of(headers).encode()
    good = [hmac.compare_digest(sent, key.get_secret_value().encode()) for key in settings.api_keys]
    if not any(good):
        raise RequestError("the key is missing or wrong.", "Send it as `Authorization: Bearer ...`.", status=401)


def key_of(headers: Mapping[str, str]) -> str:
    """The key that a request carries, in whichever header its client uses."""
    bearer = headers.get("authorization", "").removeprefix("Bearer ").removeprefix("bearer ")
    return bearer or headers.get("x-api-key", "")


_SECRETS = ("auth", "key", "token", "secret", "cookie", "credential", "password", "jwt", "signature")


def is_secret(header: str) -> bool:
    """Whether a header's name (lower case) says that it carries a credential."""
    return any(word in header for word in _SECRETS)


def client_of(headers: Mapping[str, str]) -> str:
    """Tells clients apart without keeping their key: user agent (200 characters) and eight hex digits of the key's
    digest."""
    digest = hashlib.sha256(key_of(headers).encode()).hexdigest()[:8]
    return f"{headers.get('user-agent', '')[:200]} #{digest}"
