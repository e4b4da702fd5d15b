"""What a scorer may say, in any of its forms: a number, None (unscorable), or an object with a reward and a note."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from mosaic.errors import MosaicError
from mosaic.records import MAX_REWARD
from mosaic.store.rows import plain

MAX_NOTE = 2000
"""Characters of a note that are kept."""


class ScoreError(MosaicError):
    """A scorer failed, or said something that is no score; the trajectory stays as it is."""


@dataclass(frozen=True, slots=True)
class Score:
    """How a trajectory went."""

    value: float | None
    """None: it cannot be scored."""
    note: str | None = None


def as_score(said: object) -> Score:
    """What a function returned, or a file held. Raises `ScoreError` for anything that is no score."""
    if isinstance(said, Score):
        return said
    if isinstance(said, Mapping):
        if "reward" not in said:
            raise ScoreError(f"the scorer's object has no `reward`: {str(dict(said))[:80]}.", _FORMS)
        note = said.get("note")
        return Score(as_score(said["reward"]).value, None if note is None else plain(str(note)[:MAX_NOTE]))
    if said is None:
        return Score(None)
    if not isinstance(said, int | float) or not abs(said) <= MAX_REWARD:
        raise ScoreError(f"{said!r:.80} is no score.", _FORMS)
    return Score(float(said))


def read_score(text: str) -> Score:
    """What a command printed or a file holds: a JSON object, or a last line that is one, a number or `none`.

    Raises `ScoreError`.
    """
    whole = text.strip()
    last = whole if whole.startswith("{") else (whole.splitlines() or [""])[-1].strip()
    if last.lower() in ("none", "null"):
        return Score(None)
    try:
        said = json.loads(last) if last.startswith("{") else float(last)
    except ValueError:
        raise ScoreError(f"the scorer printed no score at the end, but {last[-80:]!r}.", _FORMS) from None
    return as_score(said)


_FORMS = (
    f"A score is a finite number from -{MAX_REWARD:,.0f} to {MAX_REWARD:,.0f}, none, or "
    '{"reward": number or null, "note": text}.'
)
