"""URLs as people may see them, and what a URL in the settings must be."""

import re
from urllib.parse import unquote_plus

MASK = "***"
_HTTP_USER = re.compile(r"(?i)^(https?://)[^/?#]*@")
_HTTP_PASSWORD = re.compile(r"(?is)^(https?://[^:/?#@]*):(?!\d+[/?#]).*@")
"""A password may hold any character, even those that must be written otherwise in one; a port is none."""
_PASSWORD = re.compile(r"(?is)^((?!https?:)[^:]*://[^:/?#@]*):.*@")
_PARAMETER = re.compile(r"(?<=[?&;])([^=&;#]+)=([^&;#]*)")
_SECRET = re.compile(r"(?i)pass|pwd|secret|token|key|sig|auth")


def shown_url(url: str) -> str:
    """A URL without what opens the door: the password, a whole `user@` of the web's, and secrets in the query."""
    shown = url
    for user, masked in ((_HTTP_USER, rf"\1{MASK}@"), (_HTTP_PASSWORD, rf"\1:{MASK}@"), (_PASSWORD, rf"\1:{MASK}@")):
        shown = user.sub(masked, shown)
    return _PARAMETER.sub(lambda m: f"{m[1]}={MASK}" if _SECRET.search(unquote_plus(m[1])) else m[0], shown)
