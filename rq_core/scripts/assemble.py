"""Puts a script's text together, in the two forms in which Redis takes it: binding of names to positions, constants,
includes, body. No index of KEYS or ARGV is written anywhere in ``lua/``.

It raises HeaderError when a script uses an include whose keys it does not declare, or a name it does not know.

With EVALSHA a script is a chunk, run from its first line in every call: each definition of a function makes a closure,
each table of constants a table. As a function, every script is a library of one: its includes are made when it is
loaded; a call binds its keys and arguments, gives what the includes keep *during* a call its first value, and runs the
script's own text.

What is written in capitals in an include (`RANK`, `LANE_SHAPES`) is made once. It must not depend on a call: constants,
and tables that remember what a pure function returned.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Final

from rq_core.model import fields, machine, settings
from rq_core.model.keys import KEY_TYPES
from rq_core.scripts.header import Header, HeaderError, Variant, parse_header, without_header

_UNREAD = re.compile(r"'(?:[^'\\\n]|\\.)*'|--\[\[.*?\]\]|--[^\n]*", re.DOTALL)
"""Text that names nothing: strings and comments."""
_WORD = re.compile(r"(?<![\w:])(?<![^.]\.)[A-Za-z_]\w*")
"""A name, but for the names of fields after a dot or a colon. (Two dots join strings.)"""
_DEFINES = re.compile(r"local (?:function (?P<function>\w+)|(?P<names>[\w, ]+))")
_DECLARES = re.compile(r"local [\w, ]+")
_CODE = re.compile(r"^(?!--)\S", re.MULTILINE)
_READY: Final = tuple(f"ready:{n}" for n in range(len(machine.PRIORITIES)))
_BASE_META: Final = ("layout", "epoch", "replid")


@dataclass(frozen=True)
class Assembled:
    """A script's text for Redis, and what a call of it takes."""

    header: Header
    text: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    each: tuple[str, ...]


def read(lua: Path, name: str) -> tuple[Header, str]:
    """A script's header and its whole text. Raises HeaderError, or OSError if the file is not there."""
    text = (lua / f"{name}.lua").read_text(encoding="utf-8")
    header = parse_header(text, f"{name}.lua")
    if header.name != name:
        raise HeaderError(f"{name}.lua calls itself {header.name}")
    return header, text


def as_script(lua: Path, name: str, variant: Variant) -> Assembled:
    """A script's text for EVALSHA."""
    header, text = read(lua, name)
    includes = resolve(lua, header.words("Uses"), variant)
    declared = header.words("Keys")
    for included in includes:
        missing = set(included[0].words("Keys")) - set(declared)
        if missing:
            raise HeaderError(f"{name}.lua uses {included[0].name} but not its keys {missing}")
    keys = tuple(k for word in declared for k in (_READY if word == "ready" else (word,)))
    if unknown := set(keys) - set(KEY_TYPES):
        raise HeaderError(f"{name}.lua: unknown keys {unknown}")
    used = used_parts([i[1] for i in includes], text)
    body = "\n".join([variant.prelude, blocks(used, text), text])
    pieces = [
        _shebang(header) if variant.shebang else "",
        bind_keys(declared),
        constants(body, meta=meta_of(header, [i[0] for i in includes])),
        INTEGER if ":int" in " ".join((*header.words("Args"), *header.words("Each"))) else "",
        bind_args(header),
        body,
    ]
    return Assembled(
        header=header,
        text="\n".join(piece for piece in pieces if piece),
        keys=keys,
        args=_names_of(header.words("Args")),
        each=_names_of(header.words("Each")),
    )


def meta_of(header: Header, includes: Iterable[Header]) -> tuple[str, ...]:
    """The fields of meta that a script reads, itself and in its includes."""
    fields = dict.fromkeys(_BASE_META)
    for source in (header, *includes):
        fields |= dict.fromkeys(source.words("Meta"))
    return tuple(fields)


