"""Assembles the text of a Lua script from three parts: its head, which names the keys and arguments (see ``binding``);
its includes, the Lua files that scripts share (see ``rooms``); and its body.

The text defines a Lua function ``run(KEYS, ARGV)``. The module ``script`` adds a few lines, which register ``run`` as a
Redis function or call it in a script. Redis executes the other lines of a library once, when it loads the library. So
``run`` begins with two calls: ``bind`` gives the keys their names, and ``begin`` calls the ``reset()`` of each include
that stores values during a call.

A Lua function may have 200 locals, and may use 60 names from outside. So the text declares keys, and the arguments that
includes read, before the Lua function ``library``. All other code is inside ``library``.

Raises HeaderError if a script lacks an argument that an include reads, or uses a name that no include defines.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rq_core.model.keys import KEY_TYPES
from rq_core.scripts.binding import (
    EVERY,
    INTEGER,
    WHOLE_NUMBER,
    argument_names,
    bind_args,
    bind_keys,
    bind_on_demand,
    bind_tail,
    bind_texts,
    decide_parts,
    each_record,
    in_order,
    key_check,
    may_end_more,
    names_in_redis,
    names_of,
    refuse_keys,
)
from rq_core.scripts.constants import constants
from rq_core.scripts.header import Header, HeaderError, Variant
from rq_core.scripts.rooms import (
    ENDINGS,
    RESET,
    TABLE,
    build,
    endings_of,
    facts_of_parts,
    includes_of,
    part_steps,
)
from rq_core.scripts.source import Source, read, words

_BASE_META: Final = ("layout", "epoch", "replid")
_GLOBALS: Final = (
    "redis", "cjson", "ipairs", "math", "next", "pairs", "pcall", "string", "table", "tonumber", "type", "unpack",
)  # fmt: skip
"""Names of Lua's and Redis' globals that scripts use. The assembled text copies the globals into locals, which a call
reads faster. The globals do not exist while a library is loaded, so the first call copies them."""


@dataclass(frozen=True)
class Assembled:
    """The assembled text of a Lua script, and the keys and arguments that a call must pass. The text lacks the first
    and last lines that Redis needs.
    """

    header: Header
    text: str
    keys: tuple[str, ...]
    on_demand: Mapping[str, tuple[str, ...]]
    """Extra keys that only some calls need: fact → keys. A fact is a field of the queue's key ``meta`` that is set if
    the queue uses a feature. Calls to such a queue must pass the extra keys."""
    args: tuple[str, ...]
    each: tuple[str, ...]


def assemble(lua: Path, name: str, variant: Variant) -> Assembled:
    """Return the assembled Lua script. For tests, the includes (shared Lua files) of ``variant`` replace the shipped
    includes with the same names.
    """
    script = read(lua / f"{name}.lua")
    if script.header.name != name:
        raise HeaderError(f"{name}.lua calls itself {script.header.name}")
    includes = includes_of(lua, script, variant)
    header = script.header
    declared, on_demand = _keys_of(header, includes)
    known = constants(**_facts_of(header, includes), parts=facts_of_parts(lua, variant))
    needed = {word for include in includes.values() for word in include.header.words("Args")}
    if missing := needed - set(argument_names(header)):
        raise HeaderError(f"{name}.lua lacks arguments that its includes read: {missing}")
    shared = [word for word in argument_names(header) if word in needed]
    keys = names_in_redis(declared)
    arguments = bind_args(header, shared, len(keys))
    texts = bind_texts(header, shared)
    bound = "KEYS, ARGV" if texts else "KEYS"
    built = build(lua, script, includes, known)
    numbers = built.words | words(arguments)
    everything = numbers | script.words
    further = [key for group in on_demand.values() for key in group]
    has_every = EVERY in header.words("Keys")
    named = declared
    if has_every:
        named = (EVERY, *(word for word in declared if word in everything))
    taken = ", ".join(name for name in _GLOBALS if name in {*everything, "redis", "tonumber"})
    lines = [
        f"local function globals() return {taken} end",
        f"local {', '.join((*named, *further, *shared))}",
        "local function library()",
        f"local {taken}",
        *(known[name] for name in built.constants),
        WHOLE_NUMBER if {"whole_number", "integer"} & numbers else "",
        INTEGER if "integer" in numbers else "",
        f"local {', '.join(built.variables)}" if built.variables else "",
        refuse_keys(on_demand) if "refuse_keys" in everything else "",
        *_endings(script, includes, everything),
        "local resets = {}",
        f"local {TABLE} = {{}}" if TABLE in everything else "",
        *built.rooms,
        f"local function take_globals() {taken} = globals() end",
        f"local function bind({bound})",
        "if not redis then take_globals() end",
        f"{EVERY} = KEYS" if has_every else "",
        bind_keys(declared, named),
        bind_on_demand(on_demand, len(keys)),
        texts,
        "end",
        _begin(built.rooms),
        key_check(header),
        each_record(header, shared),
        bind_tail(header, shared),
        "local function run(KEYS, ARGV)",
        f"bind({bound})",
        "begin()",
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


def _endings(
    script: Source, includes: Mapping[str, Source], words: Container[str]
) -> Iterator[str]:
    """Yield Lua functions that run when a job ends. They decide which other data of the job end with it, such as its
    unique name.
    """
    users = (script, *includes.values())
    parts = [includes[name].header for name in endings_of(part_steps(includes, users))]
    if "may_end_more" in words:
        yield may_end_more(dict.fromkeys(fact for each in parts for fact in each.words("Fact")))
    if "decide_parts" in words:
        yield f"local {ENDINGS} = {{}}"
        yield decide_parts(parts)


def _keys_of(
    header: Header, includes: Mapping[str, Source]
) -> tuple[tuple[str, ...], dict[str, tuple[str, ...]]]:
    """Return the keys that a script and its includes use, as two values: the keys that every call must pass, and extra
    keys by fact.

    A fact is a field of the queue's key ``meta`` that is set if the queue uses a feature. Only calls to such a queue
    pass the extra keys.
    """
    headers = (header, *(include.header for include in includes.values()))
    known = {"ready", EVERY, *KEY_TYPES}
    on_demand: dict[str, tuple[str, ...]] = {}
    for each in headers:
        names = {*each.words("Keys"), *each.words("With"), *each.words("Unread")}
        if unknown := names - known:
            raise HeaderError(f"{each.name}.lua: unknown keys {unknown}")
        if each.words("With"):
            if len(each.words("Fact")) != 1:
                raise HeaderError(f"{each.name}.lua: keys under With need one Fact")
            (fact,) = each.words("Fact")
            if fact in on_demand:
                raise HeaderError(f"{each.name}.lua: another part has the Fact {fact} and keys")
            on_demand[fact] = in_order(each.words("With"))
    named = {key for each in headers for key in (*each.words("Keys"), *each.words("Unread"))}
    further = {key for group in on_demand.values() for key in group}
    return in_order(named if EVERY in named else named - further), dict(sorted(on_demand.items()))


def _begin(rooms: Iterable[str]) -> str:
    """Return the Lua function ``begin``, which calls the ``reset`` function of each include at the beginning of a call.

    The text of ``begin`` has one line per ``reset`` function, because a loop over a list would take twice as long.
    """
    count = sum(room.count(RESET) for room in rooms)
    names = [f"reset_{n}" for n in range(1, count + 1)]
    return "\n".join(
        [
            f"local begin = (function({', '.join(names)})",
            "return function()",
            *(f"{name}()" for name in names),
            "end",
            f"end)({', '.join(f'resets[{n}]' for n in range(1, count + 1))})",
        ]
    )


def _facts_of(header: Header, includes: Mapping[str, Source]) -> dict[str, tuple[str, ...]]:
    """Return the fields of the queue's key ``meta`` that a script and its includes (shared Lua files) read, in two
    groups. The fields under ``meta`` are read at the beginning of a call, and those under ``later`` may be read after
    that.
    """
    headers = (header, *(include.header for include in includes.values()))
    return {
        "meta": tuple(
            dict.fromkeys(
                [*_BASE_META, *(w for h in headers for w in (*h.words("Fact"), *h.words("Meta")))]
            )
        ),
        "later": tuple(dict.fromkeys(w for h in headers for w in h.words("Later"))),
    }
