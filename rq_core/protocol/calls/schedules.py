"""The calls that declare and change schedules, and that report the instants at which a schedule must run. When a worker
reports an instant, Redis enqueues the schedule's job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from rq_core import errors
from rq_core.model.job import NewJob
from rq_core.model.keys import check_name, queue_keys
from rq_core.model.lib.checks import check_whole
from rq_core.model.limits.limit import Limit
from rq_core.model.limits.scopes import TICK
from rq_core.model.recurrence import INSTANT_MAX, Passed, Recurrence, check_schedule_name, from_json
from rq_core.model.schedule import JOB_FIELD, JOB_MAX, Schedule, job_of
from rq_core.protocol.calls.admin import check_why
from rq_core.protocol.calls.caps import DECLARED_WHY, VERSION_MAX, Caps
from rq_core.protocol.calls.enqueue import pack_jobs
from rq_core.protocol.engine.delivery import Delivery
from rq_core.protocol.engine.plan import Call, Plan, pairs_of
from rq_core.protocol.engine.prepared_items import PreparedItems
from rq_core.protocol.reads.reads import Reads

HAND_MAX: Final = 250
"""Maximum number of due schedules that Redis gives to a worker in one answer."""
PUT_MAX: Final = 250
"""Maximum number of schedules in one call that declares them."""
PUT_BYTES: Final = 4 * 1024 * 1024
"""Number of bytes of schedules' jobs after which a call takes no further schedule."""
LATE_MAX: Final = 20
"""Maximum number of times that a change of a schedule is sent. It is sent again if the schedule's next instant passes
before Redis carries out the change."""

Record = tuple[str, int, int, int, str, str]


class Declaration(NamedTuple):
    """A schedule to be stored: the rule that says when it runs, and its encoded job."""

    rule: Recurrence
    packed: str
    """The schedule's job, encoded as the key ``schedules`` stores it."""
    spec_max: int
    """Maximum number of bytes of the job's JSON that the audit log keeps; the JSON includes the arguments."""

    @classmethod
    def of(cls, job: NewJob, rule: Recurrence) -> Declaration:
        """Return the declaration of a schedule with this job and rule. Raises InvalidOption if no schedule can have the
        job."""
        made = job_of(job, rule)
        kinds, ((_, _, digest, lane, spec),) = pack_jobs([made])
        packed = f"{kinds[1:-1]}\n{lane}\n{digest}\n{spec}"
        if (size := _bytes_in(packed)) > JOB_MAX:
            must = f"must take {JOB_MAX:,} bytes at most: it takes {size:,}"
            raise errors.InvalidOption.of("job", job.profile.task, must)
        return cls(rule, packed, made.spec_max)


class ScheduleChange(NamedTuple):
    """The outcome of a change of a schedule, and the version that is stored now."""

    outcome: str
    """The outcome: changed, same, kept (an operator's change or newer code takes precedence), conflict (another version
    is stored), undeclared (no code declares the schedule), gone, or late (LATE_MAX attempts came too late for the next
    instant)."""
    version: int
    """Version of the stored schedule; 0: none is stored."""
    next_ms: int
    """The time at which the schedule runs next (Unix ms)."""


class Told(NamedTuple):
    """The outcome for one schedule whose job Redis should enqueue: at an instant, or as an extra run for an
    operator.
    """

    outcome: str
    holder: str | None = None
    """The other job or the full scope that kept the schedule's job out of the queue; None: neither did."""


class Instant(NamedTuple):
    """A worker's report about a due schedule: the instant for which the job is enqueued, and the next instant."""

    name: str
    version: int
    expected: int
    fired: int
    next_ms: int
    missed: int

    @classmethod
    def of(cls, name: str, schedule: Schedule, passed: Passed) -> Instant:
        """Return the report about a due schedule. ``passed`` has the times at which the schedule should have run until
        now.
        """
        following = passed.next or INSTANT_MAX
        return cls(
            name, schedule.version, schedule.next_ms, passed.fired or 0, following, passed.missed
        )


@dataclass(frozen=True, slots=True)
class Ticked:
    """The answer to a worker's report about due schedules: their outcomes, and further due schedules."""

    now_ms: int
    told: dict[str, Told]
    due: dict[str, str]
    """The due schedules that Redis has given to this worker: name → stored text. For 5 s, no other worker gets them."""


