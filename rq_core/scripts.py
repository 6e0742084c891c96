"""Loads ``lua/``: parses each script's header, resolves its includes, and generates the binding of names to
positions, so that no index of KEYS or ARGV is written anywhere.

A header is the comment at the top of a file::

    --[[ name: purpose …

    Keys: meta state          names from rq_core.keys; `ready` means the four lists
    Meta: sequence paused     fields of meta that the script reads
    Args: slot number:int     one ARGV each; `:int` ones are converted
    Each: id fence            then records of these fields; `each(i)` returns one, `each_count` says how many
    Uses: call emit           includes, which may have Keys, Meta and Uses of their own
    …
    ]]

It raises HeaderError when a script uses an include whose keys it does not declare, or a name it does not know.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from rq_core import machine, settings
from rq_core.keys import KEY_TYPES, QueueKeys

_HEADER = re.compile(r"\A--\[\[ (?P<name>[a-z_]+): (?P<text>.*?)\]\]\n", re.DOTALL)
_SECTION = re.compile(
    r"^(Transitions|Flags|Keys|Meta|Args|Each|Uses|Returns|Invariants): ", re.MULTILINE
)
_WORD = re.compile(r"[A-Za-z_]\w*")
_DEFINES = re.compile(r"local (?:function (?P<function>\w+)|(?P<names>[\w, ]+))")
_DECLARES = re.compile(r"local [\w, ]+")
_CODE = re.compile(r"^(?!--)\S", re.MULTILINE)
_READY: Final = tuple(f"ready:{n}" for n in range(len(machine.PRIORITIES)))
_BASE_META: Final = ("layout", "epoch", "replid")


class HeaderError(Exception):
    """A Lua file's header is wrong: a bug in rq-core."""


@dataclass(frozen=True)
class Header:
    """What a Lua file says of itself."""

    name: str
    purpose: str
    sections: Mapping[str, str]

    def words(self, section: str) -> tuple[str, ...]:
        """The words of a section, none if it is not there."""
        return tuple(self.sections.get(section, "").split())

    @property
    def transitions(self) -> tuple[str, ...]:
        """The arrows that the header claims, as ``source -event-> target``."""
        text = " ".join(self.sections.get("Transitions", "").split())
        return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_header(text: str, where: str) -> Header:
    """Parse the comment at the top of a Lua file. Raises HeaderError if it has none."""
    match = _HEADER.match(text)
    if match is None:
        raise HeaderError(f"{where}: does not begin with '--[[ name: purpose'")
    parts = _SECTION.split(match["text"])
    sections = dict(zip(parts[1::2], (p.strip() for p in parts[2::2]), strict=True))
    return Header(match["name"], parts[0].strip(), sections)


@dataclass(frozen=True)
class Variant:
    """How the tests change the scripts: other includes, other text before the body. Never shipped as default."""

    includes: Mapping[str, str] = field(default_factory=dict)
    prelude: str = ""
    shebang: bool = True


@dataclass(frozen=True)
class Script:
    """One script, ready to be sent."""

    name: str
    header: Header
    text: str
    sha: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    each: tuple[str, ...]

    def prefix(self, keys: QueueKeys) -> tuple[Any, ...]:
        """The head of the command: EVALSHA, the digest, and the keys."""
        return ("EVALSHA", self.sha, len(self.keys), *map(keys, self.keys))

    def command(
        self, keys: QueueKeys, each: Iterable[tuple[Any, ...]] = (), **args: Any
    ) -> list[Any]:
        """The whole command. ``args`` are the header's Args by name; ``each`` the records, in its order."""
        command: list[Any] = [*self.prefix(keys), *[args.pop(name) for name in self.args]]
        assert not args, f"{self.name} has no {args}"
        for record in each:
            command += record
        return command


def directory() -> Path:
    """Where the Lua files are: inside the wheel, or beside the package in a checkout."""
    packaged = Path(__file__).parent / "_lua"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "lua"


