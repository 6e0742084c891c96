"""The rows of ``job`` and ``job_attempt`` that events make, derived by the table of effects alone.

The mirror's fold keeps such rows up to date for many thousands of events a second; ``audit verify`` must not believe it.
So this is the same table (:mod:`rq_core.model.effects`) applied by other code, event by event, to the rows of
``job_event``. It does no I/O.

    >>> made = Derivation("mail")
    >>> made.feed(("mail", 7, 0, 0, "promoted", 9, "a", None, "w-1", None, '{"seq":1}'))
    >>> made.jobs["a"].column("state")
    'ready'
"""

from __future__ import annotations

import contextlib
import json
import marshal
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from rq_core.model.effects import CLAIM_ENDS, EFFECTS, Effect, Leads
from rq_core.model.fields import COUNTERS
from rq_core.model.machine import CLAIMED_STATES, Event, State
from sql_audit.mirror.intake import clean, to_json
from sql_audit.store.orphans import End
from sql_audit.store.rows import ERROR_MESSAGE_MAX, ERROR_TYPE_MAX, EventRow
from sql_audit.store.tables import ATTEMPT_COLUMNS, GONE, JOB_COLUMNS, LOST, TERMINAL_STATES

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
    _ID, _TASK, _STATE, _CLAIMS, _DUE, _READY_AT, _CLAIMED_AT, _FINISHED_AT, _SINCE, _WORKER, _FENCE,
    _REASON, _ERROR_TYPE, _ERROR_MESSAGE, _COMPLETE, _EPOCH, _SEQ,
) = (
    _PLACES[name]
    for name in (
        "job_id", "task", "state", "claims", "due_ms", "ready_at_ms", "claimed_at_ms",
        "finished_at_ms", "since_ms", "worker", "fence", "reason", "error_type", "error_message",
        "complete", "last_epoch", "last_seq",
    )
)  # fmt: skip
_A: Final = {name: place for place, name in enumerate(ATTEMPT_COLUMNS)}
_ENDED_AT, _OUTCOME, _RAN = _A["ended_at_ms"], _A["outcome"], _A["ran_ms"]


