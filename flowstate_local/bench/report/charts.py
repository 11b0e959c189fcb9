"""Charts as SVG text: lines over requests, and stacked bars. Colours are CSS variables, so both themes can have theirs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 150, 14, 40
N_COLOURS = 12
"""Classes c0 .. c11 of the page's style sheet."""


@dataclass(frozen=True)
class Line:
    """One line of a chart."""

    name: str
    points: Sequence[tuple[float, float]]
    """x, y; x ascending."""
    colour: int
    band: Sequence[tuple[float, float, float]] = ()
    """x, low, high of an interval."""


def line_chart(lines: Sequence[Line], *, x: str, y: str, top: float | None = None) -> str:
    """Lines with their names at their ends; "" if there is nothing to draw.

    Args:
        lines: what to draw.
        x: label below.
        y: label of the left axis.
        top: upper end of the y axis; by default above the highest point.
    """
    drawn = [line for line in lines if line.points]
    if not drawn:
        return ""
    xs = [point[0] for line in drawn for point in line.points]
    ys = [point[1] for line in drawn for point in line.points]
    ticks = _ticks(top or max(ys) or 1.0)
    scale = _Scale(min(xs), max(xs), top or ticks[-1])
    parts = [_axes(scale, ticks, sorted(set(xs)), x, y)]
    parts += [_band(line, scale) for line in drawn if line.band]
    parts += [_polyline(line, scale) for line in drawn]
    parts += _labels(drawn, scale)
    return _svg(HEIGHT, parts, f"{y} against {x}")


def stacked_bars(rows: Mapping[str, Mapping[str, float]], colours: Mapping[str, int], *, unit: str) -> str:
    """A horizontal bar a row, divided into its parts; "" if there is nothing to draw."""
    totals = {name: sum(parts.values()) for name, parts in rows.items()}
    if not totals or not max(totals.values()):
        return ""
    longest = max(totals.values())
    room, height, parts = WIDTH - LEFT - 70 - 90, 24, []
    for place, (name, row) in enumerate(rows.items()):
        y, x = TOP + place * (height + 6), float(LEFT + 70)
        parts.append(
            f'<text class="label" x="{x - 8:.1f}" y="{y + 16}" text-anchor="end">{escape(name)}</text>'
        )
        for part, value in row.items():
            width = value / longest * room
            if width > 0:
                title = f"{name}: {part} {value:,.0f} {unit} ({value / totals[name]:.0%})"
                parts.append(
                    f'<rect class="c{colours[part]}" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}">'
                    f"<title>{escape(title)}</title></rect>"
                )
            x += width
        parts.append(f'<text class="tick" x="{x + 6:.1f}" y="{y + 16}">{short(totals[name])}</text>')
    return _svg(TOP + len(rows) * (height + 6), parts, f"{unit} by part")


def short(value: float) -> str:
    """1,234,567 -> 1.23M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


@dataclass(frozen=True)
class _Scale:
    first: float
    last: float
    top: float

    def x(self, value: float) -> float:
        span = (self.last - self.first) or 1.0
        return LEFT + (value - self.first) / span * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        return HEIGHT - BOTTOM - value / self.top * (HEIGHT - TOP - BOTTOM)


def _ticks(most: float) -> list[float]:
    """Round numbers from 0 to at least `most`."""
    raw = most / 5
    power = 10 ** floor(log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw)
    return [step * i for i in range(ceil(most / step - 1e-9) + 1)]


def _axes(scale: _Scale, ticks: Sequence[float], xs: Sequence[float], x: str, y: str) -> str:
    parts = []
    for tick in ticks:
        if tick <= scale.top * 1.0001:
            at = scale.y(tick)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
            parts.append(
                f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{short(tick)}</text>'
            )
    every = max(1, len(xs) // 12)
    for value in xs[::every]:
        parts.append(
            f'<text class="tick" x="{scale.x(value):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="label" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">{escape(x)}</text>')
    parts.append(
        f'<text class="label" transform="translate(14 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{escape(y)}</text>'
    )
    return "".join(parts)


def _polyline(line: Line, scale: _Scale) -> str:
    points = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line.points)
    dots = "".join(
        f'<circle class="c{line.colour}" cx="{scale.x(x):.1f}" cy="{scale.y(y):.1f}" r="2.5">'
        f"<title>{escape(line.name)}: {x:g}, {short(y)}</title></circle>"
        for x, y in line.points
    )
    return f'<polyline class="line s{line.colour}" points="{points}"/>{dots}'


def _band(line: Line, scale: _Scale) -> str:
    above = [f"{scale.x(x):.1f},{scale.y(high):.1f}" for x, _, high in line.band]
    below = [f"{scale.x(x):.1f},{scale.y(low):.1f}" for x, low, _ in reversed(line.band)]
    return f'<polygon class="band c{line.colour}" points="{" ".join(above + below)}"/>'


def _labels(lines: Sequence[Line], scale: _Scale) -> list[str]:
    """Names at the ends of the lines, pushed apart where they would cover each other."""
    ends = sorted((scale.y(line.points[-1][1]), place) for place, line in enumerate(lines))
    tops: list[float] = []
    for y, _ in ends:
        tops.append(max(y, tops[-1] + 14) if tops else y)
    below = max(0.0, tops[-1] - (HEIGHT - BOTTOM))
    parts = []
    for (_, place), top in zip(ends, tops, strict=True):
        at = top - below
        line = lines[place]
        parts.append(
            f'<text class="label t{line.colour}" x="{WIDTH - RIGHT + 8}" y="{at + 4:.1f}">{escape(line.name)}</text>'
        )
    return parts


def _svg(height: float, parts: Sequence[str], title: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'
