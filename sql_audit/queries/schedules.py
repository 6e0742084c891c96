"""The history of one schedule: each change, and each time at which it was due, with the reason if it was late, missed
or skipped.

    found = schedule_history(engine, "reports", "nightly", 20)
    found.ticks[-1].says

A worker that found nothing to do leaves no event in the log. If a cause was concluded from missing events, the sentence
about the cause says so.
"""

# ruff: noqa: S608 - statements are joined from constants; values are bound

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Engine, Row, text

from rq_core.model.events import OutboxId
from rq_core.model.lib.text import counted
from rq_core.model.schedule import tick_of
from rq_core.model.table.machine import Event
from rq_core.views.text import span
from sql_audit.queries.history import PrunedTo, by_job, pruned_to
from sql_audit.store import orphans
from sql_audit.store.schema.tables import TICK_NAME
from sql_audit.store.storable_text import read_json
from sql_audit.times import readable

LATE_MS: Final = 2_000
"""Delay in ms above which a schedule's job counts as late. A worker with free places looks for due schedules at
once."""
FULL_MS: Final = 7_000
"""Maximum milliseconds between two events of workers without free places. They look for due schedules every five
seconds."""
LOOKED_AT: Final = 1_000
"""Maximum number of earlier events that are read to find out why a schedule was served late."""

_COLUMNS: Final = "epoch, seq, at_ms, type, job_id, worker, detail"
_TICKS: Final = text(
    f"SELECT {_COLUMNS} FROM job_event WHERE queue = :queue AND type = 'ticked' AND {TICK_NAME} = :name "
    # By time, as the index is: by place, SQLite would read the whole queue instead.
    "ORDER BY at_ms DESC LIMIT :count"
)
_CHANGES: Final = (
    f"SELECT {_COLUMNS} FROM job_event {{hint}}WHERE job_id IS NULL AND queue = :queue AND type = 'schedule_changed' "
    "AND detail LIKE :named ORDER BY epoch, seq"
)
_BEFORE: Final = text(
    f"SELECT {_COLUMNS} FROM job_event WHERE queue = :queue AND (epoch, seq) < (:epoch, :seq) "
    f"ORDER BY epoch DESC, seq DESC, ordinal DESC LIMIT {LOOKED_AT}"
)
_OF_JOB: Final = text(
    "SELECT type, at_ms, worker FROM job_event WHERE job_id = :job AND queue = :queue AND "
    "(epoch, seq) < (:epoch, :seq) AND type NOT IN ('ticked', 'settlement_refused') "
    "ORDER BY epoch DESC, seq DESC, ordinal DESC LIMIT 1"
)
_FIRST_CLAIM: Final = text(
    "SELECT worker, claimed_at_ms FROM job_attempt WHERE job_id = :job AND queue = :queue AND claim = 1 LIMIT 1"
)
_LAST: Final = text("SELECT at_ms FROM mirror_cursor WHERE queue = :queue")

_OF_WORKERS: Final = frozenset(
    {
        Event.CLAIMED, Event.SUCCEEDED, Event.RETRIED, Event.DIED, Event.ROLLED_BACK, Event.LEASE_EXPIRED, Event.TICKED,
    }
)  # fmt: skip
"""Types of events that workers log. They show that a worker served the queue at that time. (Only a ``ticked`` event of
a run that an operator asked for comes from the operator.)"""
_HELD: Final = {
    Event.CLAIMED: "had run since {at}, on {worker}",
    Event.CANCEL_REQUESTED: "still ran, and had been asked to stop at {at}",
    Event.RETRIED: "had failed at {at}, and waited for its next attempt",
}
_BY_ASKING: Final = ("run", "not_run")