def names() -> tuple[str, ...]:
    """Every script, by the file names."""
    return tuple(sorted(p.stem for p in directory().glob("*.lua")))


@cache
def script(name: str) -> Script:
    """The script as shipped. Raises HeaderError, or OSError if the files are not there."""
    return build(name)


def build(name: str, variant: Variant | None = None) -> Script:
    """Assemble one script: binding of names, constants, includes, body."""
    variant = variant or Variant()
    text = (directory() / f"{name}.lua").read_text(encoding="utf-8")
    header = parse_header(text, f"{name}.lua")
    if header.name != name:
        raise HeaderError(f"{name}.lua calls itself {header.name}")
    includes = _resolve(header.words("Uses"), variant, ())
    declared = header.words("Keys")
    for included in includes:
        missing = set(included[0].words("Keys")) - set(declared)
        if missing:
            raise HeaderError(f"{name}.lua uses {included[0].name} but not its keys {missing}")
    keys = tuple(k for word in declared for k in (_READY if word == "ready" else (word,)))
    if unknown := set(keys) - set(KEY_TYPES):
        raise HeaderError(f"{name}.lua: unknown keys {unknown}")
    meta = dict.fromkeys(_BASE_META)
    for source in (header, *(i[0] for i in includes)):
        meta |= dict.fromkeys(source.words("Meta"))
    body = "\n".join([variant.prelude, *_used_parts([i[1] for i in includes], text), text])
    parts = [
        _shebang(header) if variant.shebang else "",
        _bind_keys(declared),
        _constants(body, tuple(meta)),
        _bind_args(header),
        body,
    ]
    whole = "\n".join(part for part in parts if part)
    return Script(
        name=name,
        header=header,
        text=whole,
        sha=hashlib.sha1(whole.encode(), usedforsecurity=False).hexdigest(),
        keys=keys,
        args=tuple(word.partition(":")[0] for word in header.words("Args")),
        each=tuple(word.partition(":")[0] for word in header.words("Each")),
    )


def _resolve(
    uses: Iterable[str], variant: Variant, above: tuple[str, ...]
) -> list[tuple[Header, str]]:
    """Includes in the order in which they must stand, each once."""
    found: dict[str, tuple[Header, str]] = {}
    for name in uses:
        if name in above:
            raise HeaderError(f"includes go round in a circle: {' > '.join((*above, name))}")
        if name in variant.includes:
            text = variant.includes[name]
        else:
            path = directory() / "include" / f"{name}.lua"
            if not path.is_file():
                raise HeaderError(f"there is no include {name}.lua")
            text = path.read_text(encoding="utf-8")
        header = parse_header(text, f"include/{name}.lua")
        for inner in _resolve(header.words("Uses"), variant, (*above, name)):
            found.setdefault(inner[0].name, inner)
        found.setdefault(name, (header, text))
    return list(found.values())


def _used_parts(includes: list[str], text: str) -> list[str]:
    """The definitions of includes that the script needs, directly or not: every one costs time in every call.

    Those that only their own include uses are kept in a block, since Lua allows a chunk 200 locals.
    """
    parts = [(at, *part) for at, include in enumerate(includes) for part in _parts(include)]
    needed: set[int] = set()
    words = set(_WORD.findall(text))
    while True:
        found = {n for n, (_, names, _) in enumerate(parts) if not words.isdisjoint(names)} - needed
        if not found:
            break
        needed |= found
        words.update(*(_WORD.findall(parts[n][2]) for n in found))
    kept = [parts[n] for n in sorted(needed)]
    blocks = []
    for at in range(len(includes)):
        own = [(names, code) for include, names, code in kept if include == at]
        others = set(_WORD.findall(text)).union(
            *(_WORD.findall(code) for include, _, code in kept if include != at)
        )
        blocks.append(_block(own, others))
    return [block for block in blocks if block]


