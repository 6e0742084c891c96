"""The Lua programs in ``lua/plain``, which are sent with EVAL. They read many keys at one moment, or write without
changing a job.

They change no job's state, write no event, and may be repeated without a call number. So they need none of the includes
that other scripts are assembled from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from rq_core.scripts.header import HeaderError
from rq_core.scripts.script import lua_directory
from rq_core.scripts.source import PLAIN, read

BY_DIGEST: Final = "EVALSHA_RO"
"""The Redis command that calls a read-only program by its digest."""
_TEXTS: Final[dict[str, str]] = {}
"""Digest → text of those programs that were called by their digests."""


def plain_names() -> tuple[str, ...]:
    """Return the names of the programs in ``lua/plain``, sorted."""
    return tuple(sorted(path.stem for path in (lua_directory() / PLAIN).glob("*.lua")))


@cache
def plain_text(name: str, **given: str | int) -> str:
    """Return the text of a program in ``lua/plain``. It begins with Lua locals for its keys, its arguments and the
    constants in ``given``.

    Raises HeaderError if ``given`` differs from the constants that the header names, or OSError if the file does not
    exist.
    """
    program = read(lua_directory() / PLAIN / f"{name}.lua")
    header = program.header
    if set(given) != set(header.words("Given")):
        raise HeaderError(f"{name}.lua is given {sorted(given)}, not {header.words('Given')}")
    flags = ",".join(header.words("Flags"))
    names = [word for word in header.words("Args") if word.isidentifier() and word.islower()]
    lines = [
        f"#!lua flags={flags}" if flags else "",
        *(
            _locals(words, source)
            for words, source in ((header.words("Keys"), "KEYS"), (names, "ARGV"))
        ),
        *(f"local {word} = {value!r}" for word, value in given.items()),
    ]
    return "\n".join([*filter(None, lines), program.code.strip()])


def by_digest(command: Sequence[Any]) -> list[Any]:
    """Return a shorter form of a command EVAL_RO: with the digest of its program in place of the text.

    This saves time, because the server computes the digest of each text that it gets: some 25 instructions a byte.
    """
    return [BY_DIGEST, _digest_of(command[1]), *command[2:]]


def in_full(command: Sequence[Any]) -> list[Any]:
    """Return a command that ``by_digest`` has made, with the text of its program. It is for a server that does not know
    the program.
    """
    return ["EVAL_RO", _TEXTS[command[1]], *command[2:]]


@cache
def _digest_of(text: str) -> str:
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    _TEXTS[digest] = text
    return digest


def _locals(names: tuple[str, ...] | list[str], source: str) -> str:
    places = ", ".join(f"{source}[{at}]" for at in range(1, len(names) + 1))
    return f"local {', '.join(names)} = {places}" if names else ""
