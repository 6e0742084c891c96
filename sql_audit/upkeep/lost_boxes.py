"""Finds in the log the steps and signals of durable jobs that Redis has lost. Redis keeps them in a *box* for each job.

The log has the result of a step if the task has ``audit_result="full"``. If one result is missing, nothing of the box
is put back, because the job would call the function of that step again. The log has the value of a signal if its sender
has ``audit_payload="full"``. Otherwise the sender must send the signal again, unless a wait has taken it.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rq_core.model.durable.box_log import BOX_EVENTS, LoggedBox, LoggedSignal
from rq_core.model.durable.boxes import StepEntry, entry_text, signal_of
from rq_core.model.events import OutboxId
from rq_core.model.table.machine import Event
from rq_core.model.unique_names import digest_of
from rq_core.protocol.calls.audit import Restoration, entries_again
from sql_audit.mirror.projection import rebuild
from sql_audit.proof.trusted_batches import TrustedBatches
from sql_audit.store.connection.database import Database
from sql_audit.store.job_rows import EventRow
from sql_audit.store.orphans import Range, in_any, ranges

CHUNK: Final = 1_000
"""Maximum number of jobs whose events one SQL statement reads."""


class FoldedBox:
    """A durable job's box (its steps and signals), made from the events in the log."""

    def __init__(self) -> None:
        self.entries: dict[int, StepEntry | None] = {}
        """The steps and waits by number; None in place of one whose value the log does not have."""
        self.begun: dict[int, StepEntry] = {}
        """The steps and waits by number, as their events ``step_begun`` describe them. Those that were saved later are
        included."""
        self.takes: dict[int, Mapping[str, Any]] = {}
        """By the number of a wait: the event with which the wait has taken a signal."""
        self.beside: dict[int, LoggedSignal] = {}
        """By the number of a wait: another signal, which already had the number of the taken signal when the log got
        the event of the taking. A worker has then repeated this event after a loss in Redis."""
        self.mail = LoggedBox()

    def take(self, number: int, took: Mapping[str, Any]) -> None:
        """Note that the wait with this number has taken a signal, according to the event ``took``."""
        self.takes[number] = took
        signal = self.mail.signals.get(took["message"])
        if signal is not None and not _is_same(signal.facts, took):
            self.beside[number] = signal

    def wait_again(self) -> None:
        """Open a wait again if another signal now has the number of the signal that the wait took.

        Redis then forgot that the wait took it, and gave the number to the other signal. But if a worker repeated the
        event after that, the wait stays closed, and the other signal stays untaken.
        """
        for number, took in self.takes.items():
            signal = self.mail.signals.get(took["message"])
            if signal is None or _is_same(signal.facts, took):
                self.mail.taken.add(took["message"])
            elif signal is not self.beside.get(number):
                waits = StepEntry(took["name"], False, took["at_ms"], took["fence"], kind="wait")
                self.entries[number] = self.begun.get(number, waits)

    def signals(self) -> list[str | None]:
        """Return the signals as texts for Redis, in the order of their numbers. None takes the place of an untaken
        signal whose value the log does not have.

        The list ends before the first number whose signal the log does not have.
        """
        found, numbers = self.mail.signals, itertools.count(1)
        known = [found[n] for n in itertools.takewhile(found.__contains__, numbers)]
        taken = self.mail.taken
        return [signal.text(is_taken=number in taken) for number, signal in enumerate(known, 1)]


def boxes_in(
    rows: Iterable[EventRow], orphaned: Sequence[Range]
) -> dict[tuple[str, str], FoldedBox]:
    """Return the boxes of some durable jobs (their steps and signals) by (job id, box id). ``rows`` are all events of
    these jobs, in order.

    ``orphaned`` are the ranges of events that Redis forgot. If a forgotten event contradicts another event, the other
    event counts.
    """
    found: defaultdict[tuple[str, str], FoldedBox] = defaultdict(FoldedBox)
    values: dict[tuple[Any, str], str | None] = {}
    for row in sorted(rows, key=lambda row: not in_any(OutboxId(row[1], row[2]), orphaned)):
        if row[4] not in BOX_EVENTS or (intake := rebuild.intake_of(row)) is None:
            continue
        facts = {name: column[0] for name, column in intake.columns.items()}
        box, at_ms = found[str(row[6]), facts["life"]], intake.at_ms or 0
        signals = box.mail.signals
        message: Any = facts.get("message")
        if row[4] == Event.SIGNAL_LOST:
            box.mail.lost.add(message)
            continue
        if row[4] == Event.SIGNALLED:
            box.mail.lost.discard(message)
            # A signal that is said again, perhaps in another box of the job, may lack its value.
            value = facts["value"] = facts.get("value") or values.get((row[6], facts["digest"]))
            values[row[6], facts["digest"]] = value
            signals[message] = LoggedSignal(at_ms, facts)
            continue
        number, is_saved = facts["entry"], row[4] == Event.STEP_SAVED
        if is_saved:
            box.takes.pop(number, None)
            box.beside.pop(number, None)
        if message is not None:
            box.take(number, facts | {"at_ms": at_ms})
            # The log has the value of a signal with the signal, which may have another number now.
            facts["value"] = values.get((row[6], facts["digest"]))
        old = box.entries.get(number)
        if (
            is_saved
            and old is not None
            and (old.name, old.note) == (facts["name"], facts["digest"])
        ):
            facts["value"] = facts.get("value") or old.value
        entry = _entry(facts, at_ms, is_saved=is_saved)
        if is_saved or number not in box.entries:
            box.entries[number] = entry
        if entry is not None and not is_saved:
            box.begun[number] = entry
    for box in found.values():
        box.wait_again()
    return dict(found)


