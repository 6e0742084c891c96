"""Finds out from events how jobs left Redis. The command ``rq-core doctor`` and the package ``sql_audit`` compare these
ends with the lines of the key ``results``.

This module does no I/O. The command passes entries of the outbox, and ``sql_audit`` passes entries of the audit log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rq_core.model.events import Entry, JobEvent, JobRecord, OutboxId, fold
from rq_core.model.table.effects import BEGINNINGS, CLEARS, JOB_ENDS
from rq_core.model.table.machine import Event, State


class Asked(NamedTuple):
    """The options of a job that still matter after its end, and whether the job was ever claimed."""

    task: str | None
    once_ms: int | None
    call: str | None
    keep_ms: int | None
    claimed: bool
    """True if the job was ever claimed."""


class End(NamedTuple):
    """The end of a job: how it left Redis, as the log shows it."""

    event: Event
    at: OutboxId
    """Id of the outbox entry of ``event``."""
    at_ms: int
    facts: dict[str, Any]
    """The fields of ``event`` for the job, by name."""
    asked: Asked | None = None
    """The job's options that have an effect after its end; None: the log lacks the event with which the job began."""
    died_ms: int | None = None
    """Unix ms at which the job died, if it was dead before it left Redis. None: the job was not dead, or the time is
    unknown."""
    died_of: str | None = None
    is_last: bool = False
    """True if this is certainly the last end of a job with this id. It is False if another job with the id may have
    ended later, in entries that are missing or that Redis forgot."""

    @property
    def fence(self) -> str | None:
        """Fence of the claim that the event ended; None: the event ended no claim."""
        return self.facts.get("fence")

    @property
    def digest(self) -> str | None:
        """The digest of a successful job's kept result; None: no result is kept."""
        return self.facts.get("value_digest")

    @property
    def value(self) -> str | None:
        """A successful job's kept result, as JSON; None: the log does not have the result."""
        return self.facts.get("value")

    @property
    def since_ms(self) -> int | None:
        """Unix ms of the job's end. For a dead job that was pruned, this is the time of the job's death. None:
        unknown."""
        return self.died_ms if self.event is Event.PRUNED else self.at_ms

    @property
    def once_ms(self) -> int | None:
        """Unix ms until which the job's id is remembered. None: the id is not remembered, or the log lacks the job's
        options."""
        asked = self.asked
        if asked is None or asked.once_ms is None or asked.once_ms <= self.at_ms:
            return None
        return asked.once_ms if asked.claimed or self.event is Event.REPLACED else None

    @property
    def until_ms(self) -> int | None:
        """Unix ms until which the job's outcome and result are kept. None: they are not kept, or the log lacks the
        job's options."""
        keep_ms = None if self.asked is None else self.asked.keep_ms
        return None if keep_ms is None else self.at_ms + keep_ms


@dataclass
class Lives:
    """The states of jobs, computed from events, and how the jobs that are not in Redis now ended."""

    records: dict[str, JobRecord] = field(default_factory=dict)
    """The record of each job in the added events, by id; also of jobs that have left Redis."""
    ends: dict[str, End] = field(default_factory=dict)
    began: dict[str, OutboxId] = field(default_factory=dict)
    """The entry with which the last job of each id began, by id. An id is left out if this entry may be missing from
    the log."""

    def add(self, entry: Entry, event: JobEvent) -> None:
        """Apply the next event of a job to its record. If the event is the job's end, store the end. If the event
        brings the job back into Redis, remove the stored end."""
        job_id = event.job_id
        known = self.records.get(job_id)
        if entry.event in CLEARS and known is None:
            return  # The event does not say in which state the job is.
        is_gone = known is None or known.state is None
        died_ms = died_of = None
        if known is not None and known.state is State.DEAD and job_id in self.began:
            died_ms, died_of = known.since_ms, known.reason
        record, _ = fold(known, entry, event)
        self.records[job_id] = record
        if entry.event in BEGINNINGS:
            if record.state is not None:
                self.began[job_id] = entry.id
        elif is_gone and entry.event not in CLEARS:
            self.began.pop(job_id, None)  # The event with which it began was not added.
        if record.state is not None:
            self.ends.pop(job_id, None)
        elif entry.event in JOB_ENDS:
            # Other events of a job that has left Redis, such as a refused settlement, do not change how it ended.
            asked = _asked(record) if job_id in self.began else None
            self.ends[job_id] = End(
                entry.event, entry.id, entry.at_ms, event.fields, asked, died_ms, died_of
            )

    def miss(self) -> None:
        """Forget all ends, because the caller knows that entries are missing. In these entries, another job with the
        same id may have begun and ended."""
        self.ends.clear()
        self.began.clear()


def claim_of(fence: str | None) -> OutboxId | None:
    """Return the id of the outbox entry in which a claim was made, from the claim's fence. Returns None if no script
    can have assigned the fence."""
    try:
        claim = OutboxId.parse(fence or "")
    except ValueError:
        return None
    return claim if claim.is_given else None


def _asked(record: JobRecord) -> Asked:
    return Asked(
        record.task, record.once_ms, record.call_digest, record.keep_ms, claimed=record.claims > 0
    )