def _block(parts: list[tuple[frozenset[str], str]], others: set[str]) -> str:
    """Definitions of one include; those that ``others`` mention are visible outside."""
    shared = sorted(name for names, _ in parts if not names.isdisjoint(others) for name in names)
    if len(shared) == sum(len(names) for names, _ in parts):
        return "\n".join(code for _, code in parts)
    lines = [f"local {', '.join(shared)}"] if shared else []
    lines.append("do")
    for names, code in parts:
        public = not names.isdisjoint(others)
        assigned = _DECLARES.fullmatch(code) is None
        if not public:
            lines.append(code)
        elif assigned:
            lines.append(code.removeprefix("local "))
    return "\n".join([*lines, "end"])


def _parts(include: str) -> list[tuple[frozenset[str], str]]:
    """An include's definitions, with the names that each defines. One begins with `local` in the first column."""
    body = _HEADER.sub("", include)
    parts = []
    for part in re.split(r"^(?=local )", body, flags=re.MULTILINE):
        defined = _DEFINES.match(part)
        if defined is None:
            if _CODE.search(part):
                raise HeaderError(f"an include may only define locals, not: {part.strip()[:60]}")
            continue
        code = "\n".join(line for line in part.split("\n") if line and not line.startswith("--"))
        parts.append(
            (
                frozenset(re.split(r"\s*,\s*", (defined["function"] or defined["names"]).strip())),
                code,
            )
        )
    return parts


def _shebang(header: Header) -> str:
    flags = ",".join(header.words("Flags"))
    return f"#!lua flags={flags}" if flags else "#!lua"


def _bind_keys(declared: tuple[str, ...]) -> str:
    """``local meta, state = KEYS[1], KEYS[2]``, and ``ready`` as a table from 0."""
    lines, at = [], 1
    for word in declared:
        if word == "ready":
            places = ", ".join(f"KEYS[{at + n}]" for n in range(len(_READY)))
            lines.append(f"local ready = {{[0] = {places}}}")
            at += len(_READY)
        else:
            lines.append(f"local {word} = KEYS[{at}]")
            at += 1
    return "\n".join(lines)


_INTEGER: Final = """local function whole_number(text)
  local value = tonumber(text)
  return value and value % 1 == 0 and value > -1e13 and value < 1e13 and value or nil
end
local function integer(text)
  return text and text:match('^%-?%d+$') and whole_number(text) or nil
end"""
"""Whole numbers only: no nan, inf or fraction, all of which Lua takes for numbers. An argument must be written in
digits, too; in a record, where a match would cost time per job, Lua may read it as it likes. Below 10^13 the sum
with a Unix time in ms still has the 14 digits that Lua writes exactly."""


def _bind_args(header: Header) -> str:
    """One local per argument, and ``each(i)`` for the records after them."""
    args, each = header.words("Args"), header.words("Each")
    lines = [_INTEGER] if any(word.endswith(":int") for word in (*args, *each)) else []
    for at, word in enumerate(args, 1):
        name, _, kind = word.partition(":")
        lines.append(
            f"local {name} = integer(ARGV[{at}])\n"
            f"if not {name} then return {{'refused', 'arguments', '{name}'}} end"
            if kind == "int"
            else f"local {name} = ARGV[{at}]\n"
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
        f"local each_count = (#ARGV - {len(args)}) / {len(each)}",
        f"local whole = each_count % 1 == 0 and each_count <= {settings.BATCH_MAX}",
        "if not whole then return {'refused', 'arguments', 'count'} end",
        f"local function each(i) local at = {len(args)} + (i - 1) * {len(each)} return {values} end",
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


def _constants(body: str, meta: tuple[str, ...]) -> str:
    """The facts of machine.py and settings.py that the body mentions."""
    constants = {
        "META": _table(meta),
        "LAYOUT": f"'{machine.LAYOUT}'",
        "STATE_FIELDS": _table(machine.STATE_FIELDS),
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
    return "\n".join(
        f"local {name} = {value}"
        for name, value in constants.items()
        if re.search(rf"\b{name}\b", body)
    )
