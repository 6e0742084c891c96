"""A picture of ``rq-core top``: the output of the command for example queues, with its colours.

The numbers are invented. Sentences, columns and colours come from the code of the command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from rich.console import Console

from rq_core.cli.commands.top import Frame, render
from rq_core.model.limits.limit import Limit
from rq_core.model.plugins import EndedClaims, LogOverview
from rq_core.model.settings import SETTINGS
from rq_core.protocol.reads.queue_load import Death, Overview, QueueOverview, ScopeLoad
from rq_core.protocol.reads.worker_registry import Presence, PresentWorker
from scripts.docs.pictures.drawing import picture, text

if TYPE_CHECKING:
    from rich.style import Style

WIDTH: Final = 84
"""The number of characters in a line."""
_SIZE: Final = 13
_CHARACTER: Final = 7.83
"""The width of a character in pixels: 0.602 of the font size, as in the usual fonts for code."""
_LINE: Final = 19
_MINUTE: Final = 60_000


def top() -> str:
    """Return the picture of ``rq-core top``, as SVG."""
    console = Console(width=WIDTH, color_system="truecolor", legacy_windows=False)
    lines = console.render_lines(render(_frame(), _before(), WIDTH), pad=False)
    while lines and not "".join(segment.text for segment in lines[-1]).strip():
        lines.pop()
    parts = [text(18, 30, "$ rq-core top --audit audit.db", "dim", size=_SIZE, mono=True)]
    for number, line in enumerate(lines):
        at, y = 0, 56 + number * _LINE
        for segment in line:
            if segment.text.strip():
                lead = len(segment.text) - len(segment.text.lstrip(" "))
                x = 18 + (at + lead) * _CHARACTER
                # Each piece says its length, so columns keep their places in any font.
                words = segment.text.strip(" ")
                piece = text(round(x, 2), y, words, _colour(segment.style), size=_SIZE, mono=True,
                             bold=bool(segment.style and segment.style.bold))  # fmt: skip
                length = round(len(words) * _CHARACTER, 2)
                parts.append(
                    piece.replace(
                        "<text ",
                        f'<text textLength="{length:g}" lengthAdjust="spacingAndGlyphs" ',
                        1,
                    )
                )
            at += len(segment.text)
    height = 56 + len(lines) * _LINE
    return picture(
        "rq-core top: what is wrong first, one sentence for each queue, then the queues",
        round(36 + WIDTH * _CHARACTER), height, parts,
    )  # fmt: skip


def _colour(style: Style | None) -> str:
    if style is not None and style.color is not None:
        return {"red": "bad", "green": "good", "yellow": "warn"}.get(style.color.name, "ink")
    return "dim" if style is not None and style.dim else "ink"


def _before() -> Frame:
    """Return the state of the example queues one second earlier. ``top`` computes rates from the difference."""
    return _frame(second=-1)


def _frame(second: int = 0) -> Frame:
    workers = {
        "billing": (_worker("w-5b20c9de", "billing", busy=2, places=10),),
        "render": (_worker("w-3f2a9c1e", "render", busy=4, places=10),),
        "webhooks": (
            _worker("w-77b01d42", "webhooks", busy=17, places=20),
            _worker("w-91c0ab3e", "webhooks", busy=12, places=20),
        ),
        "mail": (_worker("w-1d8e40f7", "mail", busy=0, places=10, silent_ms=3 * _MINUTE),),
    }
    queues = (
        _queue("billing", ready=0, dead=3, last_death=Death("01a2…", "invoice", "attempts_spent", 2 * _MINUTE),
               running=2, workers=workers["billing"]),
        _queue("mail", ready=4_102 + 31 * second, oldest=3 * _MINUTE, scheduled=12, workers=workers["mail"]),
        _queue(
            "render", ready=0, waiting=87, running=4, dead=2, blocked_lanes=1, workers=workers["render"],
            oldest_blocked_ms=6 * _MINUTE,
            scopes=(
                ScopeLoad("task=render", Limit(4), 4, 1, 6 * _MINUTE, 87),
            ),
        ),
        _queue("webhooks", ready=14 - 6 * second, oldest=240, running=29, scheduled=340, workers=workers["webhooks"]),
    )  # fmt: skip
    ended = {"billing": 3, "render": 1, "webhooks": 212}
    log = LogOverview(
        (),
        tuple(
            EndedClaims(name, "t", "succeeded", (1 + second) * rate, 0, 0)
            for name, rate in ended.items()
        ),
    )
    return Frame(Overview(queues, {}, 0, 12 * 2**20, 2**30), log, float(second))


def _worker(
    name: str, queue: str, *, busy: int, places: int, silent_ms: int = 2_000
) -> PresentWorker:
    says = Presence("web-1", 4711, "0.1.0", "8c1f02ab", (queue,), places, busy, 0)
    return PresentWorker(name, says, silent_ms)


def _queue(name: str, *, ready: int, oldest: int | None = None, **others: Any) -> QueueOverview:
    told: dict[str, Any] = {
        "waiting": 0, "open_lanes": 0, "blocked_lanes": 0, "scheduled": 0, "running": 0, "dead": 0,
        "oldest_blocked_ms": None, "last_death": None, "scopes": (), "workers": (),
    } | others  # fmt: skip
    return QueueOverview(
        queue=name, now_ms=0, ready={"normal": ready}, cancelled_entries=0, paused=False, fair=False, audit=True,
        epoch=1, cap=None, oldest_ready_ms=oldest, oldest_ready_exact=True, oldest_blocked_exact=True, overdue_ms=0,
        leases_over=0, inactive_ms=1_000, ends_leases_in_ms=0, backlog=0, backlog_bytes=0, scopes_exact=True,
        settings={each.name: each.default for each in SETTINGS.values()}, **told,
    )  # fmt: skip
