"""The names of a queue's unique jobs, and the jobs that hold them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final, NamedTuple

from rq_core.model.keys import QueueKeys, check_name, queue_keys
from rq_core.model.state_line import JobState, read_state_lines
from rq_core.model.unique_names import (
    check_unique_name,
    is_name_field,
    name_field,
    name_in,
    read_holder,
)
from rq_core.protocol.calls.admin import IDS_CHUNK, check_why
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Call, Plan, pairs_of, parse_pairs
from rq_core.protocol.reads.steps import Steps, lines_of, run_steps, time_ms

PAGE: Final = 1_000
"""Approximate number of fields of the key ``slots`` that one command reads. Some of these fields are held names."""


class HeldName(NamedTuple):
    """A unique name, and the job that holds the name."""

    name: str
    job_id: str
    job: JobState | None
    """State of the job that holds the name; None: the job has ended, or its state cannot be read."""
    until_ms: int | None = None
    """The time (Unix ms) until which the name is held, even if the job ends before; None: the name is held until the
    job ends or is claimed."""
    damaged: str = ""
    """The reason why the job cannot be read; empty if it can be read."""


class UniqueNames:
    """The calls that list and free unique names."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def held(
        self, queue: str, name: str | None = None, *, limit: int | None = None
    ) -> Plan[list[HeldName]]:
        """Return the held names of a queue, sorted, each with its job. With ``name``, only this name is looked up. At
        most ``limit`` names are returned, not necessarily the first by name."""
        keys = queue_keys(queue, self._delivery.prefix)
        return run_steps(self._delivery, queue, _held(keys, name, limit))

    def free(
        self, queue: str, names: Sequence[str], *, by: str | None = None, why: str = ""
    ) -> Plan[dict[str, str | None]]:
        """Free names, so that other jobs can take them. Returns, by name, the id of the job that held the name; None if
        no job held it.

        A live job continues without its name. Raises InvalidOption for an invalid name.
        """
        holders: dict[str, str | None] = {}
        args = {"by": check_name("actor", by or self._delivery.name), "why": check_why(why)}
        once = tuple(dict.fromkeys(map(check_unique_name, names)))
        for start in range(0, len(once), IDS_CHUNK):
            records = [(name,) for name in once[start : start + IDS_CHUNK]]
            absent = {name: "-" for (name,) in records}
            call = Call("free", queue, args, parse_pairs, records, absent=absent)
            found = yield from self._delivery.call(call)
            holders |= {name: None if by == "-" else by for name, by in found.items()}
        return holders


def _held(keys: QueueKeys, name: str | None, limit: int | None) -> Steps[list[HeldName]]:
    found: dict[str, str] = {}
    if name is not None:
        value, now = yield [["HGET", keys("slots"), name_field(name)], ["TIME"]]
        found = {} if value is None else {name: value}
    cursor = "0" if name is None else ""
    while cursor:
        scan = ["HSCAN", keys("slots"), cursor, "MATCH", name_field("*"), "COUNT", PAGE]
        (cursor, flat), now = yield [scan, ["TIME"]]
        found |= {name_in(f): by for f, by in pairs_of(flat).items() if is_name_field(f)}
        enough = limit is not None and len(found) >= limit
        cursor = "" if enough or cursor in ("0", 0) else cursor
    now_ms = time_ms(now)
    holders = ((each, read_holder(value)) for each, value in sorted(found.items()))
    standing = ((n, by) for n, by in holders if by.until_ms is None or by.until_ms > now_ms)
    shown = list(itertools.islice(standing, limit))
    lines = yield from lines_of(keys, [by.job_id for _, by in shown])
    held = []
    for (each, by), line in zip(shown, lines, strict=True):
        jobs, damaged = read_state_lines(keys.queue, [(by.job_id, line)])
        job = jobs[0] if jobs else None
        held.append(HeldName(each, by.job_id, job, by.until_ms, "".join(damaged)))
    return held
