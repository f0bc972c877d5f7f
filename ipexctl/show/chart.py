"""Horizontal bars as an SVG picture, from rows of numbers; nothing but text is needed to draw it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.sax.saxutils import escape

Bars = Sequence[tuple[str, float | None, str]]  # label, value or None, what stands there instead

_LINE, _LEFT, _WIDE, _RIGHT = 22, 170, 480, 170  # pixels
_COLOURS = ("#7c93b2", "#2a6f97")  # every other bar: fp32, bf16


def draw(title: str, groups: Mapping[str, Bars], unit: str) -> str:
    """The picture's text. Groups stand below each other, each with a scale of its own."""
    parts: list[str] = []
    y = 2 * _LINE
    for name, bars in groups.items():
        parts.append(_text(10, y, name, weight="bold"))
        y += _LINE
        most = max((value for _, value, _ in bars if value is not None), default=0.0)
        for number, (label, value, why) in enumerate(bars):
            parts.append(_text(_LEFT - 8, y + 15, label, anchor="end"))
            if value is None:
                parts.append(_text(_LEFT, y + 15, why, colour="#888"))
            else:
                width = max(1, round(_WIDE * value / most)) if most else 1
                size = f'width="{width}" height="{_LINE - 6}"'
                parts.append(f'<rect x="{_LEFT}" y="{y + 3}" {size} fill="{_COLOURS[number % 2]}"/>')
                parts.append(_text(_LEFT + width + 6, y + 15, f"{value:.1f} {unit}"))
            y += _LINE
        y += _LINE // 2
    width = _LEFT + _WIDE + _RIGHT
    area = f'viewBox="0 0 {width} {y}" width="{width}" height="{y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {area} font-family="sans-serif" font-size="13">'
    back = f'<rect width="{width}" height="{y}" fill="white"/>'
    return "\n".join([head, back, _text(10, 20, title, weight="bold"), *parts, "</svg>", ""])


def _text(x: int, y: int, words: str, *, anchor: str = "start", weight: str = "normal", colour: str = "#222") -> str:
    shown = escape("".join(c if c.isprintable() else "�" for c in words))
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" font-weight="{weight}" fill="{colour}">{shown}</text>'
