"""Groups the includes of a Lua script into rooms. An include is a Lua file that scripts share. A room is the code of
one folder of ``lua/``, in one Lua function.

    local emit, open_call = (function(digits)    names that other rooms use, and names that this room takes from others
    local emit, fact, open_call                  names that files of the room give to other files
    do … end                                     one file
    return emit, open_call
    end)(digits)

A file sees only the names of other files that its header lists under Uses. So the names in a room do not count against
the 200 locals that Lua allows in the code outside. A room costs no time in a call, because it is a function that is
called once, when the library is loaded. Rooms pass functions and constants to each other, but no variables. The few
variables that every room reads (``VARIABLES``) are declared outside of all rooms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rq_core.model.lib.cached_property import cached_property
from rq_core.scripts.binding import key_check
from rq_core.scripts.header import Header, HeaderError, Variant
from rq_core.scripts.source import Part, Source, include_paths, read, source

VARIABLES: Final = ("now", "now_text", "facts")
"""Lua variables that the code of every folder may read. Only the file that defines a variable assigns it."""
RESET: Final = "resets[#resets + 1] = reset"
PARTS: Final = "parts"
"""The name of the include (shared Lua file) that calls the functions of *parts*: includes for data that may end with a
job."""
RUN: Final = "run_parts"
DECIDE: Final = "decide_parts"
DECIDE_STEP: Final = "decide"
STEPS: Final = (DECIDE_STEP, "check", "append", "write")
TABLE: Final = "PARTS"
ENDINGS: Final = "ENDINGS"
"""The name of a Lua table. TABLE and ENDINGS name two tables that the include PARTS reads. The first has the parts of
the script: includes for data that may end with a job. The second has the functions that decide whether these data
end."""
NEW_ROOM: Final = "ends"
"""The name of the room (group of Lua files) for an include that exists only in a test's variant of the scripts."""
_HELPERS: Final = ("whole_number", "integer", "refuse_keys", "may_end_more", "decide_parts")
OPENING: Final = "(function("
"""The Lua text with which a room (the function around the files of one folder) begins."""


@dataclass(frozen=True)
class Built:
    """The includes (shared Lua files) of a script as one Lua text, and what must be declared before this text."""

    rooms: tuple[str, ...]
    words: frozenset[str]
    """All words in this text that may be names of Lua locals."""
    constants: tuple[str, ...]
    """The constants that must be declared before the text."""
    variables: tuple[str, ...]
    """The variables that must be declared before the text."""


@dataclass(frozen=True)
class _File:
    """An include (shared Lua file), reduced to the definitions that a script needs."""

    source: Source
    room: str
    parts: tuple[Part, ...]
    given: tuple[str, ...]
    """The names defined here that other files use."""
    given_out: tuple[str, ...]
    """The names in ``given`` that the script or files of other folders use."""
    part: str = ""
    """The Lua lines that add this file to the table of parts: includes for data that may end with a job. Empty if the
    file is no part."""

    @cached_property
    def words(self) -> frozenset[str]:
        """The words in these definitions that may be names of Lua locals."""
        return frozenset[str]().union(*(part.words for part in self.parts))


def _look_up(lua: Path, name: str, variant: Variant) -> Source:
    paths = include_paths(lua)
    if name in variant.includes:
        include = source(variant.includes[name], f"{name}.lua")
    elif name in paths:
        include = read(paths[name])
    else:
        raise HeaderError(f"there is no include {name}.lua")
    if other := include.other_code:
        raise HeaderError(f"an include may only define locals, not: {other[:60]}")
    return include


def facts_of_parts(lua: Path, variant: Variant) -> tuple[str, ...]:
    """Return the fields of a queue's key ``meta`` that say which parts the queue needs. A part is an include (shared
    Lua file) for data that may end with a job.
    """
    names = _look_up(lua, PARTS, variant).header.words("Parts")
    headers = (_look_up(lua, name, variant).header for name in names)
    return tuple(dict.fromkeys(fact for header in headers for fact in header.words("Fact")))


