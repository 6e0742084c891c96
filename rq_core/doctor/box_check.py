"""Derives the expected members of the key ``boxes`` from the entries and signals that it has."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping

from rq_core.model.durable.boxes import header_in, life_of, members_of_signals, write_header

Member = tuple[str, str | None]
"""A member of ``boxes`` and its expected value; None: any value."""


def is_box_lost(header: str | None, entries: int) -> bool:
    """Return whether a job's box has lost entries.

    ``header``: the header of the box, if it has one. ``entries``: how many of entries 1, 2, 3… are there without a gap.
    """
    said = header_in(header)
    return entries < (said.entries if said else 1)


def members_of_boxes(found: Mapping[str, str], owners: Mapping[str, str]) -> Iterator[Member]:
    """Yield the expected members of the key ``boxes``. ``found``: its members. ``owners``: life (id) of a box → id of
    its job.

    A box without a job keeps its members until claims have emptied it.
    """
    members: defaultdict[str, set[str]] = defaultdict(set)
    for name in found:
        members[life_of(name)].add(name)
    for life in members.keys() | owners.keys():
        entries = _numbered(members[life], f"{life}|")
        if life in owners and is_box_lost(found.get(life), len(entries)):
            yield from ((name, None) for name in members[life])
            continue  # Only the log may have what is lost.
        signals = _numbered(members[life], f"{life}>")
        yield from ((name, None) for name in (*entries, *signals))
        if life in owners:
            values = (found[name].partition("\n")[2] for name in (*entries, *signals))
            job_id, size = owners[life], sum(len(value.encode()) for value in values)
            texts = {number: found[name] for number, name in enumerate(signals, 1)}
            mail = members_of_signals(texts).items()
            yield from ((life + rest, text) for rest, text in mail if life + rest not in signals)
        else:
            said = header_in(found.get(life))
            job_id, size = (said.job_id, said.size) if said else ("-", 0)
            yield from (
                (name, None) for name in members[life] if name[len(life) :][:1] in (">", "=")
            )
        yield life, write_header(job_id, len(entries), size, len(signals))


def lives_of(found: Mapping[str, str]) -> set[str]:
    """Return the lives (ids) of the boxes in ``found``, the fields of the key ``boxes``."""
    return set(map(life_of, found))


def count_entries(found: Mapping[str, str], life: str) -> int:
    """Return how many of a box's entries 1, 2, 3… are there without a gap."""
    return next(n for n in itertools.count() if f"{life}|{n + 1}" not in found)


def _numbered(members: set[str], head: str) -> list[str]:
    """Return the members ``head`` + 1, 2, 3… before the first missing number."""
    end = next(n for n in itertools.count(1) if f"{head}{n}" not in members)
    return [f"{head}{n}" for n in range(1, end)]
