"""A picture of the Grafana dashboard: its own panels, titles and legends, drawn with recorded values.

It is drawn, not a screenshot. The panels come from :mod:`scripts.docs.panels`, which also makes the dashboard's file.
The values come from ``recorded.json``, which ``scripts/docs/pictures/record.py`` writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from scripts.docs.panels import ROWS, Panel
from scripts.docs.pictures.drawing import arrow, picture, text

RECORDED: Final = Path(__file__).parent / "recorded.json"
POINTS: Final = 76
"""The number of points of a line."""
SHOWN: Final = ("Is anything wrong", "Flow")
"""The rows of the dashboard that the picture shows."""
_WIDTH: Final = 780
_PANEL: Final = (244, 172)
_GAP: Final = 10
_PLOT: Final = (46, 26, 10, 62)
"""The margins of a panel around its lines: left, above, right, below."""
_LEGENDS_MAX: Final = 3
_COLOURS: Final = ("main", "warn", "good", "bad", "line", "ink")
_LABEL: Final = re.compile(r"\{\{(\w+)\}\}")


class Line(NamedTuple):
    """One line in a panel's graph: its name and its values."""

    name: str
    values: Sequence[float | None]


def board() -> str:
    """Return the picture of the dashboard for Grafana, as SVG."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    parts: list[str] = []
    y = 14.0
    for title, panels in ROWS:
        if title not in SHOWN:
            continue
        parts.append(text(16, y + 14, f"▾ {title}", bold=True, size=13))
        y += 24
        for at, panel in enumerate(panels):
            x = 14 + (at % 3) * (_PANEL[0] + _GAP)
            top = y + at // 3 * (_PANEL[1] + _GAP)
            parts += _panel(panel, recorded, x, top)
        y += -(-len(panels) // 3) * (_PANEL[1] + _GAP) + 4
    return picture(
        "The dashboard for Grafana: what is wrong, and the flow of jobs",
        _WIDTH,
        round(y + 6),
        parts,
    )


def lines_of(panel: Panel, recorded: Mapping[str, Any]) -> list[Line]:
    """Return the lines of a panel's graph, the highest line first.

    Raises ValueError if no values of an expression were recorded.
    """
    found = []
    for expression, legend in panel.shows:
        if expression not in recorded["series"]:
            raise ValueError(
                f"record what the dashboard shows again (scripts/docs/pictures/record.py): {expression}"
            )
        for labels, values in recorded["series"][expression]:
            name = legend
            for label in _LABEL.findall(legend):
                name = name.replace("{{" + label + "}}", labels.get(label, ""))
            found.append(Line(name, values))
    return sorted(found, key=_highest, reverse=True)


def _highest(line: Line) -> float:
    return max((value for value in line.values if value is not None), default=0.0)


def _panel(panel: Panel, recorded: Mapping[str, Any], x: float, y: float) -> Iterator[str]:
    width, height = _PANEL
    left, above, right, below = _PLOT
    yield f'<rect x="{x:g}" y="{y:g}" width="{width}" height="{height}" rx="4" class="none s-edge"/>'
    yield text(x + 9, y + 17, _short(panel.title, 34), size=11.5, bold=True)
    lines = lines_of(panel, recorded)
    most = _round_up(max(map(_highest, lines), default=0.0))

    room = width - left - right, height - above - below
    for share in (0, 0.5, 1):
        base = y + above + room[1] * (1 - share)
        yield arrow(f"M{x + left:g} {base:g}h{room[0]}", "edge", head=False, width=1)
        yield text(
            x + left - 5,
            base + 3.5,
            _number(most * share, panel.unit),
            "dim",
            size=9.5,
            anchor="end",
        )
    step = room[0] / (POINTS - 1)
    # The highest line is drawn last.
    for number, line in reversed(list(enumerate(lines))):
        if path := _path(line.values, x + left, y + above, step, room[1], most):
            colour = _COLOURS[number % len(_COLOURS)]
            yield f'<path d="{path}" class="none s-{colour}" stroke-width="1.5" stroke-linejoin="round"/>'
    for number, line in enumerate(lines[:_LEGENDS_MAX]):
        base = y + height - below + 19 + 13 * number
        yield arrow(
            f"M{x + 10:g} {base - 3.5:g}h10",
            _COLOURS[number % len(_COLOURS)],
            head=False,
            width=2.5,
        )
        yield text(x + 25, base, _short(line.name, 28), "dim", size=10.5)
    if (left_out := len(lines) - _LEGENDS_MAX) > 0:
        yield text(
            x + width - 9,
            y + height - 9,
            f"and {left_out} more",
            "dim",
            size=10.5,
            anchor="end",
        )


def _path(
    values: Sequence[float | None], x: float, y: float, step: float, height: float, most: float
) -> str:
    """Return the SVG path of a line through the values. A None value (no data) interrupts the path."""
    heights = [
        None if value is None else round(y + height * (1 - value / most)) for value in values
    ]
    words = []
    for at, here in enumerate(heights):
        before = heights[at - 1] if at else None
        after = heights[at + 1] if at + 1 < len(heights) else None
        if here is None or before == here == after:
            # Points within a level stretch say nothing.
            continue
        words.append(f"{'M' if before is None else 'L'}{round(x + at * step)} {here}")
    return "".join(words)


def _round_up(most: float) -> float:
    """Return the top of a graph's axis: the smallest 1, 2 or 5 times a power of ten that is at least ``most``."""
    if most <= 0:
        return 1.0
    power = 1.0
    while power > most:
        power /= 10
    while power * 10 < most:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= most)


def _number(value: float, unit: str) -> str:
    if unit == "s" and 0 < value < 1:
        return f"{value * 1000:g} ms"
    return f"{value:g}{' s' if unit == 's' else ''}"


def _short(words: str, most: int) -> str:
    words = " ".join(words.split())
    return words if len(words) <= most else f"{words[: most - 1]}…"
