"""Pictures of Throttle, Debounce and Latest (ways to run one job for several calls): which calls run a job, and when.

The scenes are written by hand. ``tests/docs/test_pictures.py`` makes the same calls with the real scripts. It fails if
another call runs a job, or if a job runs at another time than in the drawing.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from rq_core import Debounce, Latest, Throttle
from scripts.docs.pictures.drawing import arrow, box, cross, dot, picture, text


class Fate(Enum):
    """The effect of a producer's call: its job runs, is a duplicate, or is replaced."""

    RUNS = "its job runs"
    DUPLICATE = "gets the job of an earlier call"
    REPLACED = "its job is replaced by a later call's"


class Call(NamedTuple):
    """One call of a producer that enqueues a job."""

    at: float
    """The time of the call, in seconds from the beginning of the scene."""
    fate: Fate


class Run(NamedTuple):
    """One run of a job in the picture."""

    began: float
    call: int
    """The number of the call whose job runs."""


class Scene(NamedTuple):
    """One picture: its calls and its runs."""

    unique: Throttle | Debounce | Latest
    code: str
    calls: tuple[Call, ...]
    runs: tuple[Run, ...]
    takes: float
    """The duration of a run, in seconds."""
    until: float
    """The end of the time axis, in seconds."""
    every: int
    """The seconds between two labels on the time axis."""
    spans: tuple[tuple[float, float, str], ...]
    """Named spans of time: beginning, end, and name."""
    title: str


_R, _D, _X = Fate.RUNS, Fate.DUPLICATE, Fate.REPLACED
SCENES: Final = {
    "throttle": Scene(
        Throttle(60, per="doc"), 'Throttle(60, per="doc")',
        calls=(Call(0, _R), Call(20, _D), Call(45, _D), Call(75, _R), Call(110, _D)),
        runs=(Run(0, 0), Run(75, 3)), takes=8, until=140, every=20,
        spans=((0, 60, "60 s"), (75, 135, "60 s")),
        title="Throttle: the first call of 60 seconds runs, the others get its job",
    ),
    "debounce": Scene(
        Debounce(5, per="doc", at_most=12), 'Debounce(5, per="doc", at_most=12)',
        calls=(
            Call(0, _X), Call(3, _X), Call(6, _R),
            Call(16, _X), Call(19, _X), Call(22, _X), Call(25, _R),
        ),
        runs=(Run(11, 2), Run(28, 6)), takes=2, until=32, every=4,
        spans=((6, 11, "5 s of quiet"), (16, 28, "at most 12 s")),
        title="Debounce: the last call runs, 5 seconds after it and at most 12 seconds after the first",
    ),
    "latest": Scene(
        Latest(per="doc"), 'Latest(per="doc")',
        calls=(Call(0, _R), Call(3, _X), Call(6, _X), Call(8, _R), Call(26, _R)),
        runs=(Run(0, 0), Run(10, 3), Run(26, 4)), takes=10, until=38, every=5,
        spans=(),
        title="Latest: one job runs, and only the last call that came meanwhile runs after it",
    ),
}  # fmt: skip
"""The scenes, each by the name of its picture file."""
_WIDTH: Final = 480
_LEFT: Final = 74
_RIGHT: Final = 20
_CALLS_Y: Final = 64
_RUNS_Y: Final = 128
_AXIS_Y: Final = 166


def timeline(name: str) -> str:
    """Return the picture of a scene."""
    scene = SCENES[name]

    def x(seconds: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * seconds / scene.until, 1)

    parts = [
        text(16, 28, scene.code, "ink", size=14, bold=True, mono=True),
        text(16, _CALLS_Y + 5, "calls", "dim"),
        text(16, _RUNS_Y + 5, "runs", "dim"),
    ]
    parts += [
        f'<rect x="{x(begin):g}" y="{_CALLS_Y - 14}" width="{x(end) - x(begin):g}" height="{_RUNS_Y - _CALLS_Y}"'
        f' rx="4" class="f-warn-fill"/>\n' + _name_of_span(x(begin), x(end), words)
        for begin, end, words in scene.spans
    ]
    for run in scene.runs:
        begin, called = x(run.began), x(scene.calls[run.call].at)
        if called == begin:
            path = f"M{begin} {_CALLS_Y + 8}V{_RUNS_Y - 17}"
        else:
            path = f"M{called} {_CALLS_Y + 8}C{called} {_RUNS_Y - 34} {begin} {_RUNS_Y - 50} {begin} {_RUNS_Y - 17}"
        parts.append(arrow(path, "good"))
        width = x(run.began + scene.takes) - begin
        parts.append(box(begin, _RUNS_Y - 14, width, 28, "good", str(run.call + 1), radius=5))
    for number, call in enumerate(scene.calls, start=1):
        at = x(call.at)
        parts.append(
            dot(at, _CALLS_Y, "good") if call.fate is Fate.RUNS
            else dot(at, _CALLS_Y, "dim", filled=False) if call.fate is Fate.DUPLICATE
            else cross(at, _CALLS_Y)
        )  # fmt: skip
        parts.append(
            text(at, _CALLS_Y - 13, str(number), "dim", size=12, anchor="middle", halo=True)
        )
    parts.append(arrow(f"M{_LEFT} {_AXIS_Y}H{_WIDTH - _RIGHT + 8}"))
    for second in range(0, round(scene.until), scene.every):
        parts.append(arrow(f"M{x(second)} {_AXIS_Y}v5", head=False))
        words = f"{second} s" if second else "0"
        parts.append(text(x(second), _AXIS_Y + 19, words, "dim", size=12, anchor="middle"))
    parts += _legend(scene)
    return picture(scene.title, _WIDTH, _AXIS_Y + 56, parts)


def _name_of_span(begin: float, end: float, words: str) -> str:
    """Return the label of a span of time as SVG: in the middle of the span, or to its left if the span is too short."""
    if end - begin > 8 * len(words):
        return text((begin + end) / 2, _RUNS_Y - 24, words, "warn", size=12.5, anchor="middle")
    return text(begin - 6, _RUNS_Y - 24, words, "warn", size=12.5, anchor="end")


def _legend(scene: Scene) -> list[str]:
    parts, at, y = [], 22.0, _AXIS_Y + 40
    for fate in Fate:
        if fate not in {call.fate for call in scene.calls}:
            continue
        parts.append(
            dot(at, y - 4, "good") if fate is Fate.RUNS
            else dot(at, y - 4, "dim", filled=False) if fate is Fate.DUPLICATE
            else cross(at, y - 4)
        )  # fmt: skip
        parts.append(text(at + 13, y, fate.value, "dim", size=13))
        at += 130
    return parts
