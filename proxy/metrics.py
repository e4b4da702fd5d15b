"""`/metrics` for Prometheus: what this worker's recorder did, what waits in the journal, and the store's counters."""

from collections.abc import Iterator

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from mosaic.settings import Settings
from mosaic.store import Store
from proxy.reading import waiting_calls
from proxy.recorder import Recorder

COUNTED = {
    "recorded": "Calls recorded",
    "lost": "Calls lost",
    "waits_given_up": "Times that nobody waited any longer for the database",
    "disk_refusals": "Writes that the journal's disk refused",
    "refusals": "Times that the database refused",
}


class _Collector:
    """Reads the figures when they are asked for."""

    def __init__(self, settings: Settings, store: Store, recorder: Recorder) -> None:
        self._settings = settings
        self._store = store
        self._recorder = recorder

    def collect(self) -> Iterator[Metric]:
        """All figures."""
        figures = self._recorder.figures()
        held = figures.pop("held")
        for name, value in figures.items():
            yield CounterMetricFamily(f"mosaic_recorder_{name}", f"{COUNTED[name]}, by this worker.", value)
        yield GaugeMetricFamily("mosaic_held_calls", "Calls in memory alone, because the disk refuses.", held)
        yield GaugeMetricFamily("mosaic_writer_up", "1 while the writer runs.", int(self._recorder.alive()))
        waiting = waiting_calls(self._settings.spool)
        yield GaugeMetricFamily("mosaic_waiting_calls", "Calls on their way to the database.", waiting)
        yield GaugeMetricFamily("mosaic_policy_version", "The live policy version.", self._store.policy()[0])
        counters = CounterMetricFamily("mosaic_events", "The store's counters.", labels=["name", "reason"])
        for name, reasons in self._store.counters().items():
            for reason, value in reasons.items():
                counters.add_metric([name, reason], value)
        yield counters


def router(settings: Settings, store: Store, recorder: Recorder) -> APIRouter:
    """The route, bound to one worker. Whoever serves it has checked the key (`Application`)."""
    registry = CollectorRegistry()
    registry.register(_Collector(settings, store, recorder))
    metrics = APIRouter()

    @metrics.get("/metrics", response_class=PlainTextResponse)
    def show() -> Response:
        """Figures in Prometheus' text form."""
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    return metrics
