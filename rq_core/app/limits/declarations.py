"""Checks and stores the caps, rates, fairness and settings that an app's code declares, by queue."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rq_core.app.arguments import Arguments
from rq_core.app.limits.breaker import Breaker
from rq_core.app.limits.caps import Cap, Per, Rate, key_name
from rq_core.app.limits.lane_assignment import Placing, Unregistered, key_text
from rq_core.errors import InvalidName, InvalidOption, InvalidTask
from rq_core.model.limits.costs import MUST, is_cost
from rq_core.model.limits.limit import Limit, check_limit
from rq_core.model.limits.policy import Naming, ScopeSource
from rq_core.model.limits.scopes import FAIR, QUEUE, WEIGHT, scope

WEIGHT_MAX: Final = 10_000
"""Highest weight of a value in a fair queue. It is limited because the queue counts a value's share of the claims in
units of 1/10,000."""


class Declared:
    """The caps of an app's tasks and queues, and the settings of the app's queues, as the app's code declares them."""

    def __init__(self) -> None:
        self.settings: dict[str, dict[str, int]] = {}
        """The declared settings of queues, such as the lease, by queue, then by the setting's name."""
        self._limits: dict[str, dict[str, Limit]] = {}
        """The declared limits by queue, then by what they limit: a scope, such as ``task=send``, or all scopes of a
        family, such as ``send.tenant``."""
        self._declarer: dict[tuple[str, str], str] = {}
        self._queue_of_name: dict[str, str] = {}
        self._fair: dict[str, str] = {}
        """The name of the argument whose values share a fair queue, by queue."""
        self._own: dict[str, Placing] = {}
        self._arguments: dict[str, Arguments] = {}
        self._elsewhere: dict[tuple[str, str], Placing] = {}
        self._batched: dict[str, frozenset[str]] = {}
        """The names of the batch task and of its hook for dead jobs, by the queue of the batch task. Jobs of other
        tasks cannot be enqueued into this queue."""

    # Tasks.

    def add_task(
        self,
        task: str,
        queue: str,
        arguments: Arguments,
        caps: Sequence[Cap | Rate | Breaker],
        aliases: Sequence[str] = (),
        naming: Naming | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a new task with its caps. Jobs that are enqueued under one of ``aliases`` count in the same caps.

        ``naming`` is the rule for the unique names of the task's jobs. ``options`` are the task's options that differ
        from the defaults of JobOptions. If the method raises InvalidTask, it adds nothing.
        """
        sources: list[ScopeSource] = []
        limits: dict[str, Limit] = {}
        whole: object = caps
        if not isinstance(whole, list | tuple):
            raise InvalidTask(task=task, why=f"caps must be a list: caps=[{caps!r}]")
        for cap in caps:
            given: object = cap
            if not isinstance(given, Cap | Rate | Breaker):
                raise InvalidTask(task=task, why=f"caps must hold Cap(…) and Rate(…), not {cap!r}")
            try:
                family = cap.family(task)
            except InvalidName as error:
                raise InvalidTask(task=task, why=f"{error}: pass name=… to {cap!r}") from None
            source = _source(task, arguments, cap, family)
            if source.family in {s.family for s in sources}:
                raise InvalidTask(
                    task=task,
                    why=f"two of its caps or breakers count {family}: leave one out, or name it",
                )
            for other in sources:
                if (
                    source.cost
                    and source.cost == other.cost
                    and source.cost_function is not other.cost_function
                ):
                    raise InvalidTask(
                        task=task, why=f"two functions compute its cost in {source.cost}: take one"
                    )
            sources.append(source)
            # The limit of a task's own scope is under the scope; the limit of a key's scopes is under their family.
            limited = source.scope if cap.per is None and cap.name is None else family
            self._check_shared(task, queue, cap, limited)
            limits[limited] = cap.limit
        for cap in caps:
            if cap.name is not None:
                self._queue_of_name[cap.name] = queue
        for limited in limits:
            self._declarer.setdefault((queue, limited), task)
        self._limits.setdefault(queue, {}).update(limits)
        placing = Placing(task, queue, sources, arguments.defaults, naming, options)
        self._make_fair(placing, queue, arguments)
        for name in (task, *aliases):
            self._arguments[name] = arguments
            self._own[name] = placing

    def _check_shared(self, task: str, queue: str, cap: Cap | Rate | Breaker, limited: str) -> None:
        other = self._queue_of_name.get(cap.name or "", queue)
        if other != queue:
            raise InvalidTask(
                task=task,
                why=f"the cap name {cap.name!r} belongs to queue {other!r}: caps count within one"
                f" queue, choose another name for {queue!r}",
            )
        known = self._limits.get(queue, {}).get(limited)
        if known is not None and known != cap.limit:
            declarer = self._declarer[queue, limited]
            raise InvalidTask(
                task=task,
                why=f"it limits {limited} to {cap.limit}, and task {declarer!r} to {known}: one"
                " name has one limit, give the same or choose another name",
            )

    def add_batch(self, queue: str, task: str, aliases: Sequence[str]) -> None:
        """Record that the queue has only the jobs of a batch task and of the batch task's hook for dead jobs."""
        names = (task, *aliases)
        self._batched[queue] = frozenset((*names, *(f"{name}:on_dead" for name in names)))

    def check_queue(self, task: str, queue: str) -> None:
        """Raise InvalidOption if jobs of the task cannot be enqueued into ``queue``.

        There are three possible reasons: the task's caps count jobs of another queue; the task is a batch task of
        another queue; or ``queue`` belongs to another task, which is a batch task.
        """
        own = self._own.get(task)
        for batched, names in self._batched.items():
            if (batched == queue) is not (task in names):
                must = (
                    f"must be {batched!r}, the queue of the batch task {task!r}"
                    if task in names
                    else f"must not be {queue!r}, which has the jobs of a batch task and no others"
                )
                raise InvalidOption.of("queue", queue, must)
        if own is not None and own.queue != queue and any(s.family != FAIR for s in own.sources):
            raise InvalidOption.of(
                "queue",
                queue,
                f"must be {own.queue!r}: the caps of task {task!r} count in that queue; for another"
                " queue, define another task",
            )

    def placing(self, task: str, queue: str) -> Placing:
        """Return the Placing of the task's jobs in this queue. A Placing chooses the lane (the waiting line) of each
        job."""
        own = self._own.get(task)
        if own is not None and own.queue == queue:
            return own
        if queue not in self._fair:
            return _NOWHERE
        found = self._elsewhere.get((task, queue))
        if found is None:
            found = Placing(task, queue)
            self._make_fair(found, queue)
            self._elsewhere[task, queue] = found
        return found

    def unregistered(self, task: str, queue: str) -> Placing:
        """Return the Placing for a task that this app lacks, and that no worker has registered in the queue. A Placing
        chooses the lane (the waiting line) of each job."""
        placing = Unregistered(task, queue)
        if queue in self._fair:
            placing.set_sources([ScopeSource(FAIR, argument=self._fair[queue], otherwise="")])
        return placing

    # Queues.

    def set_queue(
        self, queue: str, cap: int | None, fair: str | None, weights: Mapping[str, int] | None
    ) -> None:
        """Set a queue's cap, fairness and weights. None leaves a value as it is. An empty ``fair`` switches fairness
        off.

        If the method raises InvalidOption, it sets nothing.
        """
        limits: dict[str, Limit] = {}
        if cap is not None:
            limits[QUEUE] = Limit(check_limit("cap", cap))
        if weights is not None and not (fair or (fair is None and queue in self._fair)):
            raise InvalidOption.of("weights", weights, "needs fair=…")
        for key, weight in (weights or {}).items():
            if type(weight) is not int or not 1 <= weight <= WEIGHT_MAX:
                raise InvalidOption.of(
                    f"weights[{key!r}]", weight, f"must be a whole number from 1 to {WEIGHT_MAX:,}"
                )
            limits[scope(WEIGHT, key)] = Limit(weight)
        self._limits.setdefault(queue, {}).update(limits)
        if fair is None:
            return
        if fair:
            self._fair[queue] = fair
        else:
            self._fair.pop(queue, None)
        for placing in (*self._own.values(), *self._elsewhere.values()):
            if placing.queue == queue:
                self._make_fair(placing, queue)

    def _make_fair(self, placing: Placing, queue: str, arguments: Arguments | None = None) -> None:
        sources = [source for source in placing.sources if source.family != FAIR]
        argument = self._fair.get(queue)
        if argument is not None:
            arguments = arguments or self._arguments.get(placing.task)
            if arguments is not None and argument in arguments.names:
                default = _default(placing.task, arguments, argument)
                sources.append(ScopeSource(FAIR, argument=argument, default=default, otherwise=""))
            else:
                sources.append(ScopeSource(FAIR, scope=f"{FAIR}="))
        placing.set_sources(sources)

    # For the server.

    @property
    def queues(self) -> list[str]:
        """The queues of the app's tasks, and the queues with a declared limit."""
        found = [queue for queue, limits in self._limits.items() if limits]
        return list(dict.fromkeys([*found, *(p.queue for p in self._own.values())]))

    def limits(self, queue: str) -> dict[str, Limit]:
        """Return the limits that code declares in this queue. The key is what is limited: a scope, such as
        ``task=send``, or all scopes of a family, such as ``send.tenant``."""
        return dict(self._limits.get(queue, {}))

    def families(self, queue: str) -> set[str]:
        """Return the families of the caps, rates and breakers of this queue's tasks. A family is the first part of the
        names of scopes, such as ``send.tenant``."""
        return {
            s.family
            for placing in self._own.values()
            if placing.queue == queue
            for s in placing.sources
            if s.family != FAIR
        }

    def policies(self, queue: str) -> dict[str, str]:
        """Return the policy of each task of this queue as JSON, by the task's name. A policy has the task's options and
        rules for caps, for producers without the task's code."""
        return {task: p.policy() for task, p in self._own.items() if p.queue == queue}


_NOWHERE: Final = Placing("", "")
"""The Placing of jobs that no cap counts. A Placing chooses the lane of each job; these jobs have no lane."""


def _source(task: str, arguments: Arguments, cap: Cap | Rate | Breaker, family: str) -> ScopeSource:
    source = ScopeSource(family)
    if isinstance(cap, Cap):
        source = source._replace(on_full=cap.on_full, max_waiting=cap.max_waiting, most=cap.n)
    elif isinstance(cap, Rate) and cap.cost is not None:
        source = _with_cost(source, task, arguments, cap.cost)
    if cap.per is None:
        return source._replace(scope=scope(family, task if cap.name is None else ""))
    if isinstance(cap.per, str):
        if cap.per not in arguments.names:
            has = ", ".join(arguments.names) or "none"
            kind = type(cap).__name__.lower()
            raise InvalidTask(
                task=task,
                why=f"its {kind} is per={cap.per!r}, and it has no such argument: it has {has}",
            )
        return source._replace(argument=cap.per, default=_default(task, arguments, cap.per))
    _check_function(task, arguments, "per", cap.per)
    return source._replace(function=cap.per, function_name=key_name(cap.per) or family)


def _with_cost(source: ScopeSource, task: str, arguments: Arguments, cost: Per) -> ScopeSource:
    """Return a copy of ``source`` (the rule of a rate) that also computes the cost of a job, as ``cost`` describes.
    Raises InvalidTask."""
    if not isinstance(cost, str):
        _check_function(task, arguments, "cost", cost)
        return source._replace(cost=key_name(cost), cost_function=cost, cost_is_computed=True)
    if cost not in arguments.names:
        has = ", ".join(arguments.names) or "none"
        why = f"its rate has cost={cost!r}, and it has no such argument: it has {has}"
        raise InvalidTask(task=task, why=why)
    default = arguments.defaults.get(cost)
    if cost in arguments.defaults and not is_cost(default):
        raise InvalidTask(task=task, why=f"the default of {cost}, its cost, {MUST}")
    return source._replace(cost=cost, cost_default=default)


def _check_function(
    task: str, arguments: Arguments, option: str, function: Callable[..., Any]
) -> None:
    try:
        inspect.signature(function).bind(**dict.fromkeys(arguments.names))
    except TypeError as error:
        raise InvalidTask(
            task=task,
            why=f"the function {option}={key_name(function) or function!r} cannot be called with its"
            f" arguments by name ({error}): take {', '.join(arguments.names) or 'none'}, or **arguments",
        ) from None
    except ValueError:
        pass  # The function has no signature to check; its first call shows whether it works.


def _default(task: str, arguments: Arguments, argument: str) -> str | None:
    """Return the default of an argument as text: the key of a job whose call leaves the argument out.

    Return None if the argument has no default. Raises InvalidTask.
    """
    try:
        return key_text(arguments.defaults.get(argument))
    except TypeError as error:
        raise InvalidTask(task=task, why=f"the default of {argument}: {error}") from None
