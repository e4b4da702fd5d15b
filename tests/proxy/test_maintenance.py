"""Housekeeping beside the serving: what its rounds say."""

from pathlib import Path

from structlog.testing import capture_logs

from mosaic.settings import Settings
from mosaic.store import Store
from proxy.maintenance import House


def test_a_version_that_goes_live_is_said_once(tmp_path: Path) -> None:
    settings = Settings(database=f"sqlite:///{tmp_path}/mosaic.db")
    store = Store(settings.database)
    house = House(store, settings)
    with capture_logs() as logged:
        assert house.once()
        store.version_live(store.new_version("x", None))
        assert house.once()
        assert house.once()
    store.close()
    assert logged == [{"event": "version 1 is live", "before": 0, "log_level": "info"}]
