"""One run of a durable job that enqueues other jobs, its children, and waits for their ends.

The run that enqueues the children first waits for the child that it enqueued last. Each later run reads from Redis
which children have ended, saves the results of the children that succeeded, and then waits for one child that is alive.
A worker that ends a child sends the parent a signal, which wakes the parent if it waits for this child. If the signal
is lost, the parent wakes when its wait times out. The parent does not count signals, so lost and repeated signals do no
harm.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from rq_core.app.durable.entry_names import check_wait, numbered
from rq_core.app.durable.home import Home
from rq_core.app.durable.items import (
    Item,
    Items,
    JobCall,
    check_calls,
    child_of,
    child_outcome,
    children_failed,
    least,
    pack_ends,
    told,
    unpack_ends,
)
from rq_core.app.durable.parking import ParkingSteps
from rq_core.app.durable.step_values import load_value
from rq_core.app.durable.steps import StepOptions
from rq_core.app.handlers.context import JobContext
from rq_core.app.handlers.outgoing import outgoing_jobs
from rq_core.errors import AuditBacklogFull, InvalidStep, QueueFull, ResultsFull, StepTwice
from rq_core.model.durable.boxes import ENTRIES_MAX, StepEntry
from rq_core.model.durable.children import (
    LAUNCH_PREFIX,
    ORPHANED,
    child_id,
    child_wait,
    children_in,
    item_name,
    join_name,
    launch_name,
    life_of_children,
    pack_queues,
    parent_header,
    read_queues,
)
from rq_core.model.job import NewJob
from rq_core.model.outcome import Gone, Kept, Outcome, Succeeded
from rq_core.model.result_encoding import NO_VALUE, pack_result, unpack_result
from rq_core.protocol.calls.enqueue import Accepted
from rq_core.protocol.engine.plan import Plan
from rq_core.protocol.operations import Operations
from rq_core.protocol.reads.result_reads import Found
from rq_core.signals import HandlerTimeout, LeaseLost, StepMismatch, StepsSpent

R = TypeVar("R")

LOOK_MIN_S: Final = 5.0
"""Minimum seconds before a parent job reads its children's states again, in case the signal of an end was lost."""
LOOK_MAX_S: Final = 3_600.0
"""Maximum seconds before a parent job reads the states of its children again. Between the minimum and this maximum, the
parent waits half of the time that has passed since it enqueued the children."""
PAUSE_MS: Final = 5_000
"""Milliseconds that a parent job sleeps before it tries again to enqueue children, if a queue accepts no jobs."""
SAVED_MAX: Final = 100
"""Maximum number of children's results that a parent job saves in one call to Redis."""
SAVED_CHARACTERS: Final = 512 * 1024
"""Number of characters after which a call to Redis takes no further child's result; another call saves the rest."""
ALIKE: Final = "the entries of steps with this name and a key are named like those of children"

NEVER: Final = "most|0"
"""A value of ``NewJob.full`` with which Redis rejects a child: at most 0 jobs may wait in the child's lane (its waiting
line). Redis still compares the child with a job of the same id that an earlier run enqueued."""

Place = tuple[str, str]
"""The queue and the id of a child."""


