"""Turns functions into tasks, and refuses functions that cannot be tasks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from rq_core.app.arguments import Arguments
from rq_core.app.handlers.depends import dependencies_of, planned_steps
from rq_core.app.handlers.result_types import Returned
from rq_core.app.handlers.retry import RetryPolicy
from rq_core.app.limits.breaker import Breaker, breakers_of, with_breakers
from rq_core.app.limits.caps import Cap, Rate
from rq_core.app.options import JobOptions
from rq_core.app.task import AsyncTask, Isolation, Task
from rq_core.errors import InvalidOption, InvalidTask
from rq_core.model.keys import check_name

if TYPE_CHECKING:
    from rq_core.app.batches.batch import Batch
    from rq_core.app.producer import Producer

MEMORY_MIN: Final = 64 * 1024 * 1024


def make_task(
    producer: Producer,
    known: Mapping[str, Task[..., Any]],
    function: Callable[..., Any],
    name: str | None,
    options: JobOptions,
    *,
    retry: RetryPolicy,
    timeout: float | None = None,
    caps: Sequence[Cap | Rate] = (),
    breaker: Breaker | Sequence[Breaker] | None = None,
    aliases: Sequence[str] = (),
    isolation: Isolation | None = None,
    max_memory: int | None = None,
    batch: Batch | None = None,
    is_hook: bool = False,
) -> Task[..., Any]:
    """Make a task from a function, and declare its caps. ``known`` are the app's other tasks, by name and alias.

    ``is_hook`` is true if the task calls the ``on_dead`` hook of another task. Raises InvalidTask, InvalidName or
    InvalidOption.
    """
    own_name = getattr(function, "__name__", None)
    _check_no_method(function, name or own_name)
    if name is None and (own_name is None or own_name == "<lambda>"):
        raise InvalidTask(task=repr(function), why="it has no name: pass name=…")
    name = check_name("task", name or own_name or "")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTask(task=name, why="it is a generator: use a plain or async function")
    if name in known:
        raise InvalidTask(
            task=name,
            why=f"this app has a task of that name ({known[name].function!r}): pass another name=…",
        )
    _check_aliases(name, aliases, known, caps)
    is_async = _is_async(function)
    producer.surroundings.check(name, is_async=is_async)
    steps = planned_steps(name, dependencies_of(name, function), is_async=is_async)
    if not is_hook:
        _check_alone(name, options.queue, known, batch)
    arguments, returned = _types_of(name, function, batch, steps.keys())
    # Checked before the caps are declared, so that a refused task declares nothing.
    options.profile(name)
    naming = None
    if options.unique is not None:
        caps = with_caps_of(options.unique, caps)
        check_unique(name, options.unique, arguments, caps)
        naming = options.unique.naming(arguments)
    breakers = breakers_of(name, breaker)
    producer.declared.add_task(
        name,
        options.queue,
        arguments,
        with_breakers(name, caps, breakers),
        aliases,
        naming,
        options.registered(),
    )
    if batch is not None:
        producer.declared.add_batch(options.queue, name, aliases)
    kind = AsyncTask if is_async else Task
    return kind(
        producer,
        name,
        function,
        arguments,
        options,
        retry=retry,
        timeout=timeout,
        isolation=isolation,
        max_memory=max_memory,
        steps=steps,
        aliases=tuple(aliases),
        batch=batch,
        returned=returned,
        breakers=breakers,
    )


def _types_of(
    name: str, function: Callable[..., Any], batch: Batch | None, injected: Collection[str]
) -> tuple[Arguments, Returned]:
    """Return the types of a task's arguments and of its result. Raises InvalidTask."""
    if batch is None:
        return Arguments(name, function, injected=injected), Returned(name, function)
    # Most apps have no batch tasks.
    from rq_core.app.batches.fields import BatchArguments
    from rq_core.app.batches.shape import ReturnedOfEach, shape_of

    shape = shape_of(name, function, batch, injected)
    return BatchArguments(name, shape), ReturnedOfEach(name, function)


def _check_alone(
    name: str, queue: str, known: Mapping[str, Task[..., Any]], batch: Batch | None
) -> None:
    """Raise InvalidTask if a batch task would share its queue with another task.

    From the queue of a batch task, a worker claims as many jobs as its batches have room for. Of another task, it could
    not run this number of jobs at once.
    """
    for other in known.values():
        if other.options.queue == queue and (batch is not None or other.batch is not None):
            batched = name if batch is not None else other.name
            raise InvalidTask(
                task=name,
                why=f"queue {queue!r} would have the tasks {other.name!r} and {name!r}, and the queue of a batch task"
                f" ({batched!r}) has no other task: give it a queue of its own",
            )


