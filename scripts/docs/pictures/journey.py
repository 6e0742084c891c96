"""Pictures of a job's way from the call to SQL, and of a lease that ends.

The names of scripts and events come from the code. If a name no longer exists, an error is raised.
"""

from __future__ import annotations

from typing import Final

from rq_core.model.settings import SETTINGS
from rq_core.model.table.machine import Event, State
from rq_core.scripts.script import names
from scripts.docs.pictures.drawing import arrow, box, dot, frame, picture, text

_WIDTH: Final = 480
LEASE_EVENTS: Final = (
    Event.CLAIMED, Event.LEASE_EXPIRED, Event.CLAIMED, Event.SETTLEMENT_REFUSED, Event.SUCCEEDED,
)  # fmt: skip
"""The events in the picture of a lease, in their order. A test checks that a real job has these events."""


def _script(name: str) -> str:
    if name not in names():
        raise ValueError(f"scripts/docs/pictures/journey.py names a script that is gone: {name}")
    return f"{name}.lua"


def way() -> str:
    """Return the picture of what happens to a job, from the producer's call to the job's end."""

    def called(x: float, y: float, script: str) -> str:
        return text(x, y, _script(script), size=12.5, anchor="middle", mono=True, halo=True)

    parts = [
        frame(16, 92, _WIDTH - 32, 204, "Redis"),
        box(30, 22, 118, 46, "main", "producer", below="send.enqueue(…)"),
        box(246, 22, 218, 46, "main", "worker", below="validates, runs the handler"),
        box(30, 134, 118, 40, "good", str(State.READY)),
        box(246, 134, 104, 40, "good", str(State.RUNNING)),
        dot(440, 160, "line", filled=False, radius=10),
        text(424, 190, "has ended", "dim", size=12.5, anchor="middle"),
        arrow("M89 68V130"),
        called(89, 106, "enqueue"),
        arrow("M148 154H242"),
        called(195, 146, "turn"),
        text(197, 172, "claim: fence,\nlease", "dim", size=12, anchor="middle"),
        arrow("M270 134V72"),
        text(270, 108, "job", "dim", size=12.5, anchor="middle", halo=True),
        arrow("M330 68V130"),
        called(370, 108, "turn"),
        text(338, 124, "success, fence", "dim", size=12, halo=True),
        arrow("M350 160H426"),
        arrow("M290 174C280 222 100 222 84 178", dashed=True),
        text(
            190,
            222,
            "failed, or its lease ended: again",
            "dim",
            size=12.5,
            anchor="middle",
            halo=True,
        ),
        box(30, 236, 420, 46, "warn"),
        text(44, 264, "outbox", "warn", bold=True),
        text(
            112,
            256,
            f"{Event.ENQUEUED} {Event.CLAIMED} {Event.SUCCEEDED}",
            "warn",
            size=12.5,
            mono=True,
        ),
        text(112, 273, "each script appends its event, first of all", "warn", size=12.5),
        arrow("M240 282V328"),
        text(250, 314, "mirror: each event exactly once", "dim", size=12.5),
        box(80, 332, 320, 46, "main", "SQL", below="SQLite or PostgreSQL: history, verify, why"),
    ]
    return picture(
        "A job's way: from the call through Redis to a worker, and its events to SQL",
        _WIDTH,
        396,
        parts,
    )


def lease() -> str:
    """Return the picture of a lease: a worker pauses for too long, and another worker claims its job."""
    lease_s = SETTINGS["lease_ms"].default // 1000
    beat = lease_s // 3
    pause, until = beat + 2, 2 * lease_s

    def x(seconds: float) -> float:
        return round(100 + 350 * seconds / until, 1)

    ends = beat + lease_s
    back, done = ends + 8, ends + 14
    parts = [
        text(16, 57, "worker A", "ink", bold=True),
        text(16, 143, "worker B", "ink", bold=True),
        text(16, 203, "the log", "dim"),
        # A: it works, pauses, and comes back.
        box(x(0), 38, x(pause) - x(0), 30, "good", "runs"),
        box(x(pause), 38, x(back) - x(pause), 30, "bad", "paused", dashed=True),
        dot(x(beat), 81, "good", radius=4),
        text(x(beat), 99, "extends\nthe lease", "dim", size=12, anchor="middle"),
        # The lease.
        arrow(f"M{x(beat)} 81H{x(ends)}", "warn", head=False, width=4),
        text((x(beat + 7) + x(ends)) / 2, 99, f"in force: {lease_s} s", "warn", size=12.5, anchor="middle"),
        # B: it claims.
        box(x(ends), 123, x(done) - x(ends), 30, "good", "runs"),
        arrow(f"M{x(ends)} 84V121", "warn"),
        text(x(ends) - 8, 136, "the lease ends; the next\nclaim takes the job", "dim", size=12.5, anchor="end"),
        # A comes back.
        arrow(f"M{x(back)} 53H{x(until) - 52}", "bad"),
        text(x(until) - 46, 57, "refused", "bad", bold=True),
    ]  # fmt: skip
    moments = (0, ends, ends, back, done)
    for at, event in zip(moments, LEASE_EVENTS, strict=True):
        parts.append(
            dot(x(at), 199, "bad" if event is Event.SETTLEMENT_REFUSED else "line", radius=4)
        )
    parts += [
        arrow(f"M100 199H{x(until) + 16}"),
        text(x(0), 221, f"{LEASE_EVENTS[0]}, fence 88", "dim", size=12),
        text(
            x(ends) + 4,
            221,
            f"{LEASE_EVENTS[1]}\n{LEASE_EVENTS[2]}, fence 91",
            "dim",
            size=12,
            anchor="end",
        ),
        text(x(back), 184, f"{LEASE_EVENTS[3]}, fence 88", "bad", size=12, anchor="middle"),
        text(x(done), 221, f"{LEASE_EVENTS[4]}\nfence 91", "dim", size=12, anchor="middle"),
    ]
    return picture(
        "A lease: worker A pauses, its lease ends, worker B takes the job, and A's report is refused",
        _WIDTH,
        252,
        parts,
    )
