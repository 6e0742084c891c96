"""Reads the outbox: the states of the jobs and the queue's settings that follow from its events."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from rq_core.model.durable.box_log import Distrust, LoggedBox, no_distrust, note_boxes
from rq_core.model.events import Entry, JobRecord, OutboxId, Undecodable, decode
from rq_core.model.idempotency import SAME, ResultLine
from rq_core.model.job_ends import End, Lives, claim_of
from rq_core.model.lib.text import number_in
from rq_core.model.limits.breaker_log import LoggedBreakers
from rq_core.model.limits.scopes import scopes_of
from rq_core.model.settings import FLAGS, SETTINGS
from rq_core.model.table.machine import Event
from rq_core.model.table.reasons import Began

RUNS: Final = frozenset({"run", "not_run"})
"""Outcomes in the events of runs that an operator asked for outside a schedule's instants."""
SCHEDULE_MARK: Final = "schedule|"
"""The prefix of the names of schedules in ``FoldedLog.moving``."""


class Since(NamedTuple):
    """The first entry of a log without missing entries: its id, and its time (Unix ms)."""

    at: OutboxId
    at_ms: int


class LoggedSchedule(NamedTuple):
    """A schedule as the last event about it describes it."""

    at: OutboxId
    """The outbox entry of the last event about the schedule."""
    state: str
    """on, paused, undeclared or removed; empty if the schedule is no longer stored."""
    version: int
    next_ms: int | None
    """The next instant (Unix ms); None if the event names none."""
    rule: str | None = None
    """The rule as JSON; None if unknown, because the log begins after the event with the rule."""
    job_digest: str | None = None
    """The digest of the job that the schedule enqueues; None if unknown."""


@dataclass
class FoldedLog:
    """The state of a queue that follows from the events of its outbox, and of an audit database if there is one."""

    lives: Lives = field(default_factory=Lives)
    """The jobs, and how they ended. Ends before missing or unreadable entries are left out."""
    since: Since | None = None
    """The log's first entry, if the log has all events since the queue was created; otherwise None."""
    made_up: dict[str, str] = field(default_factory=dict)
    """Id → reason, for ids whose line in ``results`` is certainly not the result of a job."""
    only_sql: Collection[str] = frozenset()
    """Ids of jobs that have events in the audit database, but none in the outbox."""
    doubtful: set[str] = field(default_factory=set)
    """Ids of jobs that unreadable entries name, or whose rows in the audit database must not be trusted."""
    may_be_restored: bool = False
    """True if `rq-core audit restore` may have put back names and ids whose jobs only the audit database has."""
    moving: set[str] = field(default_factory=set)
    """Jobs (ids) and schedules (SCHEDULE_MARK + name) that had an event while the queue was read in pages."""
    entries: int = 0
    whole: bool = False
    """True if the log should have every live job, because it begins with the queue's creation or with a complete
    baseline (events with the state of each job)."""
    unreadable: list[str] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    """Ids of entries that no script can have assigned."""
    gaps: list[str] = field(default_factory=list)
    """Ids of entries before which entries are missing."""
    seq_max: int = 0
    epoch: int | None = None
    """The epoch (one unbroken history of the queue) of the last entry; None if the outbox is empty."""
    settings: dict[str, str] = field(default_factory=dict)
    """Setting or flag → its value in the last event about it. If the log begins with the queue's creation, all settings
    are included."""
    limits: dict[str, tuple[str | None, int | None]] = field(default_factory=dict)
    """Scope → (limit, version) in the last event about it. A limit of None means that the scope's own limit was
    removed."""
    boxes: dict[str, LoggedBox] = field(default_factory=dict)
    """Life (id) of a box → the box: the saved steps and signals of a durable job, according to the log."""
    breakers: LoggedBreakers = field(default_factory=LoggedBreakers)
    """The state of each breaker (a limit that pauses a scope after failures), according to the outbox."""
    distrust: Distrust = no_distrust
    """A function that returns why the log's events about boxes must not be copied into Redis."""
    distrust_ends: Distrust = no_distrust
    """A function that returns why the log's events about ended jobs must not be used to correct their results in
    Redis."""
    fresh: set[str] = field(default_factory=set)
    """Ids of jobs for which the outbox has all events since ``enqueued``. No entry since then is missing, Redis has not
    lost one, and no restore has put the job back."""
    schedules: dict[str, LoggedSchedule] = field(default_factory=dict)
    """Name → schedule according to the last event about it."""
    schedules_since: OutboxId | None = None
    """The entry from which on the log has all events about schedules. Before it, there were no schedules, or the log
    does not show which ones."""
    at_beginning: bool = True
    """True until ``note`` has been called."""
    all_schedules: bool = False
    """True if ``schedules`` should have every schedule of the queue."""
    lease_max_ms: int = 0
    """The longest lease, in milliseconds, that a setting in the log ever allowed."""
    retention_min_ms: int | None = None
    """The shortest retention of dead jobs, in milliseconds, that was ever in force; None if unknown, because the log
    does not begin with the queue's creation."""

    @property
    def records(self) -> dict[str, JobRecord]:
        """Job id → record (the job's state after its events), also for jobs that have ended."""
        return self.lives.records

    @property
    def ends(self) -> dict[str, End]:
        """Job id → how the job ended. Jobs that were restored or enqueued again are left out."""
        return self.lives.ends

    @property
    def began(self) -> dict[str, OutboxId]:
        """Job id → the entry with which the last job of this id began, if no later entry is missing."""
        return self.lives.began

    @property
    def has_holes(self) -> bool:
        """Return whether events may be missing, so that a job's state may differ from the log."""
        return bool(self.gaps or self.unreadable or self.strays)

    def scopes_of_lane(self, job_id: str) -> tuple[str, ...] | None:
        """Return the scopes of a job's lane; None if the log does not have the job's first event."""
        record = self.records.get(job_id)
        return (
            None if record is None or not record.complete else tuple(scopes_of(record.lane or ""))
        )

    def has_heard_of(self, job_id: str) -> bool:
        """Return whether a job of this id may ever have existed. If the log is incomplete, any id may have existed."""
        is_unknown = self.since is None or job_id in self.doubtful
        return is_unknown or self.may_be_restored or job_id in self.records

    def is_made_up(self, result: ResultLine) -> bool:
        """Return whether a line in ``results`` is certainly not the result of a job.

        A job whose result is kept has an event for its end. A line without an event may come from `rq-core audit
        restore`, or from a call that was answered with another job.
        """
        if result.id in self.made_up:
            return True
        may_be_untold = self.may_be_restored or result.outcome == SAME or result.id in self.records
        if result.id in self.ends or (result.until_ms is None and may_be_untold):
            return False
        if result.id in self.began and self.records[result.id].state is not None:
            return True
        if self.since is None or (result.at_ms or 0) <= self.since.at_ms:
            return False
        claim = claim_of(result.fence)
        return claim is None or claim > self.since.at