@dataclass(frozen=True, slots=True)
class ScheduleTick:
    """One time at which a schedule was due (an instant), or one run that an operator asked for, and its outcome."""

    number: str
    """The number of the outbox entry with this event, ``EPOCH-SEQ``."""
    at_ms: int
    """Time at which a worker served the schedule, or an operator asked for the run (Unix ms, Redis' clock)."""
    nominal_ms: int
    due_ms: int
    next_ms: int | None
    """The time at which the schedule was due next (Unix ms); None: the schedule was no longer on."""
    late_ms: int
    outcome: str
    missed: int
    """Number of times at which the schedule was due and that were passed over. If this time was missed, it is counted,
    too."""
    version: int
    job_id: str
    held_by: str | None
    by: str | None
    """The worker that served the schedule, or the operator who asked for a run."""
    orphaned: bool
    """True if Redis forgot this event."""
    says: str
    """One sentence about what happened, and why, as far as the log shows it."""


@dataclass(frozen=True, slots=True)
class ScheduleEdit:
    """One change of a schedule."""

    number: str
    at_ms: int
    state: str
    version: int
    next_ms: int | None
    source: str
    by: str | None
    reason: str | None
    old: str | None
    """The rule before the change, as JSON; None: the schedule is new."""
    new: str | None
    """The rule after the change, as JSON; None: the schedule was forgotten."""
    orphaned: bool
    says: str


@dataclass(frozen=True, slots=True)
class ScheduleHistory:
    """The last times at which a schedule was due, oldest first, its changes since the first of them, and its state in
    the log.
    """

    queue: str
    name: str
    ticks: tuple[ScheduleTick, ...]
    changes: tuple[ScheduleEdit, ...]
    says: str
    """The schedule's state according to the log, as one sentence."""
    pruned: PrunedTo | None = None

    @property
    def is_known(self) -> bool:
        """Return whether the log has any event of the schedule."""
        return bool(self.ticks or self.changes)


def schedule_history(engine: Engine, queue: str, name: str, count: int) -> ScheduleHistory:
    """Return the last ``count`` times at which a schedule was due, and its changes since the first of them.

    The change before the first of these times is included. If there are fewer than ``count`` times, all changes are
    returned.
    """
    with engine.connect() as connection:
        lost = orphans.ranges(connection, queue)
        changes = list(_changes(connection, queue, name, lost))
        asked = {"queue": queue, "name": name, "count": count}
        found = sorted(
            map(_Logged, connection.execute(_TICKS, asked)), key=lambda logged: logged.place
        )
        ticks = tuple(
            _tick(connection, queue, logged, lost, changes)
            for logged in found
            if logged.is_readable
        )
        last_ms = connection.execute(_LAST, {"queue": queue}).scalar_one_or_none()
        cuts = pruned_to(connection, queue)
    since = ticks[0].at_ms if len(ticks) == count else 0
    standing = _standing(ticks, changes, last_ms or 0)
    # The change that made the rule of the first instant belongs to what is shown.
    before = [edit for edit in changes if edit.at_ms <= since][-1:]
    shown = (*before, *(edit for edit in changes if edit.at_ms > since))
    return ScheduleHistory(queue, name, ticks, shown, standing, cuts[0] if cuts else None)


class _Logged:
    """A ``ticked`` event of the log: a schedule was due, or an operator asked for a run."""

    def __init__(self, row: Row[Any]) -> None:
        self.place = OutboxId(row.epoch, row.seq)
        self.at_ms: int = row.at_ms
        self.job_id: str = row.job_id
        self.by: str | None = row.worker
        self.said = read_json(row.detail, dict)

    @property
    def is_readable(self) -> bool:
        """Return whether the event has all fields that it needs. (`audit verify` reports events that lack a field.)"""
        numbers = [self.said.get(name) for name in ("nominal_ms", "due_ms", "missed", "version")]
        texts = [self.said.get("outcome"), self.said.get("held_by", "")]
        return all(isinstance(n, int) for n in numbers) and all(isinstance(t, str) for t in texts)

    @property
    def late_ms(self) -> int:
        return self.at_ms - int(self.said["due_ms"])


