"""`/metrics` for Prometheus: what the workers on this folder did, what waits in the journal, the store's counters, the
newest job.

Whichever worker answers says the same: nothing in here is one process's own (`proxy.figures`).
"""

import time
from collections.abc import Iterator, Mapping

from fastapi import APIRouter, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from mosaic.capture import CallStatus
from mosaic.settings import Settings
from mosaic.store import Store, progress
from proxy import figures
from proxy.reading import waiting_calls
from proxy.recorder import Recorder

COUNTED = {
    "recorded": "Calls that ended at a worker",
    "lost": "Calls lost",
    "waits_given_up": "Times that nobody waited any longer for the database",
    "disk_refusals": "Writes that the journal's disk refused",
    "refusals": "Times that the database refused, since the writer started",
}
TOLD = {
    "exact_calls": "Stored calls that can be trained.",
    "prompt_tokens": "Tokens of the prompts of stored calls.",
    "sampled_tokens": "Tokens that stored calls sampled.",
}
TIMED = {
    "call_seconds": "From a call's request to its end.",
    "first_byte_seconds": "From a call's request to the engine's first byte.",
}
ALIVE_S = 10.0
"""Seconds in which a writer that works shows it."""


class _Collector:
    """Reads the figures when they are asked for."""

    def __init__(self, settings: Settings, store: Store, recorder: Recorder) -> None:
        self._settings = settings
        self._store = store
        self._recorder = recorder

    def collect(self) -> Iterator[Metric]:
        """All figures."""
        found = figures.total(self._settings.spool)
        done = {**found, "refusals": self._recorder.progress.refusals}
        for name, meaning in COUNTED.items():
            yield CounterMetricFamily(f"mosaic_recorder_{name}", f"{meaning}.", done[name])
        yield GaugeMetricFamily("mosaic_open_calls", "Calls in flight.", found["open"])
        yield GaugeMetricFamily("mosaic_held_calls", "Calls in memory alone, because the disk refuses.", found["held"])
        yield GaugeMetricFamily("mosaic_writer_up", "1 while the folder's writer works.", int(self._writer_works()))
        waiting = waiting_calls(self._settings.spool)
        yield GaugeMetricFamily("mosaic_waiting_calls", "Calls on their way to the database.", waiting)
        yield from _of_stored_calls(found)
        yield from self._of_the_store()

    def _writer_works(self) -> bool:
        return 0 <= time.monotonic() - self._recorder.progress.alive[1] < ALIVE_S

    def _of_the_store(self) -> Iterator[Metric]:
        """Of the whole database: every host that shares it says the same."""
        yield GaugeMetricFamily("mosaic_policy_version", "The live policy version.", self._store.policy()[0])
        counters = CounterMetricFamily("mosaic_events", "The store's counters.", labels=["name", "reason"])
        for name, reasons in self._store.counters().items():
            for reason, value in reasons.items():
                counters.add_metric([name, reason], value)
        yield counters
        with self._store.database.reading() as connection:
            jobs = progress.jobs(connection, limit=1)
        measured = GaugeMetricFamily("mosaic_job", "What the newest training job measured.", labels=["name"])
        for job in jobs:
            for name, figure in job.metrics.items():
                measured.add_metric([name], figure)
            created = "When the newest training job began (Unix seconds)."
            yield GaugeMetricFamily("mosaic_job_created_seconds", created, job.created_at)
            state = GaugeMetricFamily("mosaic_job_state", "1 at the newest training job's state.", labels=["state"])
            state.add_metric([job.state], 1)
            yield state
        yield measured


def _of_stored_calls(found: Mapping[str, int]) -> Iterator[Metric]:
    """What the writer has counted."""
    calls = CounterMetricFamily("mosaic_calls", "Stored calls by wire and end.", labels=["wire", "status"])
    for wire in figures.WIRE_NAMES:
        for status in CallStatus:
            calls.add_metric([wire, status.value], found[figures.calls_name(wire, status)])
    yield calls
    for name, meaning in TOLD.items():
        yield CounterMetricFamily(f"mosaic_{name}", meaning, found[name])
    for name, meaning in TIMED.items():
        buckets, so_far = [], 0
        for at, bound in enumerate([*figures.BUCKETS_S, float("inf")]):
            so_far += found[figures.bucket_name(name, at)]
            buckets.append(("+Inf" if bound == float("inf") else str(bound), so_far))
        yield HistogramMetricFamily(f"mosaic_{name}", meaning, buckets, found[figures.sum_name(name)] / 1e6)


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