def read_log(snapshot: Mapping[str, Any]) -> FoldedLog:
    """Return the state of a queue that follows from the outbox entries in a snapshot."""
    log = FoldedLog(may_be_restored="audit" in snapshot["meta"])
    log.breakers = LoggedBreakers(may_be_restored=log.may_be_restored)
    since: str | None = getattr(snapshot, "since", None)
    first = None if since is None else OutboxId.parse(since)
    before: Entry | None = None
    for entry_id, raw in snapshot["outbox"]:
        if not (number := OutboxId.parse(entry_id)).is_given:
            log.strays.append(entry_id)
            continue
        log.entries += 1
        try:
            entry = decode(entry_id, raw)
            if before is not None and not _follows(before, entry):
                log.gaps.append(entry_id)
                _miss(log)
            _fold(log, entry)
            _note_boxes(log, entry)
            log.breakers.note(entry, log.scopes_of_lane)
            note(log, entry)
            if first is not None and entry.id > first:
                log.moving.update(event.job_id for event in entry.jobs)
                log.moving.update(f"{SCHEDULE_MARK}{name}" for name in schedules_in(entry))
        except (Undecodable, ValueError, TypeError) as error:
            log.unreadable.append(f"{entry_id}: {error}")
            before = None
            _miss(log)
            log.epoch = number.epoch
            continue
        if entry.event is Event.EPOCH_STARTED and entry.id.seq == 0:
            reason = entry.data["reason"]
            is_first = reason == "created" and log.entries == 1
            if is_first:
                log.since = Since(entry.id, entry.at_ms)
            attached = reason == "attached" and snapshot["meta"].get("baseline") == "done"
            log.whole = log.whole or is_first or attached
        before = entry
    for job_id in log.fresh:
        box = log.boxes.get(log.records[job_id].life or "")
        if box is not None:
            box.is_whole = True
    return log


def _note_boxes(log: FoldedLog, entry: Entry) -> None:
    """Add an entry to the log's boxes (saved steps and signals), and update ``fresh``: the jobs whose events are all in
    the log.

    For other jobs, a restore may have put back steps and signals that have no event in the log.
    """
    note_boxes(log.boxes, entry)
    ids = {event.job_id for event in entry.jobs}
    if entry.event is Event.ENQUEUED:
        log.fresh |= ids
    elif entry.event is Event.RESTORED:
        log.fresh -= ids
    elif entry.event is Event.EPOCH_STARTED and entry.data.get("reason") == Began.BEHIND:
        log.fresh.clear()


def _follows(before: Entry, entry: Entry) -> bool:
    """Return whether ``entry`` directly follows ``before`` in the outbox, with no entry missing between them."""
    same = before.id.epoch == entry.id.epoch
    return entry.id.seq == (before.id.seq + 1 if same else 0)


