"""Puts a script's text together: its head, see ``binding``, its includes and its body.

The text defines ``run(KEYS, ARGV)``; what follows it makes it a function of Redis or a script, see ``script``. As a
function, all but a call of ``run`` is done once, when the library is loaded. So ``run`` begins with ``bind``, which
gives the keys their names and lets each include that keeps something during a call ``reset()`` it.

An include stands in a block of its own. What others take from it, by their ``Uses``, is visible after it, and nothing
else of it; Lua allows a chunk 200 locals, and a function 60 names from outside.

It raises HeaderError when a script uses an include whose keys it does not declare, or a name that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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
    key_check,
    names_of,
    words,
)
from rq_core.scripts.constants import constants
from rq_core.scripts.header import Header, HeaderError, Variant, parse_header, without_header

_DEFINED = re.compile(r"^local (?:function (\w+)|([\w, ]+))", re.MULTILINE)
_FUNCTION = re.compile(r"local function (\w+)")
_OTHER_CODE = re.compile(r"^(?!--|local |end\b|[)}])\S.*", re.MULTILINE)
_BASE_META: Final = ("layout", "epoch", "replid")


@dataclass(frozen=True)
class Source:
    """A Lua file."""

    header: Header
    code: str
    """Without the header and lines that are comments only."""

    @property
    def defines(self) -> tuple[str, ...]:
        """The names that it defines in the first column."""
        found: list[str] = []
        for function, names in _DEFINED.findall(self.code):
            found += [function] if function else re.split(r"\s*,\s*", names.strip())
        return tuple(found)


@dataclass(frozen=True)
class Assembled:
    """A script's text for Redis, but for its first line and its last, and what a call of it takes."""

    header: Header
    text: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    each: tuple[str, ...]


def read(lua: Path, name: str) -> Source:
    """A script. Raises HeaderError, or OSError if the file is not there."""
    found = source((lua / f"{name}.lua").read_text(encoding="utf-8"), f"{name}.lua")
    if found.header.name != name:
        raise HeaderError(f"{name}.lua calls itself {found.header.name}")
    return found


def source(text: str, where: str) -> Source:
    """A Lua file, from its text. Raises HeaderError if it has no header."""
    lines = without_header(text).split("\n")
    code = "\n".join(line for line in lines if line and not line.lstrip().startswith("--"))
    return Source(parse_header(text, where), code)


def include_paths(lua: Path) -> dict[str, Path]:
    """Where the includes are: those of all scripts by subject, and those of one in the folder of its name."""
    return {path.stem: path for path in sorted(lua.glob("*/**/*.lua"))}


