"""Whether the headers of ``lua/`` are true: the body does what they declare, and nothing else.

The loader (:mod:`rq_core.scripts.assemble`) refuses headers that it cannot bind. Here is the rest, checked
when the documentation is generated, and not at run time:

- a script's Transitions are those of the one table, and it emits their events and no others;
- every key, argument, record field, include and field of ``meta`` that is declared is used;
- every field of ``meta`` that is read is declared, since an undeclared one reads as its default;
- every function of an include that is called comes with the includes that are named;
- no position of KEYS or ARGV is written;
- every event of the table is emitted by some script.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Final

from rq_core.model import machine
from rq_core.model.machine import Event
from rq_core.model.settings import SETTINGS
from rq_core.scripts import script
from rq_core.scripts.header import Header, parse_header
from rq_core.scripts.script import build_script

_COMMENT = re.compile(r"--\[\[.*?\]\]|--[^\n]*", re.DOTALL)
_STRING = re.compile(r"'[^'\n]*'")
_FUNCTION = re.compile(r"^local function (\w+)", re.MULTILINE)
_GLOBAL = re.compile(r"^local (?!function)([\w, ]+?) *(?:=|$)", re.MULTILINE)
_EACH = re.compile(r"local ([\w, ]+) = each\(")
_EMIT = re.compile(r"\bemit(?:_queue)?\(([^\n]*)")
_READ = re.compile(r"\bfacts\.(\w+)|\bfact\('(\w+)'\)")

_OF_ANY_SCRIPT: Final = frozenset({Event.BASELINE, Event.SETTLEMENT_REFUSED})
"""Events about jobs that are no transitions."""


@dataclass(frozen=True)
class Source:
    """A Lua file: its header, and its text without comments."""

    header: Header
    code: str

    @cached_property
    def bare(self) -> str:
        """The code without comments and strings."""
        return _STRING.sub("''", self.code)

    @cached_property
    def defines(self) -> frozenset[str]:
        """The names that an include gives to others."""
        names = set(_FUNCTION.findall(self.code))
        for line in _GLOBAL.findall(self.code):
            names |= {word.strip() for word in line.split(",")}
        return frozenset(names)


def _source(text: str, where: str) -> Source:
    return Source(parse_header(text, where), _COMMENT.sub("", text))


@cache
def includes() -> Mapping[str, Header]:
    """Return the headers of all includes, by name."""
    return {name: source.header for name, source in _includes().items()}


@cache
def _includes() -> Mapping[str, Source]:
    paths = sorted((script.directory() / "include").glob("*.lua"))
    return {p.stem: _source(p.read_text(encoding="utf-8"), f"include/{p.name}") for p in paths}


@cache
def _script(name: str) -> Source:
    path = script.directory() / f"{name}.lua"
    return _source(path.read_text(encoding="utf-8"), path.name)


def _closure(source: Source) -> dict[str, Source]:
    """Return the includes that come with a file, by name."""
    found: dict[str, Source] = {}
    for name in source.header.words("Uses"):
        found[name] = _includes()[name]
        found |= _closure(found[name])
    return found


def _mentions(code: str, name: str) -> bool:
    """Say whether the name stands in the code, other than as a field or as a key of a table."""
    # Most names are not there, and to look for a word costs far less than to look for a pattern.
    return name in code and re.search(rf"(?<![.\w]){name}\b(?! = [^=]*[,}}])", code) is not None


def _names(header: Header, section: str) -> tuple[str, ...]:
    return tuple(word.partition(":")[0] for word in header.words(section))


def emitters(event: Event) -> tuple[str, ...]:
    """Return the scripts that may append an event: it stands in their code or their includes'."""
    return tuple(name for name in script.names() if f"'{event}'" in _emits(name))


@cache
def _emits(name: str) -> str:
    """The calls by which a script appends events: its own, and those of the includes that it calls."""
    source = _script(name)
    return " ".join(each for s in (source, *_called(source)) for each in _EMIT.findall(s.code))


