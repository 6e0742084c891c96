"""Finds all Lua patterns in the code, and makes texts on which a slow pattern would take very long."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

_TOKEN: Final = re.compile(
    r"(?P<comment>--\[\[.*?\]\]|--[^\n]*)|'(?P<text>(?:[^'\\\n]|\\.)*)'|(?P<name>[A-Za-z_]\w*)|\.\.|\S",
    re.DOTALL,
)
_ITEM: Final = re.compile(r"(%f)?(\[\^?\]?(?:%.|[^\]])*\]|%.|[^()^$])([*+?-]?)|[()^$]", re.DOTALL)
_CLASSES: Final = {
    "%d": r"\d",
    "%l": "[a-z]",
    "%x": "[0-9a-f]",
    "%w": r"\w",
    "%s": r"\s",
    "%S": r"\S",
}
_ESCAPES: Final = {r"\n": "\n", r"\r": "\r", r"\\": "\\"}
_SIGNS: Final = ("redis.call(", "local ")
"""A string literal with one of these texts is Lua."""
_LETTERS: Final = "q0 -"
_OPERANDS: Final = ("", "q")
"""Texts that replace the unknown operands with which a pattern is joined at run time."""


class Pattern(NamedTuple):
    """A Lua pattern, and the Lua function that uses it."""

    where: str
    function: str
    text: str


def lua_texts(*folders: Path) -> Iterator[tuple[str, str]]:
    """Yield each Lua text in these folders, with the name of its file.

    Lua is in Lua files, and in string literals of Python modules.
    """
    for folder in folders:
        for path in sorted(folder.rglob("*.lua")):
            yield path.name, path.read_text()
        for path in sorted(folder.rglob("*.py")):
            source = path.read_text()
            if not any(sign in source for sign in _SIGNS):
                continue
            tree = ast.parse(source)
            inner = {
                part
                for node in ast.walk(tree)
                if isinstance(node, ast.JoinedStr)
                for part in node.values
            }
            for node in {*ast.walk(tree)} - inner:
                parts = node.values if isinstance(node, ast.JoinedStr) else [node]
                text = "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "q" for part in parts
                )
                if any(sign in text for sign in _SIGNS):
                    yield path.name, text


def patterns_of(where: str, code: str) -> Iterator[Pattern]:
    """Yield the patterns that calls of match, gmatch, gsub and find use. A ``find`` of plain text has none."""
    tokens = [found for found in _TOKEN.finditer(code) if not found["comment"]]
    for at, token in enumerate(tokens[:-1]):
        if token["name"] in ("match", "gmatch", "gsub", "find") and tokens[at + 1][0] == "(":
            first, *others = _arguments(tokens[at + 2 :])
            if token[0] == "find" and len(others) == 2 and others[1][0][0] == "true":
                continue
            for expression in [first] if _has_text(first) else list(_assigned(tokens, first)):
                for text in _joined(expression):
                    yield Pattern(where, token[0], text)


def _arguments(tokens: list[re.Match[str]]) -> list[list[re.Match[str]]]:
    """Return the arguments of a call as lists of tokens. ``tokens`` begins after the opening bracket."""
    found: list[list[re.Match[str]]] = [[]]
    depth = 0
    for token in tokens:
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth < 0:
            break
        if token[0] == "," and not depth:
            found.append([])
        else:
            found[-1].append(token)
    return found


def _has_text(expression: list[re.Match[str]]) -> bool:
    return any(token["text"] is not None for token in expression)


def _assigned(
    tokens: list[re.Match[str]], used: list[re.Match[str]]
) -> Iterator[list[re.Match[str]]]:
    """Yield the texts that the file assigns to a name, or to a field of the table with this name. ``used`` begins with
    the name."""
    name, found = used[0][0], False
    for at, token in enumerate(tokens[:-1], start=1):
        if token[0] != name:
            continue
        start = at + 3 if tokens[at][0] == "[" else at
        if tokens[start][0] == "=" and tokens[start + 1]["text"] is not None:
            end = start + 2
            while tokens[end][0] == "..":
                end += 2
            found = True
            yield tokens[start + 1 : end]
    assert found, f"no text is assigned to {name}, which is a pattern"


def _joined(expression: list[re.Match[str]]) -> Iterator[str]:
    texts = [
        (re.sub(r"\\.", lambda found: _ESCAPES[found[0]], token["text"]),)
        if token["text"] is not None
        else _OPERANDS
        for token in expression
        if token[0] != ".."
    ]
    yield from map("".join, product(*texts))


def hard_texts(pattern: str) -> set[tuple[str, str]]:
    """Return texts that are hard to match, each as a beginning and a piece that is repeated after it.

    The beginning matches the first items of the pattern. The piece matches some items, or is one of the pattern's
    letters.
    """
    letters, samples, is_literal = {"q", "0", " ", "\n"}, [""], False
    for frontier, item, more in _ITEM.findall(pattern):
        was_literal = is_literal
        is_literal = bool(item) and not frontier and item[0] not in ".[" and not item[1:].isalpha()
        if frontier or not item:
            continue
        if not is_literal:
            samples += [letter for letter in _LETTERS if _matches(item, letter)][:1]
        elif was_literal and not more:
            samples[-1] += item[-1]
        else:
            letters.add(item[-1])
            samples.append(item[-1])
    pieces = {
        "".join(samples[first:last])
        for first in range(len(samples))
        for last in range(first + 1, len(samples) + 1)
    }
    return {
        ("".join(samples[:end]), piece)
        for end in range(len(samples) + 1)
        for piece in {*pieces, *letters} - {""}
    }


def _matches(item: str, letter: str) -> bool:
    """Return whether one item of a Lua pattern matches the letter."""
    translated = re.sub(r"%(.)", lambda found: _CLASSES.get(found[0], re.escape(found[1])), item)
    return re.fullmatch(translated, letter, re.DOTALL) is not None
