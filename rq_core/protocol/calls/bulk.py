"""Changes of all jobs of a queue that match a filter: cancel, edit, requeue and prune.

A change goes through the queue page by page. :meth:`Bulk.step` reads one page of at most 250 jobs, and changes the jobs
that match, at most 50 in one call. Between two steps, a change needs only its filter and a *place*: a short text that
says how far the change has come. So any process can continue a change that another process began: a program, the
command line or a web page with a form.

The calls of a change are numbered, so that Redis carries out a repeated call only once. The number of a call follows
from the number of jobs that earlier calls have changed. If the answer to a call is lost, the next process reads from
Redis how many jobs the call changed.

The events of all calls have the id of the change at the beginning of their reason.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple

from rq_core.errors import InvalidOption, StaleCall
from rq_core.model.filters.job_filter import Filter
from rq_core.model.keys import QueueKeys, queue_keys
from rq_core.model.lib.checks import check_whole
from rq_core.model.settings import SLOT_ANSWER
from rq_core.model.state_line import JobState
from rq_core.model.table.machine import State
from rq_core.protocol.calls.admin import IDS_CHUNK, WHY_MAX, Admin, Change, check_why
from rq_core.protocol.calls.families import MOVED, Families
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Pause, Plan, Slot, named_slot, parse_pairs
from rq_core.protocol.reads.matches import matching
from rq_core.protocol.reads.paging import JobPage, PagedKey, sources_of
from rq_core.protocol.reads.reads import Reads
from rq_core.protocol.reads.steps import Steps, beside, jobs_of, run_steps

ROUNDS_MAX: Final = 3
"""Maximum number of rounds of a change. In each round, the change goes through the whole queue. Later rounds find jobs
that moved to another key during an earlier round."""
CHANGED_MAX: Final = 50
"""Maximum number of jobs that one call changes: a fifth of a page. The number is small because Lua's garbage collector
runs during some calls, and these calls take several times as long as others."""
PAUSE_S_MAX: Final = 1.0
"""Longest pause after a step, in seconds."""
PAUSE_STEPS: Final = 1.5
"""Usual length of a pause, as a multiple of the duration of the step before. With this pause, workers run about 80 % as
many jobs per second as without a change."""
LIMIT_MAX: Final = 1_000_000_000
"""Highest value of ``BulkChange.limit``, which limits the number of changed jobs."""
_SAME_MAX: Final = 2**20
"""A factor for the numbers of a change's calls: a call has the number ``changed`` times this factor, plus ``idle``,
plus 1 (see ``BulkPlace.slot``). So at most _SAME_MAX - 1 calls in a row may change no job."""
_WHY_ID: Final = "bulk {id}"
_REASON_MAX: Final = WHY_MAX - 50

_WAITING: Final = (State.READY, State.SCHEDULED)


class Verb(NamedTuple):
    """One kind of change of many jobs, for example the cancelling of jobs."""

    name: str
    usual: tuple[State, ...]
    """The states of the jobs that are changed if the filter names no states."""
    states: tuple[State, ...]
    """The states that a filter for this kind of change may name."""
    done: tuple[str, ...]
    """The outcomes that count as changed, such as ``cancelled``."""
    refused: tuple[str, ...] = ()
    """The outcomes of jobs that match the filter but could not be changed."""


_CANCELLED: Final = (*_WAITING, State.PARKED)
CANCEL: Final = Verb(
    "cancel", _CANCELLED, (*_CANCELLED, State.RUNNING), ("cancelled", "cancelling")
)
EDIT: Final = Verb("edit", _WAITING, _WAITING, ("edited",), ("never",))
REQUEUE: Final = Verb("requeue", (State.DEAD,), (State.DEAD,), ("requeued",), ("held",))
PRUNE: Final = Verb("prune", (State.DEAD,), (State.DEAD,), ("pruned",))
VERBS: Final[Mapping[str, Verb]] = {verb.name: verb for verb in (CANCEL, EDIT, REQUEUE, PRUNE)}


UNCHANGED: Final = Change()


@dataclass(frozen=True, slots=True)
class BulkChange:
    """A change of many jobs: the kind of change, its filter and its options."""

    verb: Verb
    filter: Filter
    edit: Change = UNCHANGED
    """The new options, for an edit."""
    by: str | None = None
    reason: str = ""
    limit: int | None = None
    """Maximum number of jobs that are changed; None: all."""
    dry_run: bool = False
    """True if the jobs are only counted."""

    def __post_init__(self) -> None:
        given: object = self.filter
        if not isinstance(given, Filter):
            raise InvalidOption.of("filter", given, "must be a Filter, like Filter(queue='mail')")
        unfit = [state for state in given.states if state not in self.verb.states]
        if unfit:
            must = f"must be of {', '.join(self.verb.states)}: {self.verb.name} changes no others"
            raise InvalidOption.of("states", str(unfit[0]), must)
        if given.error is not None and State.DEAD not in self.verb.states:
            must = f"must be left out: only dead jobs have an error, and {self.verb.name} changes none of them"
            raise InvalidOption.of("error", given.error, must)
        if given.due is not None and State.SCHEDULED not in self.verb.states:
            must = f"must be left out: only scheduled jobs are due, and {self.verb.name} changes none of them"
            raise InvalidOption.of("due", given.due, must)
        if self.limit is not None:
            check_whole("limit", self.limit, 1, LIMIT_MAX)
        check_why(self.reason)
        if len(self.reason) > _REASON_MAX:
            must = f"must have at most {_REASON_MAX:,} characters"
            raise InvalidOption.of("reason", self.reason[:50], must)

    @property
    def states(self) -> tuple[State, ...]:
        """The states of the jobs to change: those of the filter, or else the usual ones for this kind of change."""
        return self.filter.only_states or self.verb.usual

    def why(self, bulk_id: str) -> str:
        """Return the reason that the audit log keeps for each call: ``bulk``, the id and the operator's reason."""
        about = _WHY_ID.format(id=bulk_id)
        return f"{about}: {self.reason}" if self.reason else about


