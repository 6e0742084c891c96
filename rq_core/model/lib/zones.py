"""Finds time zones by their names in the IANA database."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from rq_core.errors import InvalidOption

_ZONE: Final = "must be a time zone of the IANA database, such as Europe/Berlin"
_MISSING: Final = (
    f"{_ZONE}. This system has no such zone: if the name is right, `pip install tzdata` (Python's copy of the database)"
    " or install the system's package tzdata"
)
_NO_OFFSET: Final = f"{_ZONE}, not an offset, which does not say when the clock changes"
_OFFSET: Final = re.compile(r"(?:UTC|GMT)?([+-])(\d\d?)(?::?(\d\d))?|Z", re.IGNORECASE)
_CONSTANT: Final = {"+": ("Etc/GMT-", 14), "-": ("Etc/GMT+", 12)}
"""The names of zones with a constant offset, by the sign of the offset: the first part of the names, and the largest
offset in hours. (Etc/GMT-2 is two hours ahead of UTC.)"""


def check_zone(tz: str) -> str:
    """Return ``tz`` if this system has a time zone of this name. Raises InvalidOption otherwise."""
    given: object = tz
    if not isinstance(given, str) or not given:
        raise InvalidOption.of("tz", tz, _ZONE)
    try:
        zone_of(tz)
    except (LookupError, OSError, ValueError):
        raise InvalidOption.of("tz", tz, _what_instead(tz)) from None
    return tz


@lru_cache(maxsize=1024)
def zone_of(tz: str) -> ZoneInfo:
    """Return the cached time zone of this name. Raises LookupError, OSError or ValueError if the system does not have
    this zone."""
    return ZoneInfo(tz)


def _what_instead(tz: str) -> str:
    """Return the part of an error message that says what to write in place of the invalid zone name ``tz``."""
    offset = _OFFSET.fullmatch(tz)
    if offset is None:
        return _MISSING
    sign, hours, minutes = offset[1] or "+", int(offset[2] or 0), int(offset[3] or 0)
    if not hours and not minutes:
        return f"{_NO_OFFSET}; write UTC"
    if minutes or hours > _CONSTANT[sign][1]:
        return f"{_NO_OFFSET}; for a constant offset name a place that has it, such as Asia/Kolkata"
    name = f"{_CONSTANT[sign][0]}{hours}"
    return f"{_NO_OFFSET}; for a constant offset write {name}, whose sign is the other way round"
