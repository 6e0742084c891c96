"""Passwords in texts: every URL and every message that people may read passes through :func:`masked`.

It rather hides too much than too little: what follows the name of a user or of a secret goes, up to the place where the
secret must have ended.
"""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "***"

# Not compiled here: most processes that import this never need it.
_NAMED: Final = (
    r"(?i)(\w*(?:password|passwd|passphrase|pwd|secret|token)\w*\s?=\s?)('(?:[^'\\]|\\.)*'|[^\s&]+)"
)
"""``?sentinel_password=…&``, and libpq's ``password=… host=…``, where a value with spaces stands in quotes."""
_OF_URL: Final = r"(//[^\s/@:]*:)\S*(?=@)"
"""``//user:password@``, to the last ``@``: people forget to escape ``/``, ``@`` and ``#``."""
_OF_NO_URL: Final = r"((?:^|(?<=[\s'\"(=]))[^\s/@:'\"(=]*:(?!//))\S+(?=@)"
"""``user:password@host``, by people who forget the scheme, too."""


def masked(text: str) -> str:
    """A text with ``***`` for every password in it."""
    if "=" in text:
        # First: such a value may have an @, which would end another's password.
        text = re.sub(_NAMED, rf"\1{MASK}", text)
    if "@" in text:
        text = re.sub(_OF_URL, rf"\1{MASK}", text)
        text = re.sub(_OF_NO_URL, rf"\1{MASK}", text)
    return text