def _called(source: Source) -> Iterator[Source]:
    """Give the includes of which the file itself calls a function."""
    for include in _closure(source).values():
        if any(_mentions(source.bare, name) for name in include.defines):
            yield include


def forget() -> None:
    """Read the files anew from now on."""
    for kept in (_includes, _script, _emits, includes):
        kept.cache_clear()


def problems() -> list[str]:
    """Return what is not true, one line each. Raises HeaderError if a script cannot be built."""
    forget()
    found: list[str] = []
    for name in script.names():
        build_script(name)
    for name, include in _includes().items():
        found += [f"include/{name}.lua: {p}" for p in _of_any(include)]
    for name in script.names():
        source = _script(name)
        found += [f"{name}.lua: {p}" for p in (*_of_any(source), *_of_script(name, source))]
    for event in Event:
        if not emitters(event):
            found.append(f"no script emits {event}")
    return found


def _of_any(source: Source) -> Iterator[str]:
    """Check what holds for scripts and includes alike."""
    if re.search(r"\b(KEYS|ARGV)\b", source.bare):
        yield "reads KEYS or ARGV by position"
    closure = _closure(source)
    for name in source.header.words("Uses"):
        if not any(_mentions(source.bare, each) for each in _includes()[name].defines):
            yield f"declares the include {name} but uses nothing of it"
    for name, include in _includes().items():
        for function in _FUNCTION.findall(include.code):
            if (
                name not in closure
                and include is not source
                and function not in source.defines
                and f"{function}(" in source.bare
                and re.search(rf"(?<![.\w]){function}\(", source.bare)
            ):
                yield f"calls {function} but does not use {name}"


def _of_script(name: str, source: Source) -> Iterator[str]:
    """Check what holds for scripts."""
    header = source.header
    everything = [source, *_closure(source).values()]
    code = "\n".join(s.code for s in everything)
    bare = "\n".join(s.bare for s in everything)

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
    strange = emitted & (machine.JOB_EVENT_FIELDS.keys() - of_table - _OF_ANY_SCRIPT)
    yield from (f"emits {event}, which is not in the table" for event in sorted(strange))

    for section in ("Keys", "Args"):
        for word in _names(header, section):
            if not _mentions(bare, word):
                yield f"declares {word} in {section} but does not use it"
    yield from _of_records(_names(header, "Each"), bare)
    yield from _of_meta(everything, code)
    yield from (f"has no {s}" for s in ("Keys", "Returns", "Invariants") if not header.words(s))
    if set(header.words("Flags")) - {"allow-oom"}:
        yield f"has the flags {header.sections['Flags']}"


def _of_records(fields: tuple[str, ...], bare: str) -> Iterator[str]:
    """Check that each field of the records is bound somewhere, in its place, and used."""
    used = {0} if re.search(r"\[\w+\] = each\(", bare) else set()
    for names in _EACH.findall(bare):
        for place, word in enumerate(w.strip() for w in names.split(",")):
            if place >= len(fields):
                yield f"takes {word} from records that have {len(fields)} fields"
            elif word in fields and word != fields[place]:
                yield f"takes {fields[place]} from its records as {word}"
            elif len(re.findall(rf"(?<![.\w]){word}\b", bare)) > 1 and word != "_":
                used.add(place)
    for place, word in enumerate(fields):
        if place not in used:
            yield f"declares {word} in Each but does not use it"


def _of_meta(everything: list[Source], code: str) -> Iterator[str]:
    declared = {"layout", "epoch", "replid"}
    for source in everything:
        declared |= {*source.header.words("Meta"), *source.header.words("Later")}
    read = {a or b for a, b in _READ.findall(code)}
    yield from (f"reads {word} of meta undeclared" for word in sorted(read - declared))
    for word in (*everything[0].header.words("Meta"), *everything[0].header.words("Later")):
        if word in SETTINGS and re.search(r"\b(SETTINGS|MINIMA)\b", everything[0].code):
            continue  # read by name
        if not re.search(rf"facts\.{word}\b|'{word}'", code):
            yield f"declares {word} in Meta but does not use it"
