"""Finds the names that a Lua text assigns and mentions. Parses as much of Lua as the files of ``lua/`` use."""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(
    r"'(?:[^'\\\n]|\\.)*'|--\[\[.*?\]\]|--[^\n]*|[A-Za-z_]\w*|\d[\w.]*|[=~<>]=|\.\.\.?|\S",
    re.DOTALL,
)
_NAME: Final = re.compile(r"[A-Za-z_]\w*")
_CLOSING: Final = {"]": "[", ")": "("}


def tokens(code: str) -> list[str]:
    """Yield words, numbers, strings and signs, without comments."""
    return [token for token in _TOKEN.findall(code) if not token.startswith("--")]


def mentioned(code: str) -> set[str]:
    """Return the names of variables, without fields after a dot or a colon, and without keys of a table."""
    found, words, depth = set(), tokens(code), 0
    for at, word in enumerate(words):
        depth += (word == "{") - (word == "}")
        before, after = words[at - 1] if at else "", words[at + 1] if at + 1 < len(words) else ""
        is_key = depth > 0 and after == "=" and before in ("{", ",")
        if _NAME.fullmatch(word) and before not in (".", ":") and not is_key:
            found.add(word)
    return found


def local_names(code: str) -> set[str]:
    """Return the names that a `local`, function or `for` declares, at any depth."""
    found: set[str] = set()
    for names in re.findall(r"\blocal (?!function)([\w, ]+)|\bfor ([\w, ]+?) (?:=|in)\b", code):
        found |= set(_NAME.findall(" ".join(names)))
    for name, parameters in re.findall(r"\bfunction ?(\w*)\(([\w, ]*)\)", code):
        found |= {name, *_NAME.findall(parameters)}
    return found - {""}


def assigned(code: str) -> set[str]:
    """Return the names that are assigned after their declaration, or whose fields or elements are."""
    return {name for name, _ in _assignments(code)}


def rebound(code: str) -> set[str]:
    """Return the names that are assigned after their declaration, not counting fields and elements."""
    return {name for name, is_whole in _assignments(code) if is_whole}


def _assignments(code: str) -> set[tuple[str, bool]]:
    """Yield the names of :func:`assigned`, each with whether the name itself is assigned."""
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
    return found


def _target(words: list[str], end: int) -> tuple[int, str]:
    """Return the position before the target of an assignment, which ends here, and the name with which the target
    begins."""
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
