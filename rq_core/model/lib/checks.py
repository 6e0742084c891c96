"""Values that users give, checked where they are given: an error names the option, and says what to write."""

from __future__ import annotations

from rq_core.errors import InvalidOption


def check_whole(option: str, value: object, minimum: int, maximum: int) -> None:
    """Raises InvalidOption for what is no whole number from ``minimum`` to ``maximum``; True is none."""
    if type(value) is not int or not minimum <= value <= maximum:
        must = f"must be a whole number from {minimum:,} to {maximum:,}"
        raise InvalidOption.of(option, value, must)


def check_url(option: str, value: object, example: str) -> None:
    """Raises InvalidOption for what is neither text nor None."""
    if value is not None and not isinstance(value, str):
        raise InvalidOption.of(option, value, f"must be a URL, like {example}")
