"""Values that users give, checked where they are given: an error names the option, and says which values it takes."""

from __future__ import annotations

from rq_core.errors import InvalidOption


def check_whole(option: str, value: object, minimum: int, maximum: int) -> None:
    """Raise InvalidOption for a value that is not a whole number from ``minimum`` to ``maximum``; True is not one."""
    if type(value) is not int or not minimum <= value <= maximum:
        must = f"must be a whole number from {minimum:,} to {maximum:,}"
        raise InvalidOption.of(option, value, must)


def check_url(option: str, value: object, example: str) -> None:
    """Raise InvalidOption for a value that is neither text nor None."""
    if value is not None and not isinstance(value, str):
        raise InvalidOption.of(option, value, f"must be a URL, like {example}")
