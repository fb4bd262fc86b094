"""Small line charts as SVG: panels side by side, both axes linear and from 0."""

from __future__ import annotations

import math
from typing import NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 300, 260
"""Of one panel, in pixels."""
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 34, 40
COLOURS = ("#1b7837", "#2166ac", "#b2182b")
TICKS = 4


class Line(NamedTuple):
    name: str
    points: list[tuple[float, float]]


class Panel(NamedTuple):
    title: str
    lines: list[Line]


def svg(panels: list[Panel], *, y_title: str) -> str:
    """All panels, and one legend below them."""
    width, height = WIDTH * len(panels), HEIGHT + 24
    body = [part for number, panel in enumerate(panels) for part in _panel(panel, number * WIDTH, y_title)]
    names = [line.name for line in panels[0].lines]
    for number, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        x = LEFT + number * 220
        body.append(
            f'<line x1="{x}" y1="{HEIGHT + 8}" x2="{x + 24}" y2="{HEIGHT + 8}" stroke="{colour}" stroke-width="2"/>'
        )
        body.append(_text(x + 30, HEIGHT + 12, name))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">\n'
        f'<rect width="{width}" height="{height}" fill="white"/>\n' + "\n".join(body) + "\n</svg>\n"
    )


def _panel(panel: Panel, offset: int, y_title: str) -> list[str]:
    points = [point for line in panel.lines for point in line.points]
    x_step, y_step = (_step(max(point[axis] for point in points)) for axis in (0, 1))
    x_most, y_most = (
        step * math.ceil(max(point[axis] for point in points) / step) for axis, step in ((0, x_step), (1, y_step))
    )

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            offset + LEFT + x / x_most * (WIDTH - LEFT - RIGHT),
            TOP + (1 - y / y_most) * (HEIGHT - TOP - BOTTOM),
        )

    parts = [_text(offset + LEFT, TOP - 18, y_title), _text(offset + LEFT, HEIGHT - 6, panel.title)]
    for tick in range(round(y_most / y_step) + 1):
        (x, y), (right, _) = place(0, tick * y_step), place(x_most, 0)
        parts.append(f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(_text(x - 6, y + 4, f"{tick * y_step:,.0f}", anchor="end"))
    for tick in range(round(x_most / x_step) + 1):
        x, y = place(tick * x_step, 0)
        parts.append(_text(x, y + 16, f"{tick * x_step:,.0f}", anchor="middle"))
    for line, colour in zip(panel.lines, COLOURS, strict=False):
        placed = [place(x, y) for x, y in sorted(line.points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in placed]
    return parts


def _step(most: float) -> float:
    """A round distance of ticks."""
    rough = most / TICKS
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough)


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#333">{escape(text)}</text>'
