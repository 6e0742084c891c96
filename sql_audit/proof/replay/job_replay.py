"""Replays the live jobs of one queue: their states, claims, holders and names (invariants I2, I3, I4, I6, I9, I13, I14,
I19 to I23).

:mod:`sql_audit.proof.replay.replay` checks the order and the numbers of events. It passes each event of a job to
:class:`JobReplay`. A wrong event is reported and then applied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from rq_core.model.durable.tries import is_spent, read_base
from rq_core.model.table.effects import CLAIM_ENDS, EFFECTS, ONLY_CLAIM_ENDS, target
from rq_core.model.table.fields import TRAITS
from rq_core.model.table.machine import CLAIMED_STATES, TRANSITIONS, Event, State
from rq_core.model.unique_names import read_stands
from sql_audit.proof.event_details import facts_in
from sql_audit.proof.replay import contradictions, parked_jobs
from sql_audit.proof.replay.contradictions import NAMES_CLAIM, Replacing
from sql_audit.proof.replay.held_names import HeldNames, Windows
from sql_audit.proof.replay.holders import NOTHING, ClaimScopes, Holders, held_in
from sql_audit.proof.replay.live_job import Record
from sql_audit.proof.replay.log_findings import LogFindings
from sql_audit.proof.replay.saved_steps import judge_entry
from sql_audit.proof.replay.schedule_ticks import ScheduleTicks
from sql_audit.proof.replay.settled_costs import judge_cost, judge_end, judge_pause, judge_success
from sql_audit.store.job_rows import EventRow

CACHED_MAX: Final = 10_000
"""Maximum number of distinct details of claims whose parsed scopes are cached."""

_READY: Final = str(State.READY)
_SCHEDULED: Final = str(State.SCHEDULED)
_RUNNING: Final = str(State.RUNNING)
_DEAD: Final = str(State.DEAD)
_CLAIMED: Final = frozenset(str(s) for s in CLAIMED_STATES)

_SOURCES: Final = {
    str(event): frozenset(str(t.source) for t in TRANSITIONS if t.event is event and t.source)
    for event in Event
}
"""By type of event: the states that a job may have before the event."""

SETTLEMENTS: Final = frozenset(
    {Event.SUCCEEDED, Event.RETRIED, Event.DIED, Event.ROLLED_BACK, Event.PARKED}
)
"""Types of events with which a worker ends its own claim. (The claim of a cancelled job may also end because its lease
expires.)"""

_MOST: Final = {"failures": ("failure", "max_attempts"), "losses": ("loss", "max_losses")}
"""The counters of a job that have a limit, by field name: the noun for messages, and the field with the limit."""
_RULES: Final = {
    **contradictions.RULES,
    "parked": parked_jobs.judge_park,
    "woken": parked_jobs.judge_wake,
}
_TRAITS: Final = {field.name: str(field.line) for field in TRAITS if field.name != "name_stands"}
"""The name of each trait in a state line, by the trait's name in events."""