class JobSteps(ParkingSteps):
    """One run of a durable job, which runs steps and child jobs."""

    def __init__(self, context: JobContext, home: Home) -> None:
        super().__init__(context, home)
        self._launching: dict[str, list[Place]] = {}
        """The children that this run is enqueueing, by the name of their call of ``map``. A call is removed when Redis
        has saved the queues of its children."""
        self._fresh: set[str] = set()
        """The names of the calls of ``map`` whose children this run was the first to enqueue. Each worker that ends one
        of these children sends the parent a signal. So this run need not read the children's states before it waits."""
        self._launches: set[str] = set()
        """The names of the calls of ``map`` in this run."""

    async def map(self, name: str, calls: Iterable[JobCall[R]], min_success: Any) -> Items[R]:
        """Run the calls as child jobs of this job. Return one Item for each child, once all children have ended.

        Raises ChildrenFailed if fewer children have succeeded than ``min_success`` requires.
        """
        check_wait(name)
        self._must_park("map()")
        children = check_calls(name, calls)
        needed = least(name, min_success, len(children))
        await self._may_begin()
        launch = self._unused(name)
        if launch in self._running:
            raise StepTwice(step=launch)
        if any(entry.startswith(item_name(launch, "")) for entry in self._used):
            raise InvalidStep(step=launch, why=ALIKE)
        self._running.add(launch)
        self._launches.add(launch)
        try:
            await self._load()
            places = await self._launched(launch, children)
            ends = await self._ends(launch, places)
            return await self._joined(launch, children, places, ends, needed)
        except BaseException:  # also CancelledError, with which the worker stops an async handler
            if launch in self._launching and self._is_lost():
                late = self._launching[launch]
                await self.home.ask(partial(_cancel_late, self._context, late))
            raise
        finally:
            self._running.discard(launch)

    def _is_lost(self) -> bool:
        """Return whether this run has noticed that its worker lost the lease of the job."""
        try:
            self._context.raise_if_too_late()
        except LeaseLost:
            return True
        except HandlerTimeout:
            return False
        return False

    async def _step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
    ) -> Any:
        """Run a step. Raises InvalidStep if the step has a key, and this run has children under the step's name."""
        if options.key and name in self._launches:
            raise InvalidStep(step=name, why=ALIKE)
        return await super()._step(name, function, args, kwargs, options)

    def _unused(self, name: str) -> str:
        """Return a name for a call of ``map``: ``name``, or ``name-2``, ``name-3``… if this run has used it before."""
        if name in self._running:
            return name
        count = self._used[name] = self._used.get(name, 0) + 1
        found = name
        # A call of map may have taken a name with a number itself.
        while found in self._launches and count > 1:
            found = f"{name}-{count}"
            check_wait(found)
            count += 1
        if found != name:
            self._used[found] = self._used.get(found, 0) + 1
        return found

    def unsaved(self) -> list[Place]:
        """Return the queue and the id of each child whose outcome this job needs and has not saved. The result includes
        children that this run has only begun to enqueue."""
        found = [place for places in list(self._launching.values()) for place in places]
        if self._life is not None and self._is_loaded():
            children = children_in(self._life, self._loaded)
            found += [(child.queue, child.id) for child in children if not child.is_over]
        return found

    # The beginning.

    async def _launched(self, launch: str, children: Sequence[JobCall[Any]]) -> list[Place]:
        """Enqueue the children, unless an earlier run has enqueued them. Return the queue and the id of each child."""
        known = self._known(launch_name(launch))
        if known is not None and known.is_saved:
            return self._places(launch, known, len(children))
        if known is None:
            if len(self._loaded) + len(children) + 2 > ENTRIES_MAX:
                raise StepsSpent(
                    f"the job has {len(self._loaded):,} steps, and {len(children):,} children would make them more than"
                    f" the {ENTRIES_MAX:,} that it may have"
                )
            # The box must have its life before the first child exists: the children's ids are made of it.
            await self._write("begin", launch_name(launch))
        number = self._numbers[launch_name(launch)]
        jobs = [
            child_of(
                child, self._child_id(launch, index), self._parent_header(launch, number, index)
            )
            for index, child in enumerate(children)
        ]
        self._launching[launch] = places = [(job.queue, job.id) for job in jobs]
        packed = pack_result(pack_queues([job.queue for job in jobs]), self.home.audit_result)
        again = jobs if known is None else await self._sent_again(jobs, places)
        while True:
            functions = children[0].task.app.outgoing_functions if again else ()
            if functions:
                again = list(outgoing_jobs(functions, again, "children"))
            note_end = self.home.began()
            try:
                if await self._enqueue(launch, again):
                    if known is None:
                        self._fresh.add(launch)
                    await self._write("save", launch_name(launch), packed)
                    del self._launching[launch]
                    return places
            finally:
                note_end()
            # Not earlier: a job does not park while a step of it runs.
            entry = self._open_name(f"{LAUNCH_PREFIX}{number}")
            await self._over("sleep", entry, f"+{PAUSE_MS}")
            again = await self._sent_again(jobs, places)

    async def _sent_again(self, jobs: Sequence[NewJob], places: Sequence[Place]) -> list[NewJob]:
        """Return the children in ``jobs`` that must be sent to Redis again, after a call that may have enqueued only
        some of them.

        The method reads from Redis how the children have ended. A child that Redis does not know is sent to be
        enqueued. A child that is alive or has succeeded is sent only so that Redis compares it with the job that it
        already has. Other children are left out.
        """
        ended = await self._look(places)
        found: list[NewJob] = []
        for job in jobs:
            end = ended.get(job.id)
            if isinstance(end, Gone):
                found.append(job)
            elif end is None or isinstance(end, Succeeded):
                # A child that is cancelled or expires before its first claim must not run, also if it ends after the
                # look and Redis has no room for its outcome.
                found.append(job._replace(full=NEVER))
        return found

    async def _enqueue(self, launch: str, jobs: Sequence[NewJob]) -> bool:
        """Enqueue children. Return False if a queue accepts no jobs now; other queues may then have accepted their
        children. Raises StepMismatch if an earlier run has enqueued a child of the same id with another task or other
        arguments."""
        if not jobs:
            return True
        try:
            accepted = await self.home.ask(partial(_enqueue, jobs))
        except (AuditBacklogFull, QueueFull, ResultsFull):
            return False
        if accepted.mismatched:
            raise StepMismatch(
                f"{launch}: child {accepted.mismatched[0]} was enqueued by an earlier run as another call. The calls of"
                " a map must be the same at each run: save a list that comes from elsewhere as a step"
            )
        return True

    def _child_id(self, launch: str, index: int) -> str:
        assert self._life is not None
        return child_id(self._life, launch, index)

    def _parent_header(self, launch: str, number: int, index: int) -> str:
        """Return the header that names a child's parent. ``launch`` is the name of the ``map``, ``number`` is the
        number of the record that the parent saves for it, and ``index`` is the child's position."""
        assert self._life is not None
        wait, context = child_wait(number, index), self._context
        return parent_header(context.queue, context.id, wait, self._life, launch)

    def _places(self, launch: str, entry: StepEntry, count: int) -> list[Place]:
        """Return the queue and the id of each child that an earlier run has enqueued. ``entry`` is the record that the
        earlier run saved afterwards.

        Raises StepMismatch if the earlier run had another number of children than ``count``.
        """
        queues = read_queues(entry.value)
        if len(queues) != count:
            raise StepMismatch(self._says_other_count(launch, len(queues), count))
        life = life_of_children(entry.value, self._life or "")
        return [(queue, child_id(life, launch, index)) for index, queue in enumerate(queues)]

    def _says_other_count(self, launch: str, before: int, count: int) -> str:
        """Return the error message for a ``map`` whose number of calls has changed from ``before`` to ``count``."""
        return (
            f"{launch}: an earlier run has enqueued {before:,} children, and this one has {count:,} calls. The calls of"
            " a map must be the same at each run: save a list that comes from elsewhere as a step"
        )

    # The wait.

    async def _ends(self, launch: str, places: Sequence[Place]) -> dict[int, Outcome[Any]]:
        """Wait until all children have ended. Save the result of each child that succeeded. Return the outcomes of the
        other children, by the child's index."""
        join = self._known(join_name(launch))
        if join is not None and join.is_saved:
            return unpack_ends(join.value or "{}", [job_id for _, job_id in places])
        alive = list(range(len(places))) if launch in self._fresh else []
        while True:
            if alive:
                # The child that was enqueued last is most likely to end last, so the parent looks seldom.
                name = child_wait(self._numbers[launch_name(launch)], alive[-1])
                await self._over("wait", self._open_name(name), f"+{self._pause_ms(launch)}")
            left = [n for n in range(len(places)) if self._known(item_name(launch, n)) is None]
            # Backwards, so that no child seems alive that has ended in one call with a later one that seems ended.
            found = await self._look([places[index] for index in reversed(left)])
            ended = {index: found[places[index][1]] for index in left if places[index][1] in found}
            await self._save_results(launch, ended)
            alive = [index for index in left if index not in ended]
            if not alive:
                return {n: each for n, each in ended.items() if not isinstance(each, Succeeded)}

    def _open_name(self, name: str) -> str:
        """Return the first of the names ``name``, ``name#2``, ``name#3``… under which the job has not saved a wait or a
        sleep."""
        count, entry = 1, name
        while (known := self._known(entry)) is not None and known.is_saved:
            count += 1
            entry = numbered(name, count)
        return entry

    def _pause_ms(self, launch: str) -> int:
        """Return the milliseconds that the parent waits before it reads the children's states again."""
        known = self._known(launch_name(launch))
        began_ms = known.at_ms if known is not None else 0
        waited = time.time() - began_ms / 1000 if began_ms else 0.0
        return round(min(max(waited / 2, LOOK_MIN_S), LOOK_MAX_S) * 1000)

    async def _look(self, places: Sequence[Place]) -> dict[str, Outcome[Any]]:
        """Read from Redis which children have ended. Return their outcomes by id, without children that are alive."""
        by_queue: dict[str, list[str]] = {}
        for queue, job_id in places:
            by_queue.setdefault(queue, []).append(job_id)
        found: dict[str, Outcome[Any]] = {}
        for queue, ids in by_queue.items():
            ends = await self.home.ask(partial(_look, queue, ids))
            found |= {job_id: child_outcome(job_id, end) for job_id, end in ends.items()}
        return found

    async def _save_results(self, launch: str, ended: Mapping[int, Outcome[Any]]) -> None:
        """Save the results of the children that succeeded. Each result becomes an entry, a record in Redis, of the
        parent."""
        part: list[tuple[str, str]] = []
        size = 0
        for index, outcome in ended.items():
            if not isinstance(outcome, Succeeded):
                continue
            packed = f"{NO_VALUE}{outcome.missing}"
            if isinstance(outcome.kept, Kept):
                packed = pack_result(outcome.kept.json, self.home.audit_result)
            part.append((item_name(launch, index), packed))
            size += len(packed)
            if len(part) >= SAVED_MAX or size >= SAVED_CHARACTERS:
                await self._finish(self._save_part(part))
                part, size = [], 0
        await self._finish(self._save_part(part))

    async def _save_part(self, part: Sequence[tuple[str, str]]) -> None:
        """Save the results of several children in one call to Redis. ``part`` has the name and the packed result of
        each."""
        if not part:
            return
        async with self.home.turn():
            first = len(self._loaded) + 1
            records = [
                self._saving("save", first + n, name, packed)
                for n, (name, packed) in enumerate(part)
            ]
            refused = await self.home.save(records)
            if not refused:
                for n, (name, packed) in enumerate(part):
                    note, text = unpack_result(packed)
                    is_kept = not packed.startswith(NO_VALUE)
                    said = note.removeprefix("+") if is_kept else packed.removeprefix(NO_VALUE)
                    fence, value = self._context.fence, text if is_kept else None
                    self._keep(first + n, StepEntry(name, True, 0, fence, said, value))
                self._context.base = self._context.failures
                return
        # Each alone: what was saved is answered as known, and what a failover took is sent again.
        for name, packed in part:
            await self._write("save", name, packed)

    # The end.

    async def _close(self, launch: str, ends: Mapping[int, Outcome[Any]]) -> str:
        """Save the outcomes of the children that did not succeed. Return these outcomes as JSON, as later runs read
        them."""
        packed = pack_ends(ends)
        if self._known(join_name(launch)) is None:
            await self._write(
                "save", join_name(launch), pack_result(packed, self.home.audit_result)
            )
        return packed

    async def _joined(
        self,
        launch: str,
        children: Sequence[JobCall[R]],
        places: Sequence[Place],
        ends: Mapping[int, Outcome[Any]],
        needed: int,
    ) -> Items[R]:
        """Return the items of all children. Raises ChildrenFailed if fewer than ``needed`` have succeeded."""
        found = self._items(launch, children, places, ends)
        if len(found) - len(found.failed) < needed:
            message = told(launch, found.failed, len(found), needed)
            prefix = children[0].task.app.connections.prefix
            raise children_failed(message, self._context.id, prefix, found)
        if not ends:
            return found
        ends = unpack_ends(await self._close(launch, ends), [job_id for _, job_id in places])
        return self._items(launch, children, places, ends)

    def _items(
        self,
        launch: str,
        children: Sequence[JobCall[R]],
        places: Sequence[Place],
        ends: Mapping[int, Outcome[Any]],
    ) -> Items[R]:
        """Return the items of children that have ended. ``ends`` has the outcomes of the children that did not
        succeed."""
        items: list[Item[R]] = []
        for index, (queue, job_id) in enumerate(places):
            outcome = ends.get(index)
            if outcome is None:
                known = self._known(item_name(launch, index))
                assert known is not None
                outcome = _succeeded(launch, job_id, known, children[index])
            items.append(Item(index, job_id, queue, outcome))
        return Items(items)


def _enqueue(jobs: Sequence[NewJob], calls: Operations) -> Plan[Accepted]:
    return calls.enqueue.many(jobs)


def _cancel_late(context: JobContext, places: Sequence[Place], calls: Operations) -> Plan[None]:
    it = context
    return calls.families.cancel_late(it.queue, it.id, places, by=it.worker, why=ORPHANED)


def _look(queue: str, ids: Sequence[str], calls: Operations) -> Plan[dict[str, Found]]:
    return calls.endings.look(queue, ids)


def _succeeded(launch: str, job_id: str, entry: StepEntry, child: JobCall[R]) -> Succeeded[R]:
    """Return the outcome of a child that succeeded. ``entry`` is the saved record of its result, which has the result
    type of the child's task."""
    if entry.value is None:
        return Succeeded(job_id, missing=entry.note)
    return Succeeded(job_id, load_value(launch, child.task.returned, entry.value), None)
