"""Forks. A fork is a copy of a durable job, its origin. The fork's box begins with the entries that the origin has
before a given step.

A header of the fork names the origin's box. The worker that first runs the fork copies the entries, before the
handler's first step.

>>> origin_header(ForkOrigin("o-1", "9f3a0b1c9f3a0b1c", 3, 2))
'9f3a0b1c9f3a0b1c 3 2 o-1'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from rq_core.model.durable.box_log import BOX_EVENTS, LoggedBox
from rq_core.model.durable.boxes import (
    ENTRIES_MAX,
    LIFE_PATTERN,
    MAP_PREFIX,
    OWN_PREFIX,
    StepEntry,
)
from rq_core.model.durable.children import (
    children_in,
    life_of_children,
    pack_queues,
    read_queues,
)
from rq_core.model.headers import FORK_HEADER
from rq_core.model.keys import is_name
from rq_core.model.unique_names import digest_of

_HEADER: Final = re.compile(rf"({LIFE_PATTERN}) ([0-9]{{1,5}}) ([0-9]{{1,5}}) (\S+)")


class ForkOrigin(NamedTuple):
    """The job that a fork copies (its origin), and which entries of the origin's box the fork has."""

    job_id: str
    life: str
    """The id of the origin's box."""
    before: int
    """The number of the first entry that is not copied."""
    copied: int
    """Number of entries that are copied. The box of the fork begins with them."""


def origin_header(origin: ForkOrigin) -> str:
    """Return the value of the header that names a fork's origin."""
    return f"{origin.life} {origin.before} {origin.copied} {origin.job_id}"


def origin_of(headers: Mapping[str, str]) -> ForkOrigin | None:
    """Return the origin of a job with these headers; None if no header names an origin.

    Any producer can write this header, so it may name any job.
    """
    found = _HEADER.fullmatch(headers.get(FORK_HEADER, ""))
    if found is None or not is_name(found[4]):
        return None
    before, copied = int(found[2]), int(found[3])
    return ForkOrigin(found[4], found[1], before, copied) if before <= ENTRIES_MAX + 1 else None


def entry_number(entries: Mapping[int, StepEntry], step: str) -> int | None:
    """Return the number of the entry of a step, a wait, a sleep, a ``map`` or a ``run``. Returns None if ``entries``
    lacks this name, and for rq-core's own entries.
    """
    numbers = {entry.name: number for number, entry in entries.items()}
    return (
        None if step.startswith(OWN_PREFIX) else numbers.get(step, numbers.get(MAP_PREFIX + step))
    )


def steps_in(entries: Iterable[StepEntry]) -> list[str]:
    """Return the names of a job's steps, waits, sleeps, maps and runs, as ``entry_number`` takes them. The entries of
    single children and rq-core's own entries are left out.
    """
    found = list(entries)
    maps = tuple(
        f"{e.name.removeprefix(MAP_PREFIX)}=" for e in found if e.name.startswith(MAP_PREFIX)
    )
    return [
        entry.name.removeprefix(MAP_PREFIX)
        for entry in found
        if not entry.name.startswith((OWN_PREFIX, *maps))
    ]


def open_maps(entries: Mapping[int, StepEntry], life: str, before: int) -> list[str]:
    """Return the names of the maps that a job had begun but not finished before the entry with the number ``before``.
    The children of these maps were not enqueued yet, or the job still waited for some children.
    """
    found = [entry for number, entry in sorted(entries.items()) if number < before]
    names = {child.map: None for child in children_in(life, found) if not child.is_over}
    begun = (e.name for e in found if e.name.startswith(MAP_PREFIX) and not e.is_saved)
    return [*names, *(name.removeprefix(MAP_PREFIX) for name in begun)]


def copied_entries(
    entries: Mapping[int, StepEntry], life: str, before: int
) -> list[StepEntry] | None:
    """Return the entries that a fork copies from a box, in order: those with a number below ``before``. Returns None if
    an entry with such a number is missing.

    rq-core's own entries are left out. Every other entry is copied as it is: a step that was only begun is still in
    doubt, and a sleep ends when it would have ended. The result is the same at any later time, since the number and the
    name of an entry do not change.
    """
    if any(number not in entries for number in range(1, before)):
        return None
    return [
        _copied(entries[number], life)
        for number in range(1, before)
        if not entries[number].name.startswith(OWN_PREFIX)
    ]


def _copied(entry: StepEntry, life: str) -> StepEntry:
    """Return the copy of an entry that the box of the fork gets."""
    if entry.is_saved and entry.name.startswith(MAP_PREFIX):
        # The children's ids are computed from the box in which the map began.
        return entry._replace(
            value=pack_queues(read_queues(entry.value), life_of_children(entry.value, life))
        )
    return entry


def box_in_log(events: Iterable[Any], life: str | None = None) -> tuple[str, LoggedBox] | None:
    """Return the id and the content of a job's box, computed from the job's events in the log. ``events`` begin with
    the oldest one. With ``life`` None, return the last box of the job. Returns None if the log has no such box.

    Events that Redis has forgotten also count, because their steps have run. If several events are about one entry, the
    last event that Redis still has decides, or else the last forgotten event.
    """
    found: dict[str, LoggedBox] = {}
    for event in sorted(events, key=lambda each: not each.orphaned):
        if event.type in BOX_EVENTS:
            own = event.detail["life"]
            box = found.pop(own, None) or LoggedBox()
            box.add(event.type, event.at_ms, event.detail)
            found[own] = box
    wanted = life if life is not None else next(reversed(found), "")
    return (wanted, found[wanted]) if wanted in found else None


def without_value(box: LoggedBox, before: int) -> list[str]:
    """Return the names of the entries that a fork cannot copy, because the log lacks their values. Only entries with a
    number below ``before`` are checked.
    """
    return [
        entry.name
        for number, entry in sorted(box.steps.items())
        if number < before
        and not entry.name.startswith(OWN_PREFIX)
        and box.sizes.get(number) is not None
        and (entry.value is None or digest_of(entry.value) != entry.note)
    ]
