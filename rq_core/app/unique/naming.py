"""The base class of Unique, Throttle, Debounce and Latest: makes the unique names of jobs.

A name consists of the task and of one of these: the values of some arguments, the value that a function returns for the
arguments, or a digest of all arguments.
"""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rq_core.errors import ArgumentsInvalid, InvalidOption, InvalidTask, KeyFailed
from rq_core.model.lib.durations import ms_of
from rq_core.model.limits.policy import NAME_KEY, Naming
from rq_core.model.unique_names import digest_of, unique_name

if TYPE_CHECKING:
    from datetime import timedelta

    from rq_core.app.arguments import Arguments
    from rq_core.app.limits.caps import Cap

Per = str | tuple[str, ...] | Callable[..., Any] | None
"""Names of arguments, or a function that takes the arguments by name and returns a value; None for all arguments."""

WINDOW_S_MIN: Final = 0.001


class Named(ABC):
    """The base class of the rules for unique names. A rule computes the name of a job, and decides what later calls
    with the same name do."""

    per: Per

    @property
    @abstractmethod
    def ties(self) -> dict[str, Any]:
        """The rule as it is stored with a job: keyword arguments for :func:`rq_core.model.job.ties_of`."""

    @property
    def replaces(self) -> bool:
        """True if a new job may replace a waiting job with the same unique name."""
        return bool(self.ties["unique"] == "replace")

    @property
    def delay_ms(self) -> int | None:
        """The delay that the rule gives each job, in milliseconds. None: the rule sets no delay, and a producer may set
        one."""
        found: int | None = self.ties.get("after_ms")
        return found

    @property
    def arguments(self) -> tuple[str, ...] | None:
        """Names of the arguments in ``per``. None if ``per`` is a function, or is left out."""
        if isinstance(self.per, str):
            return (self.per,)
        return self.per if isinstance(self.per, tuple) else None

    @property
    def function(self) -> Callable[..., Any] | None:
        """The function in ``per``; None if ``per`` is not a function."""
        return self.per if callable(self.per) else None

    @property
    def function_name(self) -> str:
        """The name of the function in ``per``, which is a part of the unique name. ``key`` if the function has no
        name."""
        return str(getattr(self.per, "__name__", "")) if self.has_named_function else "key"

    @property
    def has_named_function(self) -> bool:
        """True if ``per`` is a function with a name. A lambda, or an object that can be called, has no name."""
        return str(getattr(self.per, "__name__", "")).isidentifier()

    @property
    def caps(self) -> tuple[Cap, ...]:
        """The caps that the rule adds to its task."""
        return ()

    def check(self, task: str, arguments: Arguments, *, rules: bool) -> None:
        """Raise InvalidTask if the rule does not fit the task.

        ``rules`` is true if an enqueue checks whether a cap is full, because a cap of the task has on_full="discard",
        on_full="reject" or max_waiting.
        """
        what = type(self).__name__
        for name in self.arguments or ():
            if name not in arguments.names:
                has = ", ".join(arguments.names) or "none"
                raise InvalidTask(
                    task=task,
                    why=f"its {what} is per={name!r}, and it has no such argument: it has {has}",
                )
        if self.function is not None:
            _check_call(task, self.function, self.function_name, arguments)
        if self.replaces and rules:
            raise InvalidTask(
                task=task,
                why=f"its {what} replaces jobs, and one of its caps discard, reject or max_waiting: the job that is"
                " replaced would be lost if its cap then kept the new one out. Let the caps wait",
            )

    def name(self, task: str, arguments: Arguments, values: Mapping[str, Any]) -> str:
        """Return the unique name of a job with these validated arguments.

        Raises ArgumentsInvalid for a value without a JSON form, and KeyFailed if the function in ``per`` raises an
        exception.
        """
        if self.function is not None:
            made = _called(task, self.function, self.function_name, arguments, values)
            return unique_name(task, {self.function_name: _text(_as_text(made))})
        said = arguments.canonical(values, self.arguments)
        if self.per is None:
            return unique_name(task, None, digest=digest_of(_text(said)))
        return unique_name(task, {name: _text(value) for name, value in said.items()})

    def naming(self, arguments: Arguments) -> Naming:
        """Return the rule as workers register it in the queue, for producers without the task's code."""
        of = arguments.names if self.arguments is None else self.arguments
        left_out = {name: arguments.defaults[name] for name in of if name in arguments.defaults}
        return Naming(
            self.ties,
            self.arguments,
            self.function_name if self.function is not None else "",
            {} if self.function is not None else arguments.canonical({}, tuple(left_out)),
        )


@dataclass(frozen=True)
class Registered(Named):
    """A rule for unique names that workers registered, for producers without the task's code."""

    given: Mapping[str, Any]

    @property
    def ties(self) -> dict[str, Any]:
        """The registered rule as it is stored with a job: keyword arguments for :func:`rq_core.model.job.ties_of`."""
        return dict(self.given)


def check_per(per: object) -> None:
    """Raise InvalidOption if no unique name can be made from ``per``."""
    names = (per,) if isinstance(per, str) else per
    if inspect.iscoroutinefunction(per):
        raise InvalidOption.of("per", per, "must not be async: a job's name is needed at once")
    if names is None or callable(names):
        return
    if not (isinstance(names, tuple) and names and all(isinstance(name, str) for name in names)):
        raise InvalidOption.of(
            "per",
            per,
            "must be the name of an argument, a tuple of names, or a function of the arguments",
        )


def window_ms(option: str, seconds: float | timedelta, minimum: float = WINDOW_S_MIN) -> int:
    """Convert a number of seconds, or a timedelta, to milliseconds. Raises InvalidOption."""
    return ms_of(option, seconds, minimum=minimum)


def _check_call(task: str, function: Callable[..., Any], name: str, arguments: Arguments) -> None:
    try:
        inspect.signature(function).bind(**dict.fromkeys(arguments.names))
    except TypeError as error:
        raise InvalidTask(
            task=task,
            why=f"the function per={name} cannot be called with its arguments by name ({error}): take"
            f" {', '.join(arguments.names) or 'none'}, or **arguments",
        ) from None
    except ValueError:
        pass  # The function has no signature to check; its first call shows whether it works.


def _called(
    task: str,
    function: Callable[..., Any],
    name: str,
    arguments: Arguments,
    values: Mapping[str, Any],
) -> Any:
    """Call the function in ``per`` with these arguments. Return its value in JSON's types.

    Raises KeyFailed if the function raises an exception, and ArgumentsInvalid if its value has no JSON form.
    """
    from rq_core.app.arguments import plain_value

    try:
        made = function(**{**arguments.defaults, **values})
    except Exception as error:
        from rq_core.app.handlers.redaction import message_of

        said = f"{type(error).__name__}: {message_of(error)}"
        raise KeyFailed(task=task, family=NAME_KEY, function=name, error=said) from error
    try:
        return plain_value(made)
    except (ValueError, TypeError, RecursionError) as error:
        problem = f"the function per={name} returned what has no JSON ({error})"
        raise ArgumentsInvalid(task=task, problems=problem, fields={name: problem}) from None


def _as_text(made: Any) -> str | None:
    """Convert the value of the function in ``per`` to text. A text, or None, stays as it is.

    Producers without the task's code pass the value as text.
    """
    return made if made is None or isinstance(made, str) else _text(made)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
