"""Makes rows from entries: the rows of the events, and the rows of jobs and claims after these events.

:func:`rq_core.model.events.fold` defines how an event changes a job. This module makes the same changes for many
thousands of events a second. It also sets the times, outcomes and errors that SQL has. A test compares both on random
histories.

Both also apply events that the table of transitions forbids, because these events have happened in Redis.

A :class:`Folder` serves one batch, and does no I/O. Pass it the rows of the batch's jobs, add the entries in order,
then read the rows to write.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, ClassVar, Final

from rq_core.model.table.effects import CLAIM_ENDS, CLEARS, EFFECTS, TAKES, target
from rq_core.model.table.machine import CLAIMED_STATES, Event, State
from sql_audit.mirror.intake import Intake
from sql_audit.mirror.projection.details import Details, queue_detail
from sql_audit.mirror.projection.job_changes import (
    TAKEN,
    error_text,
    new_row,
    take_fields,
    waited_ms,
)
from sql_audit.store.connection.copy import Rows, event_line
from sql_audit.store.job_rows import (
    CLAIM_CLAIMED_AT,
    CLAIM_ENDED_AT,
    CLAIM_NUMBER,
    CLAIM_OUTCOME,
    CLAIM_RAN,
    CLAIM_TASK,
    JOB_CLAIMED_AT,
    JOB_CLAIMS,
    JOB_DUE,
    JOB_FENCE,
    JOB_FINISHED_AT,
    JOB_LAST_EPOCH,
    JOB_LAST_SEQ,
    JOB_READY_AT,
    JOB_REASON,
    JOB_SINCE,
    JOB_STATE,
    JOB_TASK,
    JOB_WORKER,
    Attempt,
    EventRow,
    JobRow,
)
from sql_audit.store.schema.tables import GONE, LOST, QUARANTINED, TERMINAL_STATES
from sql_audit.store.storable_text import to_json

# Plain strings: asking an enum for its value is a call.
_READY: Final = str(State.READY)
_SCHEDULED: Final = str(State.SCHEDULED)
_RUNNING: Final = str(State.RUNNING)
_NULL: Final = "\0"
"""Marks a null value in a line of :attr:`Folder.lines`."""
_LIVE: Final = frozenset(str(s) for s in State)
_KNOWN_ENDS: Final = frozenset({LOST, *TERMINAL_STATES})
"""The states of jobs that have ended, and whose end SQL knows."""


def job_ids(intakes: Iterable[Intake]) -> list[str]:
    """Return the ids of the jobs in the entries, without duplicates."""
    ids: dict[str, None] = {}
    for intake in intakes:
        if intake.columns:
            ids.update(dict.fromkeys(intake.columns["id"]))
    return list(ids)


class Folder:
    """Turns the entries of one batch into rows: of the events, and of the jobs and claims that they change."""

    def __init__(self, queue: str, known: Iterable[Sequence[Any]], *, at_ms: int = 0) -> None:
        """Prepare a folder for one batch of events.

        ``known`` are the rows of ``job`` that SQL has for the batch's jobs. ``at_ms`` is the time of the last event
        before the batch (Unix ms).
        """
        self.queue = queue
        self.at_ms = at_ms
        self.jobs: dict[str, JobRow] = {job.job_id: job for job in map(JobRow, known)}
        self.known: Final = frozenset(self.jobs)
        self.touched: dict[str, JobRow] = {}
        self.begun: dict[tuple[str, str], Attempt] = {}
        """Claims that began in this batch, by (job id, fence). SQL has no rows of them yet. (The fence is the claim's
        fencing token.)"""
        self.resumed: dict[tuple[str, str], Attempt] = {}
        """Claims that changed in this batch and may have a row in SQL already, by (job id, fence)."""
        self.events: list[EventRow] = []
        self.lines: list[str] = []
        """The rows in ``events``, each as the line that :func:`sql_audit.store.connection.copy.event_line` makes."""
        self._details = Details()

    # What to write.

    def job_rows(self) -> tuple[Rows, Rows]:
        """Return the rows of ``job`` to write: rows that are new, and rows that replace a row."""
        if not self.known:
            return Rows(self.touched.values()), Rows()
        new, old = Rows(), Rows()
        for job_id, job in self.touched.items():
            (old if job_id in self.known else new).append(job)
        return new, old

    def attempt_rows(self) -> tuple[Rows, Rows]:
        """Return the rows of ``job_attempt`` to write: rows that are new, and rows that may replace a row."""
        return Rows(self.begun.values()), Rows(self.resumed.values())

    @property
    def attempts(self) -> Iterable[Attempt]:
        """The claims that began or changed in this batch."""
        return chain(self.begun.values(), self.resumed.values())

    # Changes for which a job has no event.

    def end_all(self, state: str, epoch: int, at_ms: int) -> None:
        """End, with ``state``, every job in ``touched`` that is live and has no event in ``epoch`` or a later epoch:
        Redis has lost these jobs, or a baseline shows that they are gone.

        :func:`sql_audit.mirror.losses.end_jobs` does this for the rows in SQL.
        """
        for job in self.touched.values():
            if job.state in _LIVE and job.last_epoch < epoch:
                self._lose_claim(job, at_ms)
                job.reason, job.state = job.state, state
                job.worker = job.due_ms = None

    def _lose_claim(self, job: JobRow, at_ms: int) -> None:
        """End the claim that a job has in force. If no event says how the claim ended, its outcome is LOST."""
        if job.fence is not None:
            attempt = self._attempt(job, job.fence)
            if attempt.outcome is None:
                attempt.outcome, attempt.ended_at_ms = LOST, at_ms
            job.fence = None

    # Reading an entry.

    def add(self, intake: Intake) -> None:
        """Apply one entry: add the rows of its events, and change the rows of its jobs and claims."""
        if intake.at_ms is not None:
            self.at_ms = intake.at_ms
        event = intake.event
        if event is not None and intake.columns:
            self._steps[event](self, intake)
        elif event is not None and not intake.stubs:
            self._row(intake, 0, str(event), None, None, None, queue_detail(intake))
        if intake.quarantined:
            self._add_stubs(intake, len(self.events) - len(intake.ordinals))

    def _add_stubs(self, intake: Intake, begin: int) -> None:
        """Add a row of type ``quarantined`` for each job of an entry that failed the check.

        ``begin`` is the index in ``events`` at which the entry's rows begin.
        """
        kept = {q.ordinal: q for q in intake.quarantined}
        for ordinal in intake.stubs:
            found = kept.get(ordinal) or kept[None]
            # The hash makes the raw bytes in quarantine a part of the chain of batches.
            sha = hashlib.sha256(found.raw).hexdigest()
            detail = to_json({"kind": found.kind, "reason": found.reason, "sha256": sha})
            self._row(intake, ordinal, QUARANTINED, None, None, None, detail)
        # The chain hashes rows in the order of their key.
        self.events[begin:] = sorted(self.events[begin:], key=itemgetter(3))
        self.lines[begin:] = map(event_line, self.events[begin:])

    def _row(
        self,
        intake: Intake,
        ordinal: int,
        kind: str,
        job_id: str | None,
        claim: int | None,
        task: str | None,
        detail: str | None,
    ) -> None:
        epoch, seq = intake.id
        row = (
            self.queue, epoch, seq, ordinal, kind, self.at_ms, job_id, claim, intake.by, task, detail,
        )  # fmt: skip
        self.events.append(row)
        self.lines.append(event_line(row))

    def _job(self, job_id: str, intake: Intake) -> JobRow:
        """Return the row of an event's job, and mark it to be written. If SQL has no row, make a new one."""
        job = self.jobs.get(job_id)
        if job is None:
            job = self.jobs[job_id] = JobRow.new(self.queue, job_id)
        self.touched[job_id] = job
        job.last_epoch, job.last_seq = intake.id
        return job

    def _end(self, job: JobRow, fence: str | None, outcome: Event, error: Any = None) -> int | None:
        """Set the outcome, the end and the run time of a job's claim, found by its fencing token ``fence``.

        Return the claim's number. Return None if the number is not known, or if there is no fence.
        """
        if error is not None:
            job.error_type, job.error_message = error_text(error)
        if fence is None:
            return None
        attempt = self._attempt(job, fence)
        attempt.outcome = outcome.value
        attempt.ended_at_ms = at_ms = self.at_ms
        claimed_at_ms = attempt.claimed_at_ms
        if claimed_at_ms is not None:
            attempt.ran_ms = at_ms - claimed_at_ms if at_ms > claimed_at_ms else 0
        if error is not None:
            attempt.error_type, attempt.error_message = job.error_type, job.error_message
        return attempt.claim

    def _attempt(self, job: JobRow, fence: str) -> Attempt:
        key = (job.job_id, fence)
        attempt = self.begun.get(key) or self.resumed.get(key)
        if attempt is None:
            in_force = job.fence == fence
            attempt = Attempt.new(job, fence, job.claims if in_force else None)
            if in_force:
                # The values that the claim's beginning had in an earlier batch.
                attempt.worker = job.worker
                attempt.ready_at_ms = job.ready_at_ms
                attempt.claimed_at_ms = job.claimed_at_ms
                attempt.waited_ms = waited_ms(job)
            self.resumed[key] = attempt
        elif attempt.task is None:
            # The claim began before its job was known; SQL fills its row in a later batch, too.
            attempt.task = job.task
        return attempt

    # One step per event.

    def _enqueued_fast(self, intake: Intake) -> None:
        columns = intake.columns
        queue, at_ms, (epoch, seq), by = self.queue, self.at_ms, intake.id, intake.by
        head, middle = f"{queue}\t{epoch}\t{seq}\t", f"\tenqueued\t{at_ms}\t"
        jobs, touched = self.jobs, self.touched
        append, append_line = self.events.append, self.lines.append
        same = (queue, 1, epoch, seq, at_ms, at_ms, None, 0)
        ready, scheduled = (*same, _READY, at_ms), (*same, _SCHEDULED, None)
        for ordinal, detail, told in zip(
            intake.ordinals, self._details.of_enqueued(intake),
            zip(*[columns[name] for name in TAKEN], strict=True), strict=True,
        ):  # fmt: skip
            job_id, due, task = told[:3]
            job = jobs.get(job_id)
            if job is not None and job.fence is not None:
                self._lose_claim(job, at_ms)
            touched[job_id] = jobs[job_id] = JobRow(
                new_row(told + (ready if due is None else scheduled))
            )
            append((queue, epoch, seq, ordinal, "enqueued", at_ms, job_id, None, by, task, detail))
            append_line(
                f"{head}{ordinal}{middle}{job_id}\t\0\t{by}"
                f"\t{task if task is not None else _NULL}\t{detail if detail is not None else _NULL}"
            )

    def _claimed_fast(self, intake: Intake) -> None:
        at_ms, (epoch, seq), by, fence = self.at_ms, intake.id, intake.by, str(intake.id)
        queue, begun, jobs, touched = self.queue, self.begun, self.jobs, self.touched
        head, middle = f"{queue}\t{epoch}\t{seq}\t", f"\tclaimed\t{at_ms}\t"
        append, append_line = self.events.append, self.lines.append
        columns = intake.columns
        for ordinal, job_id, claim, scopes, detail in zip(
            intake.ordinals,
            columns["id"],
            columns["claim"],
            columns["scopes"],
            self._details.of(intake),
            strict=True,
        ):
            job = jobs.get(job_id)
            if job is None:
                job = self._job(job_id, intake)
            elif job[JOB_FENCE] is not None:
                self._lose_claim(job, at_ms)
            touched[job_id] = job
            task, ready = job[JOB_TASK], job[JOB_READY_AT]
            job[JOB_STATE], job[JOB_CLAIMS], job[JOB_FENCE] = _RUNNING, claim, fence
            job[JOB_WORKER] = by
            job[JOB_CLAIMED_AT] = job[JOB_SINCE] = at_ms
            job[JOB_DUE] = job[JOB_REASON] = job[JOB_FINISHED_AT] = None
            job[JOB_LAST_EPOCH], job[JOB_LAST_SEQ] = epoch, seq
            waited = None if ready is None else at_ms - ready if at_ms > ready else 0
            begun[job_id, fence] = Attempt(
                (
                    job_id, queue, fence, claim, task, by, ready, at_ms, None, waited, None, None,
                    None, None, None if scopes is None else to_json(scopes),
                )
            )  # fmt: skip
            append((queue, epoch, seq, ordinal, "claimed", at_ms, job_id, claim, by, task, detail))
            append_line(
                f"{head}{ordinal}{middle}{job_id}\t{claim}\t{by}"
                f"\t{task if task is not None else _NULL}\t{detail if detail is not None else _NULL}"
            )

    def _succeeded_fast(self, intake: Intake) -> None:
        queue, at_ms, (epoch, seq), by = self.queue, self.at_ms, intake.id, intake.by
        begun, jobs, touched = self.begun, self.jobs, self.touched
        head, middle = f"{queue}\t{epoch}\t{seq}\t", f"\tsucceeded\t{at_ms}\t"
        append, append_line = self.events.append, self.lines.append
        columns = intake.columns
        for ordinal, job_id, fence, detail in zip(
            intake.ordinals, columns["id"], columns["fence"], self._details.of(intake), strict=True
        ):
            job, attempt = jobs.get(job_id), begun.get((job_id, fence))
            if job is None:
                job = self._job(job_id, intake)
            if attempt is None or attempt[CLAIM_TASK] is None:
                claim = self._end(job, fence, Event.SUCCEEDED)
            else:
                claim, claimed_at_ms = attempt[CLAIM_NUMBER], attempt[CLAIM_CLAIMED_AT]
                attempt[CLAIM_OUTCOME], attempt[CLAIM_ENDED_AT] = "succeeded", at_ms
                attempt[CLAIM_RAN] = at_ms - claimed_at_ms if at_ms > claimed_at_ms else 0
            if job[JOB_FENCE] != fence:
                self._lose_claim(job, at_ms)
            touched[job_id] = job
            task = job[JOB_TASK]
            job[JOB_STATE] = "succeeded"
            job[JOB_FINISHED_AT] = job[JOB_SINCE] = at_ms
            job[JOB_FENCE] = job[JOB_WORKER] = job[JOB_DUE] = job[JOB_REASON] = None
            job[JOB_LAST_EPOCH], job[JOB_LAST_SEQ] = epoch, seq
            append(
                (queue, epoch, seq, ordinal, "succeeded", at_ms, job_id, claim, by, task, detail)
            )
            append_line(
                f"{head}{ordinal}{middle}{job_id}\t{claim if claim is not None else _NULL}\t{by}"
                f"\t{task if task is not None else _NULL}\t{detail if detail is not None else _NULL}"
            )

    # Any event, by the table.

    def _by_the_table(self, intake: Intake) -> None:
        columns = intake.columns
        names = tuple(columns)
        details = self._details.of(intake)
        for ordinal, detail, values in zip(
            intake.ordinals, details, zip(*columns.values(), strict=True), strict=True
        ):
            facts = dict(zip(names, values, strict=True))
            job = self._job(facts["id"], intake)
            claim = self._apply(job, intake, facts)
            self._row(intake, ordinal, str(intake.event), job.job_id, claim, job.task, detail)

    def _apply(self, job: JobRow, intake: Intake, facts: dict[str, Any]) -> int | None:
        """Change a job's row by one event. Return the number of the claim that the event is about.

        Return None if the event is about no claim, or if the claim's number is not known.
        """
        event, fence = intake.event, facts.get("fence")
        assert event is not None
        effect, state, restated = EFFECTS[event], target(event, facts), event is Event.BASELINE
        at_ms = self.at_ms
        due_before, same_claim = job.due_ms, fence is not None and job.fence == fence
        if job.fence is not None and not same_claim:
            self._lose_claim(job, at_ms)
        claim = job.claims if same_claim else None
        if event in CLAIM_ENDS:
            claim = self._end(job, fence, event, facts.get("error"))
        if restated:
            at_ms = facts["since_ms"] if state is not None else at_ms
        job.complete = job.complete or int(effect.begins)
        job.since_ms, job.due_ms, job.reason = at_ms, facts.get("due_ms"), None
        if not restated or state is not None:
            take_fields(job, effect, facts, at_ms)
        self._enter(job, event, state)
        if state is State.DEAD:
            job.reason = effect.dies_of or facts["reason"]
        elif state is State.READY and event is Event.PROMOTED and due_before is not None:
            # The job became ready when it was due, not when a claim promoted it.
            job.ready_at_ms = min(due_before, at_ms)
        elif event is Event.CLAIMED:
            claim = job.claims
            self._begin_claim(job, intake, facts["scopes"])
        elif restated and state in CLAIMED_STATES and fence is not None:
            if not same_claim:
                job.ready_at_ms = None
                job.claimed_at_ms = at_ms if state is State.RUNNING else None
            claim = job.claims
            self._attempt(job, fence)
        return claim

    def _enter(self, job: JobRow, event: Event, state: State | None) -> None:
        """Set a job's state after an event, and the fields that follow from the state alone."""
        if state not in CLAIMED_STATES:
            job.fence = job.worker = None
        if state is not None:
            job.state = str(state)
            job.finished_at_ms = job.since_ms if state is State.DEAD else None
        elif event is not Event.BASELINE:
            job.state = str(event)
        elif job.state not in _KNOWN_ENDS:
            job.state = GONE
        if state is State.READY:
            job.ready_at_ms = job.since_ms
        elif state is State.SCHEDULED:
            job.ready_at_ms = None

    def _begin_claim(self, job: JobRow, intake: Intake, scopes: Any) -> None:
        job.fence, job.worker = str(intake.id), intake.by
        attempt = Attempt.new(job, job.fence, job.claims)
        attempt.worker, attempt.ready_at_ms = job.worker, job.ready_at_ms
        attempt.claimed_at_ms, attempt.waited_ms = job.claimed_at_ms, waited_ms(job)
        attempt.scopes = None if scopes is None else to_json(scopes)
        self.begun[job.job_id, job.fence] = attempt

    def _unmoved(self, intake: Intake) -> None:
        # The event moves no job, and does not create the row of an unknown job.
        assert intake.event is not None
        details, clears = self._details.of(intake), CLEARS[intake.event]
        tells = TAKES.get(intake.event, ())
        for place, (ordinal, job_id, detail) in enumerate(
            zip(intake.ordinals, intake.columns["id"], details, strict=True)
        ):
            job = self.jobs.get(job_id)
            task = None if job is None else job.task
            if (clears or tells) and job is not None:
                self.touched[job_id] = job
                job.last_epoch, job.last_seq = intake.id
                for name in clears:
                    setattr(job, name, None)
                for name in tells:
                    setattr(job, name, intake.columns[name][place])
            self._row(intake, ordinal, str(intake.event), job_id, None, task, detail)

    _steps: ClassVar[Mapping[Event, Callable[[Folder, Intake], None]]] = {
        **dict.fromkeys(EFFECTS, _by_the_table),
        **dict.fromkeys(CLEARS, _unmoved),
        # Most events have these types: each of these methods does what _by_the_table does, but faster.
        Event.ENQUEUED: _enqueued_fast,
        Event.CLAIMED: _claimed_fast,
        Event.SUCCEEDED: _succeeded_fast,
    }
    """The method that applies each type of event. It is a class attribute, since a folder that referred to its own
    methods would be freed only by the garbage collector."""