def check_callbacks(retry: object, on_dead: object) -> None:
    """Raise InvalidOption if ``retry`` is not a RetryPolicy, or ``on_dead`` is not a function."""
    if retry is not None and not isinstance(retry, RetryPolicy):
        must = "must be a RetryPolicy, like RetryPolicy(max_attempts=5)"
        raise InvalidOption.of("retry", retry, must)
    if on_dead is not None and not callable(on_dead):
        raise InvalidOption.of("on_dead", on_dead, "must be a function that takes a DeadJob")


def check_batch(batch: object, isolation: object) -> None:
    """Raise InvalidOption if ``batch`` is not a Batch, or if a batch task has an isolation."""
    if batch is None:
        return
    from rq_core.app.batches.batch import Batch

    if not isinstance(batch, Batch):
        raise InvalidOption.of("batch", batch, "must be a Batch, like Batch(500)")
    if isolation is not None:
        must = "does not go with batch: a batch handler runs in the worker's process"
        raise InvalidOption.of("isolation", isolation, must)


def _check_no_method(function: Callable[..., Any], name: str | None) -> None:
    """Raise InvalidTask for a method or a class method, since a worker has no object for the call."""
    scope, _, _ = getattr(function, "__qualname__", "").rpartition(".")
    in_class = bool(scope) and not scope.endswith("<locals>")
    code = getattr(function, "__code__", None)
    first = code.co_varnames[:1] if code is not None and code.co_argcount else ()
    is_method = in_class and first in (("self",), ("cls",)) and not inspect.ismethod(function)
    if is_method or isinstance(function, classmethod):
        raise InvalidTask(
            task=name or repr(function),
            why="it is a method, and a worker has no object to call it on: write a function at the top of a module, or"
            " a staticmethod",
        )


def _check_aliases(
    name: str,
    aliases: Sequence[str],
    known: Mapping[str, Task[..., Any]],
    caps: Sequence[Cap | Rate],
) -> None:
    given: object = aliases
    if not isinstance(given, list | tuple):
        raise InvalidTask(task=name, why=f"aliases must be a list of names: aliases=[{aliases!r}]")
    for alias in aliases:
        check_name("task", alias)
        if alias == name or aliases.count(alias) > 1:
            raise InvalidTask(task=name, why=f"it has the name {alias!r} twice: leave one out")
        if alias in known:
            raise InvalidTask(
                task=name,
                why=f"its alias {alias!r} is a name of another task of this app"
                f" ({known[alias].function!r}): leave it out",
            )
    for cap in caps if aliases and isinstance(caps, list | tuple) else ():
        if isinstance(cap, Cap) and cap.per is None and cap.name is None:
            raise InvalidTask(
                task=name,
                why=f"{cap!r} would count jobs by the name of their task, so those of its aliases apart:"
                f" add name=, like Cap({cap.n}, name={name!r})",
            )


def with_caps_of(unique: object, caps: Sequence[Cap | Rate]) -> Sequence[Cap | Rate]:
    """Return the caps of a task, including the cap that the rule Latest adds if ``unique`` is a Latest."""
    brought = getattr(unique, "caps", ())
    if not isinstance(caps, list | tuple):
        return caps  # ``add_task`` refuses it.
    return [*caps, *(cap for cap in brought if cap not in caps)]


def check_unique(
    task: str, unique: object, arguments: Arguments, caps: Sequence[Cap | Rate]
) -> None:
    """Raise InvalidTask if ``unique`` is no Unique, Throttle, Debounce or Latest, or does not fit the task."""
    from rq_core.app.unique.naming import Named

    if not isinstance(unique, Named):
        may_be = "Unique(…), Throttle(…), Debounce(…) or Latest(…)"
        raise InvalidTask(task=task, why=f"unique must be {may_be}, not {unique!r}")
    rules = any(isinstance(c, Cap) and (c.on_full != "wait" or c.max_waiting) for c in caps)
    unique.check(task, arguments, rules=rules)


def check_isolation(isolation: object, max_memory: object) -> None:
    """Raise InvalidOption for an invalid isolation or max_memory, and for a max_memory without an isolation."""
    if isolation not in (None, "process"):
        raise InvalidOption.of("isolation", isolation, 'must be "process" or None')
    if max_memory is None:
        return
    if isolation is None:
        raise InvalidOption.of("max_memory", max_memory, 'needs isolation="process"')
    if type(max_memory) is not int or max_memory < MEMORY_MIN:
        raise InvalidOption.of(
            "max_memory",
            max_memory,
            f"must be a number of bytes from {MEMORY_MIN:,} on: Python itself needs some",
        )


def _is_async(function: Callable[..., Any]) -> bool:
    # A callable object is async if its __call__ is.
    call = getattr(type(function), "__call__", None)  # noqa: B004 - it is looked at, not called
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
