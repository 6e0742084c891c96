"""Where the numbering of a queue's entries begins or breaks, as far as the entries tell."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, NamedTuple

from rq_core.model.events import OutboxId
from rq_core.model.machine import Event
from sql_audit.mirror import losses
from sql_audit.mirror.intake import NAME_LENGTH_MAX, Intake, clean, to_json


class Break(NamedTuple):
    """A row of mirror_epoch, to be."""

    at: OutboxId
    kind: str
    at_ms: int
    reason: str | None = None
    old: OutboxId | None = None
    missing: int | None = None
    detail: str | None = None

    def row(self, queue: str) -> dict[str, Any]:
        """The row, by column."""
        return {
            "queue": queue, "epoch": self.at.epoch, "seq": self.at.seq,
            "kind": self.kind, "at_ms": self.at_ms, "reason": self.reason,
            "old_epoch": None if self.old is None else self.old.epoch,
            "old_seq": None if self.old is None else self.old.seq,
            "missing": self.missing, "detail": self.detail,
        }  # fmt: skip


def follows(before: OutboxId, after: OutboxId) -> bool:
    """Whether there is nothing between two numbers. (What begins an epoch says so itself.)"""
    if after.epoch == before.epoch:
        return after.seq == before.seq + 1
    return after.epoch > before.epoch and after.seq == 0


def contiguous(ids: Iterable[OutboxId]) -> bool:
    """Whether each number follows the one before."""
    return all(follows(a, b) for a, b in pairwise(ids))


def goes_on(intake: Intake, before: OutboxId | None) -> bool:
    """Whether an entry goes on from the one before, as far as it tells: not if it begins an epoch
    after another one.
    """
    if intake.event is not Event.EPOCH_STARTED or before is None:
        return True
    return losses.told_last(intake) == before


def completes_baseline(intake: Intake) -> bool:
    """Whether an entry ends a complete baseline."""
    if intake.event is not Event.POLICY_CHANGED:
        return False
    return (intake.data.get("field"), intake.data.get("new")) == ("baseline", "done")


def end_of_batch(intakes: Iterable[Intake], before: OutboxId | None) -> int | None:
    """How many entries make a batch, if not all do: it ends before an epoch that does not go on from
    it, and behind a complete baseline. What they say of all jobs is said between two batches.
    """
    for index, intake in enumerate(intakes):
        if completes_baseline(intake):
            return index + 1
        if index and not goes_on(intake, before):
            return index
        before = intake.id
    return None


def among(
    intakes: Iterable[Intake], before: OutboxId | None, at_ms: int, fork: losses.Fork | None
) -> list[Break]:
    """Beginnings of epochs and gaps among entries. ``before``: the entry before, which was at ``at_ms``."""
    breaks: list[Break] = []
    for intake in intakes:
        at, its_ms = intake.id, intake.at_ms or at_ms
        if intake.event is Event.EPOCH_STARTED:
            breaks.append(_beginning(intake, before, its_ms))
            if fork is None or fork.at == at:
                breaks += _at_beginning(intake, before, its_ms, fork)
        elif before is None:
            reason = "the stream began in the middle of an epoch"
            breaks.append(Break(at, "joined", its_ms, reason))
        elif not follows(before, at):
            same = at.epoch == before.epoch
            missing = at.seq - before.seq - 1 if same else None
            reason = "entries are missing" if same else "the epoch's beginning is missing"
            breaks.append(Break(at, "gap", its_ms, reason, before, missing))
        before = at
    return breaks


def _at_beginning(
    intake: Intake, before: OutboxId | None, at_ms: int, fork: losses.Fork | None
) -> list[Break]:
    """What an epoch's beginning reveals, if Redis' last entry was not the one mirrored last."""
    told = losses.told_last(intake)
    passed = 0 if fork is None else fork.passed
    if before is None or (told == before and not passed):
        return []
    if told is None or told < before or passed:
        knew = "nothing" if told is None else f"events up to {told}"
        if passed:
            knew += f", {passed} of them under numbers that SQL had passed"
        return [Break(intake.id, "lost", at_ms, f"Redis remembered {knew}", before)]
    missing = told.seq - before.seq if told.epoch == before.epoch else None
    return [Break(intake.id, "gap", at_ms, f"Redis had events up to {told}", before, missing)]


def _beginning(intake: Intake, before: OutboxId | None, at_ms: int) -> Break:
    return Break(
        intake.id, "started", at_ms, _word(intake.data.get("reason")), before,
        detail=to_json({k: v for k, v in intake.data.items() if v is not None}),
    )  # fmt: skip


def _word(value: Any) -> str | None:
    return clean(value)[:NAME_LENGTH_MAX] if isinstance(value, str) else None