def _miss(log: FoldedLog) -> None:
    """Forget everything that missing entries may have changed."""
    forget_queue(log)
    log.since = None
    log.lives.miss()
    log.boxes.clear()
    log.fresh.clear()
    log.breakers.forget()


def forget_queue(log: FoldedLog, at: OutboxId | None = None) -> None:
    """Forget the settings, limits and schedules, because entries before ``at`` are missing and may have changed
    them."""
    log.settings.clear()
    log.limits.clear()
    log.retention_min_ms = None
    forget_schedules(log, at, have_all=False)


def forget_schedules(log: FoldedLog, at: OutboxId | None, *, have_all: bool) -> None:
    """Forget the schedules. ``at``: the entry from which on the log has every event about schedules.

    ``have_all``: True if the queue had no schedule at this entry, so that the later events show all schedules. If
    False, Redis may have schedules that the log lacks.
    """
    log.schedules.clear()
    log.schedules_since, log.all_schedules = at, have_all


def schedules_in(entry: Entry) -> list[str]:
    """Return the names of the schedules that an entry's events are about."""
    if entry.event is Event.SCHEDULE_CHANGED:
        return [str(entry.data["name"])]
    if entry.event is Event.TICKED:
        return [str(event.fields["name"]) for event in entry.jobs]
    return []


def note_tick(log: FoldedLog, at: OutboxId, facts: Mapping[str, Any]) -> None:
    """Store the next instant of a schedule from an event.

    ``at``: the entry of the event. ``facts``: the fields of the event. An event about a run that an operator asked for
    is ignored, because such a run does not change the next instant.
    """
    known = log.schedules.get(facts["name"])
    if facts["outcome"] not in RUNS and (known is None or at > known.at):
        state = "undeclared" if facts["outcome"] == "undeclared" else "on"
        said = (state, facts["version"], facts.get("next_ms"))
        rest = (None, None) if known is None else (known.rule, known.job_digest)
        log.schedules[facts["name"]] = LoggedSchedule(at, *said, *rest)


def _note_change(log: FoldedLog, at: OutboxId, facts: Mapping[str, Any]) -> None:
    known, rule = log.schedules.get(facts["name"]), facts.get("new")
    digest = facts.get("job_digest") or (known and known.job_digest)
    state = "" if rule is None else facts["state"]
    said = LoggedSchedule(at, state, facts["version"], facts.get("next_ms"), rule, digest)
    log.schedules[facts["name"]] = said


def _note_retention(log: FoldedLog, ms: int, *, is_first: bool = False) -> None:
    """Update the shortest known retention of dead jobs with ``ms``. ``is_first``: True if this is the default of a new
    queue."""
    known_ms = ms if is_first else log.retention_min_ms
    log.retention_min_ms = None if known_ms is None else min(known_ms, ms)


def note(log: FoldedLog, entry: Entry) -> None:
    """Update the log's epoch, settings, limits and schedules with an entry."""
    is_first, log.at_beginning = log.at_beginning, False
    log.epoch = entry.id.epoch
    data = entry.data
    match entry.event:
        case Event.PAUSED:
            log.settings["paused"] = "1"
        case Event.RESUMED:
            log.settings["paused"] = "0"
        case Event.POLICY_CHANGED if data.get("field") in (*SETTINGS, *FLAGS):
            log.settings[data["field"]] = str(data["new"])
            if data["field"] == "lease_ms":
                known = map(number_in, (data.get("old"), data["new"]))
                log.lease_max_ms = max(log.lease_max_ms, *(ms or 0 for ms in known))
            if data["field"] == "dead_retention_ms":
                _note_retention(log, number_in(data["new"]) or 0)
        case Event.CAP_CHANGED:
            log.limits[str(data["scope"])] = data.get("new"), data.get("version")
        case Event.SCHEDULE_CHANGED:
            _note_change(log, entry.id, data)
        case Event.TICKED:
            for event in entry.jobs:
                note_tick(log, entry.id, event.fields)
        case Event.QUEUE_DELETED:
            forget_schedules(log, entry.id, have_all=True)
        case Event.EPOCH_STARTED if data.get("reason") == "created":
            # The queue was made again, with the defaults.
            log.settings = {name: str(s.default) for name, s in SETTINGS.items()}
            log.settings |= dict.fromkeys(FLAGS, "0")
            log.limits.clear()
            _note_retention(log, SETTINGS["dead_retention_ms"].default, is_first=is_first)
            # Of a queue that lost `meta` alone, the schedules are still there.
            forget_schedules(log, entry.id, have_all=is_first)
        case Event.EPOCH_STARTED if data.get("reason") != "replid_changed":
            known_ms = log.retention_min_ms if data.get("reason") == Began.ATTACHED else None
            forget_queue(log, entry.id)
            log.retention_min_ms = known_ms


def _fold(log: FoldedLog, entry: Entry) -> None:
    for event in entry.jobs:
        log.lives.add(entry, event)
        record = log.records.get(event.job_id)
        log.seq_max = max(log.seq_max, (record and record.seq) or 0)
