"""Checks that the header of each file of ``lua/`` describes what the code does, and nothing else.

The loader (:mod:`rq_core.scripts.assemble`) refuses headers that it cannot bind. This module checks the following
rules. It runs when the documentation is generated, not at run time.

- A script's Transitions are those of the one table, and it emits their events and no others.
- Each declared key, argument, record field, include and field of ``meta`` is used. Each used key is declared.
- Each field of ``meta`` that a file reads or changes is declared: an undeclared field would be read as its default.
- Each name that a file takes from an include is in the file's ``Uses``, and is used.
- No file assigns a variable of another file, nor a field or an element of such a variable.
- A name that one directory of ``lua/`` (a room, :mod:`rq_core.scripts.rooms`) takes from another is not assigned
  again, except for a few variables.
- Only the file that declares a list fills and reads the list.
- A script runs each step that one of its parts has.
- No function, and no body of a script, is longer than ``LINES_MAX``.
- A variable of an include that changes gets its first value in ``reset``, or is named under ``Kept``.
- No code uses a numeric position of KEYS or ARGV.
- Each event of the table is emitted by at least one script.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Final

from rq_core.model.settings import SETTINGS
from rq_core.model.table import event_fields, machine
from rq_core.model.table.effects import CLEARS
from rq_core.model.table.machine import Event
from rq_core.scripts import rooms, script
from rq_core.scripts import source as lua_files
from rq_core.scripts.binding import EVERY, in_order
from rq_core.scripts.header import Header, Variant
from scripts.docs import lua_names

_COMMENT = re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)
_TABLE = re.compile(r"^local (\w+) *= \{", re.MULTILINE)
_STRING = re.compile(r"'[^'\n]*'")
_EACH = re.compile(r"local ([\w, ]+) = (?:each|record)\(")
_EMIT = re.compile(r"\bemit(?:_queue)?\(([^\n]*)")
_READ = re.compile(r"\bfacts\.(\w+)|\bfact\('(\w+)'\)")
_LIST = re.compile(r"\blist_of\(lists, '(\w+)'\)|\blists\.(\w+)")
_RUN = re.compile(r"\brun_parts\('(\w+)'")
_FUNCTION = re.compile(r"^local function (\w+).*?^end$", re.MULTILINE | re.DOTALL)
_SET = re.compile(r"\bset_fact\(([^,\n]*),")

LINES_MAX: Final = 70
"""The highest number of lines of a function, and of the body of a script, without comments."""
_OF_ANY_SCRIPT: Final = frozenset({Event.BASELINE, *CLEARS})
"""Events about jobs that change no state. Any script may emit them."""


@dataclass(frozen=True)
class Source:
    """A Lua file: its header, and its code without comments."""

    header: Header
    code: str
    defines: frozenset[str]
    """The names that the file defines at the beginning of a line."""

    @cached_property
    def bare(self) -> str:
        """Return the code of the file without comments and strings."""
        return _STRING.sub("''", self.code)

    @cached_property
    def mentions(self) -> frozenset[str]:
        """Return the names of variables in the code."""
        return lua_names.mentioned(self.code)


def _source(path: Path) -> Source:
    made = lua_files.source(path.read_text(encoding="utf-8"), path.name)
    return Source(made.header, _COMMENT.sub("", made.code), frozenset(made.defines))


@cache
def includes() -> Mapping[str, Header]:
    """Return the headers of all include files, by the name of the file."""
    return {name: source.header for name, source in _includes().items()}


@cache
def _includes() -> Mapping[str, Source]:
    paths = lua_files.include_paths(script.lua_directory())
    return {name: _source(path) for name, path in paths.items()}


@cache
def _script(name: str) -> Source:
    return _source(script.lua_directory() / f"{name}.lua")


def _closure(name: str) -> Mapping[str, lua_files.Source]:
    """Return all include files that a script needs, directly or through others, by name."""
    return rooms.includes_of(script.lua_directory(), _whole(name), Variant())


def _whole(name: str) -> lua_files.Source:
    return lua_files.read(script.lua_directory() / f"{name}.lua")


def _names(header: Header, section: str) -> tuple[str, ...]:
    return tuple(word.partition(":")[0] for word in header.words(section))


def emitters(event: Event) -> tuple[str, ...]:
    """Return the scripts that may append the event, because its name is in their code or in the code of their
    includes."""
    return tuple(name for name in script.names() if f"'{event}'" in _emits(name))


@cache
def _emits(name: str) -> str:
    """Return the code of all calls by which a script and its includes append events."""
    source = _script(name)
    everything = (source, *(_includes()[include] for include in _closure(name)))
    return " ".join(each for s in everything for each in _EMIT.findall(s.code))


def forget() -> None:
    """Clear the caches of read files, so that the next call reads the files again."""
    for kept in (_includes, _script, _emits, shared, includes):
        kept.cache_clear()
    lua_files.forget_files()


def problems() -> list[str]:
    """Return a line for each false statement in a header. Raises HeaderError if a script cannot be built."""
    forget()
    found: list[str] = []
    for name in script.names():
        script.build_script(name)
    for name, include in _includes().items():
        where = lua_files.include_paths(script.lua_directory())[name].relative_to(
            script.lua_directory()
        )
        found += [f"{where}: {p}" for p in (*_of_any(include), *_of_include(include))]
    for name in script.names():
        source = _script(name)
        found += [f"{name}.lua: {p}" for p in (*_of_any(source), *_of_script(name, source))]
    found += _of_walls()
    for event in Event:
        if not emitters(event):
            found.append(f"no script emits {event}")
    return found


def _of_any(source: Source) -> Iterator[str]:
    """Yield what is wrong in the header of a Lua file, by the rules that hold for both scripts and includes."""
    if re.search(r"\b(KEYS|ARGV)\b", source.bare):
        yield "reads KEYS or ARGV by position"
    if '"' in source.bare:
        # What rights a script needs is read off its commands in single quotes.
        yield "has a text in double quotes"
    yield from _of_names(source)
    yield from _of_lists(source)
    for found in _FUNCTION.finditer(source.code):
        if (size := _lines(found[0])) > LINES_MAX:
            yield f"has a function of {size} lines: {found[1]}"
    yield from _of_keys(source)
    unread = set(source.header.words("Unread"))
    if bool(unread) != ("check_keys" in source.mentions):
        yield "has an Unread section and calls no check_keys(), or the other way round"


def _of_keys(source: Source) -> Iterator[str]:
    """Yield each difference between the keys that a file declares and the keys that its code uses."""
    header = source.header
    unread = set(header.words("Unread"))
    declared = {*header.words("Keys"), *header.words("With")}
    own = source.defines | lua_names.local_names(source.code)
    arguments = {*_names(header, "Args"), *_names(header, "Each")}
    known = {EVERY} if EVERY in declared else {*in_order([EVERY]), EVERY}
    touched = (source.mentions & known) - own - arguments
    for word in sorted(unread - declared):
        yield f"declares {word} in Unread but not in Keys"
    yield from (f"touches the key {word} undeclared" for word in sorted(touched - declared))
    for word in sorted(declared - touched - unread):
        yield f"declares {word} in Keys or With but does not use it"


def _of_names(source: Source) -> Iterator[str]:
    """Yield what is wrong with the names that a file takes from include files."""
    taken = {name: include for include, names in source.header.uses.items() for name in names}
    for name, include in taken.items():
        if name not in source.mentions:
            yield f"takes {name} from {include} but does not use it"
        if name in source.defines:
            yield f"takes {name} from {include} and defines it, too"
    own = source.defines | lua_names.local_names(source.code)
    for name in sorted((source.mentions & shared().keys()) - taken.keys() - own):
        yield f"uses {name} of {shared()[name]} without taking it"
    for name in sorted(lua_names.assigned(source.code) & taken.keys()):
        yield f"assigns {name}, which belongs to {taken[name]}"


def _lines(code: str) -> int:
    return sum(1 for line in code.split("\n") if line.strip())


def _of_lists(source: Source) -> Iterator[str]:
    """Yield each difference between the lists that a file declares and the lists that it fills and reads."""
    declared = set(source.header.words("Lists"))
    used = {a or b for a, b in _LIST.findall(source.code)} - {"any"}
    yield from (f"has the list {name} undeclared" for name in sorted(used - declared))
    yield from (f"declares the list {name} but does not use it" for name in sorted(declared - used))


def _of_walls() -> Iterator[str]:
    """Yield a sentence for each name that a file takes from another directory of ``lua/``, although the file that
    defines it assigns it again."""
    paths = lua_files.include_paths(script.lua_directory())
    users = [*_includes().items(), *((name, _script(name)) for name in script.names())]
    rebound = {name: lua_names.rebound(each.code) for name, each in _includes().items()}
    for user, source in users:
        room = paths[user].parent if source is _includes().get(user) else None
        for file, names in source.header.uses.items():
            if paths[file].parent != room:
                yield from (
                    f"{user}: takes {name} out of its room, where {file} assigns it anew"
                    for name in names
                    if name in rebound[file] and name not in rooms.VARIABLES
                )


@cache
def shared() -> Mapping[str, str]:
    """Return name → include, for each name that some file takes from an include."""
    every = (*_includes().values(), *(_script(name) for name in script.names()))
    return {n: include for s in every for include, names in s.header.uses.items() for n in names}


def changing(name: str) -> set[str]:
    """Return the variables of an include that change during a call, without those that outlive the call (``Kept``)."""
    include = _includes()[name]
    return (lua_names.assigned(include.code) & include.defines) - set(include.header.words("Kept"))


def _of_include(source: Source) -> Iterator[str]:
    """Yield what is wrong with the variables that an include changes or keeps between calls, and with the arguments
    that it declares."""
    changing = lua_names.assigned(source.code) & source.defines
    reset = source.code.partition("local function reset()")[2].partition("\nend")[0]
    first_values = lua_names.assigned(reset)
    kept = set(source.header.words("Kept"))
    tables = set(_TABLE.findall(source.code))
    yield from (
        f"does not say when {name} begins anew: reset() or Kept"
        for name in sorted((changing | tables) - first_values - kept - {"lists"})
    )
    yield from (f"keeps {name} and resets it" for name in sorted(kept & first_values))
    for word in (*kept, *source.header.words("Args")):
        if word not in source.mentions:
            yield f"declares {word} but does not use it"


def _of_script(name: str, source: Source) -> Iterator[str]:
    """Yield what is wrong in the header of a script, by the rules for scripts only."""
    header = source.header
    everything = [source, *(_includes()[include] for include in _closure(name))]
    code = "\n".join(s.code for s in everything)
    bare = "\n".join(s.bare for s in everything)
    mentions = {word for s in everything for word in (*s.mentions, *s.header.words("Unread"))}

    table = {str(t): t for t in machine.transitions_of(name)}
    for arrow in header.transitions:
        if arrow not in table:
            yield f"declares {arrow}, which is not in the table"
    for arrow in table:
        if arrow not in header.transitions:
            yield f"does not declare {arrow}, which the table has"
    emits = " ".join(_EMIT.findall(code))
    emitted = {e for e in Event if f"'{e}'" in emits}
    of_table = {t.event for t in table.values()}
    yield from (f"does not emit {event}" for event in sorted(of_table - emitted))
    strange = emitted & (event_fields.JOB_EVENT_FIELDS.keys() - of_table - _OF_ANY_SCRIPT)
    yield from (f"emits {event}, which is not in the table" for event in sorted(strange))

    for word in _names(header, "Args"):
        if word not in mentions:
            yield f"declares {word} in Args but does not use it"
    yield from _of_parts(name, everything)
    yield from _of_records(_names(header, "Each"), bare)
    yield from _of_meta(everything, code)
    if (size := _lines(source.code)) > LINES_MAX:
        yield f"has a body of {size} lines"
    yield from (f"has no {s}" for s in ("Returns", "Invariants") if not header.words(s))
    if set(header.words("Flags")) - {"allow-oom"}:
        yield f"has the flags {header.sections['Flags']}"


def _of_parts(name: str, everything: list[Source]) -> Iterator[str]:
    """Yield a sentence for each step of an included file that a script does not run."""
    runs = {step for source in everything for step in _RUN.findall(source.code)}
    needed = rooms.include_words(script.lua_directory(), _whole(name), _closure(name))
    for part in includes()[rooms.PARTS].words("Parts"):
        if "list_of" in needed.get(part, ()):
            steps = set(rooms.STEPS) & _includes()[part].defines - {rooms.DECIDE_STEP}
            yield from (f"does not run the step {step} of {part}" for step in sorted(steps - runs))


def _of_records(fields: tuple[str, ...], bare: str) -> Iterator[str]:
    """Yield a sentence for each wrong use of the fields of a script's records.

    The code must not read a position after the last field, or a field from another position. It must use each declared
    field.
    """
    used = {0} if re.search(r"\[\w+\] = each\(", bare) else set()
    count = Counter(re.findall(r"(?<![.\w])\w+", bare) if fields else ())
    for names in _EACH.findall(bare):
        for place, word in enumerate(w.strip() for w in names.split(",")):
            if place >= len(fields):
                yield f"takes {word} from records that have {len(fields)} fields"
            elif word in fields and word != fields[place]:
                yield f"takes {fields[place]} from its records as {word}"
            elif count[word] > 1 and word != "_":
                used.add(place)
    for place, word in enumerate(fields):
        if place not in used:
            yield f"declares {word} in Each but does not use it"


def _of_meta(everything: list[Source], code: str) -> Iterator[str]:
    declared = {"layout", "epoch", "replid"}
    for source in everything:
        header = source.header
        declared |= {*header.words("Fact"), *header.words("Meta"), *header.words("Later")}
    read = {a or b for a, b in _READ.findall(code)}
    yield from (f"reads {word} of meta undeclared" for word in sorted(read - declared))
    changed = {word for name in _SET.findall(code) for word in re.findall(r"'(\w+)'", name)}
    yield from (f"changes {word} of meta undeclared" for word in sorted(changed - declared))
    for word in (*everything[0].header.words("Meta"), *everything[0].header.words("Later")):
        if word in SETTINGS and re.search(r"\b(SETTINGS|MINIMA)\b", everything[0].code):
            continue  # read by name
        if not re.search(rf"facts\.{word}\b|'{word}'", code):
            yield f"declares {word} in Meta but does not use it"
