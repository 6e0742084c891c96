"""Pictures of a job's way from the call to SQL, and of a lease that ends.

The names of scripts and events are taken from the code, so a name that is gone is an error here.
"""

from __future__ import annotations

from typing import Final

from rq_core.model.settings import SETTINGS
from rq_core.model.table.machine import Event, State
from rq_core.scripts.script import names
from scripts.docs.pictures.drawing import arrow, box, dot, frame, picture, text

_WIDTH: Final = 580
LEASE_EVENTS: Final = (
    Event.CLAIMED, Event.LEASE_EXPIRED, Event.CLAIMED, Event.SETTLEMENT_REFUSED, Event.SUCCEEDED,
)  # fmt: skip
"""The events of the picture of a lease, in order; a test plays them."""


def _script(name: str) -> str:
    if name not in names():
        raise ValueError(f"scripts/docs/pictures/journey.py names a script that is gone: {name}")
    return f"{name}.lua"


def way() -> str:
    """Return the picture of a job's way."""

    def called(x: float, y: float, script: str) -> str:
        return text(x, y, _script(script), size=12.5, anchor="middle", mono=True, halo=True)

    parts = [
        frame(20, 92, _WIDTH - 40, 196, "Redis"),
        box(40, 22, 120, 46, "main", "producer", below="send.enqueue(…)"),
        box(300, 22, 240, 46, "main", "worker", below="validates, runs the handler"),
        box(40, 134, 120, 40, "good", str(State.READY)),
        box(300, 134, 120, 40, "good", str(State.RUNNING)),
        dot(524, 154, "line", filled=False, radius=11),
        text(516, 186, "has ended", "dim", size=12.5, anchor="middle"),
        arrow("M100 68V130"),
        called(100, 106, "enqueue"),
        arrow("M160 154H296"),
        called(228, 146, "turn"),
        text(228, 172, "claim: fence, lease", "dim", size=12, anchor="middle"),
        arrow("M360 134V72"),
        text(360, 106, "the job", "dim", size=12.5, anchor="middle", halo=True),
        arrow("M500 68C504 90 480 154 424 150"),
        called(500, 100, "turn"),
        text(476, 116, "outcome, with the fence", "dim", size=12, anchor="middle", halo=True),
        arrow("M420 160H510"),
        # Failures and lost leases come back.
        arrow("M330 174C320 210 140 210 120 178", dashed=True),
        text(
            228,
            214,
            "failed, or its lease ended: again",
            "dim",
            size=12.5,
            anchor="middle",
            halo=True,
        ),
        # The outbox.
        box(40, 236, 500, 36, "warn", ""),
        text(56, 259, "outbox", "warn", bold=True),
        text(
            126,
            258.5,
            f"{Event.ENQUEUED} {Event.CLAIMED} {Event.SUCCEEDED}",
            "warn",
            size=12,
            mono=True,
        ),
        text(528, 259, "each script appends its event", "warn", size=12.5, anchor="end"),
        arrow("M290 272V322"),
        text(300, 306, "mirror: each event exactly once", "dim", size=12.5),
        box(120, 326, 340, 46, "main", "SQL", below="SQLite or PostgreSQL: history, verify, why"),
    ]
    return picture(
        "A job's way: from the call through Redis to a worker, and its events to SQL",
        _WIDTH,
        392,
        parts,
    )


def lease() -> str:
    """Return the picture of a lease: a worker pauses too long, another one takes its job."""
    lease_s = SETTINGS["lease_ms"].default // 1000
    beat = lease_s // 3
    pause, until = beat + 2, 2 * lease_s

    def x(seconds: float) -> float:
        return round(100 + 440 * seconds / until, 1)

    ends = beat + lease_s
    back, done = ends + 8, ends + 14
    parts = [
        text(16, 57, "worker A", "ink", bold=True),
        text(16, 129, "worker B", "ink", bold=True),
        text(16, 187, "the log", "dim"),
        # A: it works, pauses, and comes back.
        box(x(0), 38, x(pause) - x(0), 30, "good", "runs"),
        box(x(pause), 38, x(back) - x(pause), 30, "bad", "paused, or cut off", dashed=True),
        dot(x(beat), 81, "good", radius=4),
        text(x(beat), 99, "extends\nthe lease", "dim", size=12, anchor="middle"),
        # The lease.
        arrow(f"M{x(beat)} 81H{x(ends)}", "warn", head=False, width=4),
        text((x(beat + 7) + x(ends)) / 2, 99, f"in force for {lease_s} s more", "warn", size=12.5, anchor="middle"),
        # B: it claims.
        box(x(ends), 110, x(done) - x(ends), 30, "good", "runs"),
        arrow(f"M{x(ends)} 84V108", "warn"),
        text(x(ends) - 8, 129, "the lease ends, the next claim takes the job", "dim", size=12.5, anchor="end"),
        # A comes back.
        arrow(f"M{x(back)} 53H{x(until) - 52}", "bad"),
        text(x(until) - 46, 57, "refused", "bad", bold=True),
    ]  # fmt: skip
    moments = (0, ends, ends, back, done)
    for at, event in zip(moments, LEASE_EVENTS, strict=True):
        parts.append(
            dot(x(at), 183, "bad" if event is Event.SETTLEMENT_REFUSED else "line", radius=4)
        )
    parts += [
        arrow(f"M100 183H{x(until) + 16}"),
        text(x(0), 205, f"{LEASE_EVENTS[0]}, fence 88", "dim", size=12),
        text(
            x(ends) + 4,
            205,
            f"{LEASE_EVENTS[1]}\n{LEASE_EVENTS[2]}, fence 91",
            "dim",
            size=12,
            anchor="end",
        ),
        text(x(back), 168, f"{LEASE_EVENTS[3]}, fence 88", "bad", size=12, anchor="middle"),
        text(x(done), 205, f"{LEASE_EVENTS[4]}\nfence 91", "dim", size=12, anchor="middle"),
    ]
    return picture(
        "A lease: worker A pauses, its lease ends, worker B takes the job, and A's report is refused",
        _WIDTH,
        236,
        parts,
    )
