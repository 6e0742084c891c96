"""Makes text from jobs and servers safe to show. Such a text may contain any character and have any length."""

from __future__ import annotations

import re
from typing import Final

from rq_core.masking import masked

READ_MAX: Final = 200_000
"""Maximum number of characters that are searched for passwords in one text. (A handler's error may have any length.)"""


def bytes_of(text: str) -> bytes:
    """Return the bytes that Redis has for a text. Lone surrogates in the text represent bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def number_in(text: str | None) -> int | None:
    """Return a text of at most 18 digits as a number; None for any other text."""
    if text is None or not (text.isascii() and text.isdigit() and len(text) < 19):
        return None
    return int(text)


def printable(text: str) -> str:
    """Return a text as one line that cannot control a terminal. Line ends and unprintable characters are escaped."""
    if text.isprintable():
        return text
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown.encode("utf-8", "backslashreplace").decode()


def shorten(text: str, most: int) -> str:
    """Return a text of at most about ``most`` characters. From a longer text the middle is removed, because the end of
    a traceback has the error."""
    if len(text) <= most:
        return text
    half = most // 2 - 10
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"


def excerpt(text: str, most: int) -> str:
    """Return a text with its passwords masked, then shortened to about ``most`` characters.

    A password that was cut in half would not be found, so masking comes first.
    """
    return shorten(masked(_bounded(text)), most)


def _bounded(text: str) -> str:
    """Return the beginning and the end of a text, together at most about READ_MAX characters. If a cut would split a
    word, the whole word is removed, because it may be a password."""
    if len(text) <= READ_MAX:
        return text
    head, tail = text[: READ_MAX // 2], text[-READ_MAX // 2 :]
    begin = head[: len(head) - len(re.split(r"\s", head)[-1])]
    end = tail[len(re.split(r"\s", tail, maxsplit=1)[0]) :]
    return f"{begin}\n… {len(text) - len(begin) - len(end)} characters left out …\n{end}"


# A number and what it counts, in the words of a sentence.


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number followed by a word: ``one`` if the number is 1, else ``many`` (default: ``one`` and an s).

    Both may contain a verb: ``counted(n, "job waits", "jobs wait")``.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