@dataclass(frozen=True, slots=True)
class BulkPlace:
    """The progress of a change of many jobs: where in the queue it continues, and its counts. ``str`` returns the place
    as a text, which ``parse`` reads.
    """

    id: str
    """The id of the change: 12 hex digits for the time at which it began (Unix ms), then 4 random hex digits."""
    round: int = 1
    source: int = 0
    """The index of the key that is being read, in the list of keys that ``sources_of`` returns."""
    at: str = ""
    """The place at which the next page of the key begins."""
    looked: int = 0
    matched: int = 0
    changed: int = 0
    changed_before: int = 0
    """Number of jobs that earlier rounds of the change have changed."""
    idle: int = 0
    """Number of calls in a row, up to now, that have changed no job."""

    @property
    def slot(self) -> Slot:
        """The name and number of the change's next call. Redis carries out a numbered call only once. Each later call
        has a higher number.
        """
        number = self.changed * _SAME_MAX + self.idle + 1
        return named_slot(f"bulk.{self.id}", number)

    def after_call(self, changed: int) -> BulkPlace:
        """Return the place after one more call, which changed ``changed`` jobs."""
        idle = 0 if changed else self.idle + 1
        return replace(self, changed=self.changed + changed, idle=idle)

    @property
    def begun_ms(self) -> int:
        """The time at which the change began (Unix ms, by the clock of the queue's server)."""
        return int(self.id[:12], 16)

    def __str__(self) -> str:
        numbers = self.round, self.source, self.looked, self.matched, self.changed
        more = self.changed_before, self.idle
        return "/".join([self.id, *map(str, (*numbers, *more)), self.at])

    @classmethod
    def parse(cls, text: str) -> BulkPlace:
        """Return the place that ``str`` has written as this text. Raises InvalidOption if the text is not a place."""
        given: object = text
        found = _PLACE.fullmatch(given) if isinstance(given, str) else None
        if found is None:
            must = "must be the place that a change of many jobs has returned"
            raise InvalidOption.of("resume", str(text)[:100], must)
        bulk_id, *numbers, at = found.groups()
        number, source, looked, matched, changed, before, idle = map(int, numbers)
        return cls(bulk_id, number, source, at, looked, matched, changed, before, idle)


