"""What is looked at: the settings in force, the engines that they name, and the database."""

import math
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from mosaic.errors import StoreError
from mosaic.settings import Settings
from mosaic.store import Store
from proxy.doctor.asking import Engine

MOST_S = 30.0
"""Seconds in which servers are asked, by all checks together."""
MOST_SAMPLING_S = 300.0
"""The same where they are asked for tokens too."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One installation of Mosaic."""

    settings: Settings
    engines: tuple[Engine, ...]
    """The policy's, the first of them first."""
    store: Store | None
    """None where there is none yet, or where it cannot be opened."""
    refusal: StoreError | None = None
    """Why it cannot be opened."""
    sampling: bool = True
    """Whether engines may be asked to generate."""
    until: float = math.inf
    """When servers are asked no more, by the monotonic clock."""

    @property
    def up(self) -> list[Engine]:
        """The engines that answer."""
        return [engine for engine in self.engines if engine.answers]

    @property
    def model(self) -> str | None:
        """The name under which the policy is asked for."""
        if self.settings.policy_model is not None:
            return self.settings.policy_model
        return next((engine.models[0]["id"] for engine in self.up if engine.models), None)


def subject_of(settings: Settings, *, sampling: bool) -> Subject:
    """The installation of these settings. Its store is the caller's to close."""
    until = time.monotonic() + (MOST_SAMPLING_S if sampling else MOST_S)
    engines = tuple(Engine(base, settings.upstream_api_key, until) for base in (settings.upstream, *settings.replicas))
    file = sqlite_file(settings.database)
    if file is not None and not file.exists():
        return Subject(settings, engines, None, None, sampling, until)
    try:
        return Subject(settings, engines, Store(settings.database), None, sampling, until)
    except StoreError as error:
        return Subject(settings, engines, None, error, sampling, until)


def sqlite_file(url: str) -> Path | None:
    """The file of a database; None where it is none."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):  # ValueError: a port that is no number
        return None
    named = parsed.get_backend_name() == "sqlite" and parsed.database not in (None, "", ":memory:")
    return Path(str(parsed.database)) if named else None
