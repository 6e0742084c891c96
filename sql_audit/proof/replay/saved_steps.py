"""Checks the steps of durable jobs (invariant I20). The steps of a job have the numbers 1, 2, 3… Only the worker of the
claim in force writes a step.

After a saved step, earlier failures and losses no longer count towards the job's limits (I4).

If Redis lost a step in a failover, a worker may write the step again. The step must then have the same contents.
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
from sql_audit.proof.replay.live_job import Record, Saved
from sql_audit.proof.replay.parked_jobs import begin_wait, end_wait, is_older, judge_value
from sql_audit.store.job_rows import EventRow

_NAME: Final = re.compile(NAME_PATTERN)
_CLAIMED: Final = frozenset(map(str, CLAIMED_STATES))


def judge_entry(row: EventRow, record: Record) -> Iterator[Fault]:
    """Add a step to its job, from an event ``step_begun`` or ``step_saved``, and yield the event's faults."""
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
    saved, before = _saved_in(row, facts), entries.get(entry)
    if before is not None:
        yield from _judge_again(row, facts, saved, *before)
    else:
        number = entries.numbers.setdefault(name, entry)
        if number != entry:
            yield "I20", f"is entry {entry} of {name!r}, which is entry {number}"
    if before is None or saved is not None:
        entries[entry] = name, saved
    if saved is not None:
        is_again = before is not None and before[1] is not None
        was_begun = before is not None and not is_again
        yield from end_wait(row, facts, record, was_begun=was_begun, is_again=is_again)
    else:
        yield from begin_wait(row, facts, record)


def _saved_in(row: EventRow, facts: Mapping[str, Any]) -> Saved | None:
    """Return what an event ``step_saved`` saves. Return None for an event ``step_begun``."""
    if row[4] != Event.STEP_SAVED:
        return None
    return Saved(facts.get("digest"), facts.get("bytes"), facts.get("message"))


def _judge_again(
    row: EventRow, facts: Mapping[str, Any], saved: Saved | None, name: str, before: Saved | None
) -> Iterator[Fault]:
    """Yield a fault if an event wrongly writes a step that the job already has. A worker may write a step again only if
    Redis may have lost it, and with the same name and contents.

    ``name`` is the step's name. ``saved`` is what the event saves, and ``before`` is what was saved before; each is
    None if the step is only begun.
    """
    if facts["name"] != name:
        yield "I20", f"is entry {facts['entry']} of {facts['name']!r}, which was {name!r}"
    elif saved is not None and before is not None and saved != before:
        yield "I20", f"saves {name!r} {_difference(saved, before)}"
    elif (saved is None or before is not None) and not is_older(facts.get("fence"), row[1]):
        # Redis writes an entry once. Only a failover takes entries, and the claim is then older than the epoch.
        yield "I20", f"is {'saved' if saved else 'begun'} a second time"


def _difference(now: Saved, before: Saved) -> str:
    """Return the first difference between two saves of one step, as the end of a sentence."""
    if now.digest != before.digest:
        return f"with digest {now.digest}, which was {before.digest}"
    if now.size != before.size:
        return f"with {now.size or 'no'} bytes, which had {before.size or 'none'}"
    return f"from signal {now.message or 'none'}, which was from {before.message or 'none'}"


def _written_under(row: EventRow, facts: Mapping[str, Any], record: Record) -> Iterator[Fault]:
    """Yield a fault if a step was written without a claim in force, under another claim, or by another worker.

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
    """Set the number of failures and losses before a job's last saved step. They no longer count towards the job's
    limits.

    ``said`` are these numbers in the event. Yield a fault if they differ from the log's.
    """
    if record.failures is not None and record.losses is not None:
        base = Base(record.failures, record.losses)
        if said != (None if base == NO_BASE else str(base)):
            yield (
                "I4",
                f"says that the job has {said or NO_BASE} failures/losses, by the log {base}",
            )
    record.base = said
