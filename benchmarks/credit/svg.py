"""Small charts as SVG text: lines with a band, bars, points. No dependency, and the same input gives the same bytes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 380, 260, 52, 12, 34, 42
COLOURS = ("#1b6ca8", "#c8553d", "#4f8a3c", "#8559a5", "#b08900", "#5c6770")


@dataclass(slots=True)
class Chart:
    """One pair of axes."""

    title: str
    x_label: str
    y_label: str
    x_range: tuple[float, float]
    y_range: tuple[float, float]
    x_names: Sequence[str] | None = None
    """Names for x = 0, 1, ...; None: numbers."""
    _marks: list[str] = field(default_factory=list)
    _legend: list[tuple[str, str]] = field(default_factory=list)

    def line(
        self, x: Sequence[float], y: Sequence[float], colour: str, name: str, spread: Sequence[float] | None = None
    ) -> None:
        """A line, with a band of `spread` on either side."""
        if spread is not None:
            upper = [self._at(a, b + s) for a, b, s in zip(x, y, spread, strict=True)]
            lower = [self._at(a, b - s) for a, b, s in zip(x, y, spread, strict=True)]
            self._marks.append(f'<polygon points="{" ".join(upper + lower[::-1])}" fill="{colour}" opacity=".18"/>')
        points = " ".join(self._at(a, b) for a, b in zip(x, y, strict=True))
        self._marks.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        self._legend.append((colour, name))

    def points(self, xy: Sequence[Sequence[float]], colour: str, name: str) -> None:
        """A scatter; what lies outside the axes is drawn on their edge."""
        for x, y in xy:
            cx, cy = self._at(_held(x, self.x_range), _held(y, self.y_range)).split(",")
            self._marks.append(f'<circle cx="{cx}" cy="{cy}" r="1.8" fill="{colour}" opacity=".5"/>')
        self._legend.append((colour, name))

    def bars(
        self,
        x: Sequence[float],
        y: Sequence[float],
        spread: Sequence[float] = (),
        *,
        width: float,
        colour: str,
        name: str,
    ) -> None:
        """Bars centred at `x`, with whiskers of `spread` on either side."""
        for at, value in zip(x, y, strict=True):
            (x0, y0), (x1, y1) = (
                map(float, p.split(",")) for p in (self._at(at - width / 2, value), self._at(at + width / 2, 0))
            )
            top, height = min(y0, y1), abs(y1 - y0)
            self._marks.append(
                f'<rect x="{x0:.1f}" y="{top:.1f}" width="{x1 - x0:.1f}" height="{height:.1f}" fill="{colour}"/>'
            )
        self._whiskers(x, y, spread)
        if name:
            self._legend.append((colour, name))

    def dots(self, x: Sequence[float], y: Sequence[float], spread: Sequence[float], colour: str) -> None:
        """Points with whiskers, for axes that do not begin at zero."""
        self._whiskers(x, y, spread)
        for at, value in zip(x, y, strict=True):
            cx, cy = self._at(at, value).split(",")
            self._marks.append(f'<circle cx="{cx}" cy="{cy}" r="4" fill="{colour}"/>')

    def _whiskers(self, x: Sequence[float], y: Sequence[float], spread: Sequence[float]) -> None:
        for at, value, half in zip(x, y, spread, strict=False):
            ends = f"{self._at(at, value - half)} {self._at(at, value + half)}"
            self._marks.append(f'<polyline points="{ends}" stroke="#222" stroke-width="1"/>')

    def drawn(self, dx: float, dy: float) -> str:
        """The chart as a group of elements, moved to (dx, dy)."""
        parts = [f'<g transform="translate({dx:.0f},{dy:.0f})">', _text(LEFT, 14, self.title, "start", bold=True)]
        for value in _ticks(*self.y_range):
            _, y = self._at(self.x_range[0], value).split(",")
            parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#ddd"/>')
            parts.append(_text(LEFT - 5, float(y) + 3.5, f"{value:g}", "end"))
        names = dict(enumerate(self.x_names)) if self.x_names else {v: f"{v:g}" for v in _ticks(*self.x_range)}
        for at, name in names.items():
            x, _ = self._at(at, self.y_range[0]).split(",")
            parts.append(_text(float(x), HEIGHT - BOTTOM + 14, name, "middle"))
        parts += self._marks
        base = HEIGHT - BOTTOM
        parts.append(f'<path d="M{LEFT} {TOP}V{base}H{WIDTH - RIGHT}" fill="none" stroke="#444"/>')
        parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, self.x_label, "middle"))
        parts.append(f'<g transform="translate(12,{(TOP + base) / 2:.0f}) rotate(-90)">')
        parts.append(_text(0, 0, self.y_label, "middle") + "</g>")
        at = float(LEFT)
        for colour, name in self._legend:
            parts.append(f'<rect x="{at:.0f}" y="21" width="9" height="9" fill="{colour}"/>')
            parts.append(_text(at + 12, 29, name, "start"))
            at += 20 + 6.0 * len(name)
        return "\n".join([*parts, "</g>"])

    def _at(self, x: float, y: float) -> str:
        (x0, x1), (y0, y1) = self.x_range, self.y_range
        px = LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)
        py = HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)
        return f"{px:.1f},{py:.1f}"


def page(charts: Sequence[Chart], columns: int = 2) -> str:
    """Charts side by side on white."""
    rows = math.ceil(len(charts) / columns)
    placed = [c.drawn(WIDTH * (i % columns), HEIGHT * (i // columns)) for i, c in enumerate(charts)]
    width, height = WIDTH * min(columns, len(charts)), HEIGHT * rows
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
    return "\n".join([head, f'<rect width="{width}" height="{height}" fill="white"/>', *placed, "</svg>\n"])


def _text(x: float, y: float, text: str, anchor: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    size = 12 if bold else 10
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def _held(value: float, limits: tuple[float, float]) -> float:
    return min(max(value, limits[0]), limits[1])


def _ticks(low: float, high: float) -> list[float]:
    """At most eight round numbers."""
    power = 10 ** math.floor(math.log10((high - low) / 10))
    step = next(power * s for s in (1, 2, 5, 10, 20) if (high - low) / (power * s) <= 8)
    first = math.ceil(low / step - 1e-9)
    return [round(first * step + i * step, 10) for i in range(int((high - first * step) / step + 1e-9) + 1)]