def _changes(
    connection: Connection, queue: str, name: str, lost: Sequence[orphans.Range]
) -> Iterator[ScheduleEdit]:
    statement = by_job(connection.dialect.name, _CHANGES)
    for row in connection.execute(statement, {"queue": queue, "named": f'%"{name}"%'}):
        said = read_json(row.detail, dict)
        if said.get("name") == name and isinstance(said.get("version"), int):
            orphaned = orphans.in_any((row.epoch, row.seq), lost)
            yield ScheduleEdit(
                f"{row.epoch}-{row.seq}", row.at_ms, str(said.get("state")), said["version"],
                said.get("next_ms"), str(said.get("source")), row.worker, said.get("why"), said.get("old"),
                said.get("new"), orphaned, _of_change(said, row.worker, orphaned=orphaned),
            )  # fmt: skip


def _of_change(said: dict[str, Any], by: str | None, *, orphaned: bool) -> str:
    state, source = said.get("state"), said.get("source")
    who = f"the code of {by}" if source == "code" else str(by)
    reason = f" ({said['why']})" if said.get("why") and source != "code" else ""
    following = (
        f", next at {readable(said['next_ms'])}" if said.get("next_ms") and state == "on" else ""
    )
    if source == "released":
        did = "gave it back to code"
    elif said.get("new") is None:
        did, following = "removed it", ""
    elif said.get("old") is None:
        did = "declared it" if source == "code" else "set it"
    elif state == "paused" and said["old"] == said["new"]:
        did = "paused it"
    elif state == "removed":
        did = "removed it, although code declares it"
    elif said["old"] == said["new"]:
        did = "resumed it" if source != "code" else "declared it again"
    else:
        did = "changed its rule"
    forgotten = "; Redis forgot this change" if orphaned else ""
    return f"{who} {did}{following}{reason}{forgotten}"


def _tick(
    connection: Connection,
    queue: str,
    logged: _Logged,
    lost: Sequence[orphans.Range],
    changes: Sequence[ScheduleEdit],
) -> ScheduleTick:
    said, outcome = logged.said, logged.said["outcome"]
    orphaned = orphans.in_any(logged.place, lost)
    words = [_outcome(connection, queue, logged, changes)]
    if logged.late_ms > LATE_MS and outcome not in (*_BY_ASKING, "undeclared"):
        words.append(_cause(connection, queue, logged))
    elif outcome == "fired" and said["missed"] and (silence := _silence(connection, queue, logged)):
        words.append(silence)
    if outcome == "fired" and (began := _began(connection, queue, logged)):
        words.append(began)
    if orphaned:
        words.append("Redis forgot this event")
    return ScheduleTick(
        str(logged.place), logged.at_ms, said["nominal_ms"], said["due_ms"], said.get("next_ms"), logged.late_ms,
        outcome, said["missed"], said["version"], logged.job_id, said.get("held_by"), logged.by, orphaned,
        "; ".join(words),
    )  # fmt: skip


def _outcome(
    connection: Connection, queue: str, logged: _Logged, changes: Sequence[ScheduleEdit]
) -> str:
    """Return what happened when a schedule was due, as a phrase for people."""
    said, late_ms = logged.said, logged.late_ms
    reason = f" ({said['why']})" if said.get("why") else ""
    match said["outcome"]:
        case "fired":
            late = f"{span(late_ms)} late" if late_ms > LATE_MS else "on time"
            passed = counted(said["missed"], "instant", "instants")
            over = f", and for {passed} before it, too" if said["missed"] else ""
            return f"enqueued {late}{over}"
        case "skipped":
            return f"no job, since {_holder(connection, queue, logged)}"
        case "missed":
            grace = _grace_ms(said["version"], changes)
            limit = "its grace" if grace is None else f"its grace of {span(grace)}"
            many = counted(said["missed"], "instant", "instants")
            return f"no job, since it was {span(late_ms)} late, more than {limit} ({many} missed)"
        case "duplicate":
            return f"no job, since there was a job {logged.job_id}"
        case "undeclared":
            return "no job, since no worker's code had declared the schedule for three hours: it stopped"
        case "run":
            return f"enqueued, since {logged.by} asked for it{reason}"
        case "not_run":
            return f"{logged.by} asked for it{reason}: no job, since {_holder(connection, queue, logged)}"
    return str(said["outcome"])


