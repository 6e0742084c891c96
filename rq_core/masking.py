r"""Passwords in texts: every URL and every message that people may read passes through :func:`masked`.

It rather hides too much than too little: what follows the name of a user or of a secret goes, up to the place where the
secret must have ended.

A handler's error may have any text, so each expression here reads a text once: a run of word characters is tried at its
beginning only and never given back (``++``), and what belongs to an ``@`` is looked for in one word at a time.
"""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "***"

# Not compiled here: most processes that import this never need it.
_NAMED: Final = (
    r"(?i)(?<!\w)(?=\w*(?:password|passwd|passphrase|pwd|secret|token))(\w++\s?=\s?)"
    r"('(?:[^'\\]|\\[\s\S])*+(?:'|\\?\Z)|[^\s&]+)"
)
"""``?sentinel_password=…&``, and libpq's ``password=… host=…``, where a value with spaces is in quotes."""
_ESCAPED: Final = r"(?<![\w%])(?=\w*%)([\w%]++=)[^\s&]+"
"""``?pass%77ord=…``: a name with an escape in it may be any."""
_WORD: Final = r"\S+"
_OF_URL: Final = r"//[^/@:]*:"
"""``//user:password@``, to the last ``@``: people forget to escape ``/``, ``@`` and ``#``."""
_OF_NO_URL: Final = r"(?:^|(?<=['\"(=]))[^/@:'\"(=]*:(?!//)(?=.)"
"""``user:password@host``, by people who forget the scheme, too."""


def masked(text: str) -> str:
    """A text with ``***`` for every password in it."""
    if "=" in text:
        # First: such a value may have an @, which would end another's password.
        text = re.sub(_NAMED, rf"\1{MASK}", text)
        if "%" in text:
            text = re.sub(_ESCAPED, rf"\1{MASK}", text)
    return re.sub(_WORD, _without_user, text) if "@" in text else text


def _without_user(found: re.Match[str]) -> str:
    """Return a word without the part between a user's name and the last ``@``."""
    before, at, host = found[0].rpartition("@")
    if not at:
        return found[0]
    for user in (_OF_URL, _OF_NO_URL):
        if begins := re.search(user, before):
            before = before[: begins.end()] + MASK
    return before + at + host