def tick(
    queue: str,
    worker: str,
    instants: Sequence[Instant] = (),
    *,
    spec_max: int = 0,
    hand_max: int = HAND_MAX,
    why: str = "",
) -> Call[Ticked]:
    """Build the Redis call that reports the instants (times to run) of due schedules, and gets further schedules that
    are due.
    """
    args = {"by": worker, "why": why, "spec_max": spec_max, "hand_max": hand_max}
    count = len(instants)
    return Call("tick", queue, args, lambda reply: parse_ticked(reply, count), tuple(instants))


def parse_ticked(reply: Sequence[Any], count: int) -> Ticked:
    """Return the parsed answer to a call that reported ``count`` due schedules."""
    end = 1 + 3 * count
    told = {
        reply[at]: Told(reply[at + 1], None if reply[at + 2] == "-" else reply[at + 2])
        for at in range(1, end, 3)
    }
    return Ticked(int(reply[0]), told, dict(zip(reply[end::2], reply[end + 1 :: 2], strict=True)))


def parse_changes(reply: Sequence[Any]) -> dict[str, ScheduleChange]:
    """Return the outcomes of a call that changed schedules, by the schedule's name."""
    return {
        reply[at]: ScheduleChange(reply[at + 1], int(reply[at + 2]), int(reply[at + 3]))
        for at in range(0, len(reply), 4)
    }