def _is_same(signal: Mapping[str, Any], took: Mapping[str, Any]) -> bool:
    """Return whether the signal may be the one that a wait took: both events have the same name and digest."""
    return (signal["name"], signal["digest"]) == (signal_of(took["name"]), took["digest"])


def _entry(facts: Mapping[str, Any], at_ms: int, *, is_saved: bool) -> StepEntry | None:
    digest, value = facts.get("digest"), facts.get("value")
    if is_saved and facts["bytes"] is not None and (value is None or digest_of(value) != digest):
        return None
    kind = facts.get("kind") or "step"
    until_ms, message = facts.get("until_ms"), facts.get("message")
    name, fence = facts["name"], facts["fence"]
    return StepEntry(name, is_saved, at_ms, fence, digest, value, kind, until_ms, message)


class LostBox(NamedTuple):
    """The part of a durable job's box (its steps and signals) that can be put back into Redis from the log."""

    records: list[Restoration] | None
    """The records to send to Redis to put the box back; empty if the job has no box. None if the log lacks a step of
    the box, or if ``why_lost`` has a reason."""
    signals_lost: bool = False
    """True if the log lacks the value of a signal that the job has not taken yet. The sender must send it again."""
    why_lost: str | None = None
    """The reason why the box must not be put back: its events in the log were changed. None: there is no
    such reason."""


def box_restorations(
    boxes: Mapping[tuple[str, str], FoldedBox], job_id: str, life: str | None
) -> LostBox:
    """Return the records that put a durable job's box (its steps and signals) back into Redis. ``life`` is the id of
    the box; None: the job has no box.
    """
    box = boxes.get((job_id, life or ""))
    if life is None:
        return LostBox([])
    elif box is None:
        return LostBox(None)
    known = [box.entries.get(number) for number in range(1, len(box.entries) + 1)]
    if None in known:
        return LostBox(None)
    entries = [entry_text(entry) for entry in known if entry is not None]
    signals = box.signals()
    texts = [
        box.mail.signals[number].text_of_lost() if text is None else text
        for number, text in enumerate(signals, 1)
    ]
    # Of a signal that was lost before, an earlier restore has said that it must be sent again.
    lost = [
        number
        for number, text in enumerate(signals, 1)
        if text is None and number not in box.mail.lost
    ]
    is_lost = bool(lost) or len(signals) < len(box.mail.signals)
    return LostBox(entries_again(job_id, life, entries, texts, lost), is_lost)


def entries_of_boxes(rows: Iterable[EventRow]) -> Mapping[str, list[OutboxId]]:
    """Return, by job id, the outbox entries with events about the job's steps and signals."""
    found: defaultdict[str, list[OutboxId]] = defaultdict(list)
    for row in rows:
        if row[4] in BOX_EVENTS:
            found[str(row[6])].append(OutboxId(row[1], row[2]))
    return found


def trusted(box: LostBox, batches: TrustedBatches, entries: Iterable[OutboxId]) -> LostBox:
    """Return the box unchanged if the log's events about it pass the check of their hashes. Otherwise, return it
    without its records and with the reason.
    """
    why = batches.why_not(entries) if box.records else None
    return box if why is None else LostBox(None, why_lost=why)


def lost_boxes(
    database: Database, queue: str, lives: Mapping[str, str]
) -> Iterator[tuple[str, LostBox]]:
    """Yield, for each job, its id and the part of its box (its steps and signals) that the log has. ``lives`` are the
    ids of the boxes, by job id.
    """
    ids = list(lives)
    with database.readers.connect() as connection:
        orphaned, batches = (
            ranges(connection, queue),
            TrustedBatches(database, connection, queue, None),
        )
        for begin in range(0, len(ids), CHUNK):
            chunk = ids[begin : begin + CHUNK]
            rows = rebuild.events_of(connection, queue, chunk)
            boxes = boxes_in(rows, orphaned)
            entries = entries_of_boxes(rows)
            for job_id in chunk:
                box = box_restorations(boxes, job_id, lives[job_id])
                yield job_id, trusted(box, batches, entries.get(job_id, ()))
