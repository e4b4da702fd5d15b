"""Patterns of the words in which frameworks put their own calls."""

import re
from collections.abc import Iterable

_CAPITAL = re.compile(r"(\\.)|([A-Z])")
_FIRST_WORD = re.compile(r"\\b(\w+)(?![\w?*+{|])")


class Words:
    """Patterns of words, in any case. Those that must open a text are looked for there only; each of the others is
    looked for by itself, in a lowered text, so that what it begins with is found fast: in one expression for all of
    them, every place of the text would be tried."""

    def __init__(self, patterns: Iterable[str]) -> None:
        lowered = [_CAPITAL.sub(lambda found: found[1] or found[2].lower(), pattern) for pattern in patterns]
        opening = [f"(?:{pattern})" for pattern in lowered if pattern.startswith("^")]
        self._opening = re.compile("|".join(opening), re.DOTALL) if opening else None
        self._anywhere = [
            re.compile(_FIRST_WORD.sub(r"\1(?<=\\b\1)", p, count=1) if p.startswith(r"\b") else p, re.DOTALL)
            for p in lowered
            if not p.startswith("^")
        ]

    def found_in(self, text: str) -> bool:
        """Whether one of the patterns fits."""
        text = text.lower()
        if self._opening is not None and self._opening.match(text) is not None:
            return True
        for pattern in self._anywhere:  # noqa: SIM110 - `any` would cost as much as looking
            if pattern.search(text) is not None:
                return True
        return False
