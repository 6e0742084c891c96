"""Checks the steps of durable jobs (I20). In each box, the steps have the numbers 1, 2, 3… Only the claim in force
writes a step.

After a saved step, earlier failures and losses no longer count towards the job's limits (I4).

If a failover took a step from Redis, a worker may write the step again. The step must then have the same contents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from rq_core.model.durable.boxes import NAME_PATTERN
from rq_core.model.durable.tries import NO_BASE, Base
from rq_core.model.table.machine import CLAIMED_STATES, Event
from sql_audit.proof.event_details import facts_in
from sql_audit.proof.replay.contradictions import Fault
from sql_audit.proof.replay.live_job import Record
from sql_audit.proof.replay.parked_jobs import begin_wait, end_wait, judge_value
from sql_audit.store.job_rows import EventRow

_NAME: Final = re.compile(NAME_PATTERN)
_CLAIMED: Final = frozenset(map(str, CLAIMED_STATES))


def judge_entry(row: EventRow, record: Record) -> Iterator[Fault]:
    """Apply an event ``step_begun`` or ``step_saved`` to its job, and yield the event's faults."""
    facts = facts_in(row[10])
    entry, name = facts["entry"], facts["name"]
    yield from _written_under(row, facts, record)
    if record.life is not None and facts["life"] != record.life:
        yield "I20", f"is in box {facts['life']}, the job's is {record.life}"
        record.entries = record.mail = None
    record.life = facts["life"]
    if row[4] == Event.STEP_SAVED:
        yield from judge_value(facts, "I20")
        yield from _base(facts.get("base"), record)
    entries = record.entries
    if entries is None:
        return
    if not 1 <= entry <= len(entries) + 1:
        yield "I20", f"is entry {entry}, the one before was {len(entries)}"
        record.entries = None
        return
    saved = (name, facts.get("digest")) if row[4] == Event.STEP_SAVED else (name, None)
    before = entries.get(entry)
    if before is not None and before[0] != name:
        yield "I20", f"is entry {entry} of {name!r}, which was {before[0]!r}"
    elif before is not None and before[1] is not None and before != saved and saved[1] is not None:
        yield "I20", f"saves {name!r} with digest {saved[1]}, which was {before[1]}"
    if before is None:
        number = entries.numbers.setdefault(name, entry)
        if number != entry:
            yield "I20", f"is entry {entry} of {name!r}, which is entry {number}"
    if before is None or saved[1] is not None:
        entries[entry] = saved
    if row[4] == Event.STEP_SAVED:
        is_again = before is not None and before[1] is not None
        yield from end_wait(row, facts, record, is_again=is_again)
    else:
        yield from begin_wait(row, facts, record)


def _written_under(row: EventRow, facts: Mapping[str, Any], record: Record) -> Iterator[Fault]:
    """Yield a fault if a step was written while no claim was in force, under another claim, or by another worker.

    Also yield a fault if the step's name is not valid.
    """
    fence, name = facts.get("fence"), facts["name"]
    if record.state is not None and record.state not in _CLAIMED:
        yield "I20", f"is written, and the job is {record.state}"
    elif record.fence is not None and fence != record.fence:
        yield "I20", f"is written under fence {fence}, in force is {record.fence}"
    elif record.worker is not None and row[8] != record.worker:
        yield "I20", f"is written by {row[8]}, the claim is that of {record.worker}"
    if _NAME.fullmatch(name) is None:
        yield "I20", f"is named {name!r}, and no step can have this name"


def _base(said: str | None, record: Record) -> Iterator[Fault]:
    """Set the job's base: the numbers of failures and losses up to its last saved step. They no longer count.

    Yield a fault if the event's numbers differ from the log's.
    """
    if record.failures is not None and record.losses is not None:
        base = Base(record.failures, record.losses)
        if said != (None if base == NO_BASE else str(base)):
            yield (
                "I4",
                f"says that the job has {said or NO_BASE} failures/losses, by the log {base}",
            )
    record.base = said
