"""Makes the command that installs an extra of rq-core, for messages."""

from __future__ import annotations


def pip_install(extra: str) -> str:
    """Return the command that installs an extra. No release is on PyPI, so the command names a clone."""
    return f"pip install '/path/to/rq-core[{extra}]' (your clone: no release is on PyPI yet)"
