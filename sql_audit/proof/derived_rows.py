"""Derives the rows of ``job`` and ``job_attempt`` from the events, by the table that says what each type of event
changes.

The mirror also makes these rows, with code for many thousands of events a second. ``audit verify`` must not rely on
that code. So this module applies the same table (:mod:`rq_core.model.table.effects`) with other code, event by event.
It does no I/O.

    >>> made = Derivation("mail")
    >>> made.feed([("mail", 7, 0, 0, "promoted", 9, "a", None, "w-1", None, '{"seq":1}')])
    >>> made.jobs["a"].column("state")
    'ready'
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from rq_core.model.table.effects import CLAIM_ENDS, CLEARS, EFFECTS, TAKES, Effect, Leads
from rq_core.model.table.event_fields import JOB_EVENT_FIELDS
from rq_core.model.table.fields import COUNTERS
from rq_core.model.table.machine import CLAIMED_STATES, Event, State
from sql_audit.proof.event_details import REMEMBERED_MAX, facts_in
from sql_audit.store.job_rows import ERROR_MESSAGE_MAX, ERROR_TYPE_MAX, EventRow
from sql_audit.store.orphans import LossEnd
from sql_audit.store.schema.tables import (
    ATTEMPT_COLUMNS,
    EVENT_COLUMNS,
    GONE,
    JOB_COLUMNS,
    LOST,
    TERMINAL_STATES,
)
from sql_audit.store.storable_text import clean, to_json

_READY: Final = str(State.READY)
_SCHEDULED: Final = str(State.SCHEDULED)
_RUNNING: Final = str(State.RUNNING)
_DEAD: Final = str(State.DEAD)
_CLAIMED: Final = frozenset(map(str, CLAIMED_STATES))
_LIVE: Final = frozenset(map(str, State))
_ENDED: Final = frozenset({LOST, *TERMINAL_STATES})
_CLAIM: Final = str(Event.CLAIMED)
_PROMOTION: Final = str(Event.PROMOTED)
_BASELINE: Final = str(Event.BASELINE)

_PLACES: Final = {name: place for place, name in enumerate(JOB_COLUMNS)}
(
    _ID, _QUEUE, _TASK, _STATE, _CLAIMS, _DUE, _READY_AT, _CLAIMED_AT, _FINISHED_AT, _SINCE, _WORKER, _FENCE,
    _REASON, _ERROR_TYPE, _ERROR_MESSAGE, _COMPLETE, _EPOCH, _SEQ,
) = (
    _PLACES[name]
    for name in (
        "job_id", "queue", "task", "state", "claims", "due_ms", "ready_at_ms", "claimed_at_ms",
        "finished_at_ms", "since_ms", "worker", "fence", "reason", "error_type", "error_message",
        "complete", "last_epoch", "last_seq",
    )
)  # fmt: skip
_A: Final = {name: place for place, name in enumerate(ATTEMPT_COLUMNS)}
_ENDED_AT, _OUTCOME, _RAN, _BEGAN = (
    _A[name] for name in ("ended_at_ms", "outcome", "ran_ms", "claimed_at_ms")
)


class _Plan(NamedTuple):
    """The changes that one type of event makes in the row of its job. A *place* is the index of a column in a row."""

    leads_to: str | Leads | None
    of_row: tuple[tuple[int, int], ...]
    """Pairs (place in the row of ``job``, place in the row of ``job_event``): the first column gets the value of the
    second."""
    takes: tuple[tuple[int, str, Any], ...]
    """Triples (place in the row of ``job``, name of a field of the event, default): the column gets the field's value,
    or the default (0 or None) if the field is null."""
    takes_if_told: tuple[tuple[int, str], ...]
    changes: tuple[tuple[int, Any], ...]
    """Pairs (place in the row of ``job``, value): the column gets this constant value, 0 or None."""
    stamps: tuple[int, ...]
    begins: bool
    ends_claim: bool
    dies_of: str | None
    has_fence: bool
    has_due: bool
    """True if the event has a field ``due_ms``. ``has_fence`` says this of the field ``fence``."""

    @classmethod
    def of(cls, event: Event, effect: Effect) -> _Plan:
        to = effect.leads_to
        fields = {field.name for field in JOB_EVENT_FIELDS[event]}
        return cls(
            str(to) if isinstance(to, State) else to,
            tuple(
                (_PLACES[n], _OF_EVENT[told]) for n, told in effect.takes if told in _TAKEN_OF_ROW
            ),
            tuple(
                (_PLACES[name], told, 0 if name in COUNTERS else None)
                for name, told in effect.takes
                if told not in _TAKEN_OF_ROW
            ),
            tuple((_PLACES[name], name) for name in effect.takes_if_told),
            (
                *((_PLACES[name], 0) for name in effect.zeroes),
                *((_PLACES[name], None) for name in effect.clears),
            ),
            tuple(_PLACES[name] for name in effect.stamps),
            effect.begins,
            event in CLAIM_ENDS,
            None if effect.dies_of is None else str(effect.dies_of),
            "fence" in fields,
            "due_ms" in fields,
        )


_OF_EVENT: Final = {name: EVENT_COLUMNS.index(name) for name in ("task", "claim", "worker")}
"""Indexes of some columns in a row of ``job_event``."""
_TAKEN_OF_ROW: Final = ("task", "claim")
"""The fields of an event that have columns of their own in ``job_event``; the others are in its JSON column
``detail``."""
_PLANS: Final = {str(event): _Plan.of(event, effect) for event, effect in EFFECTS.items()}
_CLEARED: Final = {
    str(event): [_PLACES[name] for name in names] for event, names in CLEARS.items() if names
}
"""By type of event, for events that do not change the job's state: the indexes of the columns of ``job`` that become
null."""
_TOLD: Final = {
    str(event): [(_PLACES[name], name) for name in names] for event, names in TAKES.items()
}
"""By type of event, for events that do not change the job's state: the columns of ``job`` that get a value from the
event. Each is a pair of the column's index and the name of the event's field."""

_scopes: Final[dict[str, str]] = {}
"""A cache for the column ``scopes`` of ``job_attempt``: from the detail of a ``claimed`` event to its scopes as
JSON."""


def _scopes_in(detail: str, facts: Mapping[str, Any]) -> str | None:
    found = _scopes.get(detail)
    if found is None and facts.get("scopes") is not None:
        if len(_scopes) >= REMEMBERED_MAX:
            _scopes.clear()
        found = _scopes[detail] = to_json(facts["scopes"])
    return found


_BLANK: Final[list[Any]] = [
    0 if name in (*COUNTERS, "complete") else GONE if name == "state" else None
    for name in JOB_COLUMNS
]


class Derived:
    """One job, derived from its events: its row, the rows of its claims, and the position and time of its last
    event.
    """

    __slots__ = ("at_ms", "attempts", "last", "named", "ordinal", "row")

    def __init__(self, queue: str, job_id: str) -> None:
        self.row = _BLANK.copy()
        self.row[_ID], self.row[_QUEUE] = job_id, queue
        self.attempts: dict[str, list[Any]] = {}
        """The rows of the job's claims, by the claim's fence (fencing token)."""
        self.last: tuple[int, int] = (0, 0)
        """The number of the outbox entry with the job's last event."""
        self.ordinal = self.at_ms = 0
        self.named: tuple[int, int] | None = None
        """The number of the job's last outbox entry according to the job's row in SQL; None if the row was not read."""

    def column(self, name: str) -> Any:
        """Return the value of a column of the job's row."""
        return self.row[_PLACES[name]]

    def packed(self) -> bytes:
        """Return the job and its claims as bytes, to save memory: they take a fifth of the space."""
        return marshal.dumps(
            (self.row, self.attempts, self.last, self.ordinal, self.at_ms, self.named)
        )

    @classmethod
    def unpacked(cls, packed: bytes) -> Derived:
        """Return the job from the bytes that :meth:`packed` made."""
        found = cls.__new__(cls)
        facts = marshal.loads(packed)  # noqa: S302 - what packed() made, in this process
        found.row, found.attempts, found.last, found.ordinal, found.at_ms, found.named = facts
        return found

    def forgotten(self) -> None:
        """Set the job's state to ``lost``, because Redis has forgotten all its events."""
        row = self.row
        row[_REASON], row[_STATE] = row[_STATE], LOST
        row[_FENCE] = row[_WORKER] = row[_DUE] = None
        self.attempts = {}

    def pass_ends(self, ends: Iterable[LossEnd], upto: tuple[int, int] | None = None) -> None:
        """End the job, if it is live, because Redis lost it or because a baseline shows that it is gone.

        Each of ``ends`` has an epoch: it ends every live job without an event in this epoch or a later one. The first
        that applies to the job ends it. With ``upto``, only those before this entry are considered.
        """
        row = self.row
        if row[_STATE] not in _LIVE:
            return
        for end in ends:
            if upto is not None and end.at >= upto:
                return
            if row[_EPOCH] < end.epoch:
                self._lose_claim(end.at_ms)
                row[_REASON], row[_STATE] = row[_STATE], end.state
                row[_WORKER] = row[_DUE] = None
                return

    def apply(  # noqa: PLR0912 - one branch per thing that the table may say; a call would be one per event
        self, event: EventRow, plan: _Plan
    ) -> None:
        """Change the job's row and the rows of its claims by one event."""
        _, epoch, seq, self.ordinal, kind, at_ms, _, _, _, _, detail = event
        # One unpacking takes less time than a look-up of each part.
        (
            state, of_row, all_takes, takes_if_told, changes, stamps, begins, ends_claim, dies_of, has_fence, has_due,
        ) = plan  # fmt: skip
        row, facts = self.row, facts_in(detail)
        fence, held = facts.get("fence") if has_fence else None, row[_FENCE]
        same_claim = fence is not None and fence == held
        if held is not None and not same_claim:
            self._lose_claim(at_ms)
        if ends_claim:
            self._end_claim(fence, same_claim, kind, at_ms, facts.get("error"))
        self.at_ms = at_ms
        row[_EPOCH], row[_SEQ] = self.last = (epoch, seq)
        due_before = row[_DUE]
        due_ms = facts.get("due_ms") if has_due else None
        if isinstance(state, Leads):
            state = _where(state, facts)
        restated = kind == _BASELINE
        if restated:
            if state is None:
                self._be_absent(at_ms)
                return
            at_ms = facts.get("since_ms")
        row[_SINCE], row[_DUE], row[_REASON] = at_ms, due_ms, None
        for place, value in changes:
            row[place] = value
        for place, column in of_row:
            row[place] = event[column]
        for place, name, null in all_takes:
            told = facts.get(name)
            row[place] = null if told is None else told
        for place, name in takes_if_told:
            if facts.get(name) is not None:
                row[place] = facts[name]
        for place in stamps:
            row[place] = at_ms
        if begins:
            row[_COMPLETE] = 1
        if state not in _CLAIMED:
            row[_FENCE] = row[_WORKER] = None
        if state is None:
            row[_STATE] = kind
            return
        row[_STATE], row[_FINISHED_AT] = state, at_ms if state == _DEAD else None
        if kind == _CLAIM:
            row[_FENCE], row[_WORKER] = f"{epoch}-{seq}", event[_OF_EVENT["worker"]]
            self._begin_claim(row[_FENCE], None if detail is None else _scopes_in(detail, facts))
        elif state == _READY:
            noticed_late = kind == _PROMOTION and due_before is not None
            row[_READY_AT] = min(due_before, at_ms) if noticed_late else at_ms
        elif state == _SCHEDULED:
            row[_READY_AT] = None
        elif state == _DEAD:
            row[_REASON] = dies_of or facts.get("reason")
        elif restated:
            self._restate_claim(fence, state, at_ms, same_claim=same_claim)

    def _restate_claim(
        self, fence: str | None, state: str, at_ms: int | None, *, same_claim: bool
    ) -> None:
        """Apply a baseline event, which lists a live job's state: if a claim is in force, set the job's times for this
        claim. Add a row for the claim if it is missing.
        """
        row = self.row
        if fence is None or state not in _CLAIMED:
            return
        if not same_claim:
            row[_READY_AT] = None
            row[_CLAIMED_AT] = at_ms if state == _RUNNING else None
        self._claim(fence, in_force=True)

    def _be_absent(self, at_ms: int) -> None:
        """Apply a baseline event that says that Redis no longer has the job. The job's state is then ``gone``, unless
        its end is known or it is lost.
        """
        row = self.row
        row[_SINCE], row[_COMPLETE] = at_ms, 1
        row[_DUE] = row[_REASON] = row[_FENCE] = row[_WORKER] = None
        if row[_STATE] not in _ENDED:
            row[_STATE] = GONE

    def _begin_claim(self, fence: str, scopes: str | None = None) -> list[Any]:
        """Add a row for a claim that is now in force, with values from the job's row. Return the new row."""
        row = self.row
        ready, claimed = row[_READY_AT], row[_CLAIMED_AT]
        waited = None
        if ready is not None and claimed is not None:
            waited = claimed - ready if claimed > ready else 0
        attempt = self.attempts[fence] = [
            row[_ID], row[_QUEUE], fence, row[_CLAIMS], row[_TASK], row[_WORKER], ready, claimed,
            None, waited, None, None, None, None, scopes,
        ]  # fmt: skip
        return attempt

    def _unknown_claim(self, fence: str) -> list[Any]:
        """Add a row for a claim whose beginning is not in the log. Return the new row."""
        attempt: list[Any] = [None] * len(ATTEMPT_COLUMNS)
        attempt[:3] = self.row[_ID], self.row[_QUEUE], fence
        attempt[_A["task"]] = self.row[_TASK]
        self.attempts[fence] = attempt
        return attempt

    def _claim(self, fence: str, *, in_force: bool) -> list[Any]:
        """Return the row of the claim with the fencing token ``fence``. Add the row if it is missing, and set its task
        if the task was unknown.
        """
        attempt = self.attempts.get(fence)
        if attempt is None:
            attempt = self._begin_claim(fence) if in_force else self._unknown_claim(fence)
        elif attempt[_A["task"]] is None:
            attempt[_A["task"]] = self.row[_TASK]
        return attempt

    def _end_claim(
        self, fence: str | None, in_force: bool, kind: str, at_ms: int, error: Any
    ) -> None:
        row = self.row
        if error is not None:
            row[_ERROR_TYPE], row[_ERROR_MESSAGE] = _words_of(error)
        if fence is None:
            return
        attempt = self._claim(fence, in_force=in_force)
        attempt[_OUTCOME], attempt[_ENDED_AT] = kind, at_ms
        claimed = attempt[_BEGAN]
        if claimed is not None:
            attempt[_RAN] = at_ms - claimed if at_ms > claimed else 0
        if error is not None:
            attempt[_A["error_type"]] = row[_ERROR_TYPE]
            attempt[_A["error_message"]] = row[_ERROR_MESSAGE]

    def _lose_claim(self, at_ms: int) -> None:
        fence = self.row[_FENCE]
        if fence is None:
            return
        attempt = self._claim(fence, in_force=True)
        if attempt[_OUTCOME] is None:
            attempt[_OUTCOME], attempt[_ENDED_AT] = LOST, at_ms
        self.row[_FENCE] = None


