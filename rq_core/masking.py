r"""Masks passwords in texts. Every URL and every message that people may read passes through :func:`masked`.

If in doubt, :func:`masked` masks too much. After the name of a user or of a secret, it replaces the text up to the last
place where the secret can end.

A text may be of any length, so each regular expression here must take linear time. An expression tries a run of word
characters only from the run's beginning, without backtracking (``++``). It looks for a password before an ``@`` only
within one word.
"""

from __future__ import annotations

import os
import re
from typing import Final

MASK: Final = "***"

# Not compiled here: most processes that import this module never use the expressions.
_NAMED: Final = (
    r"(?i)(?<!\w)(?!(?<=\ds:)tokens=)(?=\w*(?:password|passwd|passphrase|pwd|secret|token))(\w++\s?=\s?)"
    r"('(?:[^'\\]|\\[\s\S])*+(?:'|\\?\Z)|[^\s&]+)"
)
"""Finds ``?sentinel_password=…&``, and libpq's ``password=… host=…``, where a value with spaces is in quotes. It does
not find the scope of a rate that counts tokens (``ask.model@60s:tokens=gpt``), which has no secret."""
_ESCAPED: Final = r"(?<![\w%])(?=\w*%)([\w%]++=)[^\s&]+"
"""Finds ``?pass%77ord=…``: a name with a percent escape, which may be the name of a secret."""
_WORD: Final = r"\S+"
_OF_URL: Final = r"//[^/@:]*:"
"""Finds the user in ``//user:password@``. The password ends at the last ``@``, since people forget to escape an ``@``
in a password."""
_OF_NO_URL: Final = r"(?:^|(?<=['\"(=]))[^/@:'\"(=]*:(?!//)(?=.)"
"""Finds the user in ``user:password@host``, a URL without its scheme."""
REPR_MAX: Final = 300
"""Maximum number of characters of the ``repr`` of a value in a message. A name in a message is shorter."""


def masked(text: str) -> str:
    """Return a text with ``***`` in the place of every password."""
    if "=" in text:
        # Before the @ is searched: a value may have an @, which would be taken for the end of another password.
        text = re.sub(_NAMED, rf"\1{MASK}", text)
        if "%" in text:
            text = re.sub(_ESCAPED, rf"\1{MASK}", text)
    return re.sub(_WORD, _without_user, text) if "@" in text else text


def _without_user(found: re.Match[str]) -> str:
    """Replace the password in one word, such as a URL, by ``***``. The password is the text between the user's name and
    the last ``@``."""
    before, at, host = found[0].rpartition("@")
    if not at:
        return found[0]
    for user in (_OF_URL, _OF_NO_URL):
        if begins := re.search(user, before):
            before = before[: begins.end()] + MASK
    return before + at + host


class Bounded:
    """Wraps a value for a message: its ``repr`` is masked and has at most REPR_MAX characters."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __repr__(self) -> str:
        # Masked first: a password that was cut in half would not be found.
        shown = masked(repr(self._value))
        return shown if len(shown) <= REPR_MAX else f"{shown[: REPR_MAX - 1]}…"

    def __format__(self, spec: str) -> str:
        return format(self._value, spec)


_COMMAND: Final = r"`rq-core [^`]*`"
_MASKED_WORD: Final = r"[^\s`]*\*\*\*[^\s`]*"
_OF_POSTGRES: Final = r"(postgres\w*://[^/@:\s`]*):\*\*\*(?=@)"


def runnable(text: str) -> str:
    """Return a message with commands that can be copied, although :func:`masked` has masked a password in them.

    If an environment variable RQ_CORE_…_URL has the masked URL, the variable's name replaces the URL in the command. In
    any other URL of PostgreSQL the password is left out, and the message says how to give the password to libpq.
    """
    if MASK not in text:
        return text
    known = {
        masked(value).partition("://")[2]: f'"${name}"'
        for name, value in os.environ.items()
        if name.startswith("RQ_CORE_") and name.endswith("_URL")
    }

    def named(word: re.Match[str]) -> str:
        return known.get(word[0].partition("://")[2], word[0])

    said = re.sub(_COMMAND, lambda command: re.sub(_MASKED_WORD, named, command[0]), text)
    bare = re.sub(_COMMAND, lambda command: re.sub(_OF_POSTGRES, r"\1", command[0]), said)
    left_out = "" if bare == said else " The commands leave the password out: set PGPASSWORD to it."
    return bare + left_out
