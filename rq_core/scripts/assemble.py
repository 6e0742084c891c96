"""Puts a script's text together: its head, see ``binding``, its includes and its body.

The text defines ``run(KEYS, ARGV)``; what follows it makes it a function of Redis or a script, see ``script``. As a
function, all but a call of ``run`` is done once, when the library is loaded. So ``run`` begins with ``bind``, which
gives the keys their names and lets each include that keeps something during a call ``reset()`` it.

An include stands in a block of its own. What others take from it, by their ``Uses``, is visible after it, and nothing
else of it. Lua allows a function 200 locals and 60 names from outside; so the keys and arguments stand outside of
``library``, and all else in it; an include that only one include uses inside of that one's block, and a constant inside
of the blocks that mention it.

It raises HeaderError when a script uses an include whose keys it does not declare, or a name that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rq_core.model.keys import KEY_TYPES
from rq_core.scripts.binding import (
    INTEGER,
    READY,
    WHOLE_NUMBER,
    argument_names,
    bind_args,
    bind_keys,
    bind_texts,
    each_record,
    key_check,
    names_of,
    tail,
)
from rq_core.scripts.constants import constants
from rq_core.scripts.header import Header, HeaderError, Variant
from rq_core.scripts.source import Part, Source, include_paths, read, source, words

_BASE_META: Final = ("layout", "epoch", "replid")
_GLOBALS: Final = (
    "redis", "cjson", "ipairs", "math", "next", "pairs", "pcall", "string", "table", "tonumber", "type", "unpack",
)  # fmt: skip
"""Names of Lua and Redis that scripts use. As a local, a name costs a call less than in Redis' guarded table of them.
While a library is loaded they are not there, so they are taken when the first call begins."""

_RESET: Final = "resets[#resets + 1] = reset"


@dataclass(frozen=True)
class Assembled:
    """A script's text for Redis, but for its first line and its last, and what a call of it takes."""

    header: Header
    text: str
    keys: tuple[str, ...]
    on_demand: tuple[str, ...]
    args: tuple[str, ...]
    each: tuple[str, ...]


def assemble(lua: Path, name: str, variant: Variant) -> Assembled:
    """The text of a script, with the includes of ``variant`` in place of those that are there."""
    script = read(lua / f"{name}.lua")
    if script.header.name != name:
        raise HeaderError(f"{name}.lua calls itself {script.header.name}")
    includes = resolve(lua, script, variant)
    header, declared = script.header, script.header.words("Keys")
    on_demand = header.words("With")
    for include in includes.values():
        if missing := set(include.header.words("Keys")) - {*declared, *on_demand}:
            raise HeaderError(f"{name}.lua uses {include.header.name} but not its keys {missing}")
    keys = tuple(k for word in declared for k in (READY if word == "ready" else (word,)))
    if unknown := {*keys, *on_demand} - set(KEY_TYPES):
        raise HeaderError(f"{name}.lua: unknown keys {unknown}")
    known = constants(**_facts_of(header, includes))
    blocks, mentioned, placed = _blocks(script, includes, known)
    needed = {word for include in includes.values() for word in include.header.words("Args")}
    if missing := needed - set(argument_names(header)):
        raise HeaderError(f"{name}.lua lacks arguments that its includes read: {missing}")
    shared = [word for word in argument_names(header) if word in needed]
    arguments = bind_args(header, shared)
    texts = bind_texts(header, shared)
    bound = "KEYS, ARGV" if texts else "KEYS"
    numbers = mentioned | words(arguments)
    everything = numbers | script.words
    taken = ", ".join(name for name in _GLOBALS if name in {*everything, "redis", "tonumber"})
    lines = [
        f"local function globals() return {taken} end",
        f"local {taken}",
        f"local {', '.join((*declared, *on_demand, *shared))}",
        "local function library()",
        *(known[name] for name in known if name in mentioned | script.words and name not in placed),
        WHOLE_NUMBER if {"whole_number", "integer"} & numbers else "",
        INTEGER if "integer" in numbers else "",
        "local resets = {}",
        *blocks,
        _bind(
            bound,
            [
                f"if not redis then {taken} = globals() end",
                bind_keys((*declared, *on_demand)),
                texts,
            ],
            blocks,
        ),
        key_check(header),
        each_record(header, shared),
        tail(header, shared),
        "local function run(KEYS, ARGV)",
        f"bind({bound})",
        arguments,
        script.code,
        "end",
        "return run",
        "end",
        "local run = library()",
    ]
    return Assembled(
        header=header,
        text="\n".join(line for line in lines if line),
        keys=keys,
        on_demand=on_demand,
        args=names_of(header.words("Args")),
        each=names_of(header.words("Each")),
    )


def resolve(lua: Path, script: Source, variant: Variant) -> dict[str, Source]:
    """Includes in the order in which they must stand, each once."""
    found: dict[str, Source] = {}
    paths = include_paths(lua)

    def add(user: Source, above: tuple[str, ...]) -> None:
        for name in user.header.uses:
            if name in above:
                raise HeaderError(f"includes go round in a circle: {' > '.join((*above, name))}")
            if name in found:
                continue
            if name in variant.includes:
                include = source(variant.includes[name], f"{name}.lua")
            elif name in paths:
                include = read(paths[name])
            else:
                raise HeaderError(f"there is no include {name}.lua")
            if other := include.other_code:
                raise HeaderError(f"an include may only define locals, not: {other[:60]}")
            add(include, (*above, name))
            found[name] = include

    add(script, ())
    return found


