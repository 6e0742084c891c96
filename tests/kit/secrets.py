"""A secret, and what is asked to keep it."""

from __future__ import annotations

SECRET = "s3ntinel-41e9"  # noqa: S105 - it is what must not be found


def redact(text: str) -> str:
    """As an app might."""
    return text.replace(SECRET, "…")


def broken(text: str) -> str:
    """Breaks, and says why, as careless code does."""
    raise ValueError(text)
