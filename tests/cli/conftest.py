"""What the commands look at."""

from pathlib import Path

import pytest

from mosaic.store import Store
from tests.lineage.test_lineage import compaction
from tests.playbook import Recording


@pytest.fixture
def database(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/mosaic.db"
    store = Store(url)
    store.record(compaction(Recording("run-17")))
    store.close()
    return url
