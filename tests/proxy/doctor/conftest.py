"""An empty database for checks to look at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from mosaic.settings import Settings
from mosaic.store import Store
from tests.proxy.doctor.looking import settings_of


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return settings_of(tmp_path)


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    opened = Store(settings.database)
    yield opened
    opened.close()
