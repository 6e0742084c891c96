"""Finds the names that a Lua text assigns and uses. The parser knows only as much Lua as the files in ``lua/`` use."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_TOKEN: Final = re.compile(
    r"'(?:[^'\\\n]|\\.)*'|--\[\[.*?\]\]|--[^\n]*|[A-Za-z_]\w*|\d[\w.]*|[=~<>]=|\.\.\.?|\S",
    re.DOTALL,
)
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_CLOSING: Final = {"]": "[", ")": "("}
_FILES: Final = 512
"""The number of Lua texts whose parsed names are cached. Most files are read several times, by several rules and
tests."""


@lru_cache(_FILES)
def tokens(code: str) -> list[str]:
    """Return the words, numbers, strings and signs of a Lua text, without comments. The list is cached: do not change
    it.
    """
    return [token for token in _TOKEN.findall(code) if not token.startswith("--")]


@lru_cache(_FILES)
def mentioned(code: str) -> frozenset[str]:
    """Return the names of variables in the text. Fields after a dot or a colon, and keys of a table, are left out."""
    words, depth = tokens(code), 0
    found: set[str] = set()
    for at, word in enumerate(words):
        depth += (word == "{") - (word == "}")
        before, after = words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""
        is_key = depth > 0 and after == "=" and before in ("{", ",")
        if _NAME.fullmatch(word) and before not in (".", ":") and not is_key:
            found.add(word)
    return frozenset(found)


@lru_cache(_FILES)
def local_names(code: str) -> frozenset[str]:
    """Return the names that a ``local``, a function or a ``for`` declares, at any depth."""
    found: set[str] = set()
    for names in re.findall(r"\blocal (?!function)([\w, ]+)|\bfor ([\w, ]+?) (?:=|in)\b", code):
        found |= set(_NAME.findall(" ".join(names)))
    for name, parameters in re.findall(r"\bfunction ?(\w*)\(([\w, ]*)\)", code):
        found |= {name, *_NAME.findall(parameters)}
    return frozenset(found - {""})


def assigned(code: str) -> set[str]:
    """Return the names that are assigned again after their declaration, or that have a field or element assigned."""
    return {name for name, _ in _assignments(code)}


def rebound(code: str) -> set[str]:
    """Return the names that are assigned again after their declaration. Assignments to a field or element do not
    count."""
    return {name for name, is_whole in _assignments(code) if is_whole}


@lru_cache(_FILES)
def _assignments(code: str) -> frozenset[tuple[str, bool]]:
    """Return (name, is direct) pairs for all assignments. An assignment to a field or element is not direct."""
    found: set[tuple[str, bool]] = set()
    words, depth = tokens(code), 0
    for at, word in enumerate(words):
        depth += (word == "{") - (word == "}")
        if word != "=" or depth:
            continue
        end, roots = at - 1, []
        while True:
            last = end
            end, root = _target(words, end)
            roots.append((root, end == last - 1))
            if end < 0 or words[end] != ",":
                break
            end -= 1
        if end < 0 or words[end] not in ("local", "for"):
            found.update(roots)
    return frozenset(found)


def _target(words: list[str], end: int) -> tuple[int, str]:
    """Return the position before the target of an assignment, and the first name in the target.

    ``end``: the position of the target's last word.
    """
    while True:
        if words[end] == "]":
            depth = 0
            while True:
                depth += (words[end] in _CLOSING) - (words[end] in _CLOSING.values())
                end -= 1
                if depth == 0:
                    break
        elif words[end - 1] in (".", ":"):
            end -= 2
        else:
            return end - 1, words[end]
