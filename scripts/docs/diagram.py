"""Draws the table of job states as a picture (SVG): ``docs/reference/states.svg``.

The positions of states and the paths of arrows are written here by hand. The arrows and their names come from the
table. An arrow of the table without a path here is an error, and so is a path without an arrow.
"""

from __future__ import annotations

from html import escape
from typing import Final, NamedTuple

from rq_core.model.table.machine import TRANSITIONS, State
from scripts.docs.pictures.drawing import arrow, box, picture, text

WIDTH: Final = 920
HEIGHT: Final = 596
_BEGIN: Final = "new"
_END: Final = "gone"
_PLACES: Final = {
    _BEGIN: (60, 290),
    "scheduled": (300, 110),
    "ready": (300, 290),
    "running": (560, 290),
    "cancelling": (700, 180),
    "dead": (560, 470),
    "parked": (720, 390),
    _END: (860, 290),
}
"""The centre of the box of each state."""
_HALF: Final = (58, 20)
"""Half of the width and half of the height of the box of a state."""


class Way(NamedTuple):
    """The path of an arrow, and the place of its label."""

    path: str
    """The data of an SVG path. The head of the arrow is at the end of the path."""
    label: tuple[int, int]
    """The centre of the first line of the label."""


_WAYS: Final = {
    (_BEGIN, "ready"): Way("M 78 290 H 238", (165, 268)),
    (_BEGIN, "scheduled"): Way("M 72 276 C 110 160 150 112 238 110", (158, 160)),
    (_BEGIN, "dead"): Way("M 68 307 C 110 440 260 472 498 470", (240, 466)),
    (_BEGIN, _END): Way("M 60 271 C 60 -60 860 -60 860 268", (460, 42)),
    ("scheduled", "ready"): Way("M 300 130 V 266", (262, 205)),
    ("ready", "scheduled"): Way("M 318 270 C 330 225 330 180 318 134", (352, 215)),
    ("ready", "ready"): Way("M 338 270 C 350 236 392 240 361 272", (392, 244)),
    ("scheduled", "scheduled"): Way("M 338 130 C 350 166 392 158 361 126", (390, 168)),
    ("ready", "running"): Way("M 358 280 H 498", (428, 268)),
    ("running", "ready"): Way("M 502 302 C 470 336 390 336 358 306", (430, 344)),
    ("running", "scheduled"): Way("M 530 270 C 500 180 440 130 362 118", (470, 140)),
    ("running", "cancelling"): Way("M 590 270 C 600 230 620 195 638 186", (560, 222)),
    ("running", "dead"): Way("M 560 310 V 446", (612, 380)),
    ("running", _END): Way("M 618 290 H 836", (736, 278)),
    ("cancelling", _END): Way("M 758 186 C 800 200 826 232 846 268", (842, 188)),
    ("dead", _END): Way("M 618 470 C 740 464 826 400 856 314", (780, 452)),
    ("dead", "ready"): Way("M 505 456 C 400 440 330 390 308 314", (372, 424)),
    ("ready", _END): Way("M 270 310 C 250 600 850 600 866 314", (560, 532)),
    ("ready", "dead"): Way("M 336 310 C 390 372 470 410 530 447", (486, 402)),
    ("scheduled", "dead"): Way("M 244 122 C 170 240 250 440 498 462", (222, 366)),
    ("running", "parked"): Way("M 600 310 C 622 350 640 372 660 382", (664, 346)),
    ("parked", "ready"): Way("M 662 396 C 560 404 420 380 348 314", (452, 366)),
    ("parked", "dead"): Way("M 700 410 C 690 450 660 462 622 466", (668, 436)),
    ("parked", _END): Way("M 778 384 C 812 370 836 340 850 310", (806, 340)),
    ("scheduled", _END): Way("M 320 90 C 420 20 800 40 852 268", (640, 84)),
}


def arrows() -> dict[tuple[str, str], list[str]]:
    """Return, for each pair of states (from, to), the names of the events that lead from one to the other."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in TRANSITIONS:
        events = found.setdefault((each.source or _BEGIN, each.target or _END), [])
        if each.event not in events:
            events.append(str(each.event))
    return found


def svg(found: dict[tuple[str, str], list[str]] | None = None) -> str:
    """Return the picture of the states as SVG. Raises ValueError if the table's arrows and the paths in this module
    differ.
    """
    found = arrows() if found is None else found
    if odd := sorted(found.keys() ^ _WAYS.keys()):
        raise ValueError(f"scripts/docs/diagram.py has no way, or one too many, for {odd}")
    drawn = [_arrow(_WAYS[ends], names) for ends, names in found.items()]
    boxes = [_state(name, *_PLACES[name]) for name in map(str, State)]
    title = "The states of a job, and the events that lead from one to another"
    return picture(
        title, WIDTH, HEIGHT, [*drawn, _circle(_BEGIN, "line"), _circle(_END, "card"), *boxes]
    )


def _arrow(way: Way, names: list[str]) -> str:
    x, y = way.label
    words = "".join(
        f'<tspan x="{x}" dy="{0 if not at else 15}">{escape(name)}</tspan>'
        for at, name in enumerate(names)
    )
    return (
        f"{arrow(way.path)}\n"
        f'<text x="{x}" y="{y}" font-size="13" text-anchor="middle" class="f-ink s-card" stroke-width="4"'
        f' paint-order="stroke">{words}</text>'
    )


def _state(name: str, x: int, y: int) -> str:
    half_x, half_y = _HALF
    return box(x - half_x, y - half_y, 2 * half_x, 2 * half_y, "main", name, size=15)


def _circle(name: str, fill: str) -> str:
    x, y = _PLACES[name]
    aside = -37 if name == _BEGIN else 38
    return f'<circle cx="{x}" cy="{y}" r="17" class="f-{fill} s-line" stroke-width="2"/>\n' + text(
        x + aside, y + 4, name, size=13, anchor="middle"
    )
