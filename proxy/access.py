"""Who may call: keys compared in constant time, and no open proxy on anything but loopback."""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping, Sequence

from pydantic import SecretStr

from mosaic.errors import RequestError, SettingsError
from mosaic.keys import TRAJECTORY_KEY, mark_of
from mosaic.settings import Settings


def check_bind(settings: Settings) -> None:
    """Raises `SettingsError` for an address that others can reach while no key is set."""
    if not has_keys(settings) and not _is_loopback(settings.host):
        raise SettingsError(
            f"host {settings.host} can be reached by others, and no api_keys are set.",
            "Set MOSAIC_API_KEYS='[\"...\"]' or listen on 127.0.0.1.",
        )


def check_host(settings: Settings, headers: Mapping[str, str]) -> None:
    """Raises `RequestError` (403) where no key is set and the request names a host that is not this machine: a page of
    another site, whose name was made to point here, must not read what is recorded (DNS rebinding)."""
    if has_keys(settings):
        return
    host = headers.get("host", "")
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if host and name != settings.host and not _is_loopback(name):
        raise RequestError(
            f"{name[:80]!r} is no name of this machine's.", "Use 127.0.0.1, or set api_keys.", status=403
        )


def check_site(settings: Settings, method: str, headers: Mapping[str, str]) -> None:
    """Raises `RequestError` (403) where no key is set and a page of another site makes a browser write: it cannot read
    the answer, but a job would run, and calls be made, all the same."""
    if has_keys(settings) or method in ("GET", "HEAD"):
        return
    if headers.get("sec-fetch-site") == "cross-site" and not _of_an_app(headers.get("origin", "")):
        raise RequestError("a page of another site sent this.", "Set api_keys to allow it.", status=403)


def _of_an_app(origin: str) -> bool:
    """Whether an origin is that of a program with a browser inside, such as an editor's."""
    scheme = origin.partition("://")[0]
    return scheme not in ("http", "https", "null", "")


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_key(settings: Settings, headers: Mapping[str, str]) -> None:
    """Raises `RequestError` (401) unless the request carries a key for the control routes, when any key is set."""
    if has_keys(settings) and not _among(key_of(headers), settings.api_keys):
        raise _refused()


def has_keys(settings: Settings) -> bool:
    """Whether anybody needs a key."""
    return bool(settings.api_keys or settings.agent_keys or settings.trajectory_secret is not None)


def agent_of(settings: Settings, headers: Mapping[str, str]) -> str | None:
    """The trajectory that a request's key names, or None for a key (or none, where none is needed) of any agent.

    Raises `RequestError` (401), also for a key that names a trajectory and cannot be checked: its calls would be mixed
    with those of others.
    """
    key = key_of(headers)
    if _among(key, [*settings.api_keys, *settings.agent_keys]):
        return None
    if key.startswith(TRAJECTORY_KEY):
        return _named(key, settings.trajectory_secret)
    if has_keys(settings):
        raise _refused()
    return None


def _named(key: str, secret: SecretStr | None) -> str:
    """The trajectory that a key names. Raises `RequestError` (401)."""
    if secret is None:
        raise RequestError(
            "the key names a trajectory, and this proxy has no trajectory_secret to check it.",
            "Start `mosaic serve` with the secret that `mosaic key` had.",
            status=401,
        )
    trajectory_id, _, mark = key.removeprefix(TRAJECTORY_KEY).rpartition(".")
    if trajectory_id and hmac.compare_digest(mark.encode(), mark_of(secret, trajectory_id).encode()):
        return trajectory_id
    raise RequestError(
        "the key names a trajectory, and was not signed with this proxy's trajectory_secret.",
        "Make it with `mosaic key` and the same secret.",
        status=401,
    )


def _among(key: str, keys: Sequence[SecretStr]) -> bool:
    """Whether it is one of the keys, in a time that does not tell which."""
    return any([hmac.compare_digest(key.encode(), good.get_secret_value().encode()) for good in keys])  # noqa: C419


def _refused() -> RequestError:
    return RequestError("the key is missing or wrong.", "Send it as `Authorization: Bearer ...`.", status=401)


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
