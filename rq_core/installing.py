"""Makes the command that installs an extra of rq-core, for messages."""

from __future__ import annotations


def pip_install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'rq-core[{extra}]'"
