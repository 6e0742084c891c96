"""Carries out calls, even if replies are lost, the server forgets scripts, or a queue's history in Redis changes.

Most calls have a number in a named *slot*, and Redis remembers the last number and answer of the slot. If a reply is
lost, this module sends the call again with the same number, so the call is carried out only once. (The other calls are
harmless if they are carried out twice.) The module loads scripts that the server has forgotten. It makes the handshake
with a queue, and repeats it when a new epoch (history of the queue in Redis) begins.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from rq_core import errors
from rq_core.model.ids import boot_id
from rq_core.model.keys import DEFAULT_PREFIX, check_name, queue_keys, queues_key
from rq_core.protocol.engine import acl_roles, server_check
from rq_core.protocol.engine.plan import (
    Call,
    Lost,
    Patience,
    Pause,
    Plan,
    ReplyError,
    Send,
    Slot,
    T,
    says_full,
)
from rq_core.protocol.engine.replies import Handshake, answer_of, error_for, parse_handshake
from rq_core.protocol.engine.retried_commands import Asking, meaning_of, pause
from rq_core.scripts.script import Script, function

log = logging.getLogger(__name__)

LISTING: Final = Patience(unsent=1.0, unknown=1.0)
"""The longest time for which this client tries to add a queue to the list of queues. It applies only if the queue is
probably on the list already."""
ROUNDS_MAX: Final = 3
"""Maximum number of times that a call is sent again at once, after a handshake was made or the script was loaded. Later
attempts come after a pause."""


_unprepared: Final[set[str]] = set()
"""URLs of servers that lack this version's functions, and for which this process has already logged a warning."""


def _say_unprepared(url: str) -> None:
    """Log a warning that the server lacks this version's functions, and how an operator can load them. The user of this
    process has no right to load them. A process logs the warning once per server.
    """
    if url not in _unprepared:
        _unprepared.add(url)
        log.warning(
            "%s lacks this version's functions, and this user may load none: calls are sent as scripts, which take"
            " the server longer. `rq-core server prepare`, run as a user that may load functions (`rq-core acl"
            " preparer` prints one), loads them for all; a process that begins afterwards calls them",
            url,
        )


class Begun(NamedTuple):
    """A call that a client sends by itself, without a plan."""

    command: Sequence[Any]
    slot: Slot | None
    since: float
    """The time at which the call was begun, in seconds on the clock of ``Delivery.asking``."""


def _too_many(rounds: int) -> Exception | None:
    if rounds <= ROUNDS_MAX:
        return None
    return ReplyError("its history, or the set of scripts that it has loaded, keeps changing")