def _holder(connection: Connection, queue: str, logged: _Logged) -> str:
    """Return why a schedule enqueued no job when it was due: another job and its state at that time, or a full cap."""
    holder = logged.said.get("held_by")
    if holder is None:
        return "there was one of that id"
    asked = {"queue": queue, "job": holder, "epoch": logged.place.epoch, "seq": logged.place.seq}
    last = connection.execute(_OF_JOB, asked).one_or_none()
    tick = tick_of(holder)
    of = "" if tick is None else f" (of {readable(tick.instant_ms)})"
    if last is None:
        return f"scope {holder} was full" if "=" in holder else f"job {holder}{of} was alive"
    how = _HELD.get(Event(last.type), "had waited since {at}")
    return f"job {holder}{of} {how.format(at=readable(last.at_ms), worker=last.worker)}"


def _grace_ms(version: int, edits: Sequence[ScheduleEdit]) -> int | None:
    rules = [edit.new for edit in edits if edit.version == version and edit.new is not None]
    said = read_json(rules[-1], dict) if rules else {}
    grace = said.get("grace_ms")
    return grace if isinstance(grace, int) else None


def _cause(connection: Connection, queue: str, logged: _Logged) -> str:
    """Return why a schedule was served late, as a sentence. The cause comes from the events since it was due."""
    before = connection.execute(_BEFORE, {"queue": queue, **logged.place._asdict()}).all()
    # The call that served it has logged the jobs of its instants just before.
    events = [event for event in before if event.at_ms != logged.at_ms]
    due_ms = logged.said["due_ms"]
    if events and events[0].at_ms > logged.at_ms + LATE_MS:
        return f"the clock of Redis had been set back by {span(events[0].at_ms - logged.at_ms)}"
    meanwhile = [event for event in events if event.at_ms >= due_ms]
    began = next((e for e in meanwhile if e.type == Event.EPOCH_STARTED), None)
    if began is not None:
        reason = read_json(began.detail, dict).get("reason")
        return f"Redis began a new epoch at {readable(began.at_ms)} ({reason})"
    served = [e for e in meanwhile if e.type in _OF_WORKERS and e.at_ms < logged.at_ms - LATE_MS]
    if not served:
        last = next((e for e in events if e.type in _OF_WORKERS and e.at_ms < due_ms), None)
        return _silent(last, logged.at_ms)
    first_ms = served[-1].at_ms - due_ms
    if first_ms > LATE_MS and len(before) < LOOKED_AT:
        return (
            f"no worker of the queue did anything for {span(first_ms)}, and then {_busy(meanwhile)}"
        )
    return _busy(meanwhile)


def _silence(connection: Connection, queue: str, logged: _Logged) -> str:
    """Return why earlier times of a schedule were missed, although the time of ``logged`` was served punctually. Return
    an empty text if a worker was active just before, or if no earlier event of a worker was found.
    """
    before = connection.execute(_BEFORE, {"queue": queue, **logged.place._asdict()}).all()
    last = next((e for e in before if e.type in _OF_WORKERS and e.at_ms != logged.at_ms), None)
    if last is None or logged.at_ms - last.at_ms <= LATE_MS:
        return ""
    return _silent(last, logged.at_ms)


