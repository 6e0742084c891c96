"""Draws charts that compare rq-core with other queues, from the figures of the benchmark on the performance page."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from scripts.docs.pictures.drawing import arrow, picture, text
from scripts.docs.site import ROOT

FIGURES: Final = ROOT / "scripts" / "measure" / "benchmarks" / "figures.json"
"""The file with the figures of the run. ``scripts/measure/bench --report`` writes the figures and the tables of the
page."""
_WIDTH: Final = 520
_LEFT: Final = 88
_RIGHT: Final = 76
_BAR: Final = 13


class Chart(NamedTuple):
    """A chart's title, and the benchmark figures that it shows."""

    title: str
    figures: Mapping[str, str]
    """The label of each figure, by the name of the figure. There are at most two figures, the more important one
    first."""
    logarithmic: bool = False
    fewer: bool = False
    """True if a smaller figure is better."""


CHARTS: Final = {
    "drain": Chart(
        "jobs that one worker runs per second",
        {"drain_async_per_s": "async def", "drain_threads_per_s": "def, in threads"},
    ),
    "enqueue": Chart(
        "jobs that one producer enqueues per second",
        {"enqueue_bulk_per_s": "in bulk", "enqueue_one_per_s": "one at a time"},
    ),
    "latency": Chart(
        "ms from the enqueue to the handler (each line: ten times more)",
        {"latency_p50_ms": "median", "latency_p99_ms": "99th percentile"},
        logarithmic=True, fewer=True,
    ),
}  # fmt: skip
"""The charts, each by the name of its picture file."""


@cache
def _run() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def chart(name: str) -> str:
    """Return the picture of a chart: for each queue, a bar per measured figure. The queue with the best bar comes
    first.
    """
    shown = CHARTS[name]
    queues = {"rq-core": _run(), **_run()["peers"]}
    rows = {
        queue: {figure: float(found[figure]) for figure in shown.figures if figure in found}
        for queue, found in queues.items()
    }
    best = min if shown.fewer else max
    order = sorted(
        (queue for queue, values in rows.items() if values),
        key=lambda queue: best(rows[queue].values()), reverse=not shown.fewer,
    )  # fmt: skip
    values = [value for queue in order for value in rows[queue].values()]
    least, most = (
        (10 ** math.floor(math.log10(min(values))), max(values))
        if shown.logarithmic
        else (0.0, max(values))
    )

    def length(value: float) -> float:
        room = _WIDTH - _LEFT - _RIGHT
        if shown.logarithmic:
            return round(room * math.log10(value / least) / math.log10(most / least), 1)
        return round(room * value / most, 1)

    parts, y = [text(16, 27, shown.title, bold=True, size=13)], 44
    at: float = 16
    for number, words in enumerate(shown.figures.values()):
        parts += [
            _bar(at, y, 20, number, ours=False),
            text(at + 27, y + 11, words, "dim", size=12.5),
        ]
        at += 60 + 7 * len(words)
    y += 28
    if shown.logarithmic:
        step = least
        while step <= most:
            x = _LEFT + length(step)
            parts.append(
                arrow(f"M{x:g} {y - 4}V{y - 4 + _height(order, rows)}", "edge", head=False)
            )
            step *= 10
    for queue in order:
        many = len(rows[queue])
        colour = "main" if queue == "rq-core" else "ink"
        parts.append(
            text(
                _LEFT - 8,
                y + many * _BAR / 2 + 4,
                queue,
                colour,
                size=13,
                anchor="end",
                bold=queue == "rq-core",
            )
        )
        for number, figure in enumerate(shown.figures):
            if figure not in rows[queue]:
                continue
            value = rows[queue][figure]
            parts.append(_bar(_LEFT, y, length(value), number, ours=queue == "rq-core"))
            words = f"{value:,.0f}" if value >= 100 else f"{value:.2g}"
            parts.append(text(_LEFT + length(value) + 6, y + 10.5, words, "dim", size=12))
            y += _BAR
        y += 9
    return picture(f"{shown.title}: rq-core beside other queues", _WIDTH, y + 8, parts)


def _height(order: list[str], rows: Mapping[str, Mapping[str, float]]) -> int:
    return sum(len(rows[queue]) * _BAR + 9 for queue in order)


def _bar(x: float, y: float, width: float, number: int, *, ours: bool) -> str:
    """Return one bar as SVG. A queue's first figure has a filled bar, its second one only an outline."""
    colour = "main" if ours else "line"
    fill = f"f-{colour}" if number == 0 else f"f-{'main-fill' if ours else 'card'}"
    return (
        f'<rect x="{x + 0.5:g}" y="{y + 0.5:g}" width="{max(width - 1, 1):g}" height="{_BAR - 2}" rx="2"'
        f' class="{fill} s-{colour}"/>'
    )
