"""Parses a Lua file, so that scripts can be assembled from it: separates its header and its definitions.

Many scripts use the same includes (shared Lua files), so each process reads and parses a file only once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from rq_core.model.lib.cached_property import cached_property
from rq_core.scripts.header import Header, HeaderError, parse_header, without_header

_UNREAD: Final = re.compile(r"'(?:[^'\\\n]|\\.)*'|--\[\[.*?\]\]|--[^\n]*", re.DOTALL)
"""A pattern for strings and comments in Lua code, where no names are looked for."""
_WORD: Final = re.compile(r"(?:^|[^\w:.]|\.\.)([A-Za-z_]\w*)")
"""A pattern for names in Lua code, except names of fields after a dot or a colon. (Two dots join strings.)"""
_PARTS: Final = re.compile(r"^(?=local )", re.MULTILINE)
_DEFINED: Final = re.compile(r"local (?:function (\w+)|([\w, ]+))")
_OTHER_CODE: Final = re.compile(r"^(?!--|local |end\b|[)}])\S.*", re.MULTILINE)
_COMMA: Final = re.compile(r"\s*,\s*")


def words(text: str) -> frozenset[str]:
    """Return the words in Lua code that may be names of locals."""
    return frozenset(_WORD.findall(_UNREAD.sub(" ", text)))


@dataclass(frozen=True)
class Part:
    """One definition in a Lua file: it begins in the first column, and includes all lines before the next
    definition.
    """

    code: str
    names: tuple[str, ...]
    """The names that this code defines; empty if the code is not a definition."""
    is_function: bool

    @cached_property
    def words(self) -> frozenset[str]:
        """The words in the code that may be names of Lua locals."""
        return words(self.code)

    def without_local(self, outside: frozenset[str]) -> str:
        """Return the code for a place where Lua has already declared the names in ``outside``. The word `local` is
        removed if all names that the code defines are in ``outside``.

        Raises HeaderError if only some of these names are in ``outside``.
        """
        there = [name in outside for name in self.names]
        if not any(there):
            return self.code
        if not all(there):
            raise HeaderError(
                f"some of {', '.join(self.names)} are taken by others, and some are not"
            )
        found = _DEFINED.match(self.code)
        assert found is not None, self.code
        declares_only = found[2] and not self.code.startswith("=", found.end())
        return self.code[found.end() :] if declares_only else self.code.removeprefix("local ")


@dataclass(frozen=True)
class Source:
    """A parsed Lua file: its header and its code."""

    header: Header
    code: str
    """The text without the header and without lines that are only comments."""

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The code, split into its definitions. Each definition begins in the first column."""
        return tuple(_part(code) for code in _PARTS.split(self.code))

    @cached_property
    def defines(self) -> frozenset[str]:
        """The names of the file's definitions."""
        return frozenset(name for part in self.parts for name in part.names)

    @cached_property
    def words(self) -> frozenset[str]:
        """The words in the code that may be names of locals."""
        return words(self.code)

    @cached_property
    def other_code(self) -> str:
        """The first line of code in the first column that does not define a Lua local; empty if the file has no such
        line.
        """
        found = _OTHER_CODE.search(self.code)
        return found[0] if found else ""


def _part(code: str) -> Part:
    found = _DEFINED.match(code)
    if found is None:
        return Part(code, (), is_function=False)
    if found[1]:
        return Part(code, (found[1],), is_function=True)
    return Part(code, tuple(_COMMA.split(found[2].strip())), is_function=False)


PLAIN: Final = "plain"
"""The folder of the Lua programs that are sent with EVAL, see rq_core/scripts/plain.py."""


@lru_cache(maxsize=256)
def read(path: Path) -> Source:
    """Return a parsed Lua file. The result is cached. Raises HeaderError, or OSError if the file does not exist."""
    return source(path.read_text(encoding="utf-8"), path.name)


@lru_cache(maxsize=4)
def include_paths(lua: Path) -> dict[str, Path]:
    """Return the paths of the includes (Lua files that scripts share) by name. An include for several scripts is in a
    folder named after its subject; an include for one script is in a folder named after the script.
    """
    return {path.stem: path for path in sorted(lua.glob("*/**/*.lua")) if path.parent.name != PLAIN}


def forget_files() -> None:
    """Empty the caches of parsed Lua files, so that files are read again."""
    read.cache_clear()
    include_paths.cache_clear()


def source(text: str, where: str) -> Source:
    """Parse the text of a Lua file. Raises HeaderError if the text has no header."""
    lines = without_header(text).split("\n")
    code = "\n".join(line for line in lines if line and not line.lstrip().startswith("--"))
    return Source(parse_header(text, where), code)
