"""What a check yields."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    """Worth knowing; nothing is wrong."""
    WARNING = "warning"
    """Something does not work as well as it could, or will not for long."""
    WRONG = "wrong"
    """Something that was asked for does not work, or data is lost or falsified."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    what: str
    why: str = ""
    """Why it matters; empty where all is well."""
    next_step: str = ""
    """What to do about it; empty where there is nothing to do."""
    check: str = ""
    """Name of the check that found it."""


def in_words(reason: str) -> str:
    """Why a call cannot be trained, as people read it: `completion tokens differ`."""
    return reason.replace("_", " ")


def ok(what: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, what)


def note(what: str, why: str = "", next_step: str = "") -> Finding:
    """Worth knowing."""
    return Finding(Level.NOTE, what, why, next_step)


def warning(what: str, why: str, next_step: str) -> Finding:
    """It could be better, or will be worse."""
    return Finding(Level.WARNING, what, why, next_step)


def wrong(what: str, why: str, next_step: str) -> Finding:
    """It does not work."""
    return Finding(Level.WRONG, what, why, next_step)
