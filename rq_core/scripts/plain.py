"""Programs of ``lua/plain``, sent with EVAL: reads of many keys at one moment, and writes that change no job.

They make no transition, write no event and take no slot, so they need no assembler.
"""

from __future__ import annotations

from functools import cache

from rq_core.scripts.header import HeaderError
from rq_core.scripts.script import lua_directory
from rq_core.scripts.source import PLAIN, read


def plain_names() -> tuple[str, ...]:
    """Return the names of all programs in ``lua/plain``, sorted."""
    return tuple(sorted(path.stem for path in (lua_directory() / PLAIN).glob("*.lua")))


@cache
def plain_text(name: str, **given: str | int) -> str:
    """Return the text of a program, with locals for its keys and arguments, and for the constants that its header
    names.

    Raises HeaderError if other constants are given, or OSError if there is no such file.
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


def _locals(names: tuple[str, ...] | list[str], source: str) -> str:
    places = ", ".join(f"{source}[{at}]" for at in range(1, len(names) + 1))
    return f"local {', '.join(names)} = {places}" if names else ""
