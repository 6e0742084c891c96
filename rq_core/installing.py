"""The command that installs an extra of rq-core."""

from __future__ import annotations


def pip_install(extra: str) -> str:
    """Return the command for an extra. No release is on PyPI, so it names a clone."""
    return f"pip install '/path/to/rq-core[{extra}]' (your clone: no release is on PyPI yet)"