def _names_taken(script: Source, includes: Mapping[str, Source]) -> dict[str, list[str]]:
    """By include: what the script and other includes take from it."""
    taken: dict[str, dict[str, None]] = {name: {} for name in includes}
    owners: dict[str, str] = {}
    for user in (*includes.values(), script):
        for include, names in user.header.uses.items():
            if missing := set(names) - includes[include].defines:
                raise HeaderError(f"{user.header.name} takes {missing} from {include}.lua")
            taken[include].update(dict.fromkeys(names))
            for name in names:
                if owners.setdefault(name, include) != include:
                    raise HeaderError(f"{name} is taken from {owners[name]}.lua and {include}.lua")
    return {include: list(names) for include, names in taken.items()}


def _blocks(
    script: Source, includes: Mapping[str, Source], known: Mapping[str, str]
) -> tuple[list[str], frozenset[str], frozenset[str]]:
    """The includes' text, without functions that the script does without: EVALSHA makes each function in each call; the
    words of it all; and which of the ``known`` constants stand in the blocks of the includes that mention them."""
    taken = _names_taken(script, includes)
    needed: dict[str, tuple[list[Part], list[str]]] = {}
    needed_by_includes: set[str] = set()
    for name, include in reversed(list(includes.items())):
        wanted = [
            each for each in taken[name] if each in script.words or each in needed_by_includes
        ]
        if wanted:
            parts = _needed(include, wanted)
            needed_by_includes.update(*(part.words for part in parts))
            needed[name] = parts, wanted
    users: dict[str, list[str]] = {name: [] for name in includes}
    for user in (*includes.values(), script):
        for name in user.header.uses:
            users[name].append(user.header.name)
    only = {name: by[0] for name, by in users.items() if len(by) == 1 and by[0] in needed}
    mentions: dict[str, list[str]] = {}
    for name, (parts, _) in needed.items():
        for word in known.keys() & frozenset[str]().union(*(part.words for part in parts)):
            mentions.setdefault(word, []).append(name)
    placed = {
        word: by
        for word, by in mentions.items()
        # A number or a text costs each block that has it next to nothing; a table is made once.
        if word not in script.words and (len(by) == 1 or "{" not in known[word])
    }
    blocks: list[str] = []
    inside: dict[str, list[str]] = {name: [] for name in needed}
    for name, (parts, wanted) in reversed(needed.items()):
        around = set(_around(name, only))
        own = [
            line
            for word, line in known.items()
            if name in placed.get(word, ()) and not around.intersection(placed[word])
        ]
        block = _block(includes[name], parts, wanted, [*own, *inside[name]])
        inside.get(only.get(name, ""), blocks).append(block)
    return blocks, frozenset(needed_by_includes), frozenset(placed)


def _around(name: str, only: Mapping[str, str]) -> Iterator[str]:
    """The includes in whose blocks the block of an include stands. ``only``: each one's only user."""
    while name in only:
        name = only[name]
        yield name


def _bind(parameters: str, lines: Iterable[str], blocks: Iterable[str]) -> str:
    """``bind``: these lines, then the resets of the includes, each by a name of its own: that costs a call
    half of what a walk through a list does."""
    count = sum(block.count(_RESET) for block in blocks)
    names = [f"reset_{n}" for n in range(1, count + 1)]
    return "\n".join(
        [
            f"local bind = (function({', '.join(names)})",
            f"return function({parameters})",
            *lines,
            *(f"{name}()" for name in names),
            "end",
            f"end)({', '.join(f'resets[{n}]' for n in range(1, count + 1))})",
        ]
    )


def _needed(include: Source, wanted: Iterable[str]) -> list[Part]:
    """An include's parts without the functions that these names do without."""
    functions = {part.names[0]: part for part in include.parts if part.is_function}
    others = (part.words for part in include.parts if not part.is_function)
    needed: set[str] = set()
    names = {"reset", *wanted}.union(*others)
    while more := (names & functions.keys()) - needed:
        needed |= more
        names.update(*(functions[name].words for name in more))
    return [part for part in include.parts if not part.is_function or part.names[0] in needed]


def _block(include: Source, parts: list[Part], taken: Iterable[str], inside: Iterable[str]) -> str:
    """An include between `do` and `end`, behind the constants and the blocks that it alone uses; the names that are
    taken from it are declared before, and so outlive it."""
    outside = dict.fromkeys(taken)
    checks = any("check_keys" in part.words for part in parts)
    code = "".join(part.without_local(frozenset(outside)) for part in parts).rstrip()
    if "reset" in include.defines:
        code += f"\n{_RESET}"
    lines = [
        f"local {', '.join(outside)}",
        "do",
        *inside,
        key_check(include.header) if checks else "",
        code,
        "end",
    ]
    return "\n".join(line for line in lines if line)


def _facts_of(header: Header, includes: Mapping[str, Source]) -> dict[str, tuple[str, ...]]:
    """The fields of meta that a script reads when it begins, itself and in its includes, and those that it may read
    later."""
    headers = (header, *(include.header for include in includes.values()))
    return {
        "meta": tuple(dict.fromkeys([*_BASE_META, *(w for h in headers for w in h.words("Meta"))])),
        "later": tuple(dict.fromkeys(w for h in headers for w in h.words("Later"))),
    }