def includes_of(lua: Path, script: Source, variant: Variant) -> dict[str, Source]:
    """Return the includes (shared Lua files) that a script needs, by name. Each comes after the includes that it uses
    itself.
    """
    found: dict[str, Source] = {}
    look_up = partial(_look_up, lua, variant=variant)

    def add(user: Source, above: tuple[str, ...]) -> None:
        for name in user.header.uses:
            if name in above:
                raise HeaderError(f"includes go round in a circle: {' > '.join((*above, name))}")
            if name in found:
                continue
            include = look_up(name)
            add(include, (*above, name))
            found[name] = include

    add(script, ())
    if PARTS in found and any(DECIDE in user.words for user in found.values()):
        for name in found[PARTS].header.words("Parts"):
            if name not in found and (include := look_up(name)).header.words("Fact"):
                add(include, (name,))
                found[name] = include
    return found


def part_steps(
    includes: Mapping[str, Source], users: Sequence[Source]
) -> dict[str, tuple[str, ...]]:
    """Return the names of the Lua functions of each part that a script calls, by part, in the order in which the parts
    run; an empty dict for a script that calls no parts.

    A part is an include (shared Lua file) for data that may end with a job.
    """
    taken = {word for user in users for word in user.header.uses.get(PARTS, ())}
    if RUN not in taken:
        return {}
    steps = STEPS if any(DECIDE in user.words for user in users) else STEPS[1:]
    return {
        name: tuple(step for step in steps if step in includes[name].defines)
        for name in includes[PARTS].header.words("Parts")
        if name in includes
    }


def build(
    lua: Path, script: Source, includes: Mapping[str, Source], known: Mapping[str, str]
) -> Built:
    """Return the includes (shared Lua files) of a script as Lua text, grouped by folder. ``known`` has the Lua
    declarations of constants, by name.
    """
    files = _files(lua, script, includes)
    rooms = {room: [f for f in files.values() if f.room == room] for room in _order(files)}
    words = {room: frozenset[str]().union(*(f.words for f in here)) for room, here in rooms.items()}
    outside = tuple(
        word
        for word, text in known.items()
        # A number or a text costs each room that has it next to nothing; a table is made once.
        if word in script.words
        or ("{" in text and sum(word in mentioned for mentioned in words.values()) > 1)
    )
    texts = []
    for room, here in rooms.items():
        taken = (
            word
            for file in here
            for used, names in file.source.header.uses.items()
            if used in files and files[used].room != room
            for word in names
            if word in file.words and word not in VARIABLES
        )
        helpers = [word for word in (*_HELPERS, *outside) if word in words[room]]
        own = [known[word] for word in known if word in words[room] and word not in outside]
        texts.append(_room(here, own, tuple(dict.fromkeys([*helpers, *taken]))))
    given = {word for file in files.values() for word in file.given}
    return Built(
        rooms=tuple(texts),
        words=frozenset[str]().union(*words.values()),
        constants=outside,
        variables=tuple(word for word in VARIABLES if word in given),
    )


def include_words(
    lua: Path, script: Source, includes: Mapping[str, Source]
) -> dict[str, frozenset[str]]:
    """Return, by include, the words in the include that may be names of Lua locals. Definitions that the script does
    not need are left out.
    """
    return {name: file.words for name, file in _files(lua, script, includes).items()}


def _files(lua: Path, script: Source, includes: Mapping[str, Source]) -> dict[str, _File]:
    """Return the includes (shared Lua files) of a script, each with only the functions that the script needs. This
    saves time: a script that is called by its digest (EVALSHA) creates all its functions in each call.
    """
    _check_names(script, includes)
    paths = include_paths(lua)
    found: dict[str, _File] = {}
    users: list[tuple[Header, str, frozenset[str]]] = [(script.header, "", script.words)]
    parts = part_steps(includes, (script, *includes.values()))
    for name, include in reversed(list(includes.items())):
        room = paths[name].parent.name if name in paths else NEW_ROOM
        steps = parts.get(name, ())
        given: dict[str, bool] = {}
        for header, user_room, mentioned in users:
            for word in header.uses.get(name, ()):
                if word in mentioned:
                    given[word] = given.get(word, False) or user_room != room
        if given or steps:
            out = tuple(word for word, is_out in given.items() if is_out)
            needed = tuple(_needed(include, (*given, *steps)))
            joined = _joined(name, parts) if steps else ""
            found[name] = _File(include, room, needed, tuple(given), out, joined)
            users.append((include.header, room, found[name].words))
    return dict(reversed(found.items()))