class JobReplay:
    """The live jobs of a queue after the events so far, the scopes that their claims hold (what caps and rates count),
    and the unique names and ids that are in use."""

    def __init__(self, found: LogFindings) -> None:
        self.jobs: dict[str, Record] = {}
        self.holders = Holders()
        self.names = HeldNames()
        self.windows = Windows()
        self.replacing = Replacing()
        self.ticks = ScheduleTicks(found, self._beside)
        self.open = True
        """True if the log is incomplete, so that jobs without an event in it may be live."""
        self.is_paused = False
        """True if the queue was paused in the current epoch and has not been resumed."""
        self.restated = 0
        """Number of ``baseline`` events that disagree with the earlier events about a job's state or claim. (A baseline
        states each live job's state again.)"""
        self._forgotten_boxes: set[str] = set()
        """Ids of boxes (the saved steps and signals of durable jobs) for which Redis has forgotten events. A restore
        may have put back what these events had written. The numbers in the box may then differ from those that the
        other events show."""
        self._found = found
        self._judge = found.judge
        self._violated = found.violated
        self._scopes_read: dict[str, ClaimScopes] = {}

    def steps(self) -> dict[str, Callable[[EventRow, str], None]]:
        """Return, by type of event, the method that replays it. The method gets the event's row and the job's id."""
        return {
            **dict.fromkeys(map(str, EFFECTS), self._moved),
            # Most events have these types, or they begin a job.
            "enqueued": self._enqueued,
            "claimed": self._claimed,
            "succeeded": self._succeeded,
            "discarded": self._discarded,
            "replaced": self._replaced,
            "restored": self._restored,
            "baseline": self._baseline,
            "settlement_refused": lambda row, job_id: self._compare(row, self._beside(row, job_id)),
            "freed": self._freed,
            **dict.fromkeys(("step_begun", "step_saved", "signalled"), self._stepped),
            "signal_lost": self._signal_lost,
            "cost_settled": self._settled,
            "scope_paused": self._settled,
            "ticked": self.ticks.ticked,
        }

    def forget(self) -> None:
        """Forget all jobs, because the log does not show what happened to them."""
        self.replacing.forget()
        self.ticks.forget()
        self.is_paused = False
        self.jobs.clear()
        self.names.clear()
        self._forgotten_boxes.clear()
        self.windows.forget()
        self.holders.forget()
        self.open = True

    # A job's life, and the claim in force.

    def _meet(self, row: EventRow, job_id: str) -> Record:
        """Return the live job of an event that changes a job's state. Report the event as a violation if the job is not
        live, unless the log may lack the job's beginning.

        Also report an illegal transition, and a wrong task or claim number.
        """
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
        # Most events name the task and the claim that the record has: then the rule has nothing to say.
        if row[9] != record.task or (
            kind != "claimed" and row[7] != (record.claims if kind in NAMES_CLAIM else None)
        ):
            self._judge(contradictions.of_job(row, record))
        return record

    def _beside(self, row: EventRow, job_id: str) -> Record | None:
        """Return the live job of an event that does not change the job's state; None if the job is not live. Report a
        wrong task or claim number."""
        if (record := self.jobs.get(job_id)) is not None:
            self._judge(contradictions.of_job(row, record))
        return record

    def _release(self, record: Record) -> None:
        listed = () if record.listed is None else record.listed.breakers
        if listed or self.holders.breakers.handled:
            self.holders.breakers.release(listed, record)
        if record.held is not None:
            self.holders.release(record.task, record.held)
            record.held = None
        record.fence = record.worker = None

    def _end(self, record: Record, fence: str | None, holder: str | None) -> None:
        """End the claim in force by an event that presents ``fence``, the claim's fencing token. Report a wrong fence
        or worker. ``holder`` is the worker whose claim the event ends; None if the event names no worker."""
        if record.fence is not None and fence != record.fence:
            self._violated("I9", f"presents fence {fence}, in force is {record.fence}")
        elif holder is not None and record.worker is not None and holder != record.worker:
            self._violated("I9", f"ends a claim of {holder}, in force is that of {record.worker}")
        self._release(record)

    def _begin(self, row: EventRow, job_id: str, facts: Mapping[str, Any], state: str) -> Record:
        """Add a live job in ``state``, and return it. Report a violation if a job with this id is already live."""
        old = self.jobs.get(job_id)
        if old is not None:
            self._violated("I6", f"{old.state or 'alive'} -{row[4]}-> is not a transition")
            self._release(old)
            self.names.end(old.unique, job_id)
        record = self.jobs[job_id] = Record(row[9], state)
        if row[7] is not None or state in _CLAIMED:
            self._judge(contradictions.of_claim(row, facts, state))
        record.lane = facts.get("lane")
        record.priority, record.due = facts.get("priority"), facts.get("due_ms")
        record.claims = facts.get("claims", 0)
        if not _TRAITS.keys().isdisjoint(facts):  # Most jobs have no trait.
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
        if record.life is None:
            record.begin_box()
        return record

    def _take_name(self, record: Record, job_id: str, *, dead: bool = False) -> None:
        """Give a unique job its name, if a job in its state holds one. Report a violation if another job holds it."""
        if record.unique is None:
            return
        at_ms, stands = self._found.row[5], record.stands
        if not stands.holds(dead=dead, claims=record.claims or 0) and (
            stands.how != "until" or at_ms >= (stands.at_ms or 0)
        ):
            return
        other = self.names.take(record.unique, job_id, stands, at_ms)
        if other is not None:
            self._violated("I13", f"takes the name {record.unique}, and job {other} holds it")

    def _freed(self, row: EventRow, job_id: str) -> None:
        """Free a job's name, because an operator freed it, or because the job has waited past its deadline and another
        job takes the name. Report a violation if the job did not hold the name."""
        name, record = facts_in(row[10])["unique_name"], self._beside(row, job_id)
        holder = self.names.free(name)
        # A job that has ended may still hold its name; no baseline shows that.
        if holder != job_id and (holder is not None or (record is not None and not self.open)):
            held = "none does" if holder is None else f"job {holder} does"
            self._violated("I13", f"frees the name {name} as if this job held it, and {held}")
        if record is not None and record.unique == name:
            record.unique = None

    def _settle_name(self, record: Record, job_id: str, event: Event, state: State | None) -> None:
        """Free the name of a job that an event ends or makes dead. Give a requeued job its name again."""
        if state is None or state is State.DEAD:
            self.names.end(record.unique, job_id)
        elif event is Event.REQUEUED and record.stands.how == "done":
            self._take_name(record, job_id)

    def _use_id(self, row: EventRow, job_id: str) -> None:
        """Report a violation if a job begins although Redis still remembers its id from an earlier job."""
        until = self.windows.until(job_id)
        if until is not None:
            self._violated("I14", f"begins {until - row[5]} ms before its id is forgotten")

    def _enqueued(self, row: EventRow, job_id: str) -> None:
        facts = facts_in(row[10])
        self._use_id(row, job_id)
        state = _READY if facts.get("due_ms") is None else _SCHEDULED
        self._begin(row, job_id, facts, state)
        if state is _SCHEDULED or not contradictions.is_plain_beginning(facts):
            self._judge(contradictions.of_beginning(facts, row[5], row[9], state))
        if self.replacing.by_jobs:
            self.replacing.by_jobs.pop(job_id, None)

    def _restored(self, row: EventRow, job_id: str) -> None:
        facts = facts_in(row[10])
        self._use_id(row, job_id)
        self._begin(row, job_id, facts, facts["target"])
        self._judge(contradictions.of_beginning(facts, row[5], row[9], facts["target"]))

    def _discarded(self, row: EventRow, job_id: str) -> None:
        if (old := self.jobs.get(job_id)) is not None:
            self._violated("I6", f"{old.state or 'alive'} -{row[4]}-> is not a transition")
        facts = facts_in(row[10])
        self._judge(contradictions.of_discarded(facts, self.holders.limits.of(facts["scope"])))

    def _claimed(self, row: EventRow, job_id: str) -> None:
        record = self._meet(row, job_id)
        detail = row[10]
        listed = self._scopes_read.get(detail) if detail is not None else NOTHING
        if listed is None:
            listed = self._read_scopes(detail)
        if record.held is not None:
            self._release(record)
        if record.claims is not None and row[7] != record.claims + 1:
            self._violated("I4", f"is claim {row[7]}, the one before was {record.claims}")
        if record.expires is not None and row[5] >= record.expires:
            late_ms = row[5] - record.expires
            self._violated("I19", f"begins {late_ms} ms after the job's deadline")
        if self.is_paused:
            self._violated("I6", "is claimed while the queue is paused")
        record.state = _RUNNING
        if record.unique is not None and record.stands.how == "claim":
            self.names.end(record.unique, job_id)
        record.claims = row[7]
        record.fence = f"{row[1]}-{row[2]}"
        record.worker = row[8]
        record.held = listed.held
        record.listed, record.taken = listed, False
        holders = self.holders
        holders.hold(record.task, listed.held)
        for says in holders.breaches(listed, row[5]) if listed.limits else ():
            self._violated("I3", says)
        for says in holders.disagreements(record.task, record.lane, detail, listed):
            self._violated("I3", says)
        brakes = listed.breakers
        for says in holders.breakers.begin(brakes, record, row[5]) if brakes else ():
            self._violated("I3", says)
        if listed.rates and record.priority is not None:
            for says in holders.wrong_costs(record.cost, listed):
                self._violated("I3", says)

    def _read_scopes(self, detail: str) -> ClaimScopes:
        if len(self._scopes_read) >= CACHED_MAX:
            self._scopes_read.clear()
        listed = self._scopes_read[detail] = ClaimScopes.read(facts_in(detail).get("scopes"))
        return listed

    def _succeeded(self, row: EventRow, job_id: str) -> None:
        record, facts = self._meet(row, job_id), facts_in(row[10])
        if faults := judge_success(row, record, self.holders):
            self._judge(faults)
        self._end(record, facts.get("fence"), row[8])
        if len(facts) > 1:
            is_kept = None if record.priority is None else record.keep is not None
            for says in contradictions.of_value(facts, is_kept=is_kept):
                self._violated("I14", says)
        self.names.end(record.unique, job_id)
        self.windows.ended(job_id, Event.SUCCEEDED, record.claims, record.once)
        del self.jobs[job_id]

    def _replaced(self, row: EventRow, job_id: str) -> None:
        self.replacing.add(facts_in(row[10])["by_job"], job_id)
        self._moved(row, job_id)

    def _compare(self, row: EventRow, record: Record | None) -> None:
        """Report contradictions between an event and the earlier events of its job (None: the job is not live)."""
        rule = _RULES.get(row[4])
        if record is not None and record.waits is not None:
            self._judge(parked_jobs.stay(row[4], record))
        if rule is not None and record is not None:
            if record.life in self._forgotten_boxes:
                parked_jobs.forget_box_put_back(row, facts_in(row[10]), record)
            self._judge(rule(facts_in(row[10]), record, row))

    def box_forgotten(self, row: EventRow) -> None:
        """Note that Redis has forgotten ``row``, an event about a box (a durable job's saved steps and signals)."""
        with suppress(KeyError, ValueError, TypeError, AttributeError, RecursionError):
            self._forgotten_boxes.add(facts_in(row[10])["life"])

    def _settled(self, row: EventRow, job_id: str) -> None:
        record = self._beside(row, job_id)
        if record is not None:
            judge = judge_cost if row[4] == Event.COST_SETTLED else judge_pause
            self._judge(judge(row, facts_in(row[10]), record, self.holders))
        elif not self.open:
            self._violated("I9", "is about a claim of a job that is not alive")

    def _stepped(self, row: EventRow, job_id: str) -> None:
        record, is_sent = self._beside(row, job_id), row[4] == Event.SIGNALLED
        if record is not None:
            if self._forgotten_boxes and facts_in(row[10])["life"] in self._forgotten_boxes:
                parked_jobs.forget_box_put_back(row, facts_in(row[10]), record)
            self._judge((parked_jobs.send if is_sent else judge_entry)(row, record))
        elif not self.open:
            self._violated("I21" if is_sent else "I20", "is written, and the job is not alive")

    def _signal_lost(self, row: EventRow, job_id: str) -> None:
        # Of a job that is restored, the lost signals are said before the job is there.
        if (record := self._beside(row, job_id)) is not None:
            if facts_in(row[10])["life"] in self._forgotten_boxes:
                record.entries = record.mail = None
            self._judge(parked_jobs.lose(row, record))

    # Any other event, by the table.

    def _moved(self, row: EventRow, job_id: str) -> None:
        event = Event(row[4])
        effect, facts = EFFECTS[event], facts_in(row[10])
        state = target(event, facts)
        self._compare(row, self.jobs.get(job_id))
        record = self._meet(row, job_id)
        if event in CLAIM_ENDS:
            self._judge(judge_end(event, row, facts, record, self.holders))
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
            record.expires = record.base = None
        if record.waits is not None or event is Event.PARKED:
            record.waits = facts.get("waits")
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
        """Set a job's number of failures or losses from an event, and report a wrong number.

        The number must be the next one, and at most the limit. At the limit, the event must make the job dead. Below
        the limit, a loss must not make the job dead.
        """
        what, most = _MOST[name]
        before, at_most = getattr(record, name), getattr(record, most)
        # A job may die without a failure if no worker knew its task.
        step = 0 if event is Event.DIED else 1
        if before is not None and not before + step <= number <= before + 1:
            self._violated("I4", f"is {what} {number}, the one before was {before}")
        dead = state is State.DEAD
        if at_most is not None:
            base = getattr(read_base(record.base), name)
            is_over = is_spent(number, base, at_most)
            early = dead and not is_over and event is Event.LEASE_EXPIRED
            if early or is_spent(number - 1, base, at_most) or (is_over and not dead):
                since = f", {base} before its last saved step" if base else ""
                says = f"makes the job {state} at {what} {number} of at most {at_most}{since}"
                self._violated("I4", says)
        setattr(record, name, number)

    def _baseline(self, row: EventRow, job_id: str) -> None:
        facts = facts_in(row[10])
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