class _Plan(NamedTuple):
    """An effect, its fields as places in a row."""

    leads_to: str | Leads | None
    takes: tuple[tuple[int, str, Any], ...]
    """Place, the event's field, and what null becomes."""
    takes_if_told: tuple[tuple[int, str], ...]
    changes: tuple[tuple[int, Any], ...]
    """Places that become 0 or null."""
    stamps: tuple[int, ...]
    begins: bool
    ends_claim: bool
    dies_of: str | None

    @classmethod
    def of(cls, event: Event, effect: Effect) -> _Plan:
        to = effect.leads_to
        return cls(
            str(to) if isinstance(to, State) else to,
            tuple(
                (_PLACES[name], told, 0 if name in COUNTERS else None)
                for name, told in effect.takes
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
        )


_PLANS: Final = {str(event): _Plan.of(event, effect) for event, effect in EFFECTS.items()}


class Derived:
    """One job: its row, its claims' rows, and what else is known of its last event."""

    __slots__ = ("at_ms", "attempts", "last", "named", "ordinal", "row")

    def __init__(self, queue: str, job_id: str) -> None:
        row: list[Any] = [None] * len(JOB_COLUMNS)
        row[_PLACES["queue"]], row[_ID], row[_STATE], row[_COMPLETE] = queue, job_id, GONE, 0
        for name in COUNTERS:
            row[_PLACES[name]] = 0
        self.row = row
        self.attempts: dict[str, list[Any]] = {}
        """By fence."""
        self.last: tuple[int, int] = (0, 0)
        """The entry of its last event."""
        self.ordinal = self.at_ms = 0
        self.named: tuple[int, int] | None = None
        """The entry that its row in SQL names as its last, if that was looked at."""

    def column(self, name: str) -> Any:
        """What a column of its row holds."""
        return self.row[_PLACES[name]]

    def packed(self) -> bytes:
        """All of it, in a fifth of the memory."""
        return marshal.dumps(
            (self.row, self.attempts, self.last, self.ordinal, self.at_ms, self.named)
        )

    @classmethod
    def unpacked(cls, packed: bytes) -> Derived:
        """What :meth:`packed` packed."""
        found = cls.__new__(cls)
        found.row, found.attempts, found.last, found.ordinal, found.at_ms, found.named = (
            marshal.loads(packed)
        )  # noqa: S302 - our own
        return found

    def forgotten(self) -> None:
        """Redis forgot every event of it: it was there once, and is lost."""
        row = self.row
        row[_REASON], row[_STATE] = row[_STATE], LOST
        row[_FENCE] = row[_WORKER] = row[_DUE] = None
        self.attempts = {}

    def pass_ends(self, ends: Iterable[End], upto: tuple[int, int] | None = None) -> None:
        """Meet the first end of all live jobs that lies after its last event, and before entry ``upto``."""
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

    def apply(self, event: EventRow, plan: _Plan) -> None:
        """Put it where an event leaves it."""
        _, epoch, seq, self.ordinal, kind, at_ms, _, claim, worker, task, detail = event
        row, restated = self.row, kind == _BASELINE
        facts: dict[str, Any] = {} if detail is None else json.loads(detail)
        facts["task"], facts["claim"] = task, claim
        fence, held = facts.get("fence"), row[_FENCE]
        same_claim = fence is not None and fence == held
        if held is not None and not same_claim:
            self._lose_claim(at_ms)
        if plan.ends_claim:
            self._end_claim(fence, same_claim, kind, at_ms, facts.get("error"))
        due_before = row[_DUE]
        state = plan.leads_to
        if state is Leads.BY_DUE:
            state = _READY if facts.get("due_ms") is None else _SCHEDULED
        elif isinstance(state, Leads):
            state = facts.get("target" if state is Leads.BY_TARGET else "state")
        absent = restated and state is None
        if restated and not absent:
            at_ms = facts.get("since_ms")
        row[_SINCE], row[_DUE], row[_REASON] = at_ms, facts.get("due_ms"), None
        if not absent:
            for place, value in plan.changes:
                row[place] = value
            for place, name, null in plan.takes:
                value = facts.get(name)
                row[place] = null if value is None else value
            for place, name in plan.takes_if_told:
                if facts.get(name) is not None:
                    row[place] = facts[name]
            for place in plan.stamps:
                row[place] = at_ms
        if plan.begins:
            row[_COMPLETE] = 1
        row[_EPOCH], row[_SEQ] = self.last = (epoch, seq)
        self.at_ms = event[5]
        self._enter(state, kind, at_ms, absent=absent)
        if state == _READY:
            early = kind == _PROMOTION and due_before is not None and due_before < at_ms
            row[_READY_AT] = due_before if early else at_ms
        elif state == _DEAD:
            row[_REASON] = plan.dies_of or facts.get("reason")
        elif kind == _CLAIM:
            row[_FENCE], row[_WORKER] = f"{epoch}-{seq}", worker
            attempt = self._begin_claim(row[_FENCE])
            scopes = facts.get("scopes")
            attempt[_A["scopes"]] = None if scopes is None else to_json(scopes)
        elif restated and state in _CLAIMED and fence is not None:
            if not same_claim:
                row[_READY_AT] = None
                row[_CLAIMED_AT] = at_ms if state == _RUNNING else None
            if fence not in self.attempts:
                self._begin_claim(fence)

    def _enter(self, state: str | None, kind: str, at_ms: int | None, *, absent: bool) -> None:
        row = self.row
        if absent:
            if row[_STATE] not in _ENDED:
                row[_STATE] = GONE
        elif state is None:
            row[_STATE] = kind
        else:
            row[_STATE] = state
            row[_FINISHED_AT] = at_ms if state == _DEAD else None
            if state == _SCHEDULED:
                row[_READY_AT] = None
        if state not in _CLAIMED:
            row[_FENCE] = row[_WORKER] = None

    def _begin_claim(self, fence: str) -> list[Any]:
        """The row of the claim in force."""
        row = self.row
        ready, claimed = row[_READY_AT], row[_CLAIMED_AT]
        waited = None if ready is None or claimed is None else max(0, claimed - ready)
        said = {
            "claim": row[_CLAIMS], "worker": row[_WORKER], "ready_at_ms": ready,
            "claimed_at_ms": claimed, "waited_ms": waited,
        }  # fmt: skip
        attempt = self._attempt(fence)
        for name, value in said.items():
            attempt[_A[name]] = value
        return attempt

    def _attempt(self, fence: str) -> list[Any]:
        """The row of a claim of which nothing else is known."""
        attempt: list[Any] = [None] * len(ATTEMPT_COLUMNS)
        attempt[_A["job_id"]], attempt[_A["queue"]] = self.row[_ID], self.row[_PLACES["queue"]]
        attempt[_A["fence"]], attempt[_A["task"]] = fence, self.row[_TASK]
        self.attempts[fence] = attempt
        return attempt

    def _end_claim(
        self, fence: str | None, in_force: bool, kind: str, at_ms: int, error: Any
    ) -> None:
        row = self.row
        if error is not None:
            row[_ERROR_TYPE], row[_ERROR_MESSAGE] = _words_of(error)
        if fence is None:
            return
        attempt = self.attempts.get(fence)
        if attempt is None:
            attempt = self._begin_claim(fence) if in_force else self._attempt(fence)
        attempt[_OUTCOME], attempt[_ENDED_AT] = kind, at_ms
        claimed = attempt[_A["claimed_at_ms"]]
        if claimed is not None:
            attempt[_RAN] = max(0, at_ms - claimed)
        if error is not None:
            attempt[_A["error_type"]] = row[_ERROR_TYPE]
            attempt[_A["error_message"]] = row[_ERROR_MESSAGE]

    def _lose_claim(self, at_ms: int) -> None:
        fence = self.row[_FENCE]
        if fence is None:
            return
        attempt = self.attempts.get(fence) or self._begin_claim(fence)
        if attempt[_OUTCOME] is None:
            attempt[_OUTCOME], attempt[_ENDED_AT] = LOST, at_ms
        self.row[_FENCE] = None


class Derivation:
    """The jobs of some events. Feed it the rows in order, orphaned ones left out, then look at ``jobs``."""

    def __init__(self, queue: str, ends: Sequence[End] = ()) -> None:
        self.queue = queue
        self.ends = ends
        """What all live jobs met that no event of theirs says, oldest first."""
        self.jobs: dict[str, Derived] = {}

    def feed(self, row: EventRow) -> None:
        """Apply one event. What is not about a job's state changes nothing."""
        plan = _PLANS.get(row[4])
        if plan is None:
            return
        job = self.jobs.get(row[6])
        if job is None:
            job = self.jobs[row[6]] = Derived(self.queue, row[6])
        elif self.ends:
            job.pass_ends(self.ends, row[1:3])
        # What cannot be read is named by the replay.
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            job.apply(row, plan)


def _words_of(error: Any) -> tuple[str | None, str | None]:
    """Type and message of an event's error."""
    if not isinstance(error, dict):
        return None, clean(str(error))[:ERROR_MESSAGE_MAX]
    kind, message = error.get("type"), error.get("message")
    return (
        None if kind is None else clean(str(kind))[:ERROR_TYPE_MAX],
        None if message is None else clean(str(message))[:ERROR_MESSAGE_MAX],
    )
