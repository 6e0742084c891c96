"""A number and what it counts, in the words of a sentence."""

from __future__ import annotations


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with ``one`` behind it if it is 1, else with ``many`` (``one`` and an s, if it is not given).

    A verb may stand in both: ``counted(n, "job waits", "jobs wait")``.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
