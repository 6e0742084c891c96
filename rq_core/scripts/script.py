"""A script in the two forms in which Redis runs it: a function, or, where no functions may be loaded, a script by
digest.

The names of a library and its function end with a digest of its text, so that clients of two versions can work side by
side.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from rq_core.model.keys import QueueKeys
from rq_core.model.lib.cached_property import cached_property
from rq_core.scripts.assemble import Assembled, assemble
from rq_core.scripts.header import Header, Variant
from rq_core.scripts.source import include_paths

_NAME: Final = "@name@"
_NO_TAIL: Final[Mapping[int, tuple[str, str]]] = MappingProxyType({})


@dataclass(frozen=True)
class Script:
    """One script, with all that its commands need."""

    name: str
    header: Header
    text: str
    sha: str
    keys: tuple[str, ...]
    """The keys that each call carries."""
    on_demand: Mapping[str, tuple[str, ...]]
    """By fact, the further keys that calls to queues with this fact carry."""
    args: tuple[str, ...]
    each: tuple[str, ...]
    function: str = ""
    """Name of the function that the text defines; empty if the text is a script without a library."""
    instead: Script | None = None
    """The script that does the same as this function, for servers that load no functions; None: this is a script."""

    @cached_property
    def verb(self) -> tuple[str, str]:
        """The first words of a call's command: FCALL and the function's name, or EVALSHA and the script's digest."""
        return ("FCALL", self.function) if self.function else ("EVALSHA", self.sha)

    @cached_property
    def has_tail(self) -> bool:
        """Return whether a call with keys on demand ends with a tail, after its records. The tail may be empty."""
        return "Tail" in self.header.sections

    @property
    def loading(self) -> tuple[str, ...]:
        """Return the command that loads the script into a server. The command may be sent again."""
        if self.function:
            return ("FUNCTION", "LOAD", "REPLACE", self.text)
        return ("SCRIPT", "LOAD", self.text)

    def command(
        self, keys: QueueKeys, each: Iterable[tuple[Any, ...]] = (), **args: Any
    ) -> list[Any]:
        """Return the whole command.

        ``args`` are the header's Args by name; ``each`` are the records, with fields in its order.
        """
        return self.filled(self.head(keys), args, each)

    def filled(
        self,
        head: Sequence[Any],
        args: Mapping[str, Any],
        each: Iterable[tuple[Any, ...]],
        tail: Mapping[int, tuple[str, str]] = _NO_TAIL,
    ) -> list[Any]:
        """Return the whole command, from the ``head`` for its queue. ``tail`` has a note, which may be empty, and a
        text for some records, by the record's place from 1. A call without the keys on demand carries no tail."""
        assert len(args) == len(self.args), f"{self.name} takes {self.args}, not {args}"
        command: list[Any] = [*head, *[args[name] for name in self.args]]
        for record in each:
            command += record
        if self.has_tail and len(head) > len(self.verb) + 1 + len(self.keys):
            for place, (note, text) in tail.items():
                command += (place, note, text)
            command.append(3 * len(tail))
        return command

    def head(self, keys: QueueKeys, facts: Collection[str] = ()) -> tuple[Any, ...]:
        """Return the beginning of the command: the verb, the number of keys, the keys that every call carries, and the
        keys that calls to queues with ``facts`` carry, too."""
        further = (key for fact, group in self.on_demand.items() if fact in facts for key in group)
        return _prefix(self.verb, (*self.keys, *further), keys)

    @property
    def all_keys(self) -> tuple[str, ...]:
        """The keys that a call may carry."""
        return (*self.keys, *(key for group in self.on_demand.values() for key in group))


@lru_cache(maxsize=1024)
def _prefix(verb: tuple[str, str], names: tuple[str, ...], keys: QueueKeys) -> tuple[Any, ...]:
    """Return the beginning of a command, as Script.head does. The result is cached."""
    return (*verb, len(names), *map(keys, names))


def lua_directory() -> Path:
    """Return the folder of the Lua files: inside the wheel, or beside the package in a checkout."""
    packaged = Path(__file__).parent.parent / "_lua"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "lua"


def include(name: str) -> str:
    """Return the text of an include as shipped."""
    return include_paths(lua_directory())[name].read_text(encoding="utf-8")


def names() -> tuple[str, ...]:
    """Return the names of all scripts; a script has the name of its file."""
    return tuple(sorted(p.stem for p in lua_directory().glob("*.lua")))


@cache
def function(name: str) -> Script:
    """Return the script as shipped, as a function. Raises HeaderError, or OSError if the files are not there."""
    return build_function(name)


@cache
def script(name: str) -> Script:
    """Return the script as shipped, for EVALSHA. Raises HeaderError, or OSError if the files are not there."""
    return build_script(name)


def build_script(name: str, variant: Variant | None = None) -> Script:
    """Return the script for EVALSHA, with the includes of ``variant`` in place of the shipped ones."""
    variant = variant or Variant()
    return _as_script(name, assemble(lua_directory(), name, variant), variant)


def _as_script(name: str, made: Assembled, variant: Variant) -> Script:
    flags = ",".join(made.header.words("Flags"))
    first = f"#!lua flags={flags}\n" if flags else "#!lua\n"
    text = f"{variant.prelude}\n{made.text}\nreturn run(KEYS, ARGV)\n"
    text = (first if variant.shebang else "") + text.lstrip("\n")
    sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return Script(name, made.header, text, sha, made.keys, made.on_demand, made.args, made.each)


@cache
def build_function(name: str, variant: Variant | None = None) -> Script:
    """Return the script as a function, with the includes of ``variant``. The result is cached."""
    variant = variant or Variant()
    made = assemble(lua_directory(), name, variant)
    flags = ", ".join(f"'{flag}'" for flag in made.header.words("Flags"))
    text = (
        f"#!lua name={_NAME}\nlocal register = redis.register_function\n{variant.prelude}{made.text}\n"
        f"register{{function_name='{_NAME}', callback=run, flags={{{flags}}}}}\n"
    )
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]
    called = f"rqc_{name}_{digest}"
    instead = _as_script(name, made, variant)
    return replace(instead, text=text.replace(_NAME, called), function=called, instead=instead)
