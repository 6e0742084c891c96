"""Constants of the Lua scripts, generated from the values that Python uses, such as the fields of a state line."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from rq_core.model import keys, settings, state_line
from rq_core.model.limits import scopes
from rq_core.model.table import fields, machine


def table(values: Iterable[Any]) -> str:
    """Return texts as the source of a Lua list."""
    return "{" + ", ".join(f"'{v}'" for v in values) + "}"


def _by_name(values: Iterable[tuple[str, Any]]) -> str:
    return "{" + ", ".join(f"{name} = {value}" for name, value in values) + "}"


OF_SCRIPT: Final = {
    "META": "`v`, and the fields that the headers of the script and its includes name under Meta, the counters first",
    "AUDITED": "the fields that are read in each call to an audited queue: `v`, the counters, and those of the backlog",
    "COUNTED": "how many fields of `META` are read in each call: `v` and the counters",
    "LATER": "the counters that headers name only under Later",
    "PART_FACTS": "the fields of `meta` that switch parts on, see `include/call/parts`",
}
"""The Lua constants whose values differ between scripts: name → meaning."""

_SETTINGS: Final = settings.SETTINGS.values()

CONSTANTS: Final = {
    "LAYOUT": (f"'{machine.LAYOUT}'", "the layout of Redis that the scripts know"),
    "STATE_FIELDS": (table(fields.STATE_FIELDS), "the fields of a state line, in order"),
    "TRAITS": (
        table(str(field.line) for field in fields.TRAITS),
        "the traits, by their names in a state line, in the order in which events carry them",
    ),
    "TRAIT_AT": (
        _by_name((str(field.line), at) for at, field in enumerate(fields.TRAITS, 1)),
        "a trait's place in that order",
    ),
    "GIVEN": (
        table(str(field.line) for field in fields.GIVEN),
        "the traits that a producer passes in a job's ties",
    ),
    "STAYS": (
        _by_name((name, "true") for name in fields.STAYS),
        "the fields before the lane in a state line: claims do not change them",
    ),
    "NUMBERS": (
        _by_name(
            (str(field.line), "true")
            for field in fields.TRAITS
            if field.kind is fields.FieldKind.NUMBER
        ),
        "the traits that are numbers",
    ),
    "DEFAULTS": (
        _by_name(
            [("attempts", machine.DEFAULT_MAX_ATTEMPTS), ("losses", machine.DEFAULT_MAX_LOSSES)]
        ),
        "field of a state line → its value if a line lacks it",
    ),
    "LINE_MAX": (str(state_line.LINE_MAX), "most bytes of a state line"),
    "PRIORITY_RANK": (
        _by_name((p, n) for n, p in enumerate(machine.PRIORITIES)),
        "name of a priority → its number, 0 for the highest",
    ),
    "DEFAULT_PRIORITY": (f"'{machine.DEFAULT_PRIORITY}'", "the priority of a line that names none"),
    "RANK": (
        str(scopes.RANK),
        "in `open`, the distance between the scores of one priority's lanes and of the next's",
    ),
    "SETTINGS": (_by_name((s.name, s.default) for s in _SETTINGS), "setting → its default"),
    "MINIMA": (_by_name((s.name, s.minimum) for s in _SETTINGS), "setting → its lowest value"),
    "FLAGS": (
        _by_name((name, "true") for name in settings.FLAGS),
        "fields of `meta` that an operator sets to 0 or 1",
    ),
    "COUNTERS": (
        _by_name((name, "true") for name in settings.COUNTERS),
        "fields of `meta` that calls update all the time; the version `v` does not cover them",
    ),
    "RESULT_COST": (
        str(settings.RESULT_COST),
        "bytes that an entry of `results` takes on top of its text",
    ),
    "SLOT_ANSWER": (
        f"'{settings.SLOT_ANSWER}'",
        "the suffix of a slot's name in the field of `slots` that has its last answer",
    ),
    "SLOT_LIFE_MS": (str(settings.SLOT_LIFE_MS), "how long a call slot is remembered, in ms"),
    "INBOX_SLOT": (
        f"'{settings.INBOX_SLOT}'",
        "the beginning of the names of call slots that are remembered for INBOX_SLOT_LIFE_MS",
    ),
    "INBOX_SLOT_LIFE_MS": (
        str(settings.INBOX_SLOT_LIFE_MS),
        "how long a call slot that its caller named is remembered after its first call, in ms",
    ),
    "CHANNEL": (
        f"'{keys.CHANNEL}'",
        "after the queue's tag: the channel on which ends of jobs are published",
    ),
    "LISTEN_MS": (
        str(settings.LISTEN_MS),
        "how long ends of jobs are published after a client's call of `listen`, in ms",
    ),
    "OUTBOX_RING": (
        f"'{settings.OUTBOX_RING}'",
        "about how many entries an outbox without a mirror keeps",
    ),
}
"""The Lua constants that are the same for all scripts: name → (value in Lua, meaning)."""


def constants(*, meta: Iterable[str], later: Iterable[str], parts: Iterable[str]) -> dict[str, str]:
    """Return the Lua declarations of a script's constants, by name.

    ``meta`` are the fields of the queue's key ``meta`` that the script reads when it begins, and ``later`` those that
    it may read later. ``parts`` are the fields that say which features the queue uses.
    """
    meta, counters = tuple(meta), settings.COUNTERS
    counted = ["v", *(name for name in meta if name in counters)]
    of_script = (
        table([*counted, *(name for name in meta if name not in counters)]),
        table(dict.fromkeys([*counted, "backlog_jobs", "backlog_bytes"])),
        str(len(counted)),
        table(name for name in later if name in counters and name not in meta),
        table(parts),
    )
    values = dict(zip(OF_SCRIPT, of_script, strict=True))
    values |= {name: value for name, (value, _) in CONSTANTS.items()}
    return {name: f"local {name} = {value}" for name, value in values.items()}
