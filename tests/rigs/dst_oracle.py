"""Compares the instants that rq-core computes for cron expressions with an oracle, which tries each minute.

    python -m tests.rigs.dst_oracle              two days around each change, 2010 to 2039, 40 zones, 12 expressions
    python -m tests.rigs.dst_oracle --library    compare the library CronSim, with its own handling of time zones

The oracle shares no code with rq-core, and uses no UTC offsets. It knows only what the wall clock shows at each minute.
It has two rules. If the field minute or hour begins with ``*``, each minute with a matching wall time is an instant. In
other expressions, only the first of two equal wall times is an instant. If the clock skips matching wall times, the
first minute after the skip is one instant for all of them.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

import click
from cronsim import CronSim

from rq_core.model.recurrence import recurrence

ZONES: Final = (
    "Europe/Berlin", "Europe/London", "Europe/Dublin", "Europe/Lisbon", "Europe/Athens", "Europe/Moscow",
    "Europe/Istanbul", "Europe/Chisinau", "America/New_York", "America/Los_Angeles", "America/St_Johns",
    "America/Halifax", "America/Havana", "America/Sao_Paulo", "America/Santiago", "America/Asuncion",
    "America/Mexico_City", "America/Caracas", "America/Godthab", "America/Scoresbysund", "America/Port-au-Prince",
    "America/Bogota", "Atlantic/Azores", "Africa/Cairo", "Africa/Casablanca", "Africa/El_Aaiun", "Africa/Khartoum",
    "Asia/Tehran", "Asia/Amman", "Asia/Beirut", "Asia/Damascus", "Asia/Gaza", "Asia/Jerusalem", "Asia/Pyongyang",
    "Asia/Kolkata", "Australia/Sydney", "Australia/Lord_Howe", "Pacific/Apia", "Pacific/Auckland", "Antarctica/Troll",
)  # fmt: skip
EXPRESSIONS: Final = (
    "* * * * *", "*/10 * * * *", "*/30 */2 * * SUN", "5 * * * *", "0 */2 * * *", "* 2 * * *",
    "0 0 * * *", "30 2 * * *", "0,15,30,45 1-3 * * *", "59 23 * * 6", "0 0 1,15 * 0", "30 0 L * *",
)  # fmt: skip
YEARS: Final = (2010, 2040)
AROUND: Final = timedelta(days=1)
MINUTE: Final = timedelta(minutes=1)
_RANGES: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_WEEKDAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")

Instants = list[datetime]
Minute = tuple[datetime, datetime]
"""A time in UTC, and the wall time that the clock shows then."""


@dataclass(frozen=True)
class Difference:
    """The instants that are missing or wrong around one change of a zone's UTC offset."""

    zone: str
    expression: str
    change: datetime
    missing: Instants
    added: Instants

    def __str__(self) -> str:
        said = " ".join(f"-{each:%d %H:%M}" for each in self.missing)
        said += " ".join(f"+{each:%d %H:%M}" for each in self.added)
        return f"{self.zone} {self.expression!r} {self.change:%Y-%m-%d %H:%M}: {said} (UTC)"


class Expression:
    """A cron expression as sets of numbers. ``L`` (the last day of the month) is 99. ``both_days``: a day must match
    both day fields."""

    def __init__(self, text: str) -> None:
        minute, hour, day, month, weekday = text.split()
        texts = (minute, hour, day.replace("L", "99"), month, weekday)
        self.minutes, self.hours, self.days, self.months, weekdays = (
            _numbers(field, *bounds) for field, bounds in zip(texts, _RANGES, strict=True)
        )
        self.weekdays = {number % 7 for number in weekdays}
        self.has_elapsed = minute.startswith("*") or hour.startswith("*")
        self.both_days = day.startswith("*") or weekday.startswith("*")

    def matches(self, wall: datetime) -> bool:
        """Return whether a wall time matches the expression."""
        return wall.minute in self.minutes and wall.hour in self.hours and self._matches_day(wall)

    def _matches_day(self, wall: datetime) -> bool:
        last = 99 in self.days and (wall + timedelta(days=1)).day == 1
        days = (wall.day in self.days or last, wall.isoweekday() % 7 in self.weekdays)
        return wall.month in self.months and (all(days) if self.both_days else any(days))


