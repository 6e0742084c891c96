"""Generates the beginning of a Lua script from its header: code that gives names to the keys and arguments, and checks
them.

No other module writes indexes of KEYS and ARGV.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import groupby
from typing import Final

from rq_core.model import settings
from rq_core.model.keys import KEY_TYPES
from rq_core.model.table import machine
from rq_core.scripts.header import Header, HeaderError

EVERY: Final = "every"
"""The word in a script's header that means all keys that a queue may have."""
READY: Final = tuple(f"ready:{n}" for n in range(len(machine.PRIORITIES)))
_SIZES: Final = {"hash": "HLEN", "zset": "ZCARD", "list": "LLEN", "stream": "XLEN"}
"""Type of key → a cheap Redis command that fails if the key has another type."""


def names_of(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(word.partition(":")[0] for word in words)


def argument_names(header: Header) -> tuple[str, ...]:
    """Return the names of a script's arguments. For an argument `NAME` that is a number, the name `NAME_text` means its
    text.
    """
    records = ("each", "each_count", "column", "same") if header.words("Each") else ()
    tails = ("tails",) if "Tail" in header.sections else ()
    texts = (f"{word.removesuffix(':int')}_text" for word in header.words("Args") if ":int" in word)
    return (*names_of(header.words("Args")), *texts, *records, *tails)


def in_order(words: Iterable[str]) -> tuple[str, ...]:
    """Return the keys that a script's header names, in the order in which each call passes them."""
    given = set(words)
    order = dict.fromkeys("ready" if key in READY else key for key in KEY_TYPES)
    return tuple(order) if EVERY in given else tuple(key for key in order if key in given)


def names_in_redis(words: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the Redis keys that a script's header names. The word ``ready`` in a header means four
    lists.
    """
    return tuple(key for word in words for key in (READY if word == "ready" else (word,)))


def bind_keys(declared: tuple[str, ...], named: Container[str]) -> str:
    """Return Lua assignments that give names to the keys of a call, such as ``meta = KEYS[1]``. The four lists of ready
    jobs become one table ``ready``, indexed from 0.
    """
    lines, at = [], 1
    for word in declared:
        count = len(READY) if word == "ready" else 1
        places = ", ".join(f"KEYS[{at + n}]" for n in range(count))
        if word not in named:
            pass
        elif word == "ready":
            lines.append("ready = ready or {}")
            lines += [f"ready[{n}] = KEYS[{at + n}]" for n in range(count)]
        else:
            lines.append(f"{word} = {places}")
        at += count
    return "\n".join(lines)


def bind_on_demand(groups: Mapping[str, tuple[str, ...]], behind: int) -> str:
    """Return Lua assignments that give names to the extra keys, which only some calls pass. A missing extra key is nil.
    ``behind`` is the number of keys that every call passes; the extra keys come after them.
    """
    if not groups:
        return ""
    names = [name for group in groups.values() for name in group]
    lines = [f"{', '.join(names)} = {', '.join(['nil'] * len(names))}"]
    lines += [f"if KEYS[{behind + 1}] then", f"local at = {behind}"]
    for place, group in enumerate(groups.values(), 1):
        ending = f"}}:{group[0]}"
        places = ", ".join(f"KEYS[at + {n}]" for n in range(1, len(group) + 1))
        lines += [
            f"if KEYS[at + 1] and KEYS[at + 1]:sub(-{len(ending)}) == '{ending}' then",
            f"{', '.join(group)} = {places}",
            f"at = at + {len(group)}" if place < len(groups) else "",
            "end",
        ]
    return "\n".join(line for line in (*lines, "end") if line)


def refuse_keys(groups: Mapping[str, tuple[str, ...]]) -> str:
    """Return the Lua function ``refuse_keys()``, which checks that a call passes the extra keys that the queue needs. A
    queue needs extra keys for each fact: a field of its key ``meta`` that is set if the queue uses a feature. If some
    of these keys are missing, the Lua function returns the refusal of the call; else nil.
    """
    lacks = {fact: f"facts.{fact} and not {group[0]}" for fact, group in groups.items()}
    if not lacks:
        return "local function refuse_keys() return nil end"
    return "\n".join(
        [
            "local function refuse_keys()",
            f"if not ({' or '.join(lacks.values())}) then return nil end",
            "local answer = {'with'}",
            *(f"if {lack} then answer[#answer + 1] = '{fact}' end" for fact, lack in lacks.items()),
            "return answer",
            "end",
        ]
    )


def may_end_more(facts: Iterable[str]) -> str:
    """Return the Lua function ``may_end_more()``. It returns whether the queue uses a feature whose data may end with a
    job, such as unique names.
    """
    found = " or ".join(f"facts.{fact}" for fact in facts)
    return f"local function may_end_more() return {found or 'false'} end"


def decide_parts(parts: Iterable[Header]) -> str:
    """Return the Lua function ``decide_parts(id, job, line, outcome, fence)``, which scripts call when a job ends.

    A part is an include (shared Lua file) for data that may end with a job. The Lua function calls ``decide`` of each
    part that concerns the job, and returns whether any data end with the job.
    """
    lines = ["local function decide_parts(id, job, line, outcome, fence)", "local found = false"]
    numbered = enumerate(parts, 1)
    for fact, group in groupby(numbered, lambda each: each[1].words("Fact")[0]):
        lines.append(f"if facts.{fact} then")
        for number, header in group:
            if not header.words("Field"):
                call = f"ENDINGS[{number}](id, nil, job, outcome, fence)"
                lines.append(f"if {call} then found = true end")
                continue
            (name,) = header.words("Field")
            lines += [
                f"local {name}",
                "if line then",
                f"local _, at = line:find(' {name}=', 1, true)",
                f"{name} = at and line:match('^%S+', at + 1)",
                f"else {name} = job.{name} end",
                f"if {name} and ENDINGS[{number}](id, {name}, job, outcome, fence)",
                "then found = true end",
            ]
        lines.append("end")
    return "\n".join([*lines, "return found", "end"])


def bind_texts(header: Header, shared: Iterable[str]) -> str:
    """Return Lua assignments that give each number ``NAME`` in ``shared`` a second name, ``NAME_text``, for its
    text.
    """
    places = {f"{name}_text": at for at, name in enumerate(names_of(header.words("Args")), 1)}
    return "\n".join(f"{word} = ARGV[{places[word]}]" for word in shared if word in places)


def key_check(header: Header) -> str:
    """Return the Lua function ``check_keys()``. It fails if a key has a wrong type. Only keys that the script writes
    without reading them first are checked.

    Scripts call it before their first write, because an error after a write would leave the write half done.
    """
    lines = []
    for word in header.words("Unread"):
        for n, key in enumerate(READY if word == "ready" else (word,)):
            if key not in KEY_TYPES:
                raise HeaderError(f"{header.name}.lua: unknown key {key}")
            place = f"ready[{n}]" if word == "ready" else key
            lines.append(f"redis.call('{_SIZES[KEY_TYPES[key]]}', {place})")
    return "\n".join(["local function check_keys()", *lines, "end"]) if lines else ""


WHOLE_NUMBER: Final = """local function whole_number(text)
  local value = tonumber(text)
  return value and value % 1 == 0 and value > -1e13 and value < 1e13 and value or nil
end"""


INTEGER: Final = """local integer
do
local KNOWN, count = {}, 0
function integer(text)
  local value = KNOWN[text or '']
  if not value and text and text:find('^%-?%d+$') then
    value = whole_number(text)
    if count < 500 then
      KNOWN[text], count = value, count + 1
    end
  end
  return value
end
end"""
"""The Lua function ``integer``, which converts text to a whole number and refuses all other text, also nan, inf and
fractions, which Lua takes for numbers. The text of an argument must consist of digits. The text of a record's field is
not compared with a pattern, since that would cost time for each job. A whole number is below 10^13, so that its sum
with a Unix time in ms still has the 14 digits that Lua writes exactly. Most arguments are the same in each call, so the
function caches some of them."""


_COLUMN: Final = """function column(n)
local all, found = records, {{}}
for i = 1, each_count do found[i] = all[{args} + n + (i - 1) * {each}] end
return found
end"""


_SAME: Final = """function same(n)
local all, first = records, {args} + n
local value = all[first]
for at = first + {each}, first + (each_count - 1) * {each}, {each} do
if all[at] ~= value then return nil end
end
return value
end"""


def each_record(header: Header, shared: Iterable[str]) -> str:
    """Return Lua functions that read the records of a call; an empty text if the script takes no records. A record has
    the fields of one item, such as a job.

    ``each(i)`` returns the fields of record i. ``column(n)`` returns field n of all records. ``same(n)`` returns field
    n if all records have the same text there, else nil. ``column`` and ``same`` are left out if no include uses them.
    """
    args, each = header.words("Args"), header.words("Each")
    if not each:
        return ""
    values = ", ".join(
        f"tonumber(all[at + {n}])" if word.endswith(":int") else f"all[at + {n}]"
        for n, word in enumerate(each, 1)
    )
    return "\n".join(
        [
            "local records",
            f"{'' if 'each' in shared else 'local '}function each(i)",
            f"local all, at = records, i * {len(each)} + {len(args) - len(each)}",
            f"return {values}",
            "end",
            *(
                line
                for name, text in (("column", _COLUMN), ("same", _SAME))
                if name in shared
                for line in text.format(args=len(args), each=len(each)).split("\n")
            ),
        ]
    )


def bind_tail(header: Header, shared: Iterable[str]) -> str:
    """Return the Lua function ``tails()``, which reads the texts that a call passes after its records. It returns two
    tables by record number: the texts, and the notes on these texts.
    """
    if "Tail" not in header.sections:
        return ""
    return f"""local has_tail
{"" if "tails" in shared else "local "}function tails()
local found, notes = {{}}, {{}}
if has_tail then
for at = #records - records[#records], #records - 1, 3 do
local place = integer(records[at]) or 0
found[place], notes[place] = records[at + 2], records[at + 1]
end
end
return found, notes
end"""


def bind_args(header: Header, shared: Iterable[str], keys: int) -> str:
    """Return Lua assignments that give names to the arguments of a call, and to its records for ``each``. The locals in
    ``shared`` are declared already. A call with more than ``keys`` keys may have texts after its records.
    """
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
    behind = ""
    if "Tail" in header.sections:
        lines += [
            "local behind = 0",
            f"has_tail = KEYS[{keys + 1}] ~= nil",
            "if has_tail then",
            "behind = integer(ARGV[#ARGV])",
            f"if not behind or behind < 0 or behind % 3 ~= 0 or behind >= #ARGV - {len(args)} then",
            "return {'refused', 'arguments', 'tail'}",
            "end",
            "behind = behind + 1",
            "end",
        ]
        behind = " - behind"
    lines += [
        "records = ARGV",
        f"{local('each_count')} = (#ARGV - {len(args)}{behind}) / {len(each)}",
        f"local whole = each_count % 1 == 0 and each_count <= {settings.BATCH_MAX}",
        "if not whole then return {'refused', 'arguments', 'count'} end",
    ]
    for n, word in enumerate(each, 1):
        if word.endswith(":int"):
            lines.append(
                f"for at = {len(args) + n}, #ARGV{behind}, {len(each)} do if not whole_number(ARGV[at]) then"
                f" return {{'refused', 'arguments', '{word.removesuffix(':int')}'}} end end"
            )
    return "\n".join(lines)