_PLACE: Final = re.compile(
    r"([0-9a-f]{16})/([1-3])/([0-8])" + r"/([0-9]{1,15})" * 5 + "/(.{0,20000})"
)


class BulkStep(NamedTuple):
    """The result of one step of a change of many jobs. A step may make several calls."""

    place: BulkPlace
    """The place at which the next step continues."""
    is_last: bool
    """True if the change is complete."""
    outcomes: dict[str, str]
    """The outcomes of the jobs that matched, by id. In a dry run: the jobs' states, by id."""
    damaged: tuple[str, ...] = ()
    """A message for each job that could not be read."""


@dataclass(frozen=True)
class JobsChanged:
    """The result of a change of many jobs."""

    id: str
    """The id of the change. The events of the changed jobs have this id in their reason: ``bulk ID: REASON``."""
    matched: int
    """Number of jobs that matched. A job that moved while the queue was read may count twice."""
    changed: int
    """Number of jobs that were changed; 0 in a dry run."""
    outcomes: Mapping[str, int] = field(default_factory=dict)
    """Number of jobs for each outcome. All changed jobs are counted, but only those unchanged jobs that the first round
    found. In a dry run: number of jobs for each state."""
    left: int = 0
    """Number of jobs that match the filter but could not be changed. A dead job is not requeued if another job holds
    its unique name. A job is not edited if it would become ready at its deadline or later."""
    looked: int = 0
    """Number of jobs that were read."""
    complete: bool = True
    """True in a dry run, or if the last round through the queue found no further job to change. If False, the limit was
    reached, or producers keep enqueueing jobs that match."""
    damaged: tuple[str, ...] = ()
    """A message for each job that could not be read."""


Progress = Callable[[BulkPlace], None]
"""A function that is called after each step of a change, with the place that the change has reached. The function may
raise an exception to stop the change. The change can continue from this place later."""


