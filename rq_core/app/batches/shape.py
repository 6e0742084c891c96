"""Reads the types of a batch handler's jobs and results from its annotations. Refuses functions that take no batch."""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import typing
from collections.abc import Callable, Collection
from types import NoneType, SimpleNamespace
from typing import Any, Final, NamedTuple

from rq_core.app.batches.batch import Batch
from rq_core.app.batches.jobs import Job
from rq_core.app.handlers.result_types import Returned
from rq_core.errors import InvalidTask

_MUST: Final = "a batch handler takes one list of jobs: write `jobs: list[Job[Event]]`, where Event is a class of yours"
_LISTS: Final = (list, collections.abc.Sequence)
_POSITIONAL: Final = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.POSITIONAL_ONLY,
)


class Shape(NamedTuple):
    """The parameter of a batch handler that receives the list of jobs, and the type of one job's arguments."""

    parameter: str
    """The name of the parameter for the list of jobs."""
    arguments: type
    """The class of the arguments of one job."""
    fields: dict[str, Any]
    """The names of the fields of the arguments, each with its default; a field without a default has ``REQUIRED``."""


REQUIRED: Final = inspect.Parameter.empty


def shape_of(
    task: str, function: Callable[..., Any], batch: Batch, injected: Collection[str]
) -> Shape:
    """Return the Shape of a batch handler: its parameter for the list of jobs, and the type of one job's arguments.
    ``injected`` has the names of the parameters that dependencies fill.

    Raises InvalidTask if the function cannot be a batch handler.
    """
    try:
        parameters = [*inspect.signature(function).parameters.values()]
    except (TypeError, ValueError) as error:
        raise InvalidTask(task=task, why=f"it has no signature ({error})") from None
    own = [each for each in parameters if each.name not in injected]
    if len(own) != 1 or own[0] is not parameters[0] or own[0].kind not in _POSITIONAL[:1]:
        raise InvalidTask(task=task, why=_MUST)
    name = own[0].name
    hint = _resolved(task, function, name)
    inner = typing.get_args(hint)
    if typing.get_origin(hint) not in _LISTS or typing.get_origin(inner[0]) is not Job:
        raise InvalidTask(task=task, why=_MUST)
    (arguments,) = typing.get_args(inner[0])
    fields = _fields(task, arguments)
    if batch.per is not None and batch.per not in fields:
        has = ", ".join(fields) or "none"
        raise InvalidTask(
            task=task,
            why=f"its batch is per={batch.per!r}, and it has no such argument: it has {has}",
        )
    return Shape(name, arguments, fields)


def _resolved(task: str, function: Callable[..., Any], name: str) -> Any:
    """Return the annotated type of the parameter ``name``. Raises InvalidTask."""
    function = inspect.unwrap(function)
    if inspect.ismethod(function) or not inspect.isfunction(function):
        written = getattr(function, "__annotations__", None) or getattr(
            type(function).__call__, "__annotations__", {}
        )
    else:
        written = function.__annotations__
    if name not in written:
        raise InvalidTask(task=task, why=_MUST)
    try:
        found = typing.get_type_hints(
            SimpleNamespace(__annotations__={name: written[name]}),
            globalns=getattr(function, "__globals__", {}),
            include_extras=True,
        )
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise InvalidTask(
            task=task,
            why=f"the annotation of {name} cannot be resolved ({error}): what it names must be imported or defined"
            " above the task, at the top level of the module",
        ) from None
    return found[name]


def _fields(task: str, arguments: Any) -> dict[str, Any]:
    """Return the names of the fields of ``arguments``, a class, each with its default. Raises InvalidTask."""
    if dataclasses.is_dataclass(arguments):
        return {
            each.name: REQUIRED if each.default is dataclasses.MISSING else each.default
            for each in dataclasses.fields(arguments)
            if each.init
        }
    # typing.is_typeddict does not know the TypedDict of typing_extensions, which pydantic needs before Python 3.12.
    if hasattr(arguments, "__required_keys__") and issubclass(arguments, dict):
        return dict.fromkeys(typing.get_type_hints(arguments), REQUIRED)
    if isinstance(known := getattr(arguments, "__pydantic_fields__", None), dict):
        return {
            name: REQUIRED
            if each.is_required() or each.default_factory is not None
            else each.default
            for name, each in known.items()
        }
    raise InvalidTask(
        task=task,
        why=f"{getattr(arguments, '__name__', arguments)} cannot be the arguments of its jobs: use a dataclass, a"
        " pydantic model or a TypedDict",
    )


class ReturnedOfEach(Returned):
    """The result type of one job of a batch task. The handler returns None, or a list with one result for each job."""

    @property
    def _hint(self) -> Any:
        hint = super()._hint
        if hint is Any or hint is None or hint is NoneType:
            return hint
        inner = typing.get_args(hint)
        if typing.get_origin(hint) not in _LISTS or len(inner) != 1:
            raise InvalidTask(
                task=self._task,
                why="a batch handler returns None, or a list with the result of each job, in their order",
            )
        return inner[0]
