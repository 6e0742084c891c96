"""Checks the arguments of one job of a batch task, and converts them to JSON and back.

A job of a batch task has one object as its arguments. The fields of the object count as the job's arguments by name,
for example in ``per=`` of caps and unique names.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, ParamSpec, TypeVar

from rq_core.app.arguments import Arguments, plain_value
from rq_core.app.batches.shape import REQUIRED, Shape
from rq_core.errors import ArgumentsInvalid

P = ParamSpec("P")
R = TypeVar("R")

_WHOLE: Final = "arguments"
"""The name of the one argument that ``Arguments`` checks for a batch task: the object with all arguments of a job."""
_HEAD: Final = f'{{"{_WHOLE}":'


class Fields(dict[str, Any]):
    """The validated arguments of one job of a batch task, by name. ``made`` is the object whose fields are these
    arguments."""

    def __init__(self, made: Any, names: Collection[str]) -> None:
        if isinstance(made, Mapping):
            super().__init__(made)
        else:
            super().__init__((name, getattr(made, name)) for name in names)
        self.made = made


def _naming_fields(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function so that its ArgumentsInvalid errors name a field ``table``, not ``arguments.table``."""

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except ArgumentsInvalid as error:
            fields = {name.removeprefix(f"{_WHOLE}."): why for name, why in error.fields.items()}
            problems = "; ".join(f"{name}: {why}" for name, why in fields.items())
            raise ArgumentsInvalid(task=error.task, problems=problems, fields=fields) from None

    return called


class BatchArguments(Arguments):
    """The arguments of one job of a batch task."""

    def __init__(self, task: str, shape: Shape) -> None:
        def one(arguments: Any) -> None: ...

        one.__annotations__ = {_WHOLE: shape.arguments}
        super().__init__(task, one)
        self.parameter = shape.parameter
        """The name of the handler's parameter for the list of jobs."""
        self.names = tuple(shape.fields)
        self.defaults = {n: each for n, each in shape.fields.items() if each is not REQUIRED}

    @_naming_fields
    def validate(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Fields:
        """Return a call's arguments by name. The caller passes the object, or the object's fields by name."""
        if args:
            return self._fields(super().validate(args, kwargs))
        return self._fields(super().validate((kwargs,), {}))

    def validate_named(self, values: Mapping[str, Any]) -> Fields:
        """Convert arguments that are given by name to the annotated types. See Arguments.validate_named."""
        return self.validate((values,), {})

    def dump(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Validate a call's arguments, and return them as a JSON object. See Arguments.dump."""
        return self.dump_valid(self.validate(args, kwargs))

    @_naming_fields
    def dump_valid(self, valid: dict[str, Any]) -> str:
        """Return validated arguments as a JSON object. See Arguments.dump_valid."""
        assert isinstance(valid, Fields)
        return super().dump_valid({_WHOLE: valid.made})[len(_HEAD) : -1]

    @_naming_fields
    def load(self, args_json: str) -> Fields:
        """Read arguments from a JSON object. See Arguments.load."""
        return self._fields(super().load(f"{_HEAD}{args_json}}}"))

    def canonical(self, values: Mapping[str, Any], names: Collection[str] | None) -> dict[str, Any]:
        """Return validated arguments in JSON's types. See Arguments.canonical."""
        whole = dict(self.defaults)
        if isinstance(values, Fields):
            whole |= super().canonical({_WHOLE: values.made}, (_WHOLE,))[_WHOLE]
        return {
            name: plain_value(whole[name])
            for name in (self.names if names is None else names)
            if name in whole
        }

    def _fields(self, values: Mapping[str, Any]) -> Fields:
        return Fields(values[_WHOLE], self.names)
