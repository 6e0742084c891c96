"""The header of a Lua file: the comment at its top, parsed.

--[[ name: purpose …

Keys: meta state          names from rq_core.model.keys; `ready` means the four lists, `every` a list of all keys
Fact: remembers           the field of meta that is set if queues need this part of a job's end
Field: unique             the part concerns only jobs with this field; without this line it concerns every job
With: results kept        keys of the part, which only calls to queues with the fact carry; in other calls they are nil
Meta: sequence paused     fields of meta that the script reads when it begins
Later: tombstones         fields of meta that it may read after that, one by one
Args: slot number:int     arguments, one value of ARGV each; `:int` ones are converted to numbers
Each: id fence            fields of the records after the arguments; `each(i)` returns one, `each_count` is their number
Tail: JSON of results     texts after the records, with notes, in calls with keys on demand: `tails()` returns them
Lists: gone died          lists that most calls do not need, in the file's own table `lists`
Parts: names ended        the files with steps that scripts run, in order: see lua/include/call/parts.lua
Given: LINE_MAX           constants that Python adds when it sends the file: see rq_core/scripts/plain.py
Uses: call(now) emit(emit)   names that it takes from includes, which may have Keys, Meta and Uses of their own
…
]]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rq_core.model.lib.cached_property import cached_property

_HEADER = re.compile(r"\A--\[\[ (?P<name>[a-z_]+): (?P<text>.*?)\]\]\n", re.DOTALL)


_SECTION = re.compile(
    r"^(Transitions|Flags|Keys|Fact|Field|With|Meta|Later|Args|Each|Tail|Unread|Kept|Lists|Parts|Uses|Given|Returns"
    r"|Invariants): ",
    re.MULTILINE,
)
_USED = re.compile(r"(\w+)\(([\w\s]+)\)\s*")


class HeaderError(Exception):
    """Raised if the header of a Lua file is wrong. This means a bug in rq-core."""


@dataclass(frozen=True)
class Header:
    """The parsed header of a Lua file."""

    name: str
    purpose: str
    sections: Mapping[str, str]

    def words(self, section: str) -> tuple[str, ...]:
        """Return the words of one section of the header; an empty tuple if the header lacks the section."""
        return tuple(self.sections.get(section, "").split())

    @property
    def transitions(self) -> tuple[str, ...]:
        """The transitions of jobs between states that the header names, each as ``source -event-> target``."""
        text = " ".join(self.sections.get("Transitions", "").split())
        return tuple(part.strip() for part in text.split(",") if part.strip())

    @cached_property
    def uses(self) -> dict[str, tuple[str, ...]]:
        """The names that the file uses from includes (shared Lua files), by include. Raises HeaderError if the section
        is not a list of ``include(name…)``.
        """
        text = self.sections.get("Uses", "")
        if _USED.sub("", text):
            raise HeaderError(f"{self.name}: Uses takes include(name…), not {text}")
        return {include: tuple(names.split()) for include, names in _USED.findall(text)}


def parse_header(text: str, where: str) -> Header:
    """Parse the header of a Lua file. Raises HeaderError if the file has no header."""
    match = _HEADER.match(text)
    if match is None:
        raise HeaderError(f"{where}: does not begin with '--[[ name: purpose'")
    parts = _SECTION.split(match["text"])
    sections = dict(zip(parts[1::2], (p.strip() for p in parts[2::2]), strict=True))
    return Header(match["name"], parts[0].strip(), sections)


@dataclass(frozen=True, eq=False)
class Variant:
    """A change of the Lua scripts for a test: includes (shared Lua files) that replace the shipped ones, and Lua text
    that is inserted before the body. An empty variant changes nothing.
    """

    includes: Mapping[str, str] = field(default_factory=dict)
    prelude: str = ""
    shebang: bool = True


def without_header(text: str) -> str:
    """Return the text of a Lua file without its header."""
    return _HEADER.sub("", text)
