"""A Lua script in one of the two forms that Redis runs: a function, or a script that is called by its digest (for
servers that load no functions).

The names of a library and of its function end with a digest of the text. So clients of two versions can use one server
at the same time.
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
    """One Lua script: its text, and the data that are needed to load and call it."""

    name: str
    header: Header
    text: str
    sha: str
    keys: tuple[str, ...]
    """The keys that every call must pass."""
    on_demand: Mapping[str, tuple[str, ...]]
    """Extra keys that only some calls pass: fact → keys. A fact is a field of the queue's key ``meta`` that is set if
    the queue uses a feature. Calls to such a queue must pass the extra keys."""
    args: tuple[str, ...]
    each: tuple[str, ...]
    function: str = ""
    """Name of the function that the text defines; empty if the text is a script without a library."""
    instead: Script | None = None
    """The same code as a script, for servers that load no functions. None: this object is a script itself."""

    @cached_property
    def verb(self) -> tuple[str, str]:
        """The first two words of a call: FCALL and the function's name, or EVALSHA and the script's digest."""
        return ("FCALL", self.function) if self.function else ("EVALSHA", self.sha)

    @cached_property
    def has_tail(self) -> bool:
        """Return whether a call may pass a tail: texts after its records, such as results of jobs."""
        return "Tail" in self.header.sections

    @property
    def loading(self) -> tuple[str, ...]:
        """Return the command that loads the script into a server. It may be sent more than once."""
        if self.function:
            return ("FUNCTION", "LOAD", "REPLACE", self.text)
        return ("SCRIPT", "LOAD", self.text)

    def command(
        self, keys: QueueKeys, each: Iterable[tuple[Any, ...]] = (), **args: Any
    ) -> list[Any]:
        """Return the whole command of a call.

        ``args`` are the values of the arguments by name, as in the section Args of the script's header. ``each`` are
        the records, such as jobs; their fields are in the order of the section Each.
        """
        return self.filled(self.head(keys), args, each)

    def filled(
        self,
        head: Sequence[Any],
        args: Mapping[str, Any],
        each: Iterable[tuple[Any, ...]],
        tail: Mapping[int, tuple[str, str]] = _NO_TAIL,
    ) -> list[Any]:
        """Return the whole command of a call. ``head`` is its beginning, with the keys.

        ``tail`` has texts that are sent after the records: record number from 1 → (note, which may be empty; text). The
        tail is left out if the head has only the keys that every call passes.
        """
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
        """Return the beginning of a call's command: the verb, the number of keys, and the keys. These are the keys that
        every call passes, and the extra keys for ``facts``: the features that the queue uses.
        """
        further = (key for fact, group in self.on_demand.items() if fact in facts for key in group)
        return _prefix(self.verb, (*self.keys, *further), keys)

    @property
    def all_keys(self) -> tuple[str, ...]:
        """All keys that a call may pass."""
        return (*self.keys, *(key for group in self.on_demand.values() for key in group))


@lru_cache(maxsize=1024)
def _prefix(verb: tuple[str, str], names: tuple[str, ...], keys: QueueKeys) -> tuple[Any, ...]:
    """Return the beginning of a call's command, as Script.head does. The result is cached."""
    return (*verb, len(names), *map(keys, names))


def lua_directory() -> Path:
    """Return the folder of the Lua files. It is inside the installed package, or beside the package in a checkout."""
    packaged = Path(__file__).parent.parent / "_lua"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "lua"


def include(name: str) -> str:
    """Return the text of an include that rq-core ships: a Lua file that scripts share."""
    return include_paths(lua_directory())[name].read_text(encoding="utf-8")


def names() -> tuple[str, ...]:
    """Return the names of all scripts, sorted. They are the names of the files."""
    return tuple(sorted(p.stem for p in lua_directory().glob("*.lua")))


@cache
def function(name: str) -> Script:
    """Return a shipped Lua script as a Redis function. Raises HeaderError, or OSError if the files do not exist."""
    return build_function(name)


@cache
def script(name: str) -> Script:
    """Return a shipped Lua script in the form that is called by its digest (EVALSHA). Raises HeaderError, or OSError if
    the files do not exist.
    """
    return build_script(name)


def build_script(name: str, variant: Variant | None = None) -> Script:
    """Return a Lua script in the form that is called by its digest (EVALSHA). For tests, the includes (shared Lua
    files) of ``variant`` replace the shipped ones.
    """
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
    """Return a Lua script as a Redis function. For tests, the includes (shared Lua files) of ``variant`` replace the
    shipped ones. The result is cached.
    """
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
