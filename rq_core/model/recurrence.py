"""Computes the instants of a schedule from a cron expression and a time zone, or from an interval. This module reads no
clock and does no I/O.

The *instants* of a schedule (Unix ms) are the times that its cron expression names. With an interval, they are the
multiples of ``every`` since the Unix epoch, plus a phase. A schedule is *due* at an instant plus a delay shorter than
``spread``. The phase and the delay are computed from the schedule's name, so they are the same on every worker and
after a restart.

When daylight saving time begins, wall clocks skip some times (a gap). When it ends, they show some times twice. An
instant whose wall time is in a gap fires at the end of the gap. An instant whose wall time comes twice fires the first
time. If the field for minutes or hours begins with ``*``, elapsed time counts: each minute that passes is compared with
the expression. So ``*/10 * * * *`` never waits longer than ten minutes.

    >>> nightly = recurrence("nightly", cron="30 2 * * *", tz="Europe/Berlin")
    >>> instant = 1774659600000  # 2026-03-28 02:00 in Berlin; the next night has no 02:30
    >>> for _ in range(3):
    ...     instant = nightly.next_after(instant)
    ...     print(datetime.fromtimestamp(instant / 1000, ZoneInfo("Europe/Berlin")))
    2026-03-28 02:30:00+01:00
    2026-03-29 03:00:00+02:00
    2026-03-30 02:30:00+02:00
    >>> nightly.to_json()
    '{"cron":"30 2 * * *","tz":"Europe/Berlin","overlap":"skip","catch_up":"latest"}'
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, get_args
from zlib import crc32
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from rq_core.errors import InvalidOption
from rq_core.model.lib.durations import Duration, ms_of
from rq_core.model.lib.zones import check_zone, zone_of

Overlap = Literal["skip", "allow", "queue", "replace"]
"""The rule that decides what happens at an instant if the job of an earlier instant is still alive."""
CatchUp = Literal["latest", "skip"]
"""The rule that decides what happens to instants that passed while no worker ran."""

OVERLAPS: Final = get_args(Overlap)
CATCH_UPS: Final = get_args(CatchUp)

NAME_MAX: Final = 100
"""Maximum number of characters of a schedule's name. The ids of its jobs are ``tick-NAME-INSTANT``, and an id has at
most 128 characters."""
NAME_PATTERN: Final = rf"[A-Za-z0-9_.:-]{{1,{NAME_MAX}}}"
CRON_MAX: Final = 200
"""Maximum number of characters of a cron expression."""
EVERY_S_MIN: Final = 1.0
"""Shortest interval, in seconds."""
SPREAD_S_MIN: Final = 0.001
"""Shortest spread, in seconds."""
SKIP_GRACE_MS: Final = 60_000
"""The default grace of ``catch_up="skip"``, in ms: an instant that is later than this is not run."""
PASSED_MAX: Final = 10_000
"""Maximum number of passed instants that are counted one by one."""
INSTANT_MAX: Final = 10**13 - 1
"""The last instant of any schedule: scripts take whole numbers below 10^13 (Unix ms: the year 2286)."""

NICKNAMES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_MINUTE: Final = 60_000
_DAY: Final = timedelta(days=1)
_MINUTE_LONG: Final = timedelta(minutes=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_YEARS_2000: Final = datetime(2000, 1, 1)  # noqa: DTZ001 (a wall time)
"""In the fifty years after this moment, each date of the year falls on each weekday at least once. So an expression
without an instant in these years never fires."""
_FIELDS: Final = "must have five fields (minute hour day month weekday), or be one of " + ", ".join(
    NICKNAMES
)


class Passed(NamedTuple):
    """The instants of a schedule that have passed at a given time, and the next instant. Instants are Unix ms."""

    fired: int | None
    """The instant to run; None if no instant is due, or if the last due instant is late by more than the grace."""
    missed: int
    """The number of due instants that are not run, up to PASSED_MAX."""
    next: int | None
    """The first instant that is not due yet; None if no instant is left before the year 2286."""


@dataclass(frozen=True, slots=True)
class Recurrence:
    """The rule of one schedule. :func:`recurrence` makes a rule from options, and :func:`from_json` reads one."""

    name: str
    cron: str | None = None
    tz: str = "UTC"
    every_ms: int = 0
    spread_ms: int = 0
    overlap: Overlap = "skip"
    catch_up: CatchUp = "latest"
    grace_ms: int | None = None
    """Maximum lateness, in ms, with which an instant is still run. An instant that is later counts as missed. None:
    there is no maximum."""

    @property
    def phase_ms(self) -> int:
        """Ms that are added to the multiples of ``every``. The number is less than ``every``, and follows from the
        schedule's name."""
        return crc32(self.name.encode()) % self.every_ms if self.every_ms else 0

    @property
    def shift_ms(self) -> int:
        """Ms that are added to each instant. The number is less than ``spread``, and follows from the schedule's
        name."""
        return crc32(b"spread|" + self.name.encode()) % self.spread_ms if self.spread_ms else 0

    def next_after(self, instant: int) -> int | None:
        """Return the first instant after ``instant`` (Unix ms); None if no instant follows before the year 2286."""
        if self.cron is None:
            since = instant - self.phase_ms
            found: int | None = (since // self.every_ms + 1) * self.every_ms + self.phase_ms
        else:
            # Instants of cron are whole minutes, so all moments of a minute have the same next one.
            found = _cron_after(
                NICKNAMES.get(self.cron, self.cron), self.tz, instant // _MINUTE * _MINUTE
            )
        return found if found is not None and found <= INSTANT_MAX else None

    def instants(self, after: int) -> Iterator[int]:
        """Yield the instants after ``after`` (Unix ms), in order."""
        instant = self.next_after(after)
        while instant is not None:
            yield instant
            instant = self.next_after(instant)

    def passed(self, start: int, end: int) -> int:
        """Return the number of instants from ``start`` up to, but without, ``end`` (Unix ms); at most PASSED_MAX."""
        if self.cron is None:
            before_end = (end - 1 - self.phase_ms) // self.every_ms
            before_start = (start - 1 - self.phase_ms) // self.every_ms
            return max(0, min(before_end - before_start, PASSED_MAX))
        return _cron_passed(NICKNAMES.get(self.cron, self.cron), self.tz, start, end)

    def latest(self, start: int, now: int) -> int | None:
        """Return the last instant from ``start`` to ``now`` (Unix ms, both included); None without an instant in this
        range."""
        if self.cron is None:
            found = (now - self.phase_ms) // self.every_ms * self.every_ms + self.phase_ms
            return found if found >= start else None
        reach = _MINUTE
        while now - reach > start - 1 and (self.next_after(now - reach) or now + 1) > now:
            reach *= 8
        last = None
        for instant in self.instants(max(now - reach, start - 1)):
            if instant > now:
                break
            last = instant
        return last

    def judge(self, expected: int, now: int) -> Passed:
        """Return the instants that have passed at ``now``. ``expected`` is the first instant that was not handled yet
        (both Unix ms).

        The last due instant is run, unless it is late by more than the grace. All other due instants are missed.
        """
        due_now = now - self.shift_ms
        fired = self.latest(expected, due_now)
        if fired is None:
            return Passed(None, 0, expected)
        following = self.next_after(fired)
        if self.grace_ms is not None and due_now - fired > self.grace_ms:
            return Passed(None, self.passed(expected, fired + 1), following)
        return Passed(fired, self.passed(expected, fired), following)

    def to_json(self) -> str:
        """Return the rule as JSON, as Redis and the log have it. The schedule's name is left out. Equal rules have
        equal texts."""
        return _json_of(
            self.cron, self.tz, self.every_ms, self.spread_ms, self.overlap, self.catch_up, self.grace_ms
        )  # fmt: skip


def recurrence(
    name: str,
    *,
    cron: str | None = None,
    tz: str | None = None,
    every: Duration | None = None,
    spread: Duration | None = None,
    overlap: Overlap = "skip",
    catch_up: CatchUp = "latest",
    grace: Duration | None = None,
) -> Recurrence:
    """Return the rule of a schedule. Raises InvalidOption if an option is invalid, or does not fit another option.

    Exactly one of ``cron`` and ``every`` must be given. ``tz`` is for ``cron`` only; its default is UTC.
    """
    check_schedule_name(name)
    _check_word("overlap", overlap, OVERLAPS)
    _check_word("catch_up", catch_up, CATCH_UPS)
    spread_ms = 0 if not spread else ms_of("spread", spread, minimum=SPREAD_S_MIN)
    grace_ms = ms_of("grace", grace) if grace is not None else None
    if grace_ms is None and catch_up == "skip":
        grace_ms = SKIP_GRACE_MS
    every_ms = 0
    if every is not None:
        if cron is not None:
            raise InvalidOption.of("every", every, "does not go with cron: say one of the two")
        if tz is not None:
            raise InvalidOption.of("tz", tz, "does not go with every, which counts elapsed seconds")
        every_ms = ms_of("every", every, minimum=EVERY_S_MIN)
    elif cron is None:
        raise InvalidOption.of(
            "cron", None, "must be given, or every must be: one of them says when"
        )
    else:
        cron = check_cron(cron)
        check_zone(tz := "UTC" if tz is None else tz)
    return Recurrence(name, cron, tz or "UTC", every_ms, spread_ms, overlap, catch_up, grace_ms)


def from_json(name: str, text: str) -> Recurrence:
    """Return the rule that ``to_json`` wrote as ``text``. Raises InvalidOption if this version cannot read the rule."""
    try:
        said: dict[str, Any] = json.loads(text)
        seconds = {
            option: said.pop(f"{option}_ms") / 1000
            for option in ("every", "spread", "grace")
            if f"{option}_ms" in said
        }
        return recurrence(name, **said, **seconds)
    except (TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        must = f"must be the JSON of a schedule that this version can read ({error})"
        raise InvalidOption.of("schedule", text, must) from None


@lru_cache(maxsize=1024)
def _json_of(
    cron: str | None,
    tz: str,
    every_ms: int,
    spread_ms: int,
    overlap: Overlap,
    catch_up: CatchUp,
    grace_ms: int | None,
) -> str:
    """Return the JSON of a rule. The result is cached, because many schedules may differ only in their names."""
    when = {"every_ms": every_ms} if cron is None else {"cron": cron, "tz": tz}
    spread = {"spread_ms": spread_ms} if spread_ms else {}
    grace = {} if grace_ms is None else {"grace_ms": grace_ms}
    said = when | spread | {"overlap": overlap, "catch_up": catch_up} | grace
    return json.dumps(said, separators=(",", ":"))


def check_schedule_name(name: str) -> str:
    """Return ``name`` if it is a valid name of a schedule. Raises InvalidOption otherwise."""
    given: object = name
    if not isinstance(given, str) or not re.fullmatch(NAME_PATTERN, given):
        must = f"must be 1 to {NAME_MAX} of the characters A-Z a-z 0-9 _ . : -"
        raise InvalidOption.of("name", name, must)
    return name


@lru_cache(maxsize=1024)
def check_cron(cron: str) -> str:
    """Return a cron expression with one space between its fields.

    Raises InvalidOption if the expression is invalid or never fires.

    >>> check_cron("0  2 * *   MON-FRI")
    '0 2 * * MON-FRI'
    """
    given: object = cron
    if not isinstance(given, str) or not given.strip() or len(given) > CRON_MAX:
        raise InvalidOption.of("cron", cron, _FIELDS)
    fields = cron.split()
    said = " ".join(fields)
    if said.startswith("@"):
        if said not in NICKNAMES:
            raise InvalidOption.of("cron", cron, _FIELDS)
        return said
    if len(fields) != 5:
        raise InvalidOption.of("cron", cron, f"{_FIELDS}; it has {len(fields)}")
    try:
        next(CronSim(said, _YEARS_2000))
    except StopIteration:
        raise InvalidOption.of("cron", cron, "must fire some day: no date matches it") from None
    except CronSimError as error:
        raise InvalidOption.of("cron", cron, _why(fields, str(error))) from None
    return said


def _why(fields: list[str], error: str) -> str:
    """Return the part of an error message that names the invalid field of an expression, and the values that are valid
    in this field."""
    usual = {
        "minute": (0, "0 to 59"),
        "hour": (1, "0 to 23"),
        "day-of-month": (
            2,
            "1 to 31, or L (the last day), and a day that the month in the fourth field has",
        ),
        "month": (3, "1 to 12, or JAN to DEC"),
        "day-of-week": (
            4,
            "0 to 7 (Sunday is 0 and 7), or SUN to SAT, MON#2 (the second), or 5L (the last)",
        ),
    }
    place, values = usual[error.removeprefix("Bad ")]
    return f"has the {error.removeprefix('Bad ')} {fields[place]!r}, which must be {values}"


def _check_word(option: str, value: object, words: tuple[str, ...]) -> None:
    if value not in words:
        raise InvalidOption.of(option, value, f"must be one of {', '.join(words)}")


def _ms_of_utc(moment: datetime) -> int:
    """Return a moment, given in UTC, in Unix ms."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


@lru_cache(maxsize=4096)
def _cron_after(cron: str, tz: str, minute_ms: int) -> int | None:
    """Return the first instant of a cron expression after a whole minute (both Unix ms); None without a further
    instant.

    The result is cached, because many schedules with the same expression may be declared or due at the same time.
    """
    zone = zone_of(tz)
    moment = _EPOCH + timedelta(milliseconds=minute_ms)
    minute, hour, *_ = cron.split()
    try:
        if minute.startswith("*") or hour.startswith("*"):
            return _ms_of_utc(_after_elapsed(cron, zone, moment))
        return _ms_of_utc(_after_named(cron, zone, moment))
    except (StopIteration, OverflowError):
        return None


@lru_cache(maxsize=1024)
def _cron_passed(cron: str, tz: str, start: int, end: int) -> int:
    """Return the number of instants of a cron expression from ``start`` up to, but without, ``end`` (Unix ms); at most
    PASSED_MAX.

    The result is cached, because many schedules with the same expression may have had no worker for a long time.
    """
    instant, count = _cron_after(cron, tz, (start - 1) // _MINUTE * _MINUTE), 0
    while instant is not None and instant < end and count < PASSED_MAX:
        count += 1
        instant = _cron_after(cron, tz, instant)
    return count


def _after_named(cron: str, zone: ZoneInfo, moment: datetime) -> datetime:
    """Return the first instant after ``moment``, for an expression whose fields for minutes and hours do not begin with
    ``*``."""
    walls = CronSim(cron, _wall(zone, moment))
    while True:
        # While a wall time comes for the second time, its first moment has passed.
        if (instant := _first_instant(next(walls), zone)) > moment:
            return instant


def _first_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment at which clocks in a zone show a wall time.

    If they show it twice, return the first moment. If they skip it, return the end of the gap.
    """
    instant = wall.replace(tzinfo=zone).astimezone(UTC)
    if _wall(zone, instant) == wall:
        return instant
    # With the offset from before the gap this moment lies after the gap; with the offset from after it, before the gap.
    return _change(zone, wall.replace(tzinfo=zone, fold=1).astimezone(UTC), instant)


def _after_elapsed(cron: str, zone: ZoneInfo, moment: datetime) -> datetime:
    """Return the first minute after ``moment`` whose wall time matches the expression.

    Between two changes of the zone's offset, the wall clock runs evenly. There CronSim is used without a time zone.
    """
    while True:
        offset = _offset(zone, moment)
        instant = (next(CronSim(cron, _naive(moment) + offset)) - offset).replace(tzinfo=UTC)
        change = _first_change(zone, moment, instant)
        if change is None:
            return instant
        if _matches(cron, _wall(zone, change)):
            return change
        moment = change


def _matches(cron: str, wall: datetime) -> bool:
    return bool(next(CronSim(cron, wall - timedelta(seconds=1))) == wall)


def _first_change(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """Return the first moment after ``after``, up to ``until``, at which the zone's offset changes; None if it does not
    change."""
    offset, day = _offset(zone, after), after
    while day < until:
        day, before = min(day + _DAY, until), day
        if _offset(zone, day) != offset:
            return _change(zone, before, day)
    return None


def _change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Return the first minute after ``before``, up to ``after``, at which the zone's offset changes. The offsets at
    ``before`` and ``after`` differ."""
    offset = _offset(zone, before)
    low, high = 0, -((before - after) // _MINUTE_LONG)
    while high - low > 1:
        middle = (low + high) // 2
        if _offset(zone, before + middle * _MINUTE_LONG) == offset:
            low = middle
        else:
            high = middle
    return before + high * _MINUTE_LONG


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    return moment.astimezone(zone).utcoffset() or timedelta()


def _wall(zone: ZoneInfo, moment: datetime) -> datetime:
    """Return the wall time in a zone at a moment, without a time zone."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _naive(moment: datetime) -> datetime:
    return moment.replace(tzinfo=None)