def endings_of(parts: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the names of those parts that have a Lua function ``decide``. A part is an include for data that may end
    with a job. When a job ends, ``decide`` says whether the part's data end, too.
    """
    return tuple(name for name, steps in parts.items() if DECIDE_STEP in steps)


def _joined(name: str, parts: Mapping[str, Sequence[str]]) -> str:
    """Return the Lua lines that add a part to the Lua tables named by TABLE and ENDINGS. A part is an include for data
    that may end with a job.
    """
    place, steps = list(parts).index(name) + 1, parts[name]
    named = ", ".join(f"{step} = {step}" for step in steps if step != DECIDE_STEP)
    line = f"{TABLE}[{place}] = {{lists = lists, {named}}}"
    if DECIDE_STEP in steps:
        line += f"\n{ENDINGS}[{endings_of(parts).index(name) + 1}] = {DECIDE_STEP}"
    return line


def _check_names(script: Source, includes: Mapping[str, Source]) -> None:
    """Raise HeaderError if a Lua file uses a name that the include does not define, or if two includes provide the same
    name.
    """
    owners: dict[str, str] = {}
    for user in (*includes.values(), script):
        for include, names in user.header.uses.items():
            if missing := set(names) - includes[include].defines:
                raise HeaderError(f"{user.header.name} takes {missing} from {include}.lua")
            for name in names:
                if owners.setdefault(name, include) != include:
                    raise HeaderError(f"{name} is taken from {owners[name]}.lua and {include}.lua")


def _order(files: Mapping[str, _File]) -> list[str]:
    """Return the rooms (groups of Lua files, one for each folder) in order: each comes after the rooms whose names it
    uses. Raises HeaderError if rooms use each other's names in a circle.
    """
    found: dict[str, None] = {}

    def add(room: str, above: tuple[str, ...]) -> None:
        if room in above:
            raise HeaderError(f"rooms go round in a circle: {' > '.join((*above, room))}")
        if room in found:
            return
        for file in files.values():
            for used in file.source.header.uses if file.room == room else ():
                if used in files and files[used].room != room:
                    add(files[used].room, (*above, room))
        found[room] = None

    for file in files.values():
        add(file.room, ())
    return list(found)


def _needed(include: Source, wanted: Iterable[str]) -> list[Part]:
    """Return the definitions of an include (shared Lua file) that a script needs: the functions in ``wanted``, the
    functions that these call, and everything that is not a function.
    """
    functions = {part.names[0]: part for part in include.parts if part.is_function}
    others = (part.words for part in include.parts if not part.is_function)
    needed: set[str] = set()
    names = {"reset", *wanted}.union(*others)
    while more := (names & functions.keys()) - needed:
        needed |= more
        names.update(*(functions[name].words for name in more))
    return [part for part in include.parts if not part.is_function or part.names[0] in needed]


def _room(files: Sequence[_File], constants: Iterable[str], taken: Sequence[str]) -> str:
    """Return the Lua text of a room: a function around the code of one folder's files. It is called once, when a
    library is loaded; a script that is called by its digest (EVALSHA) calls it in each call.

    The function's arguments are the values that these files use from other rooms. Its results are the values that other
    rooms use from these files.
    """
    names = ", ".join(word for file in files for word in file.given if word not in VARIABLES)
    given = ", ".join(word for file in files for word in file.given_out if word not in VARIABLES)
    lines = [
        f"local {given or '_'} = {OPENING}{', '.join(taken)})",
        *constants,
        f"local {names}" if names else "",
        *(_block(file) for file in files),
        f"return {given}" if given else "",
        f"end)({', '.join(taken)})",
    ]
    return "\n".join(line for line in lines if line)


def _block(file: _File) -> str:
    """Return the code of an include (shared Lua file) between ``do`` and ``end``. Names that other files use are
    declared before the block, so that they exist after it, too.
    """
    code = "".join(part.without_local(frozenset(file.given)) for part in file.parts).rstrip()
    if "reset" in file.source.defines:
        code += f"\n{RESET}"
    code += f"\n{file.part}"
    checks = any("check_keys" in part.words for part in file.parts)
    lines = ["do", key_check(file.source.header) if checks else "", code, "end"]
    return "\n".join(line for line in lines if line)