def _names_of(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(word.partition(":")[0] for word in words)


def argument_names(header: Header) -> tuple[str, ...]:
    """What ``bind_args`` defines."""
    return (
        *_names_of(header.words("Args")),
        *(("each", "each_count") if header.words("Each") else ()),
    )


def resolve(lua: Path, uses: Iterable[str], variant: Variant) -> list[tuple[Header, str]]:
    """Includes in the order in which they must stand, each once."""
    found: dict[str, tuple[Header, str]] = {}
    _resolve(lua, uses, variant, (), found)
    return list(found.values())


def _resolve(
    lua: Path,
    uses: Iterable[str],
    variant: Variant,
    above: tuple[str, ...],
    found: dict[str, tuple[Header, str]],
) -> None:
    for name in uses:
        if name in above:
            raise HeaderError(f"includes go round in a circle: {' > '.join((*above, name))}")
        if name in found:
            continue
        if name in variant.includes:
            text = variant.includes[name]
        else:
            path = lua / "include" / f"{name}.lua"
            if not path.is_file():
                raise HeaderError(f"there is no include {name}.lua")
            text = path.read_text(encoding="utf-8")
        header = parse_header(text, f"include/{name}.lua")
        _resolve(lua, header.words("Uses"), variant, (*above, name), found)
        found[name] = (header, text)


@dataclass(frozen=True)
class Part:
    """One definition of an include: the names that it defines, and its text."""

    names: tuple[str, ...]
    code: str
    is_function: bool

    @cached_property
    def words(self) -> frozenset[str]:
        """The words of its text."""
        return words(self.code)


def words(text: str) -> frozenset[str]:
    """The words of some Lua that may be names of locals."""
    return frozenset(_WORD.findall(_UNREAD.sub(" ", text)))


def used_parts(includes: Iterable[str], text: str) -> list[list[Part]]:
    """By include: the definitions that the script needs, directly or not. Every one costs time when it is made."""
    found = [parts(include) for include in includes]
    needed: set[int] = set()
    wanted = set(words(text))
    while True:
        more = {
            id(part)
            for of in found
            for part in of
            if id(part) not in needed and not wanted.isdisjoint(part.names)
        }
        if not more:
            return [[part for part in of if id(part) in needed] for of in found]
        needed |= more
        wanted.update(*(p.words for of in found for p in of if id(p) in more))


def blocks(includes: Sequence[list[Part]], text: str) -> str:
    """The definitions of includes. Those that only their own include uses are kept in a block, since Lua allows a chunk
    200 locals."""
    mentioned = words(text)
    within = [frozenset[str]().union(*(part.words for part in of)) for of in includes]
    users = Counter(word for each in within for word in each)
    found = []
    for of, own in zip(includes, within, strict=True):
        names = {name for part in of for name in part.names}
        others = {name for name in names if name in mentioned or users[name] > (name in own)}
        found.append(block(of, others))
    return "\n".join(code for code in found if code)


def block(of: list[Part], others: set[str]) -> str:
    """Definitions of one include; those that ``others`` names are visible outside."""
    shared = sorted(name for p in of if not others.isdisjoint(p.names) for name in p.names)
    if len(shared) == sum(len(p.names) for p in of):
        return "\n".join(p.code for p in of)
    lines = [f"local {', '.join(shared)}"] if shared else []
    lines.append("do")
    for part in of:
        if others.isdisjoint(part.names):
            lines.append(part.code)
        elif _DECLARES.fullmatch(part.code) is None:
            lines.append(part.code.removeprefix("local "))
    return "\n".join([*lines, "end"])


@cache
def parts(include: str) -> tuple[Part, ...]:
    """An include's definitions, with the names that each defines. One begins with `local` in the first column."""
    found = []
    for text in re.split(r"^(?=local )", without_header(include), flags=re.MULTILINE):
        defined = _DEFINES.match(text)
        if defined is None:
            if _CODE.search(text):
                raise HeaderError(f"an include may only define locals, not: {text.strip()[:60]}")
            continue
        code = "\n".join(line for line in text.split("\n") if line and not line.startswith("--"))
        names = defined["function"] or defined["names"]
        found.append(
            Part(
                tuple(re.split(r"\s*,\s*", names.strip())),
                code,
                is_function=defined["function"] is not None,
            )
        )
    return tuple(found)


def _shebang(header: Header) -> str:
    flags = ",".join(header.words("Flags"))
    return f"#!lua flags={flags}" if flags else "#!lua"


def bind_keys(
    declared: tuple[str, ...], *, only: Iterable[str] | None = None, declare: bool = True
) -> str:
    """``local meta, state = KEYS[1], KEYS[2]``, and ``ready`` as a table from 0; those of ``only``, if it is given."""
    lines, at = [], 1
    wanted = set(declared if only is None else only)
    local = "local " if declare else ""
    for word in declared:
        count = len(_READY) if word == "ready" else 1
        places = ", ".join(f"KEYS[{at + n}]" for n in range(count))
        if word in wanted:
            value = f"{{[0] = {places}}}" if word == "ready" else places
            lines.append(f"{local}{word} = {value}")
        at += count
    return "\n".join(lines)


INTEGER: Final = """local function whole_number(text)
  local value = tonumber(text)
  return value and value % 1 == 0 and value > -1e13 and value < 1e13 and value or nil
end
local function integer(text)
  return text and text:match('^%-?%d+$') and whole_number(text) or nil
end"""
"""Whole numbers only: no nan, inf or fraction, all of which Lua takes for numbers. An argument must be written in
digits, too; in a record, where a match would cost time per job, Lua may read it as it likes. Below 10^13 the sum
with a Unix time in ms still has the 14 digits that Lua writes exactly."""


def bind_args(header: Header, *, declared: Iterable[str] = ()) -> str:
    """One local per argument, and ``each(i)`` for the records after them. Those of ``declared`` exist already."""
    args, each = header.words("Args"), header.words("Each")
    known = set(declared)

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


def table(values: Iterable[Any]) -> str:
    return "{" + ", ".join(f"'{v}'" for v in values) + "}"


def constants(body: str, *, meta: tuple[str, ...] = (), without: Iterable[str] = ()) -> str:
    """The facts of machine.py and settings.py that the body mentions; but for those of ``without``."""
    values = {
        "META": table(meta),
        "LAYOUT": f"'{machine.LAYOUT}'",
        "STATE_FIELDS": table(fields.STATE_FIELDS),
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
        f"local {name} = {value}"
        for name, value in values.items()
        if name in mentioned and name not in without
    )


_ASSIGNS: Final = re.compile(r"local (?P<names>[\w, ]+?)\s*=\s*(?P<value>.*)\Z", re.DOTALL)
NAME: Final = "@name@"


def as_function(lua: Path, name: str, variant: Variant) -> str:
    """Its text as a library of one function, with NAME where the name of both goes."""
    header, text = read(lua, name)
    includes = {i[0].name: i for i in resolve(lua, header.words("Uses"), variant)}
    used = used_parts([code for _, code in includes.values()], text)
    _check_names(dict(zip(includes, used, strict=True)))
    code = "\n".join(part.code for of in used for part in of)
    # Keys and arguments that includes mention, so that both they and the script see them.
    mentioned = set(words(code))
    bound = (*header.words("Keys"), *argument_names(header))
    shared = [word for word in bound if word in mentioned]
    own = [word for word in header.words("Keys") if word not in shared]
    made, resets = [], []
    for include, of in zip(includes, used, strict=True):
        parts, reset = _made_once(f"reset_{include}", of)
        made.append(parts)
        resets += reset
    meta = meta_of(header, [h for h, _ in includes.values()])
    flags = ", ".join(f"'{flag}'" for flag in header.words("Flags"))
    lines = [
        f"#!lua name={NAME}",
        constants(text + code, meta=meta),
        f"local {', '.join(shared)}" if shared else "",
        INTEGER,
        blocks(made, "\n".join((text, *resets))),
        # A function of Lua may mention 60 names from outside, so this is one of its own.
        "local function bind(KEYS)",
        bind_keys(header.words("Keys"), only=shared, declare=False),
        *(f"{reset}()" for reset in resets),
        "end",
        "local function run(KEYS, ARGV)",
        "bind(KEYS)",
        bind_keys(header.words("Keys"), only=own),
        bind_args(header, declared=shared),
        without_header(text),
        "end",
        f"redis.register_function{{function_name='{NAME}', callback=run, flags={{{flags}}}}}",
    ]
    return "\n".join(line for line in lines if line) + "\n"


def _check_names(includes: Mapping[str, list[Part]]) -> None:
    """Raise HeaderError if two includes of a script define the same name."""
    owners: dict[str, str] = {}
    for name, of in includes.items():
        for defined in (n for part in of for n in part.names):
            other = owners.setdefault(defined, name)
            if other != name:
                raise HeaderError(f"{defined} is defined in include/{other}.lua and in {name}.lua")


def _is_state(part: Part) -> bool:
    """Whether it is what an include keeps during a call."""
    return not part.is_function and not all(name.isupper() for name in part.names)


def _made_once(reset: str, of: list[Part]) -> tuple[list[Part], list[str]]:
    """An include's definitions, with one more: a function that gives its state the first values. Returns its name, too,
    in a list that is empty if there is no state."""
    found: list[Part] = []
    first_values = []
    for part in of:
        if not _is_state(part):
            found.append(part)
            continue
        names = ", ".join(part.names)
        assigned = _ASSIGNS.match(part.code)
        value = assigned["value"].strip() if assigned else "nil"
        if set(re.split(r"\s*,\s*", value)) == {"{}"}:
            # A table that the last call has not touched serves again.
            found.append(part)
            first_values += [f"if next({table}) then {table} = {{}} end" for table in part.names]
        else:
            found.append(Part(part.names, f"local {names}", is_function=False))
            first_values.append(f"{names} = {value}")
    if not first_values:
        return found, []
    code = "\n".join([f"local function {reset}()", *first_values, "end"])
    return [*found, Part((reset,), code, is_function=True)], [reset]
