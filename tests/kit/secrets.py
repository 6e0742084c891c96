"""A secret, a redactor that removes it, and a redactor that fails."""

from __future__ import annotations

SECRET = "s3ntinel-41e9"  # noqa: S105 - it is what must not be found


def redact(text: str) -> str:
    """Return the text without the secret, as the redactor of an app may do."""
    return text.replace(SECRET, "…")


def broken(text: str) -> str:
    """Raise an error whose text has the secret, as a careless redactor may do."""
    raise ValueError(text)