class Delivery:
    """Carries out the calls of a client, and sends them again if needed. ``name`` is the client's name; None: a name
    that is unique for each start.
    """

    def __init__(
        self,
        *,
        prefix: str = DEFAULT_PREFIX,
        url: str = "",
        name: str | None = None,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
        scripts: Callable[[str], Script] = function,
    ) -> None:
        self.asking = Asking(prefix=prefix, url=url, patience=patience, clock=clock)
        self.ask = self.asking.ask
        self.prefix = self.asking.prefix
        name = check_name("client", name or boot_id("c"))
        self._scripts = scripts
        self._functions = True
        self._heads: dict[tuple[str, str], tuple[Any, ...]] = {}
        """Cached first words of commands, by script and queue."""
        self._facts: defaultdict[str, set[str]] = defaultdict(set)
        """Queue → the features that the queue uses, as far as this client knows (*facts*: fields of the key ``meta``).
        Each fact adds keys to the calls to the queue. If a call lacks keys of a fact, the script answers ``with`` and
        the facts, and this client adds the facts here."""
        self._floors: dict[str, int] = {}
        self.rounds_again = 0
        """Number of times that this client has sent calls again. A call that is sent again may be carried out after
        calls that were first sent later."""
        self._unlisted: set[str] = set()
        """Queues that this client created, and that are not on the list of queues yet."""
        self._begin_process(name)

    def _begin_process(self, name: str) -> None:
        self.name = name
        self._free: defaultdict[tuple[str, str], list[Slot]] = defaultdict(list)
        # Name and number in one: threads that do this at once must not make two slots of one name.
        self._serial = zip(itertools.repeat(name), itertools.count(1), strict=False)
        self._met: set[str] = set()
        # Set last: a thread that reads its own process id here must not find the parent's slots any more.
        self._pid = os.getpid()

    def _script(self, name: str) -> Script:
        made = self._scripts(name)
        return made if self._functions or made.instead is None else made.instead

    def _use_functions(self, use: bool) -> None:
        self._functions = use
        self._heads = {}

    def _carry_keys(self, queue: str, facts: Iterable[str]) -> None:
        self._facts[queue].update(facts)
        self._heads = {at: head for at, head in self._heads.items() if at[1] != queue}

    def has_met(self, queue: str) -> bool:
        """Return whether this client has made a handshake with a queue. If so, a call needs no further handshake."""
        return queue in self._met

    def head(self, name: str, queue: str) -> tuple[Any, ...]:
        """Return the beginning of a call's command: the function or script to call, and its keys. A script is called if
        the server takes no functions.
        """
        head = self._heads.get((name, queue))
        if head is None:
            keys = queue_keys(queue, self.prefix)
            head = self._script(name).head(keys, self._facts.get(queue, ()))
            self._heads[name, queue] = head
        return head

    def get_ready(self, *names: str) -> None:
        """Assemble the texts of these scripts now, which makes the first call of each script faster."""
        for name in names:
            self._script(name)

    def _slot_for(self, call: Call[Any]) -> Slot | None:
        if call.slot is not None:
            return call.slot
        if "slot" in self._script(call.script).args:
            return self.take_slot(call.queue, call.script)
        return None

    def take_slot(self, queue: str, name: str) -> Slot:
        """Return a free call slot of this script, with its next number. A call with a slot is carried out once, even if
        it is sent again.
        """
        if os.getpid() != self._pid:
            # A forked child must not go on with its parent's slots: both would use the same numbers.
            self._begin_process(boot_id(self.name.partition("-")[0]))
        try:
            slot = self._free[queue, name].pop()
        except IndexError:
            who, number = next(self._serial)
            slot = Slot(f"{who}.{name}.{number}")
        slot.number += 1
        return slot

    def carry_out(self, calls: Sequence[Call[Any]]) -> Plan[list[Any]]:
        """Carry out calls in one pipelined round trip. Calls without an answer are sent again until each call has an
        answer.

        Returns one item per call: its result, or an RqCoreError. Raises ServerUnavailable or OutcomeUnknown when the
        time limit of the client (:class:`Patience`) is over.
        """
        if not calls:
            return []
        slots = [self._slot_for(call) for call in calls]
        try:
            return (yield from self._settle(calls, slots))
        finally:
            for call, slot in zip(calls, slots, strict=True):
                self._release(call.script, call.queue, slot)

    def begin(self, call: Call[Any]) -> Begun:
        """Return the command of a call, with a slot and number. The client then sends the command itself, without a
        plan, which is faster.

        If the answer begins with ``ok``, ``call.parse`` reads the words after it. For any other answer, ``go_on``
        finishes the call. In both cases, call ``end`` afterwards.
        """
        slot = self._slot_for(call)
        return Begun(self._command(call, slot), slot, self.asking.clock())

    def go_on(self, call: Call[Any], begun: Begun) -> Plan[Any]:
        """Finish a call that ``begin`` began and the client sent. Returns the result or an RqCoreError.

        The plan first yields the command that was sent already. Do not send it again: give the plan the replies that
        came.
        """
        (result,) = yield from self._settle([call], [begun.slot], begun.since)
        return result

    def end(self, script: str, queue: str, begun: Begun) -> None:
        """Mark a call as finished, so that its numbered slot can be used for another call."""
        self._release(script, queue, begun.slot)

    def _release(self, script: str, queue: str, slot: Slot | None) -> None:
        if slot is not None and not slot.is_callers:
            self._free[queue, script].append(slot)

    def _command(self, call: Call[Any], slot: Slot | None) -> list[Any]:
        """Return the complete command of a call, with its slot and number. The command calls a function, or a script if
        the server takes no functions.
        """
        made, args = self._script(call.script), call.args
        if slot is not None:
            args = {**args, "slot": slot.name, "number": slot.number}
        return made.filled(self.head(call.script, call.queue), args, call.each, call.tail)

    def _settle(  # noqa: PLR0912 - one branch per thing that a reply can be
        self,
        calls: Sequence[Call[Any]],
        slots: Sequence[Slot | None],
        since: float | None = None,  # when they were begun, if that was before now
    ) -> Plan[list[Any]]:
        commands = [self._command(*each) for each in zip(calls, slots, strict=True)]
        results: list[Any] = [None] * len(calls)
        waiting = list(range(len(calls)))
        first = self.asking.clock() if since is None else since
        lost: set[int] = set()
        """Indexes of the calls that were sent and may have been carried out although no reply came."""
        attempt = rounds = 0
        while True:
            left = self.asking.left(first, sent=bool(lost)) if rounds else None
            replies = yield Send([commands[i] for i in waiting], calls[waiting[0]].meanwhile, left)
            again: list[int] = []
            forgotten: set[str] = set()
            refused = False
            strangers: set[str] = set()
            trouble: Exception | None = None
            for i, reply in zip(waiting, replies, strict=True):
                if isinstance(reply, Lost):
                    lost.add(i)
                match meaning_of(reply, lost=i in lost):
                    case "answer":
                        results[i] = answer_of(calls[i], reply)
                        continue
                    case "fatal":
                        results[i] = yield from error_for(self.asking, calls[i], reply)
                        continue
                    case "epoch":
                        strangers.add(calls[i].queue)
                    case "with":
                        self._carry_keys(calls[i].queue, reply[1:])
                    case "forgotten":
                        forgotten.add(calls[i].script)
                    case "no functions":
                        refused = True
                    case _:
                        trouble = reply
                again.append(i)
            if not again:
                return results
            waiting, rounds, self.rounds_again = again, rounds + 1, self.rounds_again + 1
            if refused:
                self._use_functions(False)
            elif forgotten:
                trouble = (yield from self._load(forgotten)) or trouble
            unusable, silence = yield from self._meet(
                strangers, [calls[i] for i in waiting], sent=bool(lost)
            )
            for i in waiting:
                results[i] = unusable.get(calls[i].queue)
            waiting = [i for i in waiting if results[i] is None]
            if not waiting:
                return results
            trouble = trouble or silence or _too_many(rounds)
            if trouble is not None:
                yield self._pause(first, bool(lost), trouble, [calls[i] for i in waiting], attempt)
                attempt += 1
            for i in waiting:
                commands[i] = self._command(calls[i], slots[i])

    def _meet(
        self, queues: Iterable[str], calls: Sequence[Call[Any]], *, sent: bool
    ) -> Plan[tuple[dict[str, Any], errors.ServerError | None]]:
        """Make handshakes with these queues, because their epochs have changed. Returns two values.

        The first value has, for each unusable queue, the result of the queue's calls: an error, or ``Call.absent`` if
        the queue does not exist. The second value is the error of a handshake that got no answer, or None. If ``sent``
        is false, no call can have been carried out yet; an unanswered handshake then raises its error.
        """
        unusable: dict[str, Any] = {}
        for queue in sorted(queues):
            try:
                # A client may have sent such a call by itself, without a plan.
                if (yield from self._is_absent(next(c for c in calls if c.queue == queue))):
                    unusable[queue] = next(c for c in calls if c.queue == queue).absent
                    self._met.discard(queue)
                    continue
                yield from self.handshake(queue)
            except (errors.Refused, errors.QueueDamaged) as error:
                unusable[queue] = error
            except (errors.ServerUnavailable, errors.OutcomeUnknown) as error:
                # A handshake without an answer says nothing of the calls that were sent before it.
                if not sent:
                    raise
                return unusable, error
        return unusable, None

    def _load(self, names: Iterable[str]) -> Plan[Exception | None]:
        """Load scripts or functions into the server. Returns an error that may pass, or None.

        If functions can never be loaded, later calls are sent as scripts. If a script can never be loaded,
        ServerUnsuitable is raised.
        """
        made = [self._script(name) for name in sorted(names)]
        loading = dict.fromkeys(script.loading for script in made)
        replies = yield Send([list(command) for command in loading])
        failed = [reply for reply in replies if isinstance(reply, Exception)]
        for reply in failed:
            if meaning_of(reply) in ("fatal", "no functions"):
                if any(script.function for script in made):
                    # A full server takes no new functions, and some services none at all; but they take scripts.
                    self._use_functions(False)
                    if acl_roles.is_denial(str(reply)):
                        _say_unprepared(self.asking.url)
                    return None
                # It may call functions that another client loads.
                self._use_functions(True)
                raise errors.ServerUnsuitable(
                    url=self.asking.url, why=f"it loads no scripts: {reply}"
                )
        return failed[0] if failed else None

    def _check_patience(
        self, first: float, sent: bool, trouble: Exception, calls: Sequence[Call[Any]]
    ) -> None:
        waited = self.asking.clock() - first
        if sent and waited > self.asking.patience.unknown:
            error = errors.OutcomeUnknown(seconds=waited)
            error.ids = tuple(job_id for call in calls for job_id in call.ids)
            raise error from trouble
        if not sent and waited > self.asking.patience.unsent:
            raise errors.ServerUnavailable(url=self.asking.url, why=str(trouble)) from trouble

    def _pause(
        self,
        first: float,
        sent: bool,
        trouble: Exception,
        calls: Sequence[Call[Any]],
        attempt: int,
    ) -> Pause:
        """Return the pause before calls are sent again. Raises ServerUnavailable or OutcomeUnknown when the time limit
        of the client (:class:`Patience`) is over.
        """
        self._check_patience(first, sent, trouble, calls)
        return pause(attempt, self.asking.left(first, sent=sent).unsent)

    def call(self, call: Call[T]) -> Plan[T]:
        """Carry out one call. If this client has made no handshake with the queue yet, the handshake comes first.
        Raises the error with which Redis refused the call.
        """
        if call.queue not in self._met:
            if (yield from self._is_absent(call)):
                return call.absent  # type: ignore[return-value]
            yield from self.handshake(call.queue)
        (result,) = yield from self.carry_out([call])
        if isinstance(result, errors.RqCoreError):
            raise result
        return result  # type: ignore[no-any-return]

    def _is_absent(self, call: Call[Any]) -> Plan[bool]:
        """Return whether a call is for a missing queue that the call must not create.

        Because of this check, a cancel or an edit in an unknown queue writes nothing.
        """
        if call.absent is None:
            return False
        keys = queue_keys(call.queue, self.prefix)
        # A job may outlive a `meta` that is lost.
        jobs = [["HGET", keys("jobs"), job_id] for job_id in call.ids]
        found = yield from self.ask([["HGET", keys("meta"), "epoch"], *jobs], call.queue)
        return all(each is None for each in found)

    def set_floor(self, queue: str, epoch: int) -> None:
        """Set a lower bound for the numbers of new epochs (histories of the queue in Redis). Each epoch that this
        client starts from now on is above ``epoch``, the last epoch that the audit database has for the queue.
        """
        self._floors[queue] = epoch + 1

    def handshake(self, queue: str) -> Plan[Handshake]:
        """Make a handshake with a queue: read its epoch, the time, the length of its leases and its flags.

        The handshake creates a missing queue. It starts a new epoch (an unbroken history of the queue) if the queue is
        new, if the queue's outbox was lost, or if Redis has another history than the one that the queue remembers.
        """
        if not self._met:
            yield from server_check.inspect(self.asking, queue)
        call = Call(
            "handshake",
            queue,
            {"by": self.name, "floor": self._floors.get(queue, 0)},
            lambda reply: parse_handshake(queue, reply),
        )
        (result,) = yield from self.carry_out([call])
        if isinstance(result, errors.RqCoreError):
            raise result
        # Outside the queue's Cluster slot, so it cannot be part of the script.
        if result.started == "created":
            self._unlisted.add(queue)
        yield from self._list_queue(queue, new=queue in self._unlisted)
        self._unlisted.discard(queue)
        self._met.add(queue)
        return result  # type: ignore[no-any-return]

    def _list_queue(self, queue: str, *, new: bool) -> Plan[None]:
        """Add the queue to the list of queues. Raises QueueFull if the server's memory is full, and the queue is not on
        the list.

        In a cluster the list may be on another shard than the queue. A handshake with an existing queue waits at most 1
        s (LISTING) for that shard, because the client that created the queue has probably put it on the list already.
        """
        listed = queues_key(self.prefix)
        if not new:
            (reply,) = yield Send([["SADD", listed, queue]], None, LISTING)
            if not isinstance(reply, Exception) or meaning_of(reply) in ("unsent", "lost"):
                return
        try:
            yield from self.ask([["SADD", listed, queue]])
        except errors.ServerUnsuitable as error:
            if not says_full(error):
                raise
            (known,) = yield from self.ask([["SISMEMBER", listed, queue]])
            if not known:
                raise errors.QueueFull(queue=queue) from error
