"""Checks of the options that users pass. An error names the option and the values that it takes."""

from __future__ import annotations

from rq_core.errors import InvalidOption


def check_whole(option: str, value: object, minimum: int, maximum: int) -> None:
    """Raise InvalidOption for a value that is not a whole number from ``minimum`` to ``maximum``; bools are refused."""
    if type(value) is not int or not minimum <= value <= maximum:
        must = f"must be a whole number from {minimum:,} to {maximum:,}"
        raise InvalidOption.of(option, value, must)


def check_url(option: str, value: object, example: str) -> None:
    """Raise InvalidOption for a URL that is neither text nor None. The message shows ``example``, a valid URL."""
    if value is not None and not isinstance(value, str):
        raise InvalidOption.of(option, value, f"must be a URL, like {example}")
