"""What the writer tells others of each call that it has stored: figures for `/metrics`, spans for OpenTelemetry.

It stands behind the commit: a failure in it loses a figure or a span, and no call.
"""

from collections.abc import Sequence
from pathlib import Path

import structlog

from mosaic.capture import CapturedCall
from mosaic.errors import SettingsError
from mosaic.lineage import Placement
from proxy.figures import Figures, calls_name
from proxy.spans import Spans

log = structlog.get_logger()


class Telling:
    """One writer's figures and spans. Used by one thread."""

    def __init__(self, figures: Figures, spans: Spans | None = None) -> None:
        self._figures = figures
        self._spans = spans

    @classmethod
    def on(cls, folder: Path, otel: bool) -> "Telling":
        """Figures in the folder and, if so told, spans to a collector."""
        try:
            return cls(Figures(folder), Spans.to_collector() if otel else None)
        except SettingsError as error:  # `mosaic serve` refuses before; here calls wait to be stored
            log.error("no spans", error=str(error))
            return cls(Figures(folder))

    def stored(self, calls: Sequence[CapturedCall], placements: Sequence[Placement]) -> None:
        """Tell of the calls that have been placed; what was stored already has no placement."""
        by_id = {call.call_id: call for call in calls}
        for placement in placements:
            call = by_id[placement.call_id]
            tokens = prompt_tokens(call), sampled_tokens(call)
            self._count(call, tokens)
            if self._spans is not None:
                self._spans.told(call, placement, tokens)

    def close(self) -> None:
        """Send what is to be sent."""
        self._figures.close()
        if self._spans is not None:
            self._spans.close()

    def _count(self, call: CapturedCall, tokens: tuple[int, int]) -> None:
        figures = self._figures
        figures.add(calls_name(call.wire, call.status))
        figures.add("exact_calls", call.exact)
        figures.add("prompt_tokens", tokens[0])
        figures.add("sampled_tokens", tokens[1])
        figures.observe("call_seconds", call.ended_at - call.started_at)
        if call.first_byte_at is not None:
            figures.observe("first_byte_seconds", call.first_byte_at - call.started_at)


def prompt_tokens(call: CapturedCall) -> int:
    """As the engine counted them, or as many ids as it sent."""
    used = _used(call, "prompt_tokens")
    return len(call.prompt_ids_P) if used is None else used


def sampled_tokens(call: CapturedCall) -> int:
    """Over all choices."""
    used = _used(call, "completion_tokens")
    return sum(len(choice.ids_T) for choice in call.choices) if used is None else used


def _used(call: CapturedCall, name: str) -> int | None:
    value = call.usage.get(name) if call.usage else None
    return value if isinstance(value, int) and 0 <= value < 2**40 else None
