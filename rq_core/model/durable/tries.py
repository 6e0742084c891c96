"""The failures and lost workers of a job that count against its limits. For a durable job, only failures and lost
workers since the last saved step count. ``lua/include/job/tries.lua`` has the same rule.

>>> is_spent(failures := 4, read_base("3/0").failures, limit := 2)
False
>>> is_spent(5, 3, 2)
True
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

TIMES: Final = 10
"""A durable job also dies when all its failures, or all its lost workers, reach this multiple of the limit. Otherwise a
job that saves a step in each run could fail for ever."""


class Base(NamedTuple):
    """The numbers of failures and losses that a durable job had at its last saved step."""

    failures: int = 0
    losses: int = 0

    def __str__(self) -> str:
        return f"{self.failures}/{self.losses}"


NO_BASE: Final = Base()
_BASE: Final = re.compile(r"(\d+)/(\d+)")


def read_base(text: str | None) -> Base:
    """Parse the field ``base`` of a job's state line in Redis: the failures and losses at the last saved step. Returns
    0/0 if the field is missing or damaged.
    """
    found = _BASE.fullmatch(text or "")
    return NO_BASE if found is None else Base(int(found[1]), int(found[2]))


def is_spent(number: int, before: int, limit: int) -> bool:
    """Return whether a job dies because it has failed, or has lost its worker, too often.

    ``number`` is the number of the job's failures (or losses). ``before`` is their number up to the job's last saved
    step. The job dies if ``limit`` failures (or losses) came after this step, or TIMES * ``limit`` in all.
    """
    return number - before >= limit or number >= TIMES * limit
