"""Charts as SVG text, made by hand so that nothing need be installed. Owns: bars in groups, lines over an x axis, their
scales, ticks and labels. Refuses to know: what the numbers mean."""

from __future__ import annotations

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 64, 56
COLOURS = ("#9aa0a6", "#5f6368", "#1a73e8", "#d93025", "#188038", "#f9ab00", "#9334e6", "#00897b")
FONT = 'font-family="system-ui, sans-serif"'


@dataclass(frozen=True)
class Series:
    """One name's values, a point for each x; None where there is none."""

    name: str
    values: list[float | None]
    colour: str = COLOURS[0]


@dataclass(frozen=True)
class Chart:
    """What both kinds have: `x` says what lies along the axis, `xs` are the labels of its groups or points; `bound` is
    a line that a promise draws."""

    title: str
    unit: str
    x: str
    xs: list[str]
    series: list[Series]
    log: bool = False
    bound: float | None = None


def ticks(top: float) -> list[float]:
    """Round numbers from 0 to at least `top`, four to eight of them."""
    if top <= 0:
        return [0.0, 1.0]
    raw = top / 5
    size = 10 ** math.floor(math.log10(raw))
    step = next(factor * size for factor in (1, 2, 2.5, 5, 10) if factor * size >= raw)
    return [n * step for n in range(math.ceil(top / step - 1e-9) + 1)]


def log_ticks(low: float, top: float) -> list[float]:
    """Powers of ten around what is shown."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(top))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def number(value: float) -> str:
    """As short as a tick wants it."""
    if value >= 10_000:
        return f"{value / 1000:g}k"
    return f"{value:.4g}"


@dataclass(frozen=True)
class Scale:
    """From a value to its height in the picture."""

    marks: list[float]
    log: bool

    def y(self, value: float) -> float:
        """Down from the top, as SVG counts."""
        low, top = self.marks[0], self.marks[-1]
        place = math.log if self.log else float
        share = (place(max(value, low)) - place(low)) / (place(top) - place(low))
        return HEIGHT - BOTTOM - min(1.0, max(0.0, share)) * (HEIGHT - TOP - BOTTOM)


def _scale(chart: Chart) -> Scale:
    values = [value for series in chart.series for value in series.values if value is not None]
    if chart.bound is not None:
        values.append(chart.bound)
    positive = [value for value in values if value > 0]
    if chart.log and positive:
        return Scale(log_ticks(min(positive), max(positive)), True)
    return Scale(ticks(max(values, default=1.0)), False)


def _text(x: float, y: float, said: str, anchor: str = "middle", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" {FONT}>{escape(said)}</text>'


def _frame(chart: Chart, scale: Scale) -> list[str]:
    """Everything but the data."""
    out = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>', _text(LEFT, 22, chart.title, "start", 15)]
    for mark in scale.marks:
        y = scale.y(mark)
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e0e0e0"/>')
        out.append(_text(LEFT - 6, y + 4, number(mark), "end", 11))
    out.append(_text(LEFT - 6, TOP - 8, chart.unit, "end", 11))
    out.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, chart.x))
    x = float(LEFT)
    for series in chart.series:
        out.append(f'<rect x="{x:.0f}" y="34" width="11" height="11" fill="{series.colour}"/>')
        out.append(_text(x + 16, 44, series.name, "start", 12))
        x += 30 + 7.0 * len(series.name)
    if chart.bound is not None:
        y = scale.y(chart.bound)
        style = 'stroke="#202124" stroke-dasharray="6 4"'
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" {style}/>')
        out.append(_text(WIDTH - RIGHT, y - 5, f"bound {number(chart.bound)}", "end", 11))
    return out


def _whole(parts: list[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}">'
    return "\n".join([head, *parts, "</svg>", ""])


def bars(chart: Chart) -> str:
    """A group of bars for each x, a bar for each series, its value above it."""
    scale = _scale(chart)
    out = _frame(chart, scale)
    group = (WIDTH - LEFT - RIGHT) / max(1, len(chart.xs))
    width = group * 0.8 / max(1, len(chart.series))
    for place, x in enumerate(chart.xs):
        left = LEFT + group * (place + 0.1)
        out.append(_text(left + group * 0.4, HEIGHT - BOTTOM + 18, x))
        for index, series in enumerate(chart.series):
            value = series.values[place]
            if value is None:
                continue
            y, at, colour = scale.y(value), left + width * index, series.colour
            tall = HEIGHT - BOTTOM - y
            bar = f'<rect x="{at:.1f}" y="{y:.1f}" width="{width * 0.92:.1f}" height="{tall:.1f}" fill="{colour}"/>'
            out += [bar, _text(at + width * 0.46, y - 4, number(float(f"{value:.3g}")), size=10)]
    return _whole(out)


def lines(chart: Chart) -> str:
    """A line for each series over evenly spaced x."""
    scale = _scale(chart)
    out = _frame(chart, scale)
    step = (WIDTH - LEFT - RIGHT) / max(1, len(chart.xs))
    at = [LEFT + step * (place + 0.5) for place in range(len(chart.xs))]
    out += [_text(x, HEIGHT - BOTTOM + 18, said) for x, said in zip(at, chart.xs, strict=True)]
    for series in chart.series:
        colour = series.colour
        points = [(x, scale.y(v)) for x, v in zip(at, series.values, strict=True) if v is not None]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>' for x, y in points]
    return _whole(out)
