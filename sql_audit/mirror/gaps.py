"""Finds the beginnings of epochs in a batch, and missing entry numbers. (An epoch is an unbroken history of a queue in
Redis.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rq_core.model.events import OutboxId
from sql_audit.mirror.epochs import Beginning, follows
from sql_audit.mirror.field_types import NAME_LENGTH_MAX
from sql_audit.mirror.forks import Fork, made_again
from sql_audit.mirror.intake import Intake
from sql_audit.store.storable_text import clean, to_json


class Break(NamedTuple):
    """A row to insert into ``mirror_epoch``: at the entry ``at``, an epoch begins, or the numbering of entries has a
    break.
    """

    at: OutboxId
    kind: str
    at_ms: int
    reason: str | None = None
    old: OutboxId | None = None
    missing: int | None = None
    detail: str | None = None

    def row(self, queue: str, batch: int) -> dict[str, Any]:
        """Return the row as a dict from column to value."""
        return {
            "queue": queue, "batch": batch, "epoch": self.at.epoch, "seq": self.at.seq,
            "kind": self.kind, "at_ms": self.at_ms, "reason": self.reason,
            "old_epoch": None if self.old is None else self.old.epoch,
            "old_seq": None if self.old is None else self.old.seq,
            "missing": self.missing, "detail": self.detail,
        }  # fmt: skip


def among(
    intakes: Sequence[Intake], before: OutboxId | None, at_ms: int, fork: Fork | None
) -> list[Break]:
    """Return the beginnings of epochs and the breaks in the numbering that a batch of checked entries (``intakes``)
    shows.

    ``before`` is the last entry before the batch, and ``at_ms`` is its time (Unix ms). ``fork`` is the last entry that
    Redis and SQL share, if Redis has lost data.
    """
    breaks: list[Break] = []
    if fork is not None and fork.changed is not None:
        reason = "Redis has another entry under a number that is mirrored already"
        breaks.append(Break(fork.changed, "changed", fork.beginning.at_ms, reason, before))
    for index, intake in enumerate(intakes):
        at, its_ms = intake.id, intake.at_ms or at_ms
        if intake.beginning is not None:
            breaks.append(_started(intake, intake.beginning, before))
            if index == 0 and before is not None:
                # A later epoch of a batch continues from the entry before it: otherwise the batch would end there.
                breaks += _forgotten(intake.beginning, before, fork)
        elif before is None:
            reason = "the stream began in the middle of an epoch"
            breaks.append(Break(at, "joined", its_ms, reason))
        elif not follows(before, at):
            same = at.epoch == before.epoch
            missing = at.seq - before.seq - 1 if same else None
            reason = "entries are missing" if same else "the epoch's beginning is missing"
            breaks.append(Break(at, "gap", its_ms, reason, before, missing))
        before, at_ms = at, its_ms
    return breaks


def _started(intake: Intake, beginning: Beginning, before: OutboxId | None) -> Break:
    at, at_ms, reason, _ = beginning
    word = None if reason is None else clean(reason)[:NAME_LENGTH_MAX]
    facts = {name: value for name, value in intake.data.items() if value is not None}
    return Break(at, "started", at_ms, word, before, detail=to_json(facts))


def _forgotten(beginning: Beginning, before: OutboxId, fork: Fork | None) -> list[Break]:
    """Return the break in the log before an epoch, as a list of at most one item. ``before`` is the last mirrored
    entry.

    The list is empty if ``before`` was Redis' last entry when the epoch began, or if an operator had deleted the queue.
    """
    at, at_ms, _, last = beginning
    passed = 0 if fork is None else len(fork.passed)
    if last == before and not passed:
        return []
    if fork is None and made_again(beginning):
        return []  # An operator had deleted the queue.
    if last is None or last < before or passed:
        knew = "nothing" if last is None else f"events up to {last}"
        if passed:
            knew += f", {passed} of them under numbers that SQL had passed"
        return [Break(at, "lost", at_ms, f"Redis remembered {knew}", before)]
    missing = last.seq - before.seq if last.epoch == before.epoch else None
    return [Break(at, "gap", at_ms, f"Redis had events up to {last}", before, missing)]
