"""URLs as people may see them, and what a URL in the settings must be."""

import re
from typing import Annotated
from urllib.parse import unquote_plus, urlsplit

from pydantic import AfterValidator

MASK = "***"
_HTTP_USER = re.compile(r"(?i)^(https?://)[^/?#]*@")
_HTTP_PASSWORD = re.compile(r"(?is)^(https?://[^:/?#@]*):(?!\d+[/?#]).*@")
"""A password may hold any character, even those that must be written otherwise in one; a port is none."""
_PASSWORD = re.compile(r"(?is)^((?!https?:)[^:]*://[^:/?#@]*):.*@")
_PARAMETER = re.compile(r"(?<=[?&;])([^=&;#]+)=([^&;#]*)")
_WORD = re.compile(r"[^\s\x00-\x1f\x7f]+")
_SECRET = re.compile(r"(?i)pass|pwd|secret|token|key|sig|auth")


def shown_url(url: str) -> str:
    """A URL without what opens the door: the password, a whole `user@` of the web's, and secrets in the query."""
    shown = url
    for user, masked in ((_HTTP_PASSWORD, rf"\1:{MASK}@"), (_HTTP_USER, rf"\1{MASK}@"), (_PASSWORD, rf"\1:{MASK}@")):
        shown = user.sub(masked, shown)
    return _PARAMETER.sub(lambda m: f"{m[1]}={MASK}" if _SECRET.search(unquote_plus(m[1])) else m[0], shown)


def _web_url(url: str) -> str:
    """What a client can be sent to. Raises `ValueError`."""
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")  # as whoever looks the name up does: no part may be empty or too long
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and _WORD.fullmatch(url)
    except ValueError:  # its words would show what stands where the port should, which may be a password
        usable = False
    if not usable:
        raise ValueError("it is no web address; write http://host:port/path, without spaces")
    return url


def _base_url(url: str) -> str:
    """What paths can be put behind. Raises `ValueError`."""
    if "?" in url or "#" in url:
        raise ValueError("paths are put behind it; leave away the ? or #, and what follows it")
    return _web_url(url)


def _engine_url(url: str) -> str:
    """Without /v1 every call would be a 404 of the engine's, which says nothing of the cause. Raises `ValueError`."""
    _base_url(url)
    if not urlsplit(url).path.rstrip("/").endswith("/v1"):
        raise ValueError(f"it must end in /v1; did you mean {shown_url(url).rstrip('/')}/v1?")
    return url


WebUrl = Annotated[str, AfterValidator(_web_url)]
BaseUrl = Annotated[str, AfterValidator(_base_url)]
EngineUrl = Annotated[str, AfterValidator(_engine_url)]