def assemble(lua: Path, name: str, variant: Variant) -> Assembled:
    """The text of a script, with the includes of ``variant`` in place of those that are there."""
    script = read(lua, name)
    includes = resolve(lua, script, variant)
    header, declared = script.header, script.header.words("Keys")
    for include in includes.values():
        if missing := set(include.header.words("Keys")) - set(declared):
            raise HeaderError(f"{name}.lua uses {include.header.name} but not its keys {missing}")
    keys = tuple(k for word in declared for k in (READY if word == "ready" else (word,)))
    if unknown := set(keys) - set(KEY_TYPES):
        raise HeaderError(f"{name}.lua: unknown keys {unknown}")
    blocks = _blocks(script, includes)
    wanted = {word for include in includes.values() for word in include.header.words("Args")}
    if missing := wanted - set(argument_names(header)):
        raise HeaderError(f"{name}.lua lacks arguments that its includes read: {missing}")
    shared = [word for word in argument_names(header) if word in wanted]
    arguments = bind_args(header, shared)
    mentioned = words("\n".join((*blocks, arguments)))
    lines = [
        constants(words("\n".join((*blocks, script.code))), meta=_meta_of(header, includes)),
        f"local {', '.join((*declared, *shared))}",
        WHOLE_NUMBER if {"whole_number", "integer"} & mentioned else "",
        INTEGER if "integer" in mentioned else "",
        "local resets = {}",
        *blocks,
        "local function bind(KEYS)",
        bind_keys(declared),
        "for i = 1, #resets do resets[i]() end",
        "end",
        key_check(header),
        "local function run(KEYS, ARGV)",
        "bind(KEYS)",
        arguments,
        script.code,
        "end",
    ]
    return Assembled(
        header=header,
        text="\n".join(line for line in lines if line),
        keys=keys,
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
                text = variant.includes[name]
            elif name in paths:
                text = paths[name].read_text(encoding="utf-8")
            else:
                raise HeaderError(f"there is no include {name}.lua")
            include = source(text, f"{name}.lua")
            if other := _OTHER_CODE.search(include.code):
                raise HeaderError(f"an include may only define locals, not: {other[0][:60]}")
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
            if missing := set(names) - set(includes[include].defines):
                raise HeaderError(f"{user.header.name} takes {missing} from {include}.lua")
            taken[include].update(dict.fromkeys(names))
            for name in names:
                if owners.setdefault(name, include) != include:
                    raise HeaderError(f"{name} is taken from {owners[name]}.lua and {include}.lua")
    return {include: list(names) for include, names in taken.items()}


def _blocks(script: Source, includes: Mapping[str, Source]) -> list[str]:
    """The includes' text, without functions that the script does without: EVALSHA makes each function in each call."""
    taken = _names_taken(script, includes)
    blocks, mentioned = [], set(words(script.code))
    for name, include in reversed(list(includes.items())):
        wanted = [each for each in taken[name] if each in mentioned]
        if wanted:
            code = _needed(include, wanted)
            mentioned |= words(code)
            blocks.append(_block(include, code, wanted))
    return blocks[::-1]


def _needed(include: Source, wanted: Iterable[str]) -> str:
    """An include's text without the functions that these names do without."""
    parts = re.split(r"^(?=local )", include.code, flags=re.MULTILINE)
    functions = {found[1]: part for part in parts if (found := _FUNCTION.match(part))}
    needed: set[str] = set()
    names = {"reset", *wanted}.union(*(words(part) for part in parts if not _FUNCTION.match(part)))
    while more := (names & functions.keys()) - needed:
        needed |= more
        names.update(*(words(functions[name]) for name in more))
    return "".join(
        part for part in parts if not (found := _FUNCTION.match(part)) or found[1] in needed
    ).rstrip()


def _block(include: Source, code: str, taken: Iterable[str]) -> str:
    """An include between `do` and `end`; the names that are taken from it are declared before, and so outlive it."""
    outside = dict.fromkeys(taken)
    checks = key_check(include.header) if "check_keys" in words(code) else ""
    code = _DEFINED.sub(lambda found: _without_local(found, outside), code)
    if "reset" in include.defines:
        code += "\nresets[#resets + 1] = reset"
    lines = [f"local {', '.join(outside)}", "do", checks, code, "end"]
    return "\n".join(line for line in lines if line)


def _without_local(found: re.Match[str], outside: Mapping[str, None]) -> str:
    """The beginning of a definition; `local` goes if its names are declared outside."""
    names = [found[1]] if found[1] else re.split(r"\s*,\s*", found[2].strip())
    there = [name in outside for name in names]
    if not any(there):
        return found[0]
    if not all(there):
        raise HeaderError(f"some of {', '.join(names)} are taken by others, and some are not")
    declares_only = found[2] and not found.string[found.end() :].startswith("=")
    return "" if declares_only else found[0].removeprefix("local ")


def _meta_of(header: Header, includes: Mapping[str, Source]) -> tuple[str, ...]:
    """The fields of meta that a script reads when it begins, itself and in its includes."""
    fields = dict.fromkeys(_BASE_META)
    for each in (header, *(include.header for include in includes.values())):
        fields |= dict.fromkeys(each.words("Meta"))
    return tuple(fields)
