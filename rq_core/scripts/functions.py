"""The scripts of ``lua/`` as Redis functions: what every call needs is compiled and made once, not per call.

With EVALSHA a script is a chunk, run from its first line in every call: each definition of a function makes a closure,
each table of constants a table. Here every script is a library of one function. Its includes are made when it is
loaded; a call binds its keys and arguments, gives what the includes keep *during* a call its first value, and runs the
script's own text. The text is the same in both forms; :mod:`rq_core.scripts.assemble` builds the other one, for servers
on which no functions may be loaded.

What is written in capitals in an include (`RANK`, `LANE_SHAPES`) is made once. It must not depend on a call: constants,
and tables that remember what a pure function returned.

The names of a library and its function end with a digest of its text: clients of two versions work side by side.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Final

from rq_core.scripts import assemble
from rq_core.scripts.assemble import HeaderError, Part, Script, Variant

_ASSIGNS: Final = re.compile(r"local (?P<names>[\w, ]+?)\s*=\s*(?P<value>.*)\Z", re.DOTALL)
_NAME: Final = "@name@"


@cache
def function(name: str) -> Script:
    """The script as shipped, as a function. Raises HeaderError, or OSError if the files are not there."""
    return build(name)


@cache
def build(name: str, variant: Variant | None = None) -> Script:
    """The same, with the includes of ``variant`` in place of the shipped ones."""
    text = _assemble(name, variant or Variant())
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]
    called = f"rqc_{name}_{digest}"
    instead = assemble.build(name, variant)
    return replace(instead, text=text.replace(_NAME, called), function=called, instead=instead)


def _assemble(name: str, variant: Variant) -> str:
    header, text = assemble.read(name)
    includes = {i[0].name: i for i in assemble.resolve(header.words("Uses"), variant)}
    used = assemble.used_parts([code for _, code in includes.values()], text)
    _check_names(dict(zip(includes, used, strict=True)))
    code = "\n".join(part.code for of in used for part in of)
    # Keys and arguments that includes mention, so that both they and the script see them.
    mentioned = set(assemble.words(code))
    bound = (*header.words("Keys"), *assemble.argument_names(header))
    shared = [word for word in bound if word in mentioned]
    own = [word for word in header.words("Keys") if word not in shared]
    made, resets = [], []
    for include, of in zip(includes, used, strict=True):
        parts, reset = _made_once(f"reset_{include}", of)
        made.append(parts)
        resets += reset
    meta = assemble.meta_of(header, [h for h, _ in includes.values()])
    flags = ", ".join(f"'{flag}'" for flag in header.words("Flags"))
    lines = [
        f"#!lua name={_NAME}",
        assemble.constants(text + code, meta=meta),
        f"local {', '.join(shared)}" if shared else "",
        assemble.INTEGER,
        assemble.blocks(made, "\n".join((text, *resets))),
        # A function of Lua may mention 60 names from outside, so this is one of its own.
        "local function bind(KEYS)",
        assemble.bind_keys(header.words("Keys"), only=shared, declare=False),
        *(f"{reset}()" for reset in resets),
        "end",
        "local function run(KEYS, ARGV)",
        "bind(KEYS)",
        assemble.bind_keys(header.words("Keys"), only=own),
        assemble.bind_args(header, declared=shared),
        assemble.without_header(text),
        "end",
        f"redis.register_function{{function_name='{_NAME}', callback=run, flags={{{flags}}}}}",
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
