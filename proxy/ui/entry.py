"""Who may look: the API's key, or a cookie that was given for it; and what keeps other sites out.

The cookie carries no key: it is signed with one, holds for `LIFE_S`, and needs nothing to be remembered, so that any
worker knows it. A write must bring a token that only a page of ours can have read (CSRF). Where no key is set, the
cookie is a random text that the token is made of, and nothing else.
"""

import hashlib
import hmac
import secrets
import time
import urllib.parse
from collections.abc import Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

from mosaic.errors import RequestError
from mosaic.settings import Settings
from proxy.access import check_key, has_keys

Headers = Mapping[str, str]

PREFIX = "/ui"
COOKIE = "mosaic_ui"
LIFE_S = 7 * 24 * 3600
"""Seconds for which a cookie is good."""
OPEN_PATHS = ("/ui/login", "/ui/static/")
"""What anybody may see: the form for the key, and files that say nothing of what is recorded."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
PROTECTION = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)
"""On every answer under `/ui`."""


def is_ui(path: str) -> bool:
    """Whether the dashboard answers this path."""
    return path == PREFIX or path.startswith(f"{PREFIX}/")


def check(settings: Settings, method: str, path: str, headers: Headers) -> None:
    """Raises `RequestError`: 401 without key and cookie, 403 for a write that another site may have sent."""
    writes = method not in ("GET", "HEAD")
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and writes:
        raise _foreign()
    if path.startswith(OPEN_PATHS):
        return
    if has_keys(settings) and _has_key(settings, headers):
        return
    cookie = cookie_of(headers)
    if has_keys(settings) and not (cookie and _signed(settings, cookie)):
        raise RequestError("the dashboard needs a key.", "Open /ui/login and enter one of api_keys.", status=401)
    token = headers.get("x-mosaic-csrf", "").encode()
    if writes and not (cookie and hmac.compare_digest(token, csrf(cookie).encode())):
        raise _foreign()


def _foreign() -> RequestError:
    return RequestError("this was not sent by a page of the dashboard's.", "Reload the page and try again.", status=403)


def _has_key(settings: Settings, headers: Headers) -> bool:
    try:
        check_key(settings, headers)
    except RequestError:
        return False
    return True


def cookie_of(headers: Headers) -> str | None:
    """The dashboard's cookie, unchecked."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        return None
    return found.value if found else None


def new_cookie(settings: Settings, key: str | None = None) -> str:
    """A cookie for who has shown the key; without one (where none is needed), a text to make tokens of.

    Raises `RequestError` (401) for a wrong key.
    """
    claim = f"{int(time.time()) + LIFE_S}.{secrets.token_urlsafe(18)}"
    if key is None:
        return f"{claim}."
    check_key(settings, {"authorization": f"Bearer {key}"})
    return f"{claim}.{_mac(key, claim)}"


def _signed(settings: Settings, cookie: str) -> bool:
    claim, _, mac = cookie.rpartition(".")
    expires = claim.partition(".")[0]
    good = [hmac.compare_digest(mac.encode(), _mac(k.get_secret_value(), claim).encode()) for k in settings.api_keys]
    return any(good) and expires.isdigit() and int(expires) > time.time()


def _mac(key: str, claim: str) -> str:
    return hmac.new(key.encode(), f"mosaic-ui.{claim}".encode(), "sha256").hexdigest()


def csrf(cookie: str) -> str:
    """The token that a page's writes must bring."""
    return hashlib.sha256(f"mosaic-csrf.{cookie}".encode()).hexdigest()[:32]


def set_cookie(value: str, *, secure: bool) -> str:
    """The header that gives it to a browser, for the dashboard's pages alone."""
    return f"{COOKIE}={value}; Path={PREFIX}; Max-Age={LIFE_S}; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"


def to_login(path: str, query: bytes) -> str:
    """Where somebody without a key is sent."""
    wanted = path + (f"?{query.decode('latin-1')}" if query else "")
    return f"{PREFIX}/login?next={urllib.parse.quote(wanted, safe='')}"


def place_after(wanted: str | None) -> str:
    """Where to go after the key was entered: a page of ours, whatever was asked for."""
    inside = wanted is not None and wanted.startswith(f"{PREFIX}/") and "\\" not in wanted and "//" not in wanted
    return wanted if wanted is not None and inside and wanted.isprintable() else f"{PREFIX}/trajectories"


def protect(message: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """An ASGI message, with the headers that every answer of the dashboard has."""
    if message["type"] != "http.response.start":
        return message
    return {**message, "headers": [*message.get("headers", ()), *PROTECTION]}
