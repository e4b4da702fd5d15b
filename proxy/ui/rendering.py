"""Templates and the ways in which figures are written. Everything is escaped; jinja2 is loaded for the first page."""

import math
import time
import urllib.parse
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

FOLDER = Path(__file__).parent
DASH = "–"


def render(template: str, **values: Any) -> str:
    """A page or a part of one."""
    return _environment().get_template(template).render(now=time.time(), **values)


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(FOLDER / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters.update(
        count=count, signed=signed, figure=figure, lasting=lasting, moment=moment, share=share, quoted=quoted, ago=ago
    )
    return environment


def count(value: float | None) -> str:
    """A whole number: 999, 12,345, 1.2M."""
    if value is None:
        return DASH
    if abs(value) >= 1e6:
        return f"{value / 1e6:.1f}M"
    return f"{int(value):,}"


def figure(value: float | None) -> str:
    """A figure with up to three digits after the point, and none that say nothing."""
    if value is None or not math.isfinite(value):
        return DASH
    if value and (abs(value) < 1e-3 or abs(value) >= 1e6):
        return f"{value:.2e}"
    return f"{value:.3f}".rstrip("0").rstrip(".").replace("-", "−")


def signed(value: float | None) -> str:
    """An advantage: always with its sign, two digits."""
    if value is None or not math.isfinite(value):
        return DASH
    return f"{value:+.2f}".replace("-", "−")


def share(value: float | None) -> str:
    """A share as per cent."""
    if value is None:
        return DASH
    # What is nearly all or nearly nothing is not all and not nothing.
    digits = 1 if 0 < value < 0.01 or 0.99 < value < 1 else 0
    return f"{min(100 * value, 99.9) if value < 1 else 100:.{digits}f} %"


def lasting(seconds: float | None) -> str:
    """A duration in the unit that suits it."""
    if seconds is None:
        return DASH
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} m {int(seconds % 60):02d} s"
    return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} m"


def ago(when: float | None, now: float) -> str:
    """How long ago, roughly; the page's script keeps it right."""
    if when is None:
        return DASH
    passed = max(0.0, now - when)
    for unit, name in ((86400, "d"), (3600, "h"), (60, "m")):
        if passed >= unit:
            return f"{int(passed // unit)} {name}"
    return f"{int(passed)} s"


def moment(when: float | None) -> str:
    """A time, UTC, to the second."""
    try:
        return DASH if when is None else datetime.fromtimestamp(when, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return DASH


def quoted(value: object) -> str:
    """One part of a path, or a value of a query."""
    return urllib.parse.quote(str(value), safe="")
