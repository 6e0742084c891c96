"""Puts a script's text together: constants, keys and arguments by name, includes, body. No index of KEYS or ARGV is
written anywhere in ``lua/``.

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
from typing import Any, Final

from rq_core.model import fields, machine, settings
from rq_core.model.keys import KEY_TYPES
from rq_core.scripts.header import Header, HeaderError, Variant, parse_header, without_header

_UNREAD = re.compile(r"'(?:[^'\\\n]|\\.)*'|--\[\[.*?\]\]|--[^\n]*", re.DOTALL)
"""Text that names nothing: strings and comments."""
_WORD = re.compile(r"(?<![\w:])(?<![^.]\.)[A-Za-z_]\w*")
"""A name, but for the names of fields after a dot or a colon. (Two dots join strings.)"""
_DEFINED = re.compile(r"^local (?:function (\w+)|([\w, ]+))", re.MULTILINE)
_FUNCTION = re.compile(r"local function (\w+)")
_OTHER_CODE = re.compile(r"^(?!--|local |end\b|[)}])\S.*", re.MULTILINE)
_READY: Final = tuple(f"ready:{n}" for n in range(len(machine.PRIORITIES)))
_BASE_META: Final = ("layout", "epoch", "replid")
_SIZES: Final = {"hash": "HLEN", "zset": "ZCARD", "list": "LLEN", "stream": "XLEN"}
"""By type of key: the command that costs least and fails for a key of another type."""


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
    keys = tuple(k for word in declared for k in (_READY if word == "ready" else (word,)))
    if unknown := set(keys) - set(KEY_TYPES):
        raise HeaderError(f"{name}.lua: unknown keys {unknown}")
    blocks = _blocks(script, includes)
    wanted = {word for include in includes.values() for word in include.header.words("Args")}
    if missing := wanted - set(argument_names(header)):
        raise HeaderError(f"{name}.lua lacks arguments that its includes read: {missing}")
    shared = [word for word in argument_names(header) if word in wanted]
    arguments = _bind_args(header, shared)
    mentioned = words("\n".join((*blocks, arguments)))
    lines = [
        constants("\n".join((*blocks, script.code)), meta=_meta_of(header, includes)),
        f"local {', '.join((*declared, *shared))}",
        _WHOLE_NUMBER if {"whole_number", "integer"} & mentioned else "",
        _INTEGER if "integer" in mentioned else "",
        "local resets = {}",
        *blocks,
        "local function bind(KEYS)",
        _bind_keys(declared),
        "for i = 1, #resets do resets[i]() end",
        "end",
        _key_check(header),
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
        args=_names_of(header.words("Args")),
        each=_names_of(header.words("Each")),
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
    checks = _key_check(include.header) if "check_keys" in words(code) else ""
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


def words(text: str) -> frozenset[str]:
    """The words of some Lua that may be names of locals."""
    return frozenset(_WORD.findall(_UNREAD.sub(" ", text)))


def _meta_of(header: Header, includes: Mapping[str, Source]) -> tuple[str, ...]:
    """The fields of meta that a script reads when it begins, itself and in its includes."""
    fields = dict.fromkeys(_BASE_META)
    for each in (header, *(include.header for include in includes.values())):
        fields |= dict.fromkeys(each.words("Meta"))
    return tuple(fields)


def _names_of(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(word.partition(":")[0] for word in words)


def argument_names(header: Header) -> tuple[str, ...]:
    """What a script knows of its arguments, by name."""
    records = ("each", "each_count") if header.words("Each") else ()
    return (*_names_of(header.words("Args")), *records)


def _bind_keys(declared: tuple[str, ...]) -> str:
    """``meta, state = KEYS[1], KEYS[2]``, and ``ready`` as a table from 0."""
    lines, at = [], 1
    for word in declared:
        count = len(_READY) if word == "ready" else 1
        places = ", ".join(f"KEYS[{at + n}]" for n in range(count))
        lines.append(f"{word} = " + (f"{{[0] = {places}}}" if word == "ready" else places))
        at += count
    return "\n".join(lines)


def _key_check(header: Header) -> str:
    """``check_keys()``: an error if a key that the file writes unread is of another type. After a write it would be too
    late."""
    lines = []
    for word in header.words("Unread"):
        for n, key in enumerate(_READY if word == "ready" else (word,)):
            if key not in KEY_TYPES:
                raise HeaderError(f"{header.name}.lua: unknown key {key}")
            place = f"ready[{n}]" if word == "ready" else key
            lines.append(f"redis.call('{_SIZES[KEY_TYPES[key]]}', {place})")
    return "\n".join(["local function check_keys()", *lines, "end"]) if lines else ""


_WHOLE_NUMBER: Final = """local function whole_number(text)
  local value = tonumber(text)
  return value and value % 1 == 0 and value > -1e13 and value < 1e13 and value or nil
