"""Makes the command that installs an extra of rq-core. Messages about missing packages show the command."""

from __future__ import annotations


def pip_install(extra: str) -> str:
    """Return the pip command that installs an extra of rq-core, such as ``otel``."""
    return f"pip install 'rq-core[{extra}]'"