class Derivation:
    """Derives the rows of jobs and claims from events. Call :meth:`feed` with the events' rows in order, then read
    ``jobs``.

    Leave out the events that Redis has forgotten.
    """

    def __init__(
        self,
        queue: str,
        ends: Sequence[LossEnd] = (),
        recall: Callable[[str], Derived | None] = lambda _job_id: None,
    ) -> None:
        """Begin without jobs.

        ``ends``, oldest first, are losses of Redis and complete baselines, which end live jobs without an event of the
        job. ``recall`` returns a job that is no longer in ``jobs``; None if the job had no event before.
        """
        self.queue = queue
        self.jobs: dict[str, Derived] = {}
        self.unmoved: set[str] = set()
        """Ids of jobs that have had an event which changes nothing in the job's row."""
        self._ends, self._recall = ends, recall

    def feed(self, rows: Iterable[EventRow]) -> None:
        """Apply the events in some rows to their jobs."""
        jobs, ends, plans = self.jobs, self._ends, _PLANS
        for row in rows:
            plan, job_id = plans.get(row[4]), row[6]
            if plan is None or job_id is None:
                if job_id is not None and not self._clear(row, job_id):
                    self.unmoved.add(job_id)
                continue
            job = jobs.get(job_id)
            if job is None:
                job = jobs[job_id] = self._recall(job_id) or Derived(self.queue, job_id)
            if ends:
                job.pass_ends(ends, row[1:3])
            try:
                job.apply(row, plan)
            except (KeyError, ValueError, TypeError, AttributeError):
                continue  # The replay reports that the event cannot be read.

    def _clear(self, event: EventRow, job_id: str) -> bool:
        """Apply an event that does not change its job's state. Return whether it changes other fields of the job."""
        cleared, told = _CLEARED.get(event[4], ()), _TOLD.get(event[4], ())
        if not cleared and not told:
            return False
        job = self.jobs.get(job_id) or self._recall(job_id)
        if job is None:
            return False
        self.jobs[job_id] = job
        job.pass_ends(self._ends, event[1:3])
        job.last, job.ordinal, job.at_ms = event[1:3], event[3], event[5]
        job.row[_EPOCH], job.row[_SEQ] = job.last
        for place in cleared:
            job.row[place] = None
        for place, name in told:
            job.row[place] = facts_in(event[10]).get(name)
        return True


def _where(leads: Leads, facts: Mapping[str, Any]) -> str | None:
    """Return the job's state after an event, if the event's fields ``facts`` decide it by the rule ``leads``.

    Return None if Redis does not have the job after the event.
    """
    if leads is Leads.BY_DUE:
        return _READY if facts.get("due_ms") is None else _SCHEDULED
    if leads is Leads.BY_DEATH:
        return _DEAD if facts.get("dead") else None
    said: str | None = facts["target"] if leads is Leads.BY_TARGET else facts.get("state")
    return said


def _words_of(error: Any) -> tuple[str | None, str | None]:
    """Return the type and the message of an event's error; None in place of a missing part."""
    if not isinstance(error, dict):
        return None, clean(str(error))[:ERROR_MESSAGE_MAX]
    kind, message = error.get("type"), error.get("message")
    return (
        None if kind is None else clean(str(kind))[:ERROR_TYPE_MAX],
        None if message is None else clean(str(message))[:ERROR_MESSAGE_MAX],
    )
