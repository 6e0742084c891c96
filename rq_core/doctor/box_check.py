"""Derives the expected fields of the Redis hash ``boxes`` from the entries and signals in it. A box has the saved steps
(entries) and the signals of one durable job."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from typing import Final

from rq_core.model.durable.boxes import (
    header_in,
    life_of,
    members_of_signals,
    signal_in,
    write_header,
)

Member = tuple[str, str | None]
"""A field of the hash ``boxes`` and its expected value; None: any value."""
_NUMBER: Final = re.compile("[1-9][0-9]{0,7}")


def is_box_lost(header: str | None, entries: int) -> bool:
    """Return whether the box (the saved steps) of a durable job has lost entries.

    ``header``: the header of the box, which counts its entries; None if the box has none. ``entries``: number of
    entries, from 1 to the first missing number.
    """
    said = header_in(header)
    return entries < (said.entries if said else 1)


def members_of_boxes(found: Mapping[str, str], owners: Mapping[str, str]) -> Iterator[Member]:
    """Yield the expected fields of the hash ``boxes``, each with its value.

    ``found``: the fields in Redis. ``owners``: life (id) of a box → id of the job whose saved steps are in it. The
    entries and signals of a box without a job are expected to stay, because claims remove them later.
    """
    members: defaultdict[str, set[str]] = defaultdict(set)
    for name in found:
        members[life_of(name)].add(name)
    for life in members.keys() | owners.keys():
        entries = _numbered(members[life], f"{life}|")
        if life in owners and is_box_lost(found.get(life), len(entries)):
            yield from ((name, None) for name in members[life])
            continue  # Only the log may have what is lost.
        signals = _signals(found, members[life], life)
        yield from ((name, None) for name in (*entries, *signals.values()))
        if life in owners:
            values = (found[name].partition("\n")[2] for name in (*entries, *signals.values()))
            job_id, size = owners[life], sum(len(value.encode()) for value in values)
            texts = {number: found[name] for number, name in signals.items()}
            mail = members_of_signals(texts).items()
            names = set(signals.values())
            yield from ((life + rest, text) for rest, text in mail if life + rest not in names)
        else:
            said = header_in(found.get(life))
            job_id, size = (said.job_id, said.size) if said else ("-", 0)
            yield from (
                (name, None) for name in members[life] if name[len(life) :][:1] in (">", "=")
            )
        yield life, write_header(job_id, len(entries), size, max(signals, default=0))


def lives_of(found: Mapping[str, str]) -> set[str]:
    """Return the lives (ids) of the boxes whose fields are in ``found``, the contents of the hash ``boxes``."""
    return set(map(life_of, found))


def boxes_astray(
    found: Mapping[str, str],
    owners: Mapping[str, str],
    alive: Mapping[str, str | None],
    unread: Container[str],
) -> Iterator[tuple[str, str]]:
    """Yield (life, job id) for each box that no job owns, but that may still belong to a job.

    ``owners``: life (id) of a box → id of its owner. A box without an owner may belong to a job in three cases: the log
    names the box for a live job (``alive``: job id → life); the state of the job in the box's header is unknown
    (``unread``); or that job's own box is lost, so that a client may have moved it here.
    """
    lives = {life: job_id for job_id, life in alive.items() if life is not None}
    lost = {
        job_id
        for life, job_id in owners.items()
        if is_box_lost(found.get(life), count_entries(found, life))
    }
    for life in lives_of(found) - owners.keys():
        header = header_in(found.get(life))
        if life in lives:
            yield life, lives[life]
        elif header is not None and (header.job_id in unread or header.job_id in lost):
            yield life, header.job_id


def count_entries(found: Mapping[str, str], life: str) -> int:
    """Return the number of a box's entries (saved steps), from entry 1 to the first missing number."""
    return next(n for n in itertools.count() if f"{life}|{n + 1}" not in found)


def _signals(found: Mapping[str, str], members: set[str], life: str) -> dict[int, str]:
    """Return number → field name, for a box's signals 1, 2, 3… up to the first gap in their numbers.

    A gap before a signal that a worker has put back is ignored: a failover has taken the missing signals from Redis.
    """
    head = f"{life}>"
    rests = (name.removeprefix(head) for name in members if name.startswith(head))
    there = sorted(int(each) for each in rests if _NUMBER.fullmatch(each))
    put_back = (number for number in there if _is_put_back(found[f"{head}{number}"]))
    last = max(put_back, default=0)
    last += len(_numbered(members, head, last + 1))
    return {number: f"{head}{number}" for number in there if number <= last}


def _is_put_back(text: str) -> bool:
    """Return whether a worker has put a signal back into its box, after a failover had taken the signal from Redis.

    A text of only digits is not a signal. It is the list of waiting signals for a name that has only digits.
    """
    signal = signal_in(text)
    return signal is not None and signal.at_ms is None and _NUMBER.fullmatch(text) is None


def _numbered(members: set[str], head: str, first: int = 1) -> list[str]:
    """Return the names ``head`` + ``first``, ``head`` + (``first`` + 1)… that are in ``members``, up to the first
    missing number."""
    end = next(n for n in itertools.count(first) if f"{head}{n}" not in members)
    return [f"{head}{n}" for n in range(first, end)]