class Bulk:
    """The calls that change many jobs."""

    def __init__(self, delivery: Delivery, admin: Admin, reads: Reads, families: Families) -> None:
        self._delivery = delivery
        self._admin = admin
        self._reads = reads
        self._families = families

    def begin(self, queue: str) -> Plan[BulkPlace]:
        """Return the place at which a new change of a queue's jobs begins. Its id has the present time of Redis."""
        now_ms = yield from self._reads.now_ms(queue)
        return BulkPlace(f"{now_ms:012x}{os.urandom(2).hex()}")

    def run(
        self, change: BulkChange, place: BulkPlace | None = None, progress: Progress | None = None
    ) -> Plan[JobsChanged]:
        """Make a whole change. The change begins at ``place``; None: at the beginning of the queue.

        After each step, the change pauses for 1.5 times the step's duration, but at most for PAUSE_S_MAX seconds. So
        workers get more than half of the server's time.
        """
        at = place or (yield from self.begin(change.filter.queue))
        told: Counter[str] = Counter()
        damaged: dict[str, None] = {}
        left, clock = 0, self._delivery.asking.clock
        while True:
            since, number = clock(), at.round
            step = yield from self.step(change, at)
            took = clock() - since
            # After the first round, a job that was not changed comes a second time.
            words = [o for o in step.outcomes.values() if number == 1 or o in change.verb.done]
            told.update(words)
            left += sum(outcome in change.verb.refused for outcome in step.outcomes.values())
            damaged |= dict.fromkeys(step.damaged)
            at = step.place
            if progress is not None:
                progress(at)
            if step.is_last:
                break
            left = left if at.round == number else 0
            yield Pause(pause_after(took))
        return JobsChanged(
            id=at.id,
            matched=at.matched,
            changed=0 if change.dry_run else at.changed,
            outcomes=dict(told),
            left=0 if change.dry_run else left,
            looked=at.looked,
            complete=change.dry_run or at.changed == at.changed_before,
            damaged=tuple(damaged),
        )

    def step(self, change: BulkChange, place: BulkPlace) -> Plan[BulkStep]:
        """Read one page of jobs, and change the jobs that match.

        A step may be repeated at the same place, because a changed job does not match again.
        """
        sources = sources_of(change.states)
        if place.source >= len(sources):
            raise InvalidOption.of("resume", str(place), "must be the place of a change like this")
        source, queue = sources[place.source], change.filter.queue
        keys = queue_keys(queue, self._delivery.prefix)
        page, matching, damaged = yield from run_steps(
            self._delivery, queue, self._matching(change, keys, source, place)
        )
        ids = [job.id for job in matching]
        room = len(ids) if change.limit is None else max(0, change.limit - place.changed)
        outcomes: dict[str, str] = {}
        changed = 0
        if change.dry_run:
            outcomes = {job.id: str(job.state) for job in matching[:room]}
            changed = len(outcomes)
        made = replace(place, changed=place.changed + changed)
        while not change.dry_run and ids[len(outcomes) :] and changed < room:
            some = ids[len(outcomes) : len(outcomes) + min(room - changed, CHANGED_MAX)]
            try:
                told = yield from self._change(change, some, made)
            except StaleCall:
                return _counted(change, (yield from self._caught_up(change, made)), outcomes)
            now = sum(outcome in change.verb.done for outcome in told.values())
            made, changed = made.after_call(now), changed + now
            moved = [job_id for job_id, outcome in told.items() if outcome == MOVED]
            ids = [*(job_id for job_id in ids if job_id not in moved), *moved]
            outcomes |= {i: outcome for i, outcome in told.items() if outcome != MOVED}
            if told.keys() != set(some):
                # The answer to an earlier call, which was lost.
                return _counted(change, made, outcomes)
        at = source.after_change(page.place, 0 if change.dry_run else changed)
        after = replace(
            made,
            at=at or "",
            looked=place.looked + len(page.ids),
            matched=place.matched + (len(outcomes) if place.round == 1 else changed),
        )
        is_full = change.limit is not None and after.changed >= change.limit
        if is_full or page.place is not None:
            return BulkStep(after, is_full, outcomes, tuple(damaged))
        after = replace(after, source=after.source + 1)
        if after.source < len(sources):
            return BulkStep(after, False, outcomes, tuple(damaged))
        changed_now = after.changed - after.changed_before
        if change.dry_run or not changed_now or after.round == ROUNDS_MAX:
            return BulkStep(after, True, outcomes, tuple(damaged))
        again = replace(after, round=after.round + 1, source=0, changed_before=after.changed)
        return BulkStep(again, False, outcomes, tuple(damaged))

    def _matching(
        self, change: BulkChange, keys: QueueKeys, source: PagedKey, place: BulkPlace
    ) -> Steps[tuple[JobPage, list[JobState], list[str]]]:
        """Return a page of a key, the page's jobs that must be changed, and a message for each unreadable job."""
        # The first round of a cancel leaves entries of gone jobs at the heads of lists; claims would have to skip them.
        has_left = change.verb is CANCEL and place.round > 1 and not change.dry_run
        skipping = source.skipping(keys) if has_left else []
        page, _ = yield from beside(source.page(keys, place.at, IDS_CHUNK), skipping)
        jobs, damaged = yield from jobs_of(keys, list(dict.fromkeys(page.ids)))
        wanted, states = change.filter, source.states.intersection(change.states)
        some = [
            job
            for job in jobs
            if job.state in states and not _came_later(change.verb, job, place.begun_ms)
        ]
        found = yield from matching(keys, some, wanted, place.begun_ms)
        return page, found, damaged

    def _change(
        self, change: BulkChange, ids: Sequence[str], place: BulkPlace
    ) -> Plan[dict[str, str]]:
        """Change jobs in one call. A cancel and a requeue also change the jobs' children, in further calls.

        An earlier process may have already made the call with this number. Then the answer of that earlier call is
        returned, which may be about other jobs than ``ids``. Raises StaleCall if Redis has carried out later calls of
        the change.
        """
        admin, queue = self._admin, change.filter.queue
        by, why, slot = change.by, change.why(place.id), place.slot
        match change.verb.name:
            case "cancel":

                def cancel(some: Sequence[str], ended: Mapping[str, int]) -> Plan[dict[str, str]]:
                    only = change.states
                    return admin.cancel(
                        queue, some, only=only, ended=ended, by=by, why=why, slot=slot
                    )

                return (yield from self._families.cancel_by(cancel, queue, ids, by=by, why=why))
            case "edit":
                edit = _from_the_beginning(change.edit, place.begun_ms)
                return (yield from admin.edit(queue, ids, edit, by=by, why=why, slot=slot))
            case "requeue":
                verb = partial(admin.requeue, queue, by=by, why=why, slot=slot)
                requeue = self._families.requeue_by
                return (yield from requeue(verb, queue, ids, by=by, why=why))
        return (yield from admin.prune(queue, ids, by=by, why=why, slot=slot))

    def _caught_up(self, change: BulkChange, place: BulkPlace) -> Plan[BulkPlace]:
        """Return the place after the last call of the change that Redis has carried out."""
        queue, slot = change.filter.queue, place.slot.name
        slots = queue_keys(queue, self._delivery.prefix)("slots")
        fields = slot, f"{slot}{SLOT_ANSWER}"
        last, answer = yield from self._delivery.ask([["HGET", slots, f] for f in fields], queue)
        if last is None:
            return place
        changed, idle = divmod(int(last.split(" ")[0]) - 1, _SAME_MAX)
        outcomes = parse_pairs((answer or "").split()).values()
        now = sum(outcome in change.verb.done for outcome in outcomes)
        return replace(place, changed=changed, idle=idle).after_call(now)


