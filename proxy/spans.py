"""OpenTelemetry spans of calls, after its conventions for generative AI (`gen_ai.*`, semantic conventions 1.38).

A span is made when its call has been stored, with the times at which it happened: that costs the call nothing, and the
span knows the session. It stands under the client's own span where the request brought a `traceparent`. Messages are
never in it. Nothing of OpenTelemetry is imported before it is asked for (`otel = true`, extra `otel`).
"""

import importlib.util
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mosaic.capture import CallStatus, CapturedCall
from mosaic.errors import SettingsError
from mosaic.lineage import Placement

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
ASKED = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "n": "gen_ai.request.choice.count",
}
"""Parameter of a request -> its attribute."""


def require() -> None:
    """Raises `SettingsError` when OpenTelemetry is not installed."""
    for package in NEEDED:
        try:
            found = importlib.util.find_spec(package)
        except ModuleNotFoundError:
            found = None
        if found is None:
            raise SettingsError(
                f"otel = true needs {package}, which is not installed.", "pip install 'mosaic-rl[otel]', or unset otel."
            )


class Spans:
    """Makes spans with one provider. Used by one thread."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("mosaic")

    @classmethod
    def to_collector(cls) -> "Spans":
        """Spans that go to a collector by OTLP over HTTP; OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_ENDPOINT`
        and its kin) say where. Raises `SettingsError`."""
        require()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        named = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "mosaic")}
        provider = TracerProvider(resource=Resource.create(named))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return cls(provider)

    def told(self, call: CapturedCall, placement: Placement, tokens: tuple[int, int]) -> None:
        """The span of a call; `tokens` are those of its prompt and those sampled."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, Status, StatusCode

        operation = "text_completion" if call.wire == "completions" else "chat"
        model = call.params.get("model")
        span = self._tracer.start_span(
            f"{operation} {model}" if isinstance(model, str) else operation,
            context=extract(call.headers),
            kind=SpanKind.CLIENT,
            attributes=_attributes(call, placement, tokens) | {"gen_ai.operation.name": operation},
            start_time=_nanoseconds(call.started_at),
        )
        if call.status is not CallStatus.OK:
            span.set_status(Status(StatusCode.ERROR, call.error))
        span.end(_nanoseconds(call.ended_at))

    def close(self) -> None:
        """Send what waits, as far as the collector takes it."""
        self._provider.shutdown()


def _attributes(call: CapturedCall, placement: Placement, tokens: tuple[int, int]) -> dict[str, Any]:
    found: Mapping[str, Any] = {
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": call.params.get("model"),
        "gen_ai.request.stream": call.streamed,
        "gen_ai.response.id": call.call_id,
        "gen_ai.response.finish_reasons": [c.finish_reason for c in call.choices if c.finish_reason is not None],
        "gen_ai.response.time_to_first_chunk": call.first_byte_at and call.first_byte_at - call.started_at,
        "gen_ai.usage.input_tokens": tokens[0],
        "gen_ai.usage.output_tokens": tokens[1],
        "gen_ai.conversation.id": placement.session_id,
        "http.response.status_code": call.http_status,
        "error.type": None if call.status is CallStatus.OK else call.status.value,
        "mosaic.call_id": call.call_id,
        "mosaic.trajectory_id": placement.trajectory_id,
        "mosaic.session_id": placement.session_id,
        "mosaic.auxiliary": placement.auxiliary,
        "mosaic.inexact_reason": call.inexact_reason,
        **{attribute: call.params.get(name) for name, attribute in ASKED.items() if name in call.params},
    }
    return {name: value for name, value in found.items() if value not in (None, []) and _can_be_told(value)}


def _can_be_told(value: object) -> bool:
    """What a client puts in a parameter may be anything."""
    return isinstance(value, str | bool | float | list) or (isinstance(value, int) and -(2**63) <= value < 2**63)


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
