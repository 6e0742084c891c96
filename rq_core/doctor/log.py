"""What the outbox says of the jobs, as far back as it goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rq_core.model.events import Entry, JobRecord, Undecodable, decode, fold
from rq_core.model.machine import Event


@dataclass
class Log:
    """The outbox, decoded and folded."""

    records: dict[str, JobRecord] = field(default_factory=dict)
    """Every job that the log has, gone ones included."""
    entries: int = 0
    whole: bool = False
    """Whether a live job must be in it: it begins with the queue, or with a complete baseline."""
    unreadable: list[str] = field(default_factory=list)
    gaps: list[str] = field(default_factory=list)
    """Ids of entries before which some are missing."""
    seq_max: int = 0


def read_log(snapshot: Mapping[str, Any]) -> Log:
    """Decode and fold the outbox of a snapshot."""
    log = Log()
    before: Entry | None = None
    for entry_id, raw in snapshot["outbox"]:
        log.entries += 1
        try:
            entry = decode(entry_id, raw)
            _fold(log, entry)
        except (Undecodable, ValueError, TypeError) as error:
            log.unreadable.append(f"{entry_id}: {error}")
            before = None
            continue
        if before is not None:
            same = before.id.epoch == entry.id.epoch
            if entry.id.seq != (before.id.seq + 1 if same else 0):
                log.gaps.append(entry_id)
        if entry.event is Event.EPOCH_STARTED and entry.id.seq == 0:
            reason = entry.data["reason"]
            first = reason == "created" and log.entries == 1
            attached = reason == "attached" and snapshot["meta"].get("baseline") == "done"
            log.whole = log.whole or first or attached
        before = entry
    return log


def _fold(log: Log, entry: Entry) -> None:
    for event in entry.jobs:
        known = log.records.get(event.job_id)
        if entry.event is Event.SETTLEMENT_REFUSED and known is None:
            continue  # That a worker was refused says nothing of the job.
        record, _ = fold(known, entry, event)
        log.records[event.job_id] = record
        log.seq_max = max(log.seq_max, record.seq or 0)
