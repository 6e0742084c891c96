"""The text form of filters and searches: terms like ``word:value``. A value with spaces is in quotes.

The search box of the web page, ``rq-core cancel --where`` and :meth:`Filter.parse` use this form.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

_TERM: Final = re.compile(r'(?:([a-z]+):)?(?:"((?:[^"\\]|\\.)*)"|(\S+))', re.DOTALL)
_PLAIN: Final = re.compile(r'[^\s"][^\s]*')
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


class Term(NamedTuple):
    """One term of a filter's text: a word and its value."""

    word: str
    """The word before the colon; empty if the term has no word."""
    value: str
    text: str
    """The term as it was written."""


def terms_of(text: str) -> Iterator[Term]:
    """Yield the terms of a text, in order.

    >>> [(term.word, term.value) for term in terms_of('queue:mail arg:to="a b" lost')]
    [('queue', 'mail'), ('arg', 'to="a'), ('', 'b"'), ('', 'lost')]
    """
    for found in _TERM.finditer(text):
        quoted = found[2]
        value = found[3] if quoted is None else _ESCAPED.sub(r"\1", quoted)
        yield Term(found[1] or "", value, found[0])


def text_of(terms: Iterable[tuple[str, str]]) -> str:
    """Return terms, given as pairs of a word and a value, as text.

    >>> text_of([("queue", "mail"), ("arg", "to=a b")])
    'queue:mail arg:"to=a b"'
    """
    return " ".join(f"{word}:{_quoted(value)}" for word, value in terms)


def _quoted(value: str) -> str:
    if _PLAIN.fullmatch(value):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
