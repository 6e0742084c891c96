"""One run of a durable job. It loads the steps that earlier runs saved, runs the other steps, and saves them.
``async def`` and ``def`` handlers use the same coroutines. In a ``def`` handler, a coroutine blocks the handler's
thread and completes without an event loop (:func:`rq_core.app.handlers.handler_setup.now`)."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple

from rq_core.app.durable.entry_names import (
    check_step,
    check_wait,
    numbered,
    undo_name,
    with_key,
)
from rq_core.app.durable.home import Home
from rq_core.app.durable.step_values import NOT_DONE, check_returned, load_value, unusable
from rq_core.app.handlers.context import JobContext
from rq_core.app.handlers.depends import Step
from rq_core.app.handlers.result_types import Returned
from rq_core.errors import InvalidStep, NotDurable, QueueDamaged, StepTwice
from rq_core.model.durable.boxes import (
    ENTRIES_MAX,
    LIFE_ENTRY,
    WAITS_MAX,
    StepEntry,
    new_life,
)
from rq_core.model.headers import FORK_HEADER
from rq_core.model.outcome import TOO_LARGE
from rq_core.model.result_encoding import DIGEST, NO_VALUE, pack_result, unpack_result
from rq_core.protocol.calls.boxes import NotSaved, Saving, refusals
from rq_core.protocol.reads.box_reads import Box
from rq_core.signals import LeaseLost, StepsSpent

in_step: Final[ContextVar[bool]] = ContextVar("rq_core_in_step", default=False)
"""True while the function of a step runs in this context. No other step may begin meanwhile."""

What = Literal["begin", "save", "wait", "sleep", "take", "move"]
"""The kinds of records sent to Redis. ``begin``: a step has begun. ``save``: it has a value. ``wait``, ``sleep``: the
job waits for a signal, or sleeps. ``take``: a wait took a signal. ``move``: the steps get a new id after a failover."""
AGAIN_MAX: Final = 3
"""Maximum number of times that a record is sent. It is sent again, with earlier records, if Redis has lost those."""


class StepOptions(NamedTuple):
    """The options of one step."""

    key: str = ""
    check: Callable[..., Any] | None = None
    undo: Callable[[Any], Any] | None = None
    begin: bool = False


class _Passed(NamedTuple):
    """A saved step that this run has reached, with the function that undoes it."""

    number: int
    name: str
    value: Any
    undo: Callable[[Any], Any]


class Steps:
    """The steps, waits and sleeps of one run of a durable job."""

    def __init__(self, context: JobContext, home: Home) -> None:
        self._context = context
        self.home = home
        self._life: str | None = None
        self._entries: list[StepEntry] | None = None
        """The job's entries in Redis (steps, waits, sleeps), in order of number (from 1); None: not loaded yet."""
        self._numbers: dict[str, int] = {}
        """The number of each entry (a saved step, wait or sleep), by the entry's name."""
        self._used: dict[str, int] = {}
        """Number of steps, waits and sleeps with each name in this run."""
        self._running: set[str] = set()
        self._passed: list[_Passed] = []
        self._ended: dict[int, int] = {}
        """The number of entries (saved steps, waits and sleeps) that Redis had when this run saved the end of an entry,
        by the number of the ended entry. If no entry was appended since, a failover can lose the end alone."""
        self._waiting: set[int] = set()
        """The entry numbers of the waits and sleeps for which this run waits."""
        self._until: int | None = None
        """The end (Unix ms) of the wait or sleep that this run sent last; None if it has no end."""
        self._ending: StepEntry | None = None
        """The saved entry of the wait or sleep that this run sent last; None: not over, or not in Redis' answer."""
        self._is_over = False

    def close(self) -> None:
        """Refuse further steps: the worker calls this after the handler's end, when its asyncio tasks may still run."""
        self._is_over = True

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
    ) -> Any:
        """Return the saved value of a step. If no value is saved, run the step and save its value."""
        check_step(name)
        if not callable(function):
            raise InvalidStep(step=name, why=f"{function!r} is not a function")
        if not self.home.is_async and inspect.iscoroutinefunction(function):
            raise InvalidStep(
                step=name,
                why="its function is async, and the handler is a `def` function: make the step's function a plain one,"
                " or the handler `async def`",
            )
        return await self._step(name, function, args, kwargs, options)

    async def _step(
        self,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
    ) -> Any:
        await self._may_begin()
        returned = check_returned(name, function)
        needs = self.home.calls.needs(name, function)
        checks = {} if options.check is None else self.home.calls.needs(name, options.check)
        base = name if not options.key else with_key(name, options.key)
        if base in self._running:
            raise StepTwice(step=base)
        self._running.add(base)
        note_end = self.home.began()
        try:
            await self._load()
            count = self._used[base] = self._used.get(base, 0) + 1
            entry = base if count == 1 else numbered(base, count)
            value = await self._done(
                entry, function, args, kwargs, options, returned, (needs, checks)
            )
        finally:
            self._running.discard(base)
            note_end()
        if options.undo is not None:
            self._passed.append(_Passed(self._numbers[entry], entry, value, options.undo))
        return value

    async def _done(
        self,
        entry: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: StepOptions,
        returned: Returned,
        needs: tuple[Mapping[str, Step], Mapping[str, Step]],
    ) -> Any:
        known, problem = self._known(entry), ""
        if known is None or not known.is_saved:
            if known is None and len(self._loaded) >= ENTRIES_MAX:
                raise StepsSpent(f"the job has {ENTRIES_MAX:,} steps, and may have no more")
            found: Any = NOT_DONE
            if options.check is not None and known is not None:
                found = await self._called(options.check, args, kwargs, needs[1])
            elif known is None and (options.check is not None or options.begin):
                await self._write("begin", entry)
            if found is NOT_DONE:
                await self._may_begin()
                found = await self._called(function, args, kwargs, needs[0])
            packed = returned.dump(found, self.home.audit_result)
            await self._write("save", entry, packed)
            problem = returned.problem_of(found, packed)
            known = self._known(entry)
        assert known is not None
        if known.value is None:
            raise unusable(entry, known.note or "", problem)
        return load_value(entry, returned, known.value)

    # Waits and sleeps.

    async def wait(self, kind: Literal["wait", "sleep"], name: str, about: str) -> StepEntry:
        """Return the entry (saved record) of a wait or a sleep if it is over. Otherwise, park the job. ``about`` is the
        end of the wait or sleep: Unix ms, or ``+`` and the milliseconds from now, or an empty text for no end."""
        check_wait(name)
        self._must_park(f"{kind}()")
        await self._may_begin()
        if name in self._running:
            raise StepTwice(step=name)
        self._running.add(name)
        try:
            await self._load()
            count = self._used[name] = self._used.get(name, 0) + 1
            return await self._over(kind, name if count == 1 else numbered(name, count), about)
        finally:
            self._running.discard(name)

    def _must_park(self, call: str) -> None:
        """Raise NotDurable if the job cannot be parked."""
        if not self.home.can_park:
            why = (
                "a handler with isolation may have steps, but cannot sleep or wait. Leave out isolation, or do the"
                " isolated work in a job of another task, and sleep or wait in this one"
            )
            raise NotDurable(call=call, why=why)

    async def _over(self, kind: Literal["wait", "sleep"], entry: str, about: str) -> StepEntry:
        """Return the entry (saved record) of a wait or a sleep if it is over. Otherwise, park the job."""
        known = self._known(entry)
        if known is not None and known.is_saved:
            return known
        if known is None and len(self._loaded) >= ENTRIES_MAX:
            raise StepsSpent(f"the job has {ENTRIES_MAX:,} steps, and may have no more")
        if len(self._waiting) >= WAITS_MAX:
            raise InvalidStep(step=entry, why=f"{WAITS_MAX} others of the job wait already")
        if await self._take(kind, entry, about):
            return self._loaded[self._numbers[entry] - 1]
        number = self._numbers[entry]
        self._waiting.add(number)
        try:
            await self.home.park(number)
        finally:
            self._waiting.discard(number)
        raise AssertionError("a parked handler goes on")

    async def _take(self, kind: Literal["wait", "sleep"], entry: str, about: str) -> bool:
        """Send a wait or a sleep to Redis. Return True if it is over; Redis has then saved that it is over."""
        async with self.home.turn():
            why = await self._sent(kind, entry, "", about)
            if why == "full":
                raise StepsSpent("the job's steps take all the room that they may have")
            number = self._numbers.get(entry, len(self._loaded) + 1)
            if why is None:
                over = self._ending
                entries = (await self._box(number)).entries if over is None else (over,)
                if not entries:
                    raise self._lost()
                found = entries[0]
                self._context.base = self._context.failures  # as Redis does
            else:
                fence = self._context.fence
                found = StepEntry(entry, False, 0, fence, kind=kind, until_ms=self._until)
            self._keep(number, found)
            return why is None

    async def _called(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        needs: Mapping[str, Step],
    ) -> Any:
        token = in_step.set(True)
        try:
            return await self.home.calls.call(function, args, kwargs, needs)
        finally:
            in_step.reset(token)

    async def key(self, name: str) -> str:
        """Return a key for requests to other services: 32 hex digits, by job and ``name``, the same in all runs."""
        await self._may_begin()
        await self._load()
        if not self._loaded:
            # A life that only this process knows would be another one after a crash.
            await self._write("begin", LIFE_ENTRY)
        assert self._life is not None
        return hashlib.sha256(f"{self._life}/{name}".encode()).hexdigest()[:32]

    async def undo(self) -> None:
        """Call the ``undo`` functions of the saved steps that this run reached, newest first; each call is a step."""
        passed = sorted(self._passed, reverse=True)
        self._passed = []
        for each in passed:
            await self._step(undo_name(each.name), each.undo, (each.value,), {}, StepOptions())

    # What Redis has.

    @property
    def _loaded(self) -> list[StepEntry]:
        assert self._entries is not None
        return self._entries

    def _is_loaded(self) -> bool:
        return self._entries is not None

    def _known(self, entry: str) -> StepEntry | None:
        number = self._numbers.get(entry)
        return None if number is None else self._loaded[number - 1]

    async def _load(self) -> None:
        if self._is_loaded():
            return
        async with self.home.turn():
            if self._is_loaded():
                return
            if self._context.claim == 1 and FORK_HEADER not in self._context.headers:
                # Nothing can have been saved before. If a signal has begun the box, the first save is refused.
                self._life, self._entries = new_life(), []
                return
            self._know(await self._box())

    async def _box(self, first: int = 1) -> Box:
        """Load the job's entries from number ``first`` on. Raises LeaseLost if the claim is not in force."""
        box = await self.home.load(first)
        if box is None:
            raise self._lost()
        return box

    def _know(self, box: Box) -> None:
        self._life = box.life or new_life()
        self._numbers = {entry.name: number for number, entry in enumerate(box.entries, 1)}
        self._entries = list(box.entries)

    async def _write(self, what: Literal["begin", "save"], entry: str, packed: str = "") -> None:
        """Record in Redis that a step has begun, or save the step's value. If the job's steps have used up their room
        in Redis, save the step without its value. Raises StepsSpent if there is no room for that either."""
        async with self.home.turn():
            why = await self._sent(what, entry, packed)
            if why == "full" and not packed.startswith(NO_VALUE):
                packed = f"{NO_VALUE}{TOO_LARGE}"
                why = await self._sent(what, entry, packed)
            if why == "full":
                raise StepsSpent("the job's steps take all the room that they may have")
            number = self._numbers.get(entry, len(self._loaded) + 1)
            note, text = unpack_result(packed)
            is_kept = what == "save" and not packed.startswith(NO_VALUE)
            written = StepEntry(
                entry,
                what == "save",
                0,
                self._context.fence,
                None
                if what == "begin"
                else note.removeprefix("+") or packed.removeprefix(NO_VALUE),
                text if is_kept else None,
            )
            self._keep(number, written)
            if what == "save":
                self._context.base = self._context.failures

    async def _sent(self, what: What, entry: str, packed: str, about: str = "") -> str | None:
        """Send an entry to Redis, with earlier entries that Redis has lost. Return None if Redis saved it, ``full`` if
        the job's steps have used up their room, ``waits`` for a wait or sleep that is not over (see ``_until``)."""
        count = len(self._loaded)
        # If Redis has lost only the ends of entries, it has as many entries as before, and does not notice the loss.
        missing = self._missing(count, count) if entry not in self._numbers else []
        for _ in range(AGAIN_MAX):
            number = self._numbers.get(entry, len(self._loaded) + 1)
            record = self._saving(what, number, entry, packed, about)
            answer = await self.home.save([*missing, record])
            # A wait that is sent again because Redis had lost it still waits.
            refused = [
                each
                for at, each in refusals(answer).items()
                if each.why != "waits" or at == len(missing)
            ]
            if not refused:
                over = answer.get(len(missing))
                self._ending = over if isinstance(over, StepEntry) else None
                return None
            worst = worst_of(refused)
            if worst.why in ("stale", "gone"):
                raise self._lost()
            if worst.why == "full":
                return "full"
            if worst.why == "waits":
                self._until = worst.has
                return "waits"
            if worst.why == "other" and not self._loaded:
                # A signal has begun the box after this run had found no box.
                self._know(await self._box())
                continue
            if worst.why == "other":
                # A failover took the box that this claim knows, and a signal has begun another box.
                moved = await self.home.save([self._saving("move", 0, "", "")])
                worst = refusals(moved).get(0, NotSaved("behind", 0))
                if worst.why in ("stale", "gone"):
                    raise self._lost()
            if worst.why != "behind" or worst.has is None:
                break
            # A failover took entries: this claim knows them, and no other worker may write.
            missing = self._missing(worst.has, min(number - 1, len(self._loaded)))
        raise QueueDamaged(
            queue=self._context.queue,
            why=f"entry {number} of job {self._context.id} is another one",
        )

    def _keep(self, number: int, entry: StepEntry) -> None:
        """Update this run's copy of the job's entries with an entry (a step, wait or sleep) that Redis has saved."""
        if entry.is_saved and number <= len(self._loaded):
            self._ended[number] = len(self._loaded)
        self._numbers[entry.name] = number
        self._loaded[number - 1 : number] = [entry]

    def _missing(self, has: int, last: int) -> list[Saving]:
        """Return the records that Redis may have lost, up to entry ``last``. Redis has ``has`` entries now."""
        ended = (n for n, count in self._ended.items() if n <= has <= count)
        return [self._again(n) for n in sorted({*ended, *range(has + 1, last + 1)})]

    def _saving(self, what: What, number: int, name: str, packed: str, about: str = "") -> Saving:
        assert self._life is not None
        return Saving(
            self._context.id, self._context.fence, self._life, what, number, name, packed, about
        )

    def _again(self, number: int) -> Saving:
        known = self._loaded[number - 1]
        if known.kind != "step":
            until = "" if known.until_ms is None else str(known.until_ms)
            kind: What = "wait" if known.kind == "wait" else "sleep"
            return self._saving(kind, number, known.name, "", until)
        if not known.is_saved:
            return self._saving("begin", number, known.name, "")
        # The log has the value of a signal, if at all, in the event of the signal.
        kept = self.home.audit_result if known.message is None else DIGEST
        packed = (
            f"{NO_VALUE}{known.note}" if known.value is None else pack_result(known.value, kept)
        )
        if known.message is not None:
            return self._saving("take", number, known.name, packed, str(known.message))
        return self._saving("save", number, known.name, packed)

    # Whether a step may begin.

    async def _may_begin(self) -> None:
        """Wait until a step may begin. Raises InvalidStep inside another step, and NotDurable after the handler's end.
        If the handler must stop, raises the reason as an exception, such as JobCancelled."""
        if in_step.get():
            why = "it is inside of another step, whose function must do all by itself: call it in the handler"
            raise InvalidStep(step="", why=why)
        if self._is_over:
            raise NotDurable(call="step()", why="the handler of this job has ended")
        self._context.raise_if_cancelled()
        # A process that was stopped for longer than its lease must not repeat what a step has done elsewhere.
        await self.home.lease()
        self._context.raise_if_cancelled()

    def _lost(self) -> LeaseLost:
        signal = LeaseLost()
        self._context.tell(signal)
        return signal


def worst_of(refused: Iterable[NotSaved]) -> NotSaved:
    """Return the most important of several refusals of a save. A lost claim comes first."""
    order = ("stale", "gone", "other", "conflict", "full", "behind", "waits")
    return min(refused, key=lambda each: order.index(each.why))
