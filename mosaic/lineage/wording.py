"""Patterns of the words in which frameworks put their own calls."""

import re
from collections.abc import Iterable

_NEVER = re.compile(r"(?!)")
_CAPITAL = re.compile(r"(\\.)|([A-Z])")


class Words:
    """Patterns of words, in any case. Those that must open a text are looked for there only; and a text is lowered
    instead of compared without case, so that what a pattern begins with is found fast."""

    def __init__(self, patterns: Iterable[str]) -> None:
        lowered = [_CAPITAL.sub(lambda found: found[1] or found[2].lower(), pattern) for pattern in patterns]
        self._opening = _any(p for p in lowered if p.startswith("^"))
        self._anywhere = _any(p for p in lowered if not p.startswith("^"))

    def found_in(self, text: str) -> bool:
        """Whether one of the patterns fits."""
        text = text.lower()
        return self._opening.match(text) is not None or self._anywhere.search(text) is not None


def _any(patterns: Iterable[str]) -> re.Pattern[str]:
    found = [f"(?:{pattern})" for pattern in patterns]
    return re.compile("|".join(found), re.DOTALL) if found else _NEVER
