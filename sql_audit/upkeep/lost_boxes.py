"""Finds in the log the entries that durable jobs had saved in boxes that Redis has lost.

The log has the value that a step returned if the task has ``audit_result="full"``. Without the value of one step, no
entry of the box is put back: the job would repeat that step, which has happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rq_core.model.durable.boxes import StepEntry, entry_text
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls.audit import Restoration, entries_again
from sql_audit.mirror.projection import rebuild
from sql_audit.store.connection.database import Database
from sql_audit.store.job_rows import EventRow

CHUNK: Final = 1_000
"""Maximum number of jobs whose events one SQL statement reads."""
_STEPS: Final = (str(Event.STEP_BEGUN), str(Event.STEP_SAVED), str(Event.SIGNALLED))


def entries_in(rows: Iterable[EventRow]) -> dict[tuple[str, str], dict[int, StepEntry | None]]:
    """Return the entries of boxes by (job id, box id), each by its number. ``rows`` are the events of these jobs, in
    order. None takes the place of an entry whose value the log does not have."""
    found: dict[tuple[str, str], dict[int, StepEntry | None]] = {}
    brought: dict[tuple[str, str, int], Any] = {}
    """The value of each signal, by the job's id, the box's id and the signal's number."""
    for row in rows:
        if row[4] not in _STEPS or (intake := rebuild.intake_of(row)) is None:
            continue
        facts = {name: column[0] for name, column in intake.columns.items()}
        box = (str(row[6]), facts["life"])
        if row[4] == Event.SIGNALLED:
            brought[*box, facts["message"]] = facts.get("value")
            continue
        if facts.get("message") is not None:
            # The log has the value of a signal with the signal.
            facts["value"] = brought.get((*box, facts["message"]))
        entries = found.setdefault(box, {})
        number, is_saved = facts["entry"], row[4] == Event.STEP_SAVED
        if is_saved or number not in entries:
            entries[number] = _entry(facts, intake.at_ms or 0, is_saved=is_saved)
    return found


def _entry(facts: Mapping[str, Any], at_ms: int, *, is_saved: bool) -> StepEntry | None:
    digest, value = facts.get("digest"), facts.get("value")
    if is_saved and facts["bytes"] is not None and (value is None or digest_of(value) != digest):
        return None
    kind = facts.get("kind") or "step"
    until_ms, message = facts.get("until_ms"), facts.get("message")
    name, fence = facts["name"], facts["fence"]
    return StepEntry(name, is_saved, at_ms, fence, digest, value, kind, until_ms, message)


def box_restorations(
    entries: Mapping[tuple[str, str], Mapping[int, StepEntry | None]], job_id: str, life: str | None
) -> list[Restoration] | None:
    """Return the records that put a job's box back; None if the log does not have all of it."""
    if life is None:
        return []
    numbered = entries.get((job_id, life), {})
    known = [numbered.get(number) for number in range(1, len(numbered) + 1)]
    if not known or None in known:
        return None
    return entries_again(job_id, life, [entry_text(entry) for entry in known if entry is not None])


def lost_boxes(
    database: Database, queue: str, lives: Mapping[str, str]
) -> Iterator[tuple[str, list[Restoration] | None]]:
    """Yield pairs of a job's id and the records that put its box back, or None in place of the records if the log does
    not have the whole box. ``lives`` are the ids of the boxes, by job id."""
    ids = list(lives)
    with database.readers.connect() as connection:
        for begin in range(0, len(ids), CHUNK):
            chunk = ids[begin : begin + CHUNK]
            entries = entries_in(rebuild.events_of(connection, queue, chunk))
            for job_id in chunk:
                yield job_id, box_restorations(entries, job_id, lives[job_id])
