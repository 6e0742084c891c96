"""Checks options that users pass. An error names the option and the valid values."""

from __future__ import annotations

from rq_core.errors import InvalidOption


def check_whole(option: str, value: object, minimum: int, maximum: int) -> None:
    """Raise InvalidOption if a value is not a whole number from ``minimum`` to ``maximum``. Bools are refused, too."""
    if type(value) is not int or not minimum <= value <= maximum:
        must = f"must be a whole number from {minimum:,} to {maximum:,}"
        raise InvalidOption.of(option, value, must)


def check_url(option: str, value: object, example: str) -> None:
    """Raise InvalidOption if a URL is neither a str nor None. The message shows ``example``, a valid URL."""
    if value is not None and not isinstance(value, str):
        raise InvalidOption.of(option, value, f"must be a URL, like {example}")
