"""Text from elsewhere, made fit to be shown: jobs and servers may say anything, at any length."""

from __future__ import annotations


def printable(text: str) -> str:
    """A text as one line that cannot steer a terminal: what is not printable, line ends too, is escaped."""
    if text.isprintable():
        return text
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return shown.encode("utf-8", "backslashreplace").decode()


def shorten(text: str, most: int) -> str:
    """The beginning and the end of a text that has more than ``most`` characters: the end of a traceback says what
    happened."""
    if len(text) <= most:
        return text
    half = most // 2 - 10
    return f"{text[:half]}\n… {len(text) - 2 * half} characters left out …\n{text[-half:]}"