def _numbers(field: str, low: int, high: int) -> set[int]:
    found: set[int] = set()
    for term in field.split(","):
        span, _, step = term.partition("/")
        if span == "*":
            first, last = low, high
        else:
            begin, _, end = span.partition("-")
            first = _WEEKDAYS.index(begin) if begin in _WEEKDAYS else int(begin)
            last = int(end) if end else first
        found.update(range(first, last + 1, int(step or 1)))
    return found


def told(expression: Expression, minutes: Sequence[Minute]) -> Instants:
    """Return the oracle's instants among these consecutive minutes."""
    if expression.has_elapsed:
        return [moment for moment, wall in minutes if expression.matches(wall)]
    found: Instants = []
    latest = minutes[0][1] - MINUTE
    for moment, wall in minutes:
        shown = False
        while latest < wall:
            latest += MINUTE
            shown = shown or expression.matches(latest)
        if shown:
            found.append(moment)
    return found


def changes(zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[datetime]:
    """Yield each minute (UTC) at which the zone's UTC offset changes."""
    low = begin
    while low < end:
        high = low + timedelta(hours=12)
        if _offset(zone, low) != _offset(zone, high):
            near, far = 0, 720
            while far - near > 1:
                middle = (near + far) // 2
                is_old = _offset(zone, low + middle * MINUTE) == _offset(zone, low)
                near, far = (middle, far) if is_old else (near, middle)
            yield low + far * MINUTE
        low = high


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


def ours(expression: str, zone: str, begin: datetime, end: datetime) -> Instants:
    """Return the instants that rq-core computes, from ``begin`` until before ``end``."""
    rule = recurrence("oracle", cron=expression, tz=zone)
    found = []
    for instant in rule.instants(round(begin.timestamp() * 1000) - 1):
        moment = datetime.fromtimestamp(instant / 1000, UTC)
        if moment >= end:
            break
        found.append(moment)
    return found


def of_library(expression: str, zone: str, begin: datetime, end: datetime) -> Instants:
    """Return the instants that the library CronSim computes alone, from ``begin`` until before ``end``."""
    found = []
    for each in CronSim(expression, (begin - MINUTE).astimezone(ZoneInfo(zone))):
        moment = each.astimezone(UTC)
        if moment >= end:
            break
        if moment >= begin:
            found.append(moment)
    return found


@lru_cache
def _read(expression: str) -> Expression:
    return Expression(expression)


def compare(
    zone: str,
    expressions: Sequence[str],
    years: tuple[int, int],
    computed: Callable[[str, str, datetime, datetime], Instants] = ours,
) -> Iterator[Difference | None]:
    """Compare computed instants with the oracle's, around each change of the zone's UTC offset.

    Yields a Difference, or None if the instants are equal, for each change and each expression.
    """
    info = ZoneInfo(zone)
    first, last = (datetime(year, 1, 1, tzinfo=UTC) for year in years)
    for change in changes(info, first, last):
        begin, end = change - AROUND, change + AROUND
        # The oracle has to have seen a day of walls that the window repeats (Samoa once left one out).
        early = begin - AROUND
        minutes = [
            (moment, moment.astimezone(info).replace(tzinfo=None, fold=0))
            for moment in (early + k * MINUTE for k in range((end - early) // MINUTE))
        ]
        for expression in expressions:
            expected = [each for each in told(_read(expression), minutes) if each >= begin]
            found = computed(expression, zone, begin, end)
            if found == expected:
                yield None
            else:
                missing, added = set(expected) - set(found), set(found) - set(expected)
                yield Difference(zone, expression, change, sorted(missing), sorted(added))


def main(arguments: Sequence[str]) -> int:
    """Compare all expressions in all zones, and print the differences. Returns 1 if there are any."""
    computed = of_library if "--library" in arguments else ours
    cases, classes = 0, Counter[tuple[str, str]]()
    for zone in ZONES:
        here = 0
        for difference in compare(zone, EXPRESSIONS, YEARS, computed):
            cases += 1
            if difference:
                here += 1
                classes[zone, difference.expression] += 1
                click.echo(difference)
        click.echo(f"{zone}: {here} differences")
    click.echo(f"{cases} cases, {sum(classes.values())} differences")
    for (zone, expression), count in classes.most_common():
        click.echo(f"{count:6} {zone} {expression!r}")
    return 1 if classes else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