end"""
_INTEGER: Final = """local function integer(text)
  return text and text:match('^%-?%d+$') and whole_number(text) or nil
end"""
"""Whole numbers only: no nan, inf or fraction, all of which Lua takes for numbers. An argument must be written in
digits, too; in a record, where a match would cost time per job, Lua may read it as it likes. Below 10^13 the sum
with a Unix time in ms still has the 14 digits that Lua writes exactly."""


def _bind_args(header: Header, shared: Iterable[str]) -> str:
    """One local per argument, and ``each(i)`` for the records after them. Those of ``shared`` are declared already."""
    args, each = header.words("Args"), header.words("Each")
    known = set(shared)

    def local(name: str) -> str:
        return name if name in known else f"local {name}"

    lines = []
    for at, word in enumerate(args, 1):
        name, _, kind = word.partition(":")
        value = f"integer(ARGV[{at}])" if kind == "int" else f"ARGV[{at}]"
        lines.append(
            f"{local(name)} = {value}\n"
            f"if not {name} then return {{'refused', 'arguments', '{name}'}} end"
        )
    if not each:
        lines.append(f"if #ARGV ~= {len(args)} then return {{'refused', 'arguments', 'count'}} end")
        return "\n".join(lines)
    values = ", ".join(
        f"tonumber(ARGV[at + {n}])" if word.endswith(":int") else f"ARGV[at + {n}]"
        for n, word in enumerate(each, 1)
    )
    lines += [
        f"{local('each_count')} = (#ARGV - {len(args)}) / {len(each)}",
        f"local whole = each_count % 1 == 0 and each_count <= {settings.BATCH_MAX}",
        "if not whole then return {'refused', 'arguments', 'count'} end",
        f"{local('each')} = function(i)",
        f"local at = {len(args)} + (i - 1) * {len(each)} return {values} end",
    ]
    for n, word in enumerate(each, 1):
        if word.endswith(":int"):
            lines.append(
                f"for at = {len(args) + n}, #ARGV, {len(each)} do if not whole_number(ARGV[at]) then"
                f" return {{'refused', 'arguments', '{word.removesuffix(':int')}'}} end end"
            )
    return "\n".join(lines)


def _table(values: Iterable[Any]) -> str:
    return "{" + ", ".join(f"'{v}'" for v in values) + "}"


def constants(body: str, *, meta: tuple[str, ...]) -> str:
    """The facts of machine.py and settings.py that the body mentions."""
    values = {
        "META": _table(meta),
        "LAYOUT": f"'{machine.LAYOUT}'",
        "STATE_FIELDS": _table(fields.STATE_FIELDS),
        "DEFAULTS": f"{{attempts = {machine.DEFAULT_MAX_ATTEMPTS},"
        f" losses = {machine.DEFAULT_MAX_LOSSES}}}",
        "DEFAULT_PRIORITY": f"'{machine.DEFAULT_PRIORITY}'",
        "PRIORITY_RANK": "{"
        + ", ".join(f"{p} = {n}" for n, p in enumerate(machine.PRIORITIES))
        + "}",
        "SETTINGS": "{"
        + ", ".join(f"{s.name} = {s.default}" for s in settings.SETTINGS.values())
        + "}",
        "FLAGS": "{" + ", ".join(f"{name} = true" for name in settings.FLAGS) + "}",
        "MINIMA": "{"
        + ", ".join(f"{s.name} = {s.minimum}" for s in settings.SETTINGS.values())
        + "}",
        "SLOT_LIFE_MS": str(settings.SLOT_LIFE_MS),
        "OUTBOX_RING": str(settings.OUTBOX_RING),
    }
    mentioned = words(body)
    return "\n".join(
        f"local {name} = {value}" for name, value in values.items() if name in mentioned
    )
