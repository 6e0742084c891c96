"""A secret, and redactors that should remove it."""

from __future__ import annotations

SECRET = "s3ntinel-41e9"  # noqa: S105 - it is what must not be found


def redact(text: str) -> str:
    """Remove the secret from a text, as the redactor of an app might do."""
    return text.replace(SECRET, "…")


def broken(text: str) -> str:
    """Raise an error whose text contains the secret, as careless code might do."""
    raise ValueError(text)