def _silent(last: Row[Any] | None, at_ms: int) -> str:
    """Return a sentence that explains why no worker logged an event for some time before ``at_ms`` (Unix ms).

    ``last`` is the last event of a worker before that time; None: no such event.
    """
    seen = (
        "" if last is None else f" (the last before was {last.worker}, at {readable(last.at_ms)})"
    )
    if last is not None and at_ms - last.at_ms <= FULL_MS:
        return f"the workers may have been full: a worker without free places looks every 5 s{seen}"
    return f"until then no worker of the queue did anything: none ran, or none reached Redis{seen}"


def _busy(meanwhile: Sequence[Row[Any]]) -> str:
    """Return why workers did not serve a schedule although they were active, as a sentence. ``meanwhile`` are their
    events.
    """
    if any(event.type == Event.ENQUEUED for event in meanwhile):
        return (
            "workers served others: this one was in the hands of a worker that was lost, or they could not compute it"
            " (their logs say why)"
        )
    return (
        "workers worked, and nothing was enqueued: the backlog of the audit log was full, no more ids could be"
        " remembered, or they could not compute it (their logs say which)"
    )


def _began(connection: Connection, queue: str, logged: _Logged) -> str:
    """Return a sentence about the first claim of a schedule's job: how long the job waited, or that the log has no
    claim of it. Return an empty text if the job was claimed at once.
    """
    first = connection.execute(_FIRST_CLAIM, {"queue": queue, "job": logged.job_id}).one_or_none()
    if first is None or first.claimed_at_ms is None:
        return "the log has no claim of its job"
    waited_ms = first.claimed_at_ms - logged.at_ms
    if waited_ms <= LATE_MS:
        return ""
    why = f"`rq-core audit why {logged.job_id}` says what it waited for"
    return f"its job waited for {span(waited_ms)} until {first.worker} claimed it: {why}"


def _standing(ticks: Sequence[ScheduleTick], changes: Sequence[ScheduleEdit], last_ms: int) -> str:
    """Return a sentence about the schedule's state at the end of the log, such as paused, removed or when it is due
    next.
    """
    logged: list[ScheduleTick | ScheduleEdit] = [*ticks, *changes]
    alive = [each for each in logged if not each.orphaned and not _is_run(each)]
    if not alive:
        return "the log has no change and no instant of it"
    last = max(alive, key=lambda each: OutboxId.parse(each.number))
    if isinstance(last, ScheduleEdit):
        if last.new is None or last.state == "removed":
            return f"it is removed, since {readable(last.at_ms)}"
        if last.state != "on":
            began = _began_to_be(last, changes)
            return f"it is {last.state}, since {readable(began.at_ms)}: {began.says}"
    if last.next_ms is None:
        return f"it stopped at {readable(last.at_ms)}: no worker's code declared it"
    shift_ms = ticks[-1].due_ms - ticks[-1].nominal_ms if ticks else 0
    late_ms = last_ms - last.next_ms - shift_ms
    if late_ms > LATE_MS:
        at = readable(last.next_ms)
        return (
            f"its instant {at} was not served when the log ends, {span(late_ms)} after it was due"
        )
    return f"its next instant is {readable(last.next_ms)}"


def _began_to_be(last: ScheduleEdit, changes: Sequence[ScheduleEdit]) -> ScheduleEdit:
    """Return the change with which the schedule's present state began.

    This need not be the last change: an operator may set a rule during a pause.
    """
    began = last
    alive = [each for each in changes if not each.orphaned]
    for each in sorted(alive, key=lambda each: OutboxId.parse(each.number), reverse=True):
        if each.state != last.state:
            break
        began = each
    return began


def _is_run(each: ScheduleTick | ScheduleEdit) -> bool:
    return isinstance(each, ScheduleTick) and each.outcome in _BY_ASKING


def document(found: ScheduleHistory) -> dict[str, Any]:
    """Return a schedule's history as a dict for JSON."""
    said = dataclasses.asdict(found)
    for change in said["changes"]:
        change |= {which: read_json(change[which], dict) or None for which in ("old", "new")}
    return said