class Schedules:
    """The calls that read and change the schedules of a queue."""

    def __init__(self, delivery: Delivery, caps: Caps, reads: Reads) -> None:
        self._delivery = delivery
        self._caps = caps
        self._reads = reads

    def stored(self, queue: str, names: Sequence[str] | None = None) -> Plan[dict[str, Schedule]]:
        """Return the schedules of a queue by name. With ``names``, only the schedules with these names are returned.

        Raises QueueDamaged for an entry that cannot be read.
        """
        key = queue_keys(queue, self._delivery.prefix)("schedules")
        if names is None:
            (found,) = yield from self._delivery.ask([["HGETALL", key]], queue)
            entries = {n: e for n, e in pairs_of(found).items() if not n.endswith(JOB_FIELD)}
        else:
            checked = [check_schedule_name(name) for name in names]
            (values,) = yield from self._delivery.ask([["HMGET", key, *checked]], queue)
            entries = {n: e for n, e in zip(checked, values, strict=True) if e is not None}
        try:
            return {name: Schedule.parse(entry) for name, entry in sorted(entries.items())}
        except ValueError as error:
            raise errors.QueueDamaged(queue=queue, why=str(error)) from None

    def readable(self, queue: str) -> Plan[tuple[dict[str, Schedule], list[str]]]:
        """Return the readable schedules of a queue by name, and a message for each unreadable one."""
        key = queue_keys(queue, self._delivery.prefix)("schedules")
        (found,) = yield from self._delivery.ask([["HGETALL", key]], queue)
        schedules: dict[str, Schedule] = {}
        unread: list[str] = []
        for name, entry in sorted(pairs_of(found).items()):
            if not name.endswith(JOB_FIELD):
                try:
                    schedules[name] = Schedule.parse(entry)
                except ValueError as error:
                    unread.append(f"schedule {name} of queue {queue} cannot be read: {error}")
        return schedules, unread

    def put(
        self,
        queue: str,
        declarations: Iterable[Declaration],
        *,
        source: str = "live",
        version: int = -1,
        by: str | None = None,
        why: str = "",
    ) -> Plan[dict[str, ScheduleChange]]:
        """Store schedules of a queue. Returns the outcome of each schedule by name.

        ``version`` is the version of the schedule that the caller has read (0: none was stored). If another version is
        stored, the outcome is ``conflict``. With -1, versions are not compared.

        ``source`` is ``live`` for an operator's change, and ``code`` for a schedule that a worker declares. A
        declaration of code replaces no rule that an operator set. A declaration of code also restores neither a rule
        that newer code has replaced nor a schedule that an operator has removed. In these cases the outcome is
        ``kept``.
        """
        changes: dict[str, ScheduleChange] = {}
        of_queue = ((queue, each) for each in declarations)
        said: dict[str, Any] = {"source": source, "version": version, "by": by, "why": why}
        yield from self.put_many(of_queue, changes.update, **said)
        return changes

    def put_many(
        self,
        declarations: Iterable[tuple[str, Declaration]],
        on_chunk: Callable[[dict[str, ScheduleChange]], None],
        *,
        source: str = "live",
        version: int = -1,
        by: str | None = None,
        why: str = "",
    ) -> Plan[None]:
        """Store schedules, given as (queue, schedule), in several calls. ``on_chunk`` is called with the outcomes of
        each call.

        The schedules of the next call are prepared while the server works. ``put`` explains the options.
        """
        check_whole("version", version, -1, VERSION_MAX)
        chunks = PreparedItems(_chunks(declarations))
        for queue, chunk in chunks:
            yield from self._cap_runs(queue, chunk)
            rules = {each.rule.name: each.rule for each in chunk}
            packed = {each.rule.name: each.packed for each in chunk}
            args = self._args("put", source, by, why, chunk[0].spec_max)
            after = dict.fromkeys(rules, (yield from self._reads.now_ms(queue)))
            on_chunk(
                (
                    yield from self._until_accepted(
                        queue, args, rules, packed, version, after, chunks.prepare
                    )
                )
            )

    def change(
        self,
        queue: str,
        name: str,
        what: str,
        *,
        version: int | None = None,
        by: str | None = None,
        why: str = "",
    ) -> Plan[ScheduleChange]:
        """Pause, resume, remove or release a schedule. A release lets the next declaration of code replace the rule
        that an operator has set.

        With ``version``, the change is made only if this version of the schedule is stored. Without ``version``, only a
        resume compares versions: it computes the next instant from the rule that it has read, so this rule must still
        be stored.
        """
        check_name("queue", queue)
        check_schedule_name(name)
        expected = -1 if version is None else version
        check_whole("version", expected, -1, VERSION_MAX)
        args = self._args(what, "live", by, why, 0)
        if what != "resume":
            records = ((name, expected, 0, 0, "", ""),)
            changes = yield from self._delivery.call(
                Call("schedule", queue, args, parse_changes, records)
            )
            return changes[name]
        stored = yield from self.stored(queue, [name])
        if name not in stored:
            return ScheduleChange("gone", 0, 0)
        rules = {name: from_json(name, stored[name].rule)}
        after = {name: (yield from self._reads.now_ms(queue))}
        # The rule was read, so the change must meet the version that it is of.
        known = stored[name].version if version is None else expected
        changes = yield from self._until_accepted(queue, args, rules, {}, known, after)
        return changes[name]

    def restore(
        self, queue: str, lost: Declaration, version: int, last_ms: int, *, by: str, why: str
    ) -> Plan[ScheduleChange]:
        """Store again a schedule that an operator had set and that Redis has lost. ``version`` and ``last_ms`` (Unix
        ms) are the schedule's last version and last run in the audit log. If Redis has the schedule again, the outcome
        is ``conflict``.
        """
        name = lost.rule.name
        yield from self._cap_runs(queue, [lost])
        args = self._args("restore", "live", by, why, lost.spec_max)
        after = {name: max(last_ms, (yield from self._reads.now_ms(queue)))}
        packed = {name: lost.packed}
        changes = yield from self._until_accepted(
            queue, args, {name: lost.rule}, packed, version, after
        )
        return changes[name]

    def run(
        self, queue: str, name: str, *, by: str | None = None, why: str = "", spec_max: int = 0
    ) -> Plan[Told]:
        """Enqueue a schedule's job now, as an extra run in addition to its regular runs."""
        check_name("queue", queue)
        check_schedule_name(name)
        actor = check_name("actor", by or self._delivery.name)
        asked = [Instant(name, -1, 0, 0, 0, 0)]
        call = tick(queue, actor, asked, spec_max=spec_max, hand_max=0, why=check_why(why))
        return (yield from self._delivery.call(call)).told[name]

    def _cap_runs(self, queue: str, declarations: Iterable[Declaration]) -> Plan[None]:
        """Store the cap that lets the jobs of one schedule run only one at a time. Nothing is stored if none of the
        declared schedules needs the cap, or if the queue already has it. An operator may change the cap later.

        Raises ServerUnsuitable if the Redis user has no right to store caps. A user with the role producer may store
        schedules, but no caps.
        """
        if not any(each.rule.overlap in ("queue", "replace") for each in declarations):
            return
        keys = queue_keys(queue, self._delivery.prefix)
        (stored,) = yield from self._delivery.ask([["HGET", keys("caps"), TICK]], queue)
        if stored is not None:
            return
        try:
            limit = [(TICK, str(Limit(1)), -1)]
            yield from self._caps.set(queue, limit, source="code", why=DECLARED_WHY)
        except errors.ServerUnsuitable as error:
            why = (
                f"overlap queue and replace need the cap {TICK} of queue {queue}, and {error.why}. A worker stores it"
                f" whose code declares such a schedule, or an operator: `rq-core cap {queue} {TICK} 1`"
            )
            raise errors.ServerUnsuitable(url=error.url, why=why) from None

    def _args(
        self, what: str, source: str, by: str | None, why: str, spec_max: int
    ) -> dict[str, Any]:
        actor = check_name("actor", by or self._delivery.name)
        return {
            "by": actor, "why": check_why(why), "source": source, "spec_max": spec_max, "what": what,
        }  # fmt: skip

    def _until_accepted(
        self,
        queue: str,
        args: dict[str, Any],
        rules: dict[str, Recurrence],
        packed: dict[str, str],
        version: int,
        after: dict[str, int],
        meanwhile: Callable[[], None] | None = None,
    ) -> Plan[dict[str, ScheduleChange]]:
        """Send a change of schedules, with the next instant of each schedule: its first instant after ``after[name]``
        (Unix ms).

        If this instant passes before the server gets the change, the change of the schedule is sent again, with a later
        instant. A change is sent at most LATE_MAX times.
        """
        changes: dict[str, ScheduleChange] = {}
        for _ in range(LATE_MAX):
            records = [
                _record(rules[name], at, packed.get(name), version) for name, at in after.items()
            ]
            call = Call("schedule", queue, args, parse_changes, tuple(records), meanwhile=meanwhile)
            made = yield from self._delivery.call(call)
            changes |= made
            after = {n: change.next_ms for n, change in made.items() if change.outcome == "late"}
            if not after:
                break
        return changes


