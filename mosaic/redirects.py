"""Redirects are not followed by what carries a key: they would take it to another server."""

import urllib.request


class StayHere(urllib.request.HTTPRedirectHandler):
    """Follows none; the redirect itself is the answer."""

    def redirect_request(self, *_: object) -> None:
        """Nothing is asked there."""
