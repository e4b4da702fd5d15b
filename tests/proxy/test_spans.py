"""Spans: what they say, where they stand, and that nothing of OpenTelemetry is there without them."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mosaic.capture import CallStatus
from mosaic.errors import SettingsError
from mosaic.store import Store
from proxy import spans
from proxy.figures import Figures
from proxy.spans import Spans
from proxy.telling import Telling
from proxy.trace import Trace, captured
from tests.conftest import ProxyFactory
from tests.engine import Turn
from tests.proxy.traces import conversation

sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="the extra otel is not installed")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def told(tmp_path: Path, traces: list[Trace]) -> tuple[list[Any], Store]:
    """The spans of calls that are stored for real, twice, as by a writer that died after its commit."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    store = Store(f"sqlite:///{tmp_path}/mosaic.db")
    calls = [captured(trace) for trace in traces]
    telling = Telling(Figures(tmp_path), Spans(provider))
    for _ in range(2):
        telling.stored(calls, store.record(calls))
    telling.close()
    return list(exporter.get_finished_spans()), store


def test_a_call_is_one_span_with_its_times_tokens_and_session(tmp_path: Path) -> None:
    found, store = told(tmp_path, conversation(2))
    (session,) = store.trajectory("run-1").sessions
    store.close()
    assert [span.name for span in found] == ["chat policy", "chat policy"]
    assert (found[0].start_time, found[0].end_time) == (10**18, 10**18 + 300_000_000)
    said = found[1].attributes
    assert said["gen_ai.operation.name"] == "chat"
    assert said["gen_ai.provider.name"] == "vllm"
    assert said["gen_ai.request.model"] == "policy"
    assert said["gen_ai.request.stream"] is True
    assert said["gen_ai.response.finish_reasons"] == ("stop",)
    assert said["gen_ai.response.time_to_first_chunk"] == pytest.approx(0.1, abs=1e-3)
    assert said["gen_ai.usage.output_tokens"] == len("This is reply 1") + 1
    assert said["gen_ai.usage.input_tokens"] == len(session.calls[1].prompt_ids_P)
    assert said["gen_ai.conversation.id"] == said["mosaic.session_id"] == session.session_id
    assert (said["mosaic.trajectory_id"], said["mosaic.call_id"]) == ("run-1", "call-run-1-1")
    assert not any("reply" in str(value) for value in said.values()), "what was said is in no span"


def test_a_span_stands_under_the_clients_own(tmp_path: Path) -> None:
    (trace,) = conversation(1)
    headers = {**trace.origin.headers, "traceparent": f"00-{TRACE}-{PARENT}-01"}
    (found,), store = told(tmp_path, [replace(trace, origin=replace(trace.origin, headers=headers))])
    store.close()
    assert f"{found.context.trace_id:032x}" == TRACE
    assert f"{found.parent.span_id:016x}" == PARENT


def test_what_did_not_end_well_is_an_error(tmp_path: Path) -> None:
    (trace,) = conversation(1)
    (found,), store = told(tmp_path, [replace(trace, status=CallStatus.ABORTED, http_status=499, error="it left")])
    store.close()
    assert found.attributes["error.type"] == "aborted"
    assert (found.status.is_ok, found.status.description) == (False, "it left")


async def test_the_clients_trace_is_kept_with_the_call(start_proxy: ProxyFactory) -> None:
    import aiohttp

    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    body = {"model": "policy", "messages": [{"role": "user", "content": "Hi"}]}
    async with start_proxy(lambda _: Turn("Hello")) as proxy:
        address = f"{proxy.url}/t/run-1/v1/chat/completions"
        async with aiohttp.ClientSession(headers=headers) as client, client.post(address, json=body) as response:
            assert response.status == 200
        with proxy.store.database.reading() as connection:
            kept = connection.exec_driver_sql("select headers from calls").scalar_one()
    assert TRACE in kept


def test_without_the_extra_it_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spans, "NEEDED", ("opentelemetry.sdk", "opentelemetry.no_such_exporter.of_ours"))
    with pytest.raises(SettingsError, match="mosaic-rl\\[otel\\]"):
        spans.require()


def test_a_collector_can_be_reached_by_what_the_extra_brings() -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    Spans.to_collector().close()


def test_nothing_of_it_is_loaded_while_it_is_off() -> None:
    code = "import sys, proxy.app, proxy.commands, proxy.writer\nprint([n for n in sys.modules if 'telemetry' in n])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
