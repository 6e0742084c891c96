"""The log of one queue, replayed event by event, and everything that it may not say.

:class:`Replay` is fed the rows of ``job_event`` in order and proves I2, I3, I4, I5 and I6 of the
design from them alone: it keeps the live jobs and the holders of every scope, and nothing of what is
over. It does no I/O, and it never stops at what is wrong: that is noted, and applied, since what
Redis did is what happened.

Where the log says itself that it does not know (a recorded gap, events in quarantine, a baseline that
is not complete), the replay forgets what it knew, takes a first event of any kind as legal, and notes
why it cannot tell.

    >>> replay = Replay("mail")
    >>> replay.feed([("mail", 7, 0, 0, "paused", 1, None, None, "ada", None, None)])
    >>> [v.says for v in replay.violations]
    ['the log begins in the middle of epoch 7, and no such beginning is recorded']
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from rq_core.model.events import OutboxId
from rq_core.model.lib.text import counted
from rq_core.model.table.effects import CLAIM_ENDS, EFFECTS, ONLY_CLAIM_ENDS, target
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from rq_core.model.table.fields import TRAITS
from rq_core.model.table.machine import CLAIMED_STATES, TRANSITIONS, Event, State
from rq_core.model.unique_names import read_stands
from sql_audit.proof.epoch_starts import Beginning, orphaned_by, reasons_of_next
from sql_audit.proof.event_details import facts_in
from sql_audit.proof.findings import VIOLATIONS_KEPT, Loss, Note, SetBack, Violation
from sql_audit.proof.replay import contradictions
from sql_audit.proof.replay.contradictions import Fault, Replacing
from sql_audit.proof.replay.held_names import Names, Windows
from sql_audit.proof.replay.holders import NOTHING, Holders, Listed, held_in
from sql_audit.proof.replay.live_job import Record
from sql_audit.store.job_rows import EventRow
from sql_audit.store.schema.tables import QUARANTINED

CACHED_MAX: Final = 10_000
"""Distinct details of claims that are kept as read."""


_READY: Final = str(State.READY)
_SCHEDULED: Final = str(State.SCHEDULED)
_RUNNING: Final = str(State.RUNNING)
_DEAD: Final = str(State.DEAD)
_CLAIMED: Final = frozenset(str(s) for s in CLAIMED_STATES)

_SOURCES: Final = {
    str(event): frozenset(str(t.source) for t in TRANSITIONS if t.event is event and t.source)
    for event in Event
}
"""Event → the states in which it may meet a job."""


_OF_JOBS: Final = frozenset(map(str, JOB_EVENT_FIELDS))
"""Events that happen to a job."""

SETTLEMENTS: Final = frozenset({Event.SUCCEEDED, Event.RETRIED, Event.DIED, Event.ROLLED_BACK})
"""Events with which the holder of a claim ends it. (A cancelled job's claim may also end with its lease.)"""

_MOST: Final = {"failures": ("failure", "max_attempts"), "losses": ("loss", "max_losses")}
"""What is counted, what one of it is called, and how many there may be."""
_TRAITS: Final = {field.name: str(field.line) for field in TRAITS if field.name != "name_stands"}
"""A trait's name in an event, and in a state line."""


class Replay:
    """The state of one queue as its log tells it. Feed it the rows in order, then look."""

    def __init__(
        self,
        queue: str,
        *,
        beginnings: Sequence[Beginning] = (),
        recorded: Mapping[OutboxId, Iterable[str]] | None = None,
        orphaned: Sequence[tuple[OutboxId, OutboxId]] | None = None,
        passed: Mapping[int, int] | None = None,
        since_ms: int = 0,
        pruned_to: tuple[int, int] | None = None,
    ) -> None:
        """``beginnings``: of every epoch in the log, in order. ``recorded``: the kinds of mirror_epoch
        by the entry where each stands. ``orphaned``: after which entry and before which beginning of an
        epoch events are orphaned, as recorded, in order; None: as the beginnings tell it. ``passed``: by
        epoch, how many entries before it could not be mirrored. ``since_ms``: what is older is replayed,
        but not judged. ``pruned_to``: up to this entry only whole jobs are left, and what concerns the
        queue itself; it is replayed and not judged, until :meth:`pass_cut`.
        """
        self.queue = queue
        self.since_ms = since_ms
        self.jobs: dict[str, Record] = {}
        self.holders = Holders()
        self.names = Names()
        self.windows = Windows()
        self.violations: list[Violation] = []
        self.counts: Counter[str] = Counter()
        """Violations by invariant, those not kept included."""
        self.notes: list[Note] = []
        self.losses: list[Loss] = []
        """What Redis forgot, and the log knows that it did."""
        self.set_back: list[SetBack] = []
        """Where Redis' clock went back, the first ones."""
        self.events = self.entries = self.orphans = self.restated = 0
        self.open = True
        """Whether jobs may be alive that the log has not told of yet."""
        self._recorded = {at: set(kinds) for at, kinds in (recorded or {}).items()}
        self._told_by_mirror = orphaned is not None
        self._orphaned = list(orphaned_by(beginnings) if orphaned is None else orphaned)
        self._survivors = {before.epoch: after for after, before in self._orphaned}
        self._passed = dict(passed or {})
        self._forgotten = 0
        """Orphans since the last event that is none."""
        self._reasons = reasons_of_next(
            [b for b in beginnings if not self._lies_in_orphaned(OutboxId(b.epoch, 0))]
        )
        self._cut = pruned_to
        self._before_cut = pruned_to is not None
        self._unknown_from = sorted(
            at for at, kinds in self._recorded.items() if not kinds.isdisjoint(("gap", "joined"))
        )
        """Where the log lacks what was before, in what was pruned."""
        self._quarantined: tuple[int, int] | None = None
        self.at: tuple[int, int] = (0, 0)
        """The last entry, as (epoch, seq)."""
        self._before: OutboxId | None = None
        """The entry before that."""
        self._ordinal = -1
        self._first_row: EventRow = ()
        """The first row of the last entry."""
        self._is_paused = False
        """Whether the queue was paused in this epoch, and not resumed since."""
        self._replacing = Replacing()
        self._deleted_at: tuple[int, int] | None = None
        """Where an operator last deleted the queue."""
        self._row: EventRow = ()
        self._listed: dict[str, Listed] = {}
        self._steps: dict[str, Callable[[EventRow, str], None]] = {
            **dict.fromkeys(map(str, EFFECTS), self._moved),
            # Most events are of these, or they begin a life.
            "enqueued": self._enqueued,
            "claimed": self._claimed,
            "succeeded": self._succeeded,
            "discarded": self._discarded,
            "replaced": self._replaced,
            "restored": self._restored,
            "baseline": self._baseline,
            "settlement_refused": self._compare,
            "freed": self._freed,
            **dict.fromkeys(("paused", "resumed"), self._paused_or_not),
            "policy_changed": self._policy_changed,
            "cap_changed": self._cap_changed,
            "epoch_started": self._epoch_started,
            "queue_deleted": self._queue_deleted,
            QUARANTINED: self._held_back,
        }

    def feed(self, rows: Iterable[EventRow]) -> None:
        """Replay rows of job_event, in the order of schema.EVENT_COLUMNS and of their key."""
        steps, replacing = self._steps, self._replacing.by_jobs
        for row in rows:
            self._row = row
            self.events += 1
            entry = row[1], row[2]
            if entry == self.at:
                self._ordinal += 1
                first = self._first_row
                if row[5] != first[5] or row[4] != first[4] or row[8] != first[8]:
                    self._judge(contradictions.of_entry(first, row))
            else:
                self._next_entry(entry)
                self.windows.pass_to(row[5])
                if self._first_row and row[5] < self._first_row[5]:
                    self._clock_went_back(row)
                self._first_row = row
            if row[3] != self._ordinal and self._quarantined != entry:
                self._violated("I5", f"is number {row[3]} of its entry, {self._ordinal} is missing")
                self._ordinal = row[3]
            if self._orphaned and self._is_orphan(entry):
                self.orphans += 1
                self._forgotten += 1
                if row[4] == "epoch_started":
                    self._forgotten_epoch(row)
                continue
            if row[4] not in _OF_JOBS:
                self._judge(contradictions.of_queue(row))
            elif row[6] is None:
                self._violated("I7", "names no job")
                continue
            if replacing and not self._ordinal:
                self._judge(self._replacing.pass_entry(row[4]))
            try:
                steps[row[4]](row, row[6])
                self._judge(contradictions.of_event(row[4], row[10]))
            except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
                self._violated("I7", f"cannot be read: {type(error).__name__}: {error}")

    def pass_cut(self) -> None:
        """What was left by a prune has been fed; from here on nothing may be missing."""
        assert self._cut is not None
        self._pass_unknown(self._cut)
        self.at, self._before_cut = self._cut, False
        self._replacing.forget()

    def finish(self) -> None:
        """The log ends here."""
        if not self.events:
            self.notes.append(Note(OutboxId(0, 0), self.since_ms, "there are no events"))
        elif self.open:
            self._note(
                "what was alive when the log began is not told completely: no complete baseline"
            )

    # What is wrong, and what cannot be told.

    def _violated(self, invariant: str, says: str) -> None:
        queue, epoch, seq, ordinal, kind, at_ms, job_id, claim, worker, _, _ = self._row
        if at_ms < self.since_ms or self._before_cut:
            return
        self.counts[invariant] += 1
        if self.counts[invariant] <= VIOLATIONS_KEPT:
            found = Violation(
                invariant, queue, epoch, seq, ordinal, at_ms, kind, job_id, claim, worker, says
            )
            self.violations.append(found)

    def _note(self, says: str) -> None:
        row = self._row
        if self._before_cut:
            return
        if row[5] >= self.since_ms and len(self.notes) < VIOLATIONS_KEPT:
            self.notes.append(Note(OutboxId(row[1], row[2]), row[5], says))

    def _clock_went_back(self, row: EventRow) -> None:
        before = self._first_row
        if row[1] == before[1] and row[5] >= self.since_ms and len(self.set_back) < VIOLATIONS_KEPT:
            self.set_back.append(SetBack(OutboxId(row[1], row[2]), row[5], before[5] - row[5]))

    def _judge(self, faults: Iterable[Fault]) -> None:
        for invariant, says in faults:
            self._violated(invariant, says)

    def _forget(self) -> None:
        self._replacing.forget()
        self._is_paused = False
        self.jobs.clear()
        self.names.clear()
        self.windows.forget()
        self.holders.forget()
        self.open = True

    # The numbering (I5).

    def _pass_unknown(self, entry: tuple[int, int]) -> None:
        """Forget, if before ``entry`` there is a recorded gap that has not been met yet."""
        while self._unknown_from and self._unknown_from[0] <= entry:
            if self._unknown_from.pop(0) > self.at:
                self._forget()

    def _next_entry(self, entry: tuple[int, int]) -> None:
        if self._before_cut:
            self._pass_unknown(entry)
            self._before = OutboxId(*self.at) if self.entries else None
            self.at, self._ordinal = entry, 0
            self.entries += 1
            return
        before, first = self.at, not self.entries and self._cut is None
        self._before = None if first else OutboxId(*before)
        self.at, self._ordinal = entry, 0
        self.entries += 1
        self.names.pass_time(self._row[5])
        epoch, seq = entry
        if first:
            if self._row[4] != "epoch_started" and not self._told(entry, "joined", "gap"):
                says = (
                    f"the log begins in the middle of epoch {epoch}, and no such beginning is "
                    "recorded"
                )
                self._violated("I5", says)
        elif epoch == before[0] and seq == before[1] + 1:
            pass
        elif epoch > before[0] and seq == 0 and self._row[4] in ("epoch_started", QUARANTINED):
            pass  # _epoch_started looks at what it says of the one before
        elif self._told(entry, "gap", "joined"):
            self._note(f"entries after {self._before} are missing, as recorded")
            self._forget()
        else:
            self._violated("I5", f"entries are missing: the one before is {self._before}")
        if self._told(entry, "changed"):
            self._violated("I7", "Redis has another entry under this number: it is in quarantine")

    def _told(self, entry: tuple[int, int], *kinds: str) -> bool:
        kept = self._recorded.get(OutboxId(*entry)) if self._recorded else None
        return kept is not None and not kept.isdisjoint(kinds)

    def _is_orphan(self, entry: tuple[int, int]) -> bool:
        while self._orphaned and entry >= self._orphaned[0][1]:
            del self._orphaned[0]
        return bool(self._orphaned) and entry > self._orphaned[0][0]

    def _lies_in_orphaned(self, entry: OutboxId) -> bool:
        return any(after < entry < before for after, before in self._orphaned)

    def _lost(self, row: EventRow, after: OutboxId, jobs: int, says: str) -> None:
        if self._before_cut:
            # What is counted, and the entry that is named, are of jobs that are still there.
            says = f"{says} (of what the prune left)"
        at = OutboxId(row[1], row[2])
        self.losses.append(Loss(at, row[5], after, self._forgotten, jobs, says))
        self._forgotten = 0

    def _epoch_started(self, row: EventRow, _: str) -> None:
        facts = _facts(row)
        self._is_paused = False
        epoch, reason, before = row[1], facts["reason"], self._before
        told = None if facts.get("last") is None else OutboxId.parse(facts["last"])
        if row[2] != 0:
            self._violated("I5", "an epoch begins in the middle of another")
        fresh = reason == "created" and told is None and self._reasons.get(epoch) != "attached"
        if before is None:
            fresh = fresh and facts.get("old_epoch") is None
        elif self._passed.get(epoch):
            self._passed_over(row, before)
        elif told is None and reason == "created" and self._deleted_at == before:
            pass  # Nothing was there to be lost.
        elif told is not None and told > before:
            self._went_ahead(told, before)
        elif told != before:
            self._went_back(row, reason, told, before)
        elif reason == "replid_changed":
            self._lost(
                row, before, 0, f"{_whose(facts)}: what followed {before}, if anything, is lost"
            )
        if reason != "attached":
            # Another server, whose clock may be behind: Redis has dropped what had run out by the
            # clock before.
            self.holders.forget_rates()
            self.windows.forget()
        if told is None or reason in ("attached", "outbox_lost"):
            self._forget()
            if fresh:
                self.open = False
                self.holders.limits.whole = True

    def _forgotten_epoch(self, row: EventRow) -> None:
        """An epoch that Redis began and then forgot. What had been lost before it is lost all the same."""
        if self._before is not None and _facts(row)["reason"] != "attached":
            says = "Redis went on with another history, which it forgot later"
            says = f"{says}: what followed {self._before}, if anything, is lost"
            at = OutboxId(row[1], row[2])
            self.losses.append(Loss(at, row[5], self._before, 0, 0, says))

    def _went_ahead(self, told: OutboxId, before: OutboxId) -> None:
        """Redis had more than the log has."""
        if self._before_cut:
            return
        if not self._told(self.at, "gap"):
            says = f"Redis had entries up to {told}, the log ends at {before}: not recorded"
            self._violated("I5", says)
        self._note(f"entries after {before}, up to {told}, are missing")
        self._forget()

    def _went_back(
        self, row: EventRow, reason: str, told: OutboxId | None, before: OutboxId
    ) -> None:
        """Redis' last entry was not the last one that SQL has."""
        count = 0
        if told is not None:
            if self._told_by_mirror and self._survivors.get(row[1]) != told:
                says = f"Redis knew entries up to {told}: the mirror did not record that later ones are orphaned"
                self._violated("I5", says)
            says = (
                f"Redis remembered entries up to {told}: {_orphaned(self._forgotten, before)}, "
                f"and whatever followed {before} is lost"
            )
        elif reason == "created":
            count = len(self.jobs)
            says = f"Redis remembered nothing: {_lost(count)}, and whatever followed"
            says = f"{says} {before}"
        else:
            says = f"Redis lost its log: whatever followed {before} in it"
        self._lost(row, before, count, says)

    def _passed_over(self, row: EventRow, before: OutboxId) -> None:
        """Redis had entries before this epoch that could not be mirrored."""
        survivor = self._survivors.get(row[1])
        count = 0 if survivor is not None else len(self.jobs)
        knew = "nothing" if survivor is None else f"entries up to {survivor}"
        lost = _orphaned(self._forgotten, before)
        if survivor is None:
            lost = _lost(count)
        self._lost(row, before, count, f"Redis remembered {knew}: {lost}, and whatever followed")
        self._note(
            f"{self._passed[row[1]]} entries that Redis had before this cannot be mirrored, since SQL "
            "had passed their numbers: they are in quarantine, and a baseline says what came of them"
        )
        self._forget()

    # Jobs (I2, I4, I6) and what their claims hold (I3).

    def _meet(self, row: EventRow, job_id: str) -> Record:
        """The job of an event that meets one that is alive."""
        record = self.jobs.get(job_id)
        kind = row[4]
        if record is None:
            record = self.jobs[job_id] = Record(row[9])
            if not self.open:
                ends = kind in ONLY_CLAIM_ENDS
                says = "ends a claim of" if ends else "happens to"
                self._violated("I2" if ends else "I6", f"{says} a job that is not alive")
        elif record.state is not None and record.state not in _SOURCES[kind]:
            if kind in ONLY_CLAIM_ENDS:
                self._violated(
                    "I2", f"ends a claim, and none is in force: the job is {record.state}"
                )
            elif kind == "claimed" and record.state in _CLAIMED:
                self._violated("I2", f"is claimed while claim {record.fence} is in force")
            else:
                self._violated("I6", f"{record.state} -{kind}-> is not a transition")
        self._judge(contradictions.of_job(row, record))
        return record

    def _release(self, record: Record) -> None:
        if record.held is not None:
            self.holders.release(record.task, record.held)
            record.held = None
        record.fence = record.worker = None

    def _end(self, record: Record, fence: str | None, holder: str | None) -> None:
        """The claim in force ends, by an event that presents ``fence``. ``holder`` is whose claim it ends; None: the
        event does not say."""
        if record.fence is not None and fence != record.fence:
            self._violated("I9", f"presents fence {fence}, in force is {record.fence}")
        elif holder is not None and record.worker is not None and holder != record.worker:
            self._violated("I9", f"ends a claim of {holder}, in force is that of {record.worker}")
        self._release(record)

    def _begin(self, row: EventRow, job_id: str, facts: Mapping[str, Any], state: str) -> Record:
        """A job is alive from here on."""
        old = self.jobs.get(job_id)
        if old is not None:
            self._violated("I6", f"{old.state or 'alive'} -{row[4]}-> is not a transition")
            self._release(old)
            self.names.end(old.unique, job_id)
        record = self.jobs[job_id] = Record(row[9], state)
        self._judge(contradictions.of_claim(row, facts, state))
        record.lane = facts.get("lane")
        record.priority, record.due = facts.get("priority"), facts.get("due_ms")
        record.claims = facts.get("claims", 0)
        # Most jobs have no trait.
        for name in _TRAITS.keys() & facts.keys():
            setattr(record, _TRAITS[name], facts[name])
        if record.unique is not None:
            record.stands = read_stands(facts.get("name_stands"))
            self._take_name(record, job_id, dead=state == _DEAD)
        record.failures = facts.get("failures", 0)
        record.losses = facts.get("losses", 0)
        record.unknown = facts.get("unknown", 0)
        record.max_attempts = facts.get("max_attempts")
        record.max_losses = facts.get("max_losses")
        return record

    def _take_name(self, record: Record, job_id: str, *, dead: bool = False) -> None:
        """The job holds its name from here on, if it does by how it stands."""
        if record.unique is None:
            return
        at_ms, stands = self._row[5], record.stands
        if not stands.holds(dead=dead, claims=record.claims or 0) and (
            stands.how != "until" or at_ms >= (stands.at_ms or 0)
        ):
            return
        other = self.names.take(record.unique, job_id, stands, at_ms)
        if other is not None:
            self._violated("I13", f"takes the name {record.unique}, and job {other} holds it")

    def _freed(self, row: EventRow, job_id: str) -> None:
        """An operator took its name from it, or it is overdue, and yields it to another job."""
        name, record = _facts(row)["unique_name"], self.jobs.get(job_id)
        holder = self.names.free(name)
        # A job that has ended may hold a name of which a baseline does not tell.
        if holder != job_id and (holder is not None or (record is not None and not self.open)):
            held = "none does" if holder is None else f"job {holder} does"
            self._violated("I13", f"frees the name {name} as if this job held it, and {held}")
        if record is not None and record.unique == name:
            record.unique = None

    def _settle_name(self, record: Record, job_id: str, event: Event, state: State | None) -> None:
        """What an event does to the name of a job that was alive, or dead."""
        if state is None or state is State.DEAD:
            self.names.end(record.unique, job_id)
        elif event is Event.REQUEUED and record.stands.how == "done":
            self._take_name(record, job_id)

    def _use_id(self, row: EventRow, job_id: str) -> None:
        """A job of this id begins."""
        until = self.windows.until(job_id)
        if until is not None:
            self._violated("I14", f"begins {until - row[5]} ms before its id is forgotten")

    def _enqueued(self, row: EventRow, job_id: str) -> None:
        facts = _facts(row)
        self._use_id(row, job_id)
        state = _READY if facts.get("due_ms") is None else _SCHEDULED
        self._begin(row, job_id, facts, state)
        lane = facts.get("lane")
        if lane is not None or state is _SCHEDULED or "seq" not in facts or "spec" in facts:
            self._judge(contradictions.of_beginning(facts, row[5], row[9], state))
        if self._replacing.by_jobs:
            self._replacing.by_jobs.pop(job_id, None)

    def _restored(self, row: EventRow, job_id: str) -> None:
        facts = _facts(row)
        self._use_id(row, job_id)
        self._begin(row, job_id, facts, facts["target"])
        self._judge(contradictions.of_beginning(facts, row[5], row[9], facts["target"]))

    def _discarded(self, row: EventRow, job_id: str) -> None:
        if (old := self.jobs.get(job_id)) is not None:
            self._violated("I6", f"{old.state or 'alive'} -{row[4]}-> is not a transition")
        facts = _facts(row)
        self._judge(contradictions.of_discarded(facts, self.holders.limits.of(facts["scope"])))

    def _claimed(self, row: EventRow, job_id: str) -> None:
        record = self._meet(row, job_id)
        detail = row[10]
        listed = self._listed.get(detail) if detail is not None else NOTHING
        if listed is None:
            listed = self._read_listed(detail)
        if record.held is not None:
            self._release(record)
        if record.claims is not None and row[7] != record.claims + 1:
            self._violated("I4", f"is claim {row[7]}, the one before was {record.claims}")
        if record.expires is not None and row[5] >= record.expires:
            late_ms = row[5] - record.expires
            self._violated("I19", f"begins {late_ms} ms after the job's deadline")
        if self._is_paused:
            self._violated("I6", "is claimed while the queue is paused")
        record.state = _RUNNING
        if record.unique is not None and record.stands.how == "claim":
            self.names.end(record.unique, job_id)
        record.claims = row[7]
        record.fence = f"{row[1]}-{row[2]}"
        record.worker = row[8]
        record.held = listed.held
        holders = self.holders
        holders.hold(record.task, listed.held)
        for says in holders.breaches(listed, row[5]):
            self._violated("I3", says)
        for says in holders.disagreements(record.task, record.lane, detail, listed):
            self._violated("I3", says)

    def _read_listed(self, detail: str) -> Listed:
        if len(self._listed) >= CACHED_MAX:
            self._listed.clear()
        listed = self._listed[detail] = Listed.read(facts_in(detail).get("scopes"))
        return listed

    def _succeeded(self, row: EventRow, job_id: str) -> None:
        record, facts = self._meet(row, job_id), _facts(row)
        self._end(record, facts.get("fence"), row[8])
        if len(facts) > 1:
            is_kept = None if record.priority is None else record.keep is not None
            for says in contradictions.of_value(facts, is_kept=is_kept):
                self._violated("I14", says)
        self.names.end(record.unique, job_id)
        self.windows.ended(job_id, Event.SUCCEEDED, record.claims, record.once)
        del self.jobs[job_id]

    def _replaced(self, row: EventRow, job_id: str) -> None:
        self._replacing.add(_facts(row)["by_job"], job_id)
        self._moved(row, job_id)

    def _compare(self, row: EventRow, job_id: str) -> None:
        """Judge an event by what the log says of its job before."""
        record, rule = self.jobs.get(job_id), contradictions.RULES.get(row[4])
        if rule is not None and record is not None:
            self._judge(rule(_facts(row), record, row))

    def _paused_or_not(self, row: EventRow, _: str) -> None:
        self._is_paused = row[4] == "paused"

    # Any other event, by the table.

    def _moved(self, row: EventRow, job_id: str) -> None:
        event = Event(row[4])
        effect, facts = EFFECTS[event], _facts(row)
        state = target(event, facts)
        self._compare(row, job_id)
        record = self._meet(row, job_id)
        if event in CLAIM_ENDS:
            holder = row[8] if event in SETTLEMENTS else facts.get("worker")
            self._end(record, facts.get("fence"), holder)
        elif state not in CLAIMED_STATES:
            self._release(record)
        elif record.fence is not None and facts.get("fence") != record.fence:
            self._violated("I9", f"concerns fence {facts.get('fence')}, in force is {record.fence}")
        for name, told in effect.takes:
            if name in _MOST:
                self._count(record, event, name, facts[told], state)
        for name in effect.zeroes:
            setattr(record, name, 0)
        if "expires_ms" in effect.clears:
            record.expires = None
        if facts.get("lane") is not None:
            record.lane = facts["lane"]
        self._settle_name(record, job_id, event, state)
        if state is None:
            self.windows.ended(job_id, event, record.claims, record.once)
            del self.jobs[job_id]
        else:
            record.state, record.due = str(state), facts.get("due_ms")
            record.unknown = facts.get("unknown", record.unknown)
            if event is Event.EDITED:
                record.expires = facts.get("expires_ms")
                record.priority = record.priority and facts["priority"]

    def _count(
        self, record: Record, event: Event, name: str, number: int, state: State | None
    ) -> None:
        """A failure or a loss: whether it is the next, and leads where its number says."""
        what, most = _MOST[name]
        before, at_most = getattr(record, name), getattr(record, most)
        # A job may die without having failed: no worker knew its task.
        step = 0 if event is Event.DIED else 1
        if before is not None and not before + step <= number <= before + 1:
            self._violated("I4", f"is {what} {number}, the one before was {before}")
        dead = state is State.DEAD
        if at_most is not None:
            early = dead and number < at_most and event is Event.LEASE_EXPIRED
            if early or number > at_most or (number == at_most and not dead):
                says = f"makes the job {state} at {what} {number} of at most {at_most}"
                self._violated("I4", says)
        setattr(record, name, number)

    def _baseline(self, row: EventRow, job_id: str) -> None:
        facts = _facts(row)
        old = self.jobs.pop(job_id, None)
        fence, state = facts.get("fence"), facts.get("state")
        held = held_in(facts.get("lane"))
        if old is not None:
            if not self.open and (old.state, old.fence) != (state, fence):
                self.restated += 1
            if old.held is not None and old.fence == fence:
                held = old.held
            self._release(old)
            self.names.end(old.unique, job_id)
        elif not self.open and state is not None:
            self.restated += 1
        if state is None:
            return
        record = self._begin(row, job_id, facts, state)
        record.fence = fence
        record.worker = facts.get("worker")
        if state in _CLAIMED:
            record.held = held
            self.holders.hold(record.task, held)

    # The queue itself.

    def _policy_changed(self, row: EventRow, _: str) -> None:
        facts = _facts(row)
        if (facts["field"], facts.get("new")) == ("baseline", "done"):
            self.open = False

    def _cap_changed(self, row: EventRow, _: str) -> None:
        facts = _facts(row)
        for says in self.holders.change(
            facts["scope"], facts.get("old"), facts.get("new"), facts["version"]
        ):
            self._violated("I3", says)

    def _queue_deleted(self, row: EventRow, _: str) -> None:
        self._deleted_at = row[1], row[2]
        self.windows.forget()
        if self.jobs:
            self._violated(
                "I1",
                f"deletes the queue while {counted(len(self.jobs), 'job is', 'jobs are')} alive",
            )

    def _held_back(self, row: EventRow, _: str) -> None:
        self._quarantined = row[1], row[2]
        self._note("is in quarantine: what it says is not known")
        self._forget()


def _whose(facts: Mapping[str, Any]) -> str:
    """Which server has the queue since an epoch began, as far as names of histories tell."""
    match facts.get("went_on"):
        case True:
            return "a replica took the primary's place, or the primary was restarted"
        case False:
            return "a server with another history has the queue: a slot that moved, or a restart"
    return "Redis went on with another history"


def _facts(row: EventRow) -> Mapping[str, Any]:
    return facts_in(row[10])


def _orphaned(events: int, upto: OutboxId) -> str:
    return f"{counted(events, 'event')} up to {upto} {'is' if events == 1 else 'are'} orphaned"


def _lost(jobs: int) -> str:
    return counted(jobs, "live job was lost", "live jobs were lost")
