"""Derives the expected members of the key ``shown``, which has the progress and the stream chunks of jobs."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from typing import NamedTuple

from rq_core.model.lib.text import bytes_of
from rq_core.model.showing.shown import KEPT_MS, id_in_field, read_shown

_SIZE = re.compile(r" bytes=\d+ ")


class ShownMembers(NamedTuple):
    """The members that ``shown`` should have for a job, and the time at which claims remove them."""

    job_id: str
    line: str
    chunks: tuple[str, ...]
    """The fields with those chunks of the job's stream that Redis still has."""
    until_ms: int | None
    """The time (Unix ms) of the job's mark in ``expiring``, at which its fields are removed; None if there should be no
    mark."""


def shown_members(
    found: Mapping[str, str], jobs: Container[str], *, is_fuzzy: bool
) -> Iterator[ShownMembers]:
    """Yield the expected members of ``shown`` for each job that may have some.

    ``found``: the fields of ``shown``. ``jobs``: the ids of all jobs in Redis. An id is left out if it has no readable
    line, or if it is not in ``jobs`` and its line does not say how the job ended. ``is_fuzzy``: True if the queue may
    have changed while it was read; then the sizes of chunks are not compared.
    """
    fields: defaultdict[str, set[str]] = defaultdict(set)
    for field in found:
        fields[id_in_field(field)].add(field)
    for job_id, names in fields.items():
        line, said = found.get(job_id, ""), read_shown(found.get(job_id))
        if said is None or (job_id not in jobs and said.ending is None):
            continue
        chunks = tuple(name for name in names if _number(name) in said.chunks)
        size = sum(len(bytes_of(found[name])) for name in chunks)
        if not is_fuzzy and size != said.size:
            line = _SIZE.sub(f" bytes={size} ", line, count=1)
        until_ms = None if said.ended_ms is None else said.ended_ms + KEPT_MS
        yield ShownMembers(job_id, line, chunks, until_ms)


def _number(field: str) -> int:
    number = field.rpartition("~")[2]
    return int(number) if number.isdecimal() and len(number) < 17 and number[0] != "0" else 0