def _record(rule: Recurrence, after: int, packed: str | None, version: int) -> Record:
    instant = rule.next_after(after) or INSTANT_MAX
    due_ms = min(instant + rule.shift_ms, INSTANT_MAX)
    if packed is None:
        return (rule.name, version, instant, due_ms, "", "")
    return (rule.name, version, instant, due_ms, rule.to_json(), packed)


def _bytes_in(text: str) -> int:
    """Return the length of a text in UTF-8, in bytes."""
    return len(text) if text.isascii() else len(text.encode())


class _Chunk:
    """The schedules of one queue that are collected for one call, and the total bytes of their jobs."""

    __slots__ = ("names", "schedules", "size")

    def __init__(self) -> None:
        self.schedules: list[Declaration] = []
        self.names: set[str] = set()
        self.size = 0

    def takes(self, declaration: Declaration) -> bool:
        """Return whether one more schedule fits into the call. The call must not have a schedule of this name yet, and
        all its schedules must have the same ``spec_max``.
        """
        first = self.schedules[0]
        return first.spec_max == declaration.spec_max and declaration.rule.name not in self.names


def _chunks(
    declarations: Iterable[tuple[str, Declaration]],
) -> Iterator[tuple[str, list[Declaration]]]:
    """Yield (queue, schedules) in chunks that fit into one call. Schedules of one queue keep their order."""
    waiting: dict[str, _Chunk] = {}
    for queue, each in declarations:
        chunk = waiting.get(queue)
        if chunk is not None and not chunk.takes(each):
            yield queue, waiting.pop(queue).schedules
            chunk = None
        if chunk is None:
            chunk = waiting[queue] = _Chunk()
        chunk.schedules.append(each)
        chunk.names.add(each.rule.name)
        chunk.size += _bytes_in(each.packed)
        if len(chunk.schedules) == PUT_MAX or chunk.size >= PUT_BYTES:
            yield queue, waiting.pop(queue).schedules
    for queue, chunk in waiting.items():
        yield queue, chunk.schedules
