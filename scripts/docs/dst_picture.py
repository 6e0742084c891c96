"""Draws how schedules fire in the two nights in which daylight saving time begins or ends:
``docs/pictures/dst-nights.svg``.

Each dot is an instant that ``rq_core.model.recurrence`` computes, so the picture agrees with the code. The picture has
colours for light pages and for dark pages.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html import escape
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from rq_core.model.recurrence import recurrence
from scripts.docs.pages import NOTICE

ZONE: Final = "Europe/Berlin"
CRONS: Final = ("30 2 * * *", "0 3 * * *", "*/20 * * * *", "0 * * * *")
"""The expressions, one for each row of the picture. Two of them name their minute and hour, and two do not."""
HOUR_MS: Final = 3_600_000
HOURS: Final = 5
"""The number of hours that the picture shows."""
WIDTH: Final = 920
_LEFT: Final = 130
_STEP: Final = 150
"""The width of one hour in the picture, in SVG units."""
_ROW: Final = 34
_STYLE: Final = (
    "<style>text{fill:#1e293b}.paper{fill:#f8fafc}.line{stroke:#94a3b8}.dot{fill:#4f46e5}.change{fill:#fde68a}"
    "@media(prefers-color-scheme:dark){text{fill:#e2e8f0}.paper{fill:#0f172a}.line{stroke:#64748b}.dot{fill:#a5b4fc}"
    ".change{fill:#713f12}}</style>"
)


class Night(NamedTuple):
    """A night in which daylight saving time begins or ends."""

    title: str
    begins: datetime
    """The beginning of the night (UTC)."""
    changes: datetime
    """The time at which the UTC offset changes (UTC)."""


NIGHTS: Final = (
    Night(
        "29 March 2026: 02:00 to 03:00 does not exist",
        datetime(2026, 3, 28, 23, tzinfo=UTC), datetime(2026, 3, 29, 1, tzinfo=UTC),
    ),
    Night(
        "25 October 2026: 02:00 to 03:00 comes twice",
        datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC),
    ),
)  # fmt: skip


def instants(cron: str, night: Night) -> list[datetime]:
    """Return the instants (UTC) at which a cron expression fires in a night."""
    begins = int(night.begins.timestamp() * 1000)
    rule = recurrence("picture", cron=cron, tz=ZONE)
    found = []
    for at_ms in rule.instants(begins - 1):
        if at_ms > begins + HOURS * HOUR_MS:
            break
        found.append(datetime.fromtimestamp(at_ms / 1000, UTC))
    return found


def svg() -> str:
    """Return the picture of schedules in two nights in which the clocks change, as SVG."""
    each = 70 + _ROW * len(CRONS)
    height = each * len(NIGHTS) + 10
    frame = f'viewBox="0 0 {WIDTH} {height}" role="img" font-family="system-ui, sans-serif" font-size="13"'
    lines = [
        NOTICE,
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>',
        "<title>When schedules fire in Berlin in the two nights in which daylight saving changes</title>",
        _STYLE,
        f'<rect class="paper" width="{WIDTH}" height="{height}" rx="8"/>',
    ]
    for at, night in enumerate(NIGHTS):
        lines += _night(night, 10 + at * each)
    return "\n".join([*lines, "</svg>", ""])


def _night(night: Night, top: int) -> list[str]:
    bottom = top + 48 + _ROW * len(CRONS)
    x = _place(night, night.changes)
    lines = [
        f'<text x="{_LEFT}" y="{top + 14}" font-weight="600">{escape(night.title)}</text>',
        f'<rect class="change" x="{x - 3:.0f}" y="{top + 24}" width="6" height="{bottom - top - 24}"/>',
    ]
    for hour in range(HOURS + 1):
        moment = datetime.fromtimestamp(night.begins.timestamp() + hour * 3600, UTC)
        x = _place(night, moment)
        # At the change the clock shows both: that before, and that after.
        before = f"{_clock_before(moment)} → " if moment == night.changes else ""
        lines += [
            f'<path class="line" d="M {x:.0f} {top + 42} V {bottom}" stroke-dasharray="2 4"/>',
            f'<text x="{x:.0f}" y="{top + 36}" text-anchor="middle">{before}{_clock(moment)}</text>',
        ]
    for at, cron in enumerate(CRONS):
        y = top + 62 + _ROW * at
        lines.append(f'<text x="14" y="{y + 5}" font-family="monospace">{escape(cron)}</text>')
        lines.append(
            f'<path class="line" d="M {_LEFT} {y} H {_LEFT + HOURS * _STEP}" stroke-width="1"/>'
        )
        lines += [
            f'<circle class="dot" cx="{_place(night, instant):.0f}" cy="{y}" r="6">'
            f"<title>{_clock(instant)} {instant.astimezone(ZoneInfo(ZONE)):%z}</title></circle>"
            for instant in instants(cron, night)
        ]
    return lines


def _place(night: Night, moment: datetime) -> float:
    return _LEFT + (moment - night.begins).total_seconds() / 3600 * _STEP


def _clock(moment: datetime) -> str:
    """Return the wall-clock time of a moment in the picture's time zone, such as 02:30."""
    return f"{moment.astimezone(ZoneInfo(ZONE)):%H:%M}"


def _clock_before(moment: datetime) -> str:
    """Return the wall-clock time that the moment would have if the UTC offset had not changed."""
    just_before = (moment - timedelta(seconds=1)).astimezone(ZoneInfo(ZONE))
    return f"{just_before.replace(tzinfo=None) + timedelta(seconds=1):%H:%M}"