def pause_after(step_s: float) -> float:
    """Return the length in seconds of the pause after a step that took ``step_s`` seconds."""
    return min(PAUSE_STEPS * step_s, PAUSE_S_MAX)


def _counted(change: BulkChange, place: BulkPlace, outcomes: dict[str, str]) -> BulkStep:
    """Return the result of a step that ends early, because the answer to one of its calls was lost. ``place`` already
    counts the jobs that this call changed. The next step reads the same page again.
    """
    is_full = change.limit is not None and place.changed >= change.limit
    return BulkStep(place, is_full, outcomes)


def _came_later(verb: Verb, job: JobState, begun_ms: int) -> bool:
    """Return whether a change must leave a job alone, because the job entered its state after the change began.

    The change itself may be the cause. For example, the change requeued the job, and the job died again. Or the change
    edited the job, and the job ran and waits again. For an edit, the result is True only for jobs that were claimed.
    For a cancel, the result is always False.
    """
    if (job.since_ms or 0) <= begun_ms:
        return False
    return verb in (REQUEUE, PRUNE) or (verb is EDIT and "claim" in job.fields)


def _from_the_beginning(change: Change, begun_ms: int) -> Change:
    """Return an edit whose relative times are replaced by absolute times, counted from the beginning of the whole
    change.

    Thus each call of the change sets the same times, and a repeated edit of a job changes nothing.
    """

    def instant(text: str) -> str:
        return str(begun_ms + int(text[1:])) if text.startswith("+") else text

    return change._replace(due=instant(change.due), expires=instant(change.expires))
