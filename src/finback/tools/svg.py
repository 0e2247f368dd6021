"""Charts as SVG text: bars and lines with labelled axes, readable on light and dark pages without any library.

Owns geometry and escaping. Refuses empty charts: a plot of nothing is a defect of the caller. Knows no benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from xml.sax.saxutils import escape

_Scale = Callable[[float], float]

WIDTH: Final = 860
_LEFT, _RIGHT, _TOP = 300, 76, 46
_BAR, _GAP = 14, 8
_PLOT_HEIGHT: Final = 320
_COLOURS: Final = ("#1f6fb2", "#c4622d", "#3b8a4e", "#8459a8", "#8a7a1f", "#b23a5c")
_INK, _GRID, _PAPER = "#333333", "#dddddd", "#ffffff"


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with its spread; `mark` is a tick for something to hold it against, such as the limit of the machine."""

    label: str
    value: float
    low: float
    high: float
    mark: float | None = None


@dataclass(frozen=True, slots=True)
class Bars:
    """Horizontal bars from zero. `mark` says what the ticks are."""

    title: str
    unit: str
    bars: Sequence[Bar]
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement at `x`, with its spread."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Lines:
    """Lines over a common axis, which is logarithmic where all x are above 0 and differ by more than tenfold."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[tuple[str, Sequence[Point]]]


def draw(charts: Sequence[Bars | Lines]) -> str:
    """An SVG document of charts, one below the other."""
    body, top = [], 0
    for chart in charts:
        parts, height = _bars(chart) if isinstance(chart, Bars) else _lines(chart)
        body.append(f'<g transform="translate(0 {top})">' + "\n".join(parts) + "</g>")
        top += height
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}" '
        f'font-family="sans-serif" font-size="12" fill="{_INK}">'
    )
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top}" fill="{_PAPER}"/>', *body, "</svg>\n"])


def ticks(high: float, count: int = 6) -> list[float]:
    """Round numbers from 0 to at least `high`, about `count` of them."""
    if high <= 0:
        return [0.0, 1.0]
    rough = high / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(m * unit for m in (1, 2, 5, 10) if m * unit >= rough * 0.999)
    return [i * step for i in range(math.ceil(high / step * 0.999) + 1)]


# ---- bars


def _bars(chart: Bars) -> tuple[list[str], int]:
    marks = [bar.mark for bar in chart.bars if bar.mark is not None]
    at = ticks(max([bar.high for bar in chart.bars] + marks))
    bottom = _TOP + len(chart.bars) * (_BAR + _GAP)

    def x(value: float) -> float:
        return _LEFT + value / at[-1] * (WIDTH - _LEFT - _RIGHT)

    parts = [_text(12, 20, chart.title, size=15, weight="bold")]
    for tick in at:
        parts += [_line(x(tick), _TOP - 6, x(tick), bottom, _GRID), _text(x(tick), bottom + 16, f"{tick:g}", "middle")]
    for i, bar in enumerate(chart.bars):
        y = _TOP + i * (_BAR + _GAP)
        middle = y + _BAR / 2
        parts.append(_text(_LEFT - 8, y + _BAR - 3, bar.label, "end"))
        parts.append(f'<rect x="{_LEFT}" y="{y}" width="{x(bar.value) - _LEFT:.1f}" height="{_BAR}" '
                     f'fill="{_COLOURS[0]}"/>')  # fmt: skip
        parts.append(_line(x(bar.low), middle, x(bar.high), middle, _INK, 2))
        if bar.mark is not None:
            parts.append(_line(x(bar.mark), y - 2, x(bar.mark), y + _BAR + 2, _COLOURS[1], 3))
        parts.append(_text(WIDTH - 12, y + _BAR - 3, f"{bar.value:.3g}", "end"))
    note = f"{chart.unit}; black: quartiles" + (f"; orange: {chart.mark}" if chart.mark else "")
    parts.append(_text(_LEFT, bottom + 34, note))
    return parts, bottom + 50


# ---- lines


def _lines(chart: Lines) -> tuple[list[str], int]:
    points = [p for _, series in chart.series for p in series]
    xs = sorted({p.x for p in points})
    logarithmic = xs[0] > 0 and xs[-1] > 10 * xs[0]
    scale = math.log2 if logarithmic else float
    first, last = scale(xs[0]), scale(xs[-1])
    at = ticks(max(p.high for p in points))
    left, right, bottom = 80, WIDTH - 170, _TOP + _PLOT_HEIGHT

    def x(value: float) -> float:
        return left + ((scale(value) - first) / (last - first) if last > first else 0.5) * (right - left)

    def y(value: float) -> float:
        return bottom - value / at[-1] * _PLOT_HEIGHT

    parts = [_text(12, 20, chart.title, size=15, weight="bold"), _text(left, _TOP - 8, chart.y_label)]
    for tick in at:
        parts += [_line(left, y(tick), right, y(tick), _GRID), _text(left - 8, y(tick) + 4, f"{tick:g}", "end")]
    parts += [_text(x(value), bottom + 18, f"{value:g}", "middle") for value in xs]
    for i, (name, series) in enumerate(chart.series):
        colour = _COLOURS[i % len(_COLOURS)]
        parts += _series(series, x, y, colour)
        parts.append(_text(right + 12, _TOP + 14 + 18 * i, name, colour=colour))
    axis = chart.x_label + (" (logarithmic)" if logarithmic else "")
    parts.append(_text((left + right) / 2, bottom + 38, axis, "middle"))
    return parts, bottom + 54


def _series(series: Sequence[Point], x: _Scale, y: _Scale, colour: str) -> Iterator[str]:
    ordered = sorted(series, key=lambda p: p.x)
    path = " ".join(f"{x(p.x):.1f},{y(p.y):.1f}" for p in ordered)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for p in ordered:
        yield _line(x(p.x), y(p.low), x(p.x), y(p.high), colour, 2)
        yield f'<circle cx="{x(p.x):.1f}" cy="{y(p.y):.1f}" r="3" fill="{colour}"/>'


# ---- marks


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: int = 1) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="{width}"/>'
    )


def _text(
    x: float, y: float, text: str, anchor: str = "start", *, size: int = 12, weight: str = "normal", colour: str = _INK
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" '
        f'fill="{colour}">{escape(text)}</text>'
    )
