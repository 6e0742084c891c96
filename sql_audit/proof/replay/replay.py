"""Replays the log of one queue event by event.

:class:`Replay` takes the rows of ``job_event`` in order. From these rows alone it checks the numbering (I5) and the
losses that epochs show. :class:`sql_audit.proof.replay.job_replay.JobReplay` checks the other invariants.

Only live jobs, holders and names are in memory, and no I/O is done. A wrong event is reported and then applied, because
it has happened in Redis.

The log itself may show that it is incomplete: a gap, events in quarantine, an unfinished baseline. Then the replay
forgets all jobs, accepts any event as the first event of a job, and adds a note with the reason.

    >>> replay = Replay("mail")
    >>> replay.feed([("mail", 7, 0, 0, "paused", 1, None, None, "ada", None, None)])
    >>> [v.says for v in replay.violations]
    ['the log begins in the middle of epoch 7, and no such beginning is recorded']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rq_core.model.durable.box_log import BOX_EVENTS
from rq_core.model.events import OutboxId
from rq_core.model.lib.text import counted
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from sql_audit.proof.epoch_starts import EpochStart, orphaned_by, reasons_of_next
from sql_audit.proof.event_details import facts_in
from sql_audit.proof.findings import Loss, Note
from sql_audit.proof.replay import contradictions, parked_jobs
from sql_audit.proof.replay.job_replay import JobReplay
from sql_audit.proof.replay.log_findings import LogFindings
from sql_audit.store.job_rows import EventRow
from sql_audit.store.schema.tables import QUARANTINED

_OF_JOBS: Final = frozenset(map(str, JOB_EVENT_FIELDS))
"""Types of events that are about jobs."""
_OF_BOXES: Final = frozenset(map(str, BOX_EVENTS))
"""Types of events that are about boxes of durable jobs."""


class Replay:
    """Replays the events of one queue and keeps the queue's state. Call :meth:`feed` with the rows in order, then
    :meth:`finish`.

    The findings are attributes, such as ``violations``.
    """

    def __init__(
        self,
        queue: str,
        *,
        beginnings: Sequence[EpochStart] = (),
        recorded: Mapping[OutboxId, Iterable[str]] | None = None,
        orphaned: Sequence[tuple[OutboxId, OutboxId]] | None = None,
        passed: Mapping[int, int] | None = None,
        since_ms: int = 0,
        pruned_to: tuple[int, int] | None = None,
    ) -> None:
        """Begin before the first event of a queue.

        - ``beginnings``: the first events of all epochs in the log, in order.
        - ``recorded``: for each entry that has rows in ``mirror_epoch``, the kinds of these rows.
        - ``orphaned``: the recorded ranges of orphaned events, in order. A range is a pair: the last entry before the
          range, and the first entry of the epoch after the range. None: the ranges are computed from ``beginnings``.
        - ``passed``: by epoch, how many entries before the epoch could not be mirrored.
        - ``since_ms``: events before this time (Unix ms) are replayed, but their violations are not reported.
        - ``pruned_to``: the cut of the last prune. Up to this entry the log has only events of the queue, and of the
          jobs that the prune kept. Violations by these events are not reported until :meth:`pass_cut` is called.
        """
        self.queue = queue
        self.since_ms = since_ms
        self._found = found = LogFindings(
            queue, since_ms=since_ms, before_cut=pruned_to is not None
        )
        self.violations, self.counts = found.violations, found.counts
        self.notes, self.losses, self.set_back = found.notes, found.losses, found.set_back
        self._live = live = JobReplay(found)
        self.jobs, self.holders = live.jobs, live.holders
        self.names, self.windows = live.names, live.windows
        self.events = self.entries = self.orphans = 0
        self._recorded = {at: set(kinds) for at, kinds in (recorded or {}).items()}
        self._orphans_are_recorded = orphaned is not None
        self._orphaned = list(orphaned_by(beginnings) if orphaned is None else orphaned)
        self._survivors = {before.epoch: after for after, before in self._orphaned}
        self._passed = dict(passed or {})
        self._reasons = reasons_of_next(
            [b for b in beginnings if not self._lies_in_orphaned(OutboxId(b.epoch, 0))]
        )
        self._cut = pruned_to
        self._unknown_from = sorted(
            at for at, kinds in self._recorded.items() if not kinds.isdisjoint(("gap", "joined"))
        )
        """The entries after recorded gaps of the log to which the replay has not come yet."""
        self._quarantined: tuple[int, int] | None = None
        self.at: tuple[int, int] = (0, 0)
        """The number of the last replayed entry, as (epoch, seq)."""
        self._before: OutboxId | None = None
        """The entry that was replayed before the entry ``at``; None at the first entry."""
        self._ordinal = -1
        self._first_row: EventRow = ()
        """The row of the first event in the last replayed entry."""
        self._deleted_at: tuple[int, int] | None = None
        """The entry with which an operator last deleted the queue."""
        self._steps: dict[str, Callable[[EventRow, str], None]] = {
            **live.steps(),
            **dict.fromkeys(("paused", "resumed"), self._paused_or_not),
            "policy_changed": self._policy_changed,
            "cap_changed": self._cap_changed,
            "pause_changed": self._pause_changed,
            "schedule_changed": live.ticks.changed,
            "epoch_started": self._epoch_started,
            "queue_deleted": self._queue_deleted,
            QUARANTINED: self._held_back,
        }

    @property
    def restated(self) -> int:
        """Number of ``baseline`` events that disagree with the earlier events about a job's state or claim. (A baseline
        states each live job's state again.)
        """
        return self._live.restated

    def feed(self, rows: Iterable[EventRow]) -> None:
        """Replay rows of ``job_event``, sorted by their key, with the columns in the order of EVENT_COLUMNS."""
        steps, found, replacing = self._steps, self._found, self._live.replacing.by_jobs
        judge, of_event = found.judge, contradictions.of_event
        for row in rows:
            found.row = row
            self.events += 1
            _, epoch, seq, ordinal, kind, at_ms, job_id, _, by, _, detail = row
            entry = epoch, seq
            if entry == self.at:
                self._ordinal += 1
                first = self._first_row
                if at_ms != first[5] or kind != first[4] or by != first[8]:
                    judge(contradictions.of_entry(first, row))
            else:
                self._next_entry(entry)
                self.windows.pass_to(at_ms)
                self._pass_time(row)
                self._first_row = row
            if ordinal != self._ordinal and self._quarantined != entry:
                found.violated(
                    "I5", f"is number {ordinal} of its entry, {self._ordinal} is missing"
                )
                self._ordinal = ordinal
            if self._orphaned and self._is_orphan(entry):
                self.orphans += 1
                found.forgotten += 1
                self._pass_orphan(row)
                continue
            if not by and kind != QUARANTINED:
                found.violated("I6", "names no actor")
            if kind not in _OF_JOBS:
                judge(contradictions.of_queue(row))
            elif job_id is None:
                found.violated("I7", "names no job")
                continue
            if replacing and not self._ordinal:
                judge(self._live.replacing.pass_entry(kind))
            try:
                steps[kind](row, job_id)
                if faults := of_event(kind, detail):
                    judge(faults)
            except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
                found.violated("I7", f"cannot be read: {type(error).__name__}: {error}")

    def pass_cut(self) -> None:
        """Report violations from the next event on, because all of the pruned part of the log has been replayed."""
        assert self._cut is not None
        self._pass_unknown(self._cut)
        self.at, self._found.before_cut = self._cut, False
        self._live.replacing.forget()
        self._live.ticks.forget()
        # A prune removes failures, and successes of probes.
        self.holders.breakers.forget()

    def finish(self) -> None:
        """End the replay. Judge the jobs that are parked at the end. Add a note if the log has no events, or if the log
        may lack live jobs."""
        for ripe, says in parked_jobs.left_parked(self.jobs.values(), self.at):
            self._found.violated("I23", says, row=ripe)
        if not self.events:
            self.notes.append(Note(OutboxId(0, 0), self.since_ms, "there are no events"))
        elif self._live.open:
            self._found.note(
                "jobs that were alive when the log began may be unknown: no complete baseline"
            )

    def _pass_time(self, row: EventRow) -> None:
        """Judge the pauses of scopes that need the next entry. ``row`` is the first row of this entry.

        If Redis' clock went back before the entry, forget how much of each rate is in use.
        """
        if self._first_row and row[5] < self._first_row[5]:
            self._found.clock_went_back(self._first_row)
            # Redis has moved rates that were used up to the time that its clock shows now.
            self.holders.forget_rates()
        breakers = self.holders.breakers
        if breakers.pausing:
            for paused, says in breakers.finish_call(row):
                self._found.violated("I3", says, row=paused)

    # The numbering (I5).

    def _pass_unknown(self, entry: tuple[int, int]) -> None:
        """Forget all jobs if the log has a recorded gap between the last entry and ``entry``."""
        while self._unknown_from and self._unknown_from[0] <= entry:
            if self._unknown_from.pop(0) > self.at:
                self._live.forget()

    def _next_entry(self, entry: tuple[int, int]) -> None:
        if self._found.before_cut:
            self._pass_unknown(entry)
            self._before = OutboxId(*self.at) if self.entries else None
            self.at, self._ordinal = entry, 0
            self.entries += 1
            return
        before, first = self.at, not self.entries and self._cut is None
        self._before = None if first else OutboxId(*before)
        self.at, self._ordinal = entry, 0
        self.entries += 1
        self.names.pass_time(self._found.row[5])
        epoch, seq = entry
        if first:
            if self._found.row[4] != "epoch_started" and not self._is_recorded(
                entry, "joined", "gap"
            ):
                says = (
                    f"the log begins in the middle of epoch {epoch}, and no such beginning is "
                    "recorded"
                )
                self._found.violated("I5", says)
        elif epoch == before[0] and seq == before[1] + 1:
            pass
        elif (
            epoch > before[0] and seq == 0 and self._found.row[4] in ("epoch_started", QUARANTINED)
        ):
            pass  # _epoch_started compares the entry with the epoch before
        elif self._is_recorded(entry, "gap", "joined"):
            self._found.note(f"entries after {self._before} are missing, as recorded")
            self._live.forget()
        else:
            self._found.violated("I5", f"entries are missing: the one before is {self._before}")
        if self._recorded and self._is_recorded(entry, "changed"):
            self._found.violated(
                "I7", "Redis has another entry under this number: it is in quarantine"
            )

    def _is_recorded(self, entry: tuple[int, int], *kinds: str) -> bool:
        kept = self._recorded.get(OutboxId(*entry)) if self._recorded else None
        return kept is not None and not kept.isdisjoint(kinds)

    def _is_orphan(self, entry: tuple[int, int]) -> bool:
        while self._orphaned and entry >= self._orphaned[0][1]:
            del self._orphaned[0]
        return bool(self._orphaned) and entry > self._orphaned[0][0]

    def _lies_in_orphaned(self, entry: OutboxId) -> bool:
        return any(after < entry < before for after, before in self._orphaned)

    def _epoch_started(self, row: EventRow, _: str) -> None:
        facts = facts_in(row[10])
        self._live.is_paused = False
        epoch, reason, before = row[1], facts["reason"], self._before
        last = None if facts.get("last") is None else OutboxId.parse(facts["last"])
        if row[2] != 0:
            self._found.violated("I5", "an epoch begins in the middle of another")
        fresh = reason == "created" and last is None and self._reasons.get(epoch) != "attached"
        if before is None:
            fresh = fresh and facts.get("old_epoch") is None
        elif self._passed.get(epoch):
            self._passed_over(row, before)
        elif last is None and reason == "created" and self._deleted_at == before:
            pass  # The queue had been deleted: no job could be lost.
        elif last is not None and last > before:
            self._went_ahead(last, before)
        elif last != before:
            self._went_back(row, reason, last, before)
        elif reason == "replid_changed":
            self._found.lost(
                before, 0, f"{_whose(facts)}: what followed {before}, if anything, is lost"
            )
        if reason != "attached":
            # The epoch may be on another server, whose clock may be behind the one before. Redis may have dropped ids
            # and rates that were over by the clock before.
            self.holders.forget_rates()
            self.windows.forget()
        if last is None or reason in ("attached", "outbox_lost"):
            self._live.forget()
            if fresh:
                self._live.open = False
                self.holders.limits.whole = True
                # After a loss, a restore puts pauses and failures back.
                self.holders.breakers.forget(is_new=before is None)

    def _pass_orphan(self, row: EventRow) -> None:
        if row[4] == "epoch_started":
            self._forgotten_epoch(row)
        elif row[4] in _OF_BOXES:
            self._live.box_forgotten(row)

    def _forgotten_epoch(self, row: EventRow) -> None:
        """Record a loss of Redis that the first event of an epoch shows, ``row``. Redis itself has later forgotten this
        epoch.
        """
        if self._before is not None and facts_in(row[10])["reason"] != "attached":
            says = "Redis went on with another history, which it forgot later"
            says = f"{says}: what followed {self._before}, if anything, is lost"
            at = OutboxId(row[1], row[2])
            self.losses.append(Loss(at, row[5], self._before, 0, 0, says))

    def _went_ahead(self, last: OutboxId, before: OutboxId) -> None:
        """Add a note that Redis had entries, up to ``last``, that the log lacks after ``before``. Report a violation if
        this gap is not recorded.
        """
        if self._found.before_cut:
            return
        if not self._is_recorded(self.at, "gap"):
            says = f"Redis had entries up to {last}, the log ends at {before}: not recorded"
            self._found.violated("I5", says)
        self._found.note(f"entries after {before}, up to {last}, are missing")
        self._live.forget()

    def _went_back(
        self, row: EventRow, reason: str, last: OutboxId | None, before: OutboxId
    ) -> None:
        """Record a loss: when Redis began the epoch, its last entry (``last``; None: it had no entry) was older than
        ``before``, the last entry in SQL.
        """
        count = 0
        if last is not None:
            if self._orphans_are_recorded and self._survivors.get(row[1]) != last:
                says = f"Redis knew entries up to {last}: the mirror did not record that later ones are orphaned"
                self._found.violated("I5", says)
            says = (
                f"Redis remembered entries up to {last}: {_orphaned(self._found.forgotten, before)}, "
                f"and whatever followed {before} is lost"
            )
        elif reason == "created":
            count = len(self.jobs)
            says = f"Redis remembered nothing: {_lost(count)}, and whatever followed"
            says = f"{says} {before}"
        else:
            says = f"Redis lost its log: whatever followed {before} in it"
        self._found.lost(before, count, says)

    def _passed_over(self, row: EventRow, before: OutboxId) -> None:
        """Record that Redis lost events just before a new epoch, and add a note that the mirror could not copy some of
        Redis' entries."""
        survivor = self._survivors.get(row[1])
        count = 0 if survivor is not None else len(self.jobs)
        knew = "nothing" if survivor is None else f"entries up to {survivor}"
        lost = _orphaned(self._found.forgotten, before)
        if survivor is None:
            lost = _lost(count)
        self._found.lost(before, count, f"Redis remembered {knew}: {lost}, and whatever followed")
        self._found.note(
            f"{self._passed[row[1]]} entries that Redis had before this cannot be mirrored, since SQL "
            "had passed their numbers: they are in quarantine, and a baseline says what came of them"
        )
        self._live.forget()

    # The queue itself.

    def _paused_or_not(self, row: EventRow, _: str) -> None:
        self._live.is_paused = row[4] == "paused"

    def _policy_changed(self, row: EventRow, _: str) -> None:
        facts = facts_in(row[10])
        if (facts["field"], facts.get("new")) == ("baseline", "done"):
            self._live.open = False

    def _cap_changed(self, row: EventRow, _: str) -> None:
        facts = facts_in(row[10])
        for says in self.holders.change(
            facts["scope"], facts.get("old"), facts.get("new"), facts["version"], row[5]
        ):
            self._found.violated("I3", says)

    def _pause_changed(self, row: EventRow, _: str) -> None:
        facts = facts_in(row[10])
        if facts.get("until_ms") is None:
            self.holders.resume(facts["scope"])
            return
        self.holders.paused_by[facts["scope"]] = row[8]
        if facts["until_ms"] <= row[5]:
            self._found.violated("I3", f"pauses {facts['scope']} until a time that is over")
        if not self.holders.pause(facts["scope"], facts["until_ms"]):
            self._found.violated("I3", f"makes the pause of {facts['scope']} shorter")

    def _queue_deleted(self, row: EventRow, _: str) -> None:
        self._deleted_at = row[1], row[2]
        self._live.ticks.forget()
        self.windows.forget()
        if self.jobs:
            self._found.violated(
                "I1",
                f"deletes the queue while {counted(len(self.jobs), 'job is', 'jobs are')} alive",
            )

    def _held_back(self, row: EventRow, _: str) -> None:
        self._quarantined = row[1], row[2]
        self._found.note("is in quarantine: what it says is not known")
        self._live.forget()


def _whose(facts: Mapping[str, Any]) -> str:
    """Return a phrase that names the server which has the queue since an epoch began. ``facts`` are the fields of the
    epoch's first event.
    """
    match facts.get("went_on"):
        case True:
            return "a replica took the primary's place, or the primary was restarted"
        case False:
            return "a server with another history has the queue: a slot that moved, or a restart"
    return "Redis went on with another history"


def _orphaned(events: int, upto: OutboxId) -> str:
    return f"{counted(events, 'event')} up to {upto} {'is' if events == 1 else 'are'} orphaned"


def _lost(jobs: int) -> str:
    return counted(jobs, "live job was lost", "live jobs were lost")
