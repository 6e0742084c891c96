"""Converts the values of steps and signals to JSON and back, by the annotated types."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from rq_core.app.handlers.json_problems import misfit, path_to
from rq_core.app.handlers.result_types import Returned
from rq_core.errors import InvalidStep, InvalidTask
from rq_core.model.outcome import NOT_JSON, reason_of
from rq_core.signals import StepMismatch, StepUnusable


class _NotDone:
    """The type of the constant NOT_DONE."""

    def __repr__(self) -> str:
        return "NOT_DONE"


NOT_DONE: Final = _NotDone()
"""The value that a step's ``check`` returns if the step has not happened. The step then runs."""


@lru_cache(maxsize=1024)
def returned_by(function: Callable[..., Any]) -> Returned:
    """Return the result type of a function, by its annotation."""
    return Returned(getattr(function, "__qualname__", repr(function)), function)


def check_returned(step: str, function: Callable[..., Any]) -> Returned:
    """Return the result type of a step's function. Raises InvalidStep if JSON cannot express the type's values."""
    try:
        found = returned_by(function)
        found.check()
    except InvalidTask as error:
        raise InvalidStep(step=step, why=str(error.why)) from None
    except TypeError:  # a function without a hash
        return Returned(step, function)
    except NameError as error:
        raise InvalidStep(step=step, why=f"its annotation is not defined ({error})") from None
    return found


class _Brought(Returned):
    """The type of a signal's value. The handler that waits for the signal names the type."""

    def __init__(self, name: str, kind: Any) -> None:
        super().__init__(name, type(None))
        self._kind = kind

    @property
    def _hint(self) -> Any:
        return self._kind


def check_brought(name: str, kind: Any) -> Returned:
    """Return the type of a signal's value. Raises InvalidStep if JSON cannot express the type's values."""
    # Other annotations are compared by value, and ``A | B`` equals ``B | A``, which pydantic reads differently.
    found = _class_brought(kind) if isinstance(kind, type) else _Brought(name, kind)
    try:
        found.check()
    except InvalidTask as error:
        raise InvalidStep(step=name, why=str(error.why)) from None
    return found


@lru_cache(maxsize=1024)
def _class_brought(kind: type) -> Returned:
    """Return the type of a signal's value if the type is a class. The result is cached, since pydantic needs 0.2 ms or
    more to prepare a type."""
    return _Brought(kind.__name__, kind)


def load_brought(name: str, brought: Returned, value_json: str) -> Any:
    """Convert a signal's JSON to the type that the wait names. Raises StepMismatch if the JSON does not fit the
    type."""
    try:
        return brought.load(value_json)
    except ValueError as error:
        raise StepMismatch(
            f"the signal that wait {name!r} has taken brings a value that does not fit the type of the wait:"
            f" {_misfit(error)}. A requeue cannot help, since the wait has taken the signal: run `rq-core fork` with"
            f" `--from-step {name}`, and send the right value to the fork"
        ) from None


def load_value(step: str, returned: Returned, value_json: str) -> Any:
    """Convert a step's saved JSON to the result type of the step's function.

    Raises StepMismatch if the JSON does not fit the type, because the code has changed since.
    """
    try:
        return returned.load(value_json)
    except ValueError as error:
        raise StepMismatch(
            f"step {step!r} has saved a value that does not fit what its function returns now: {_misfit(error)}. Give"
            " the step another name, and it runs again"
        ) from None


def _misfit(error: ValueError) -> str:
    loc, problem = misfit(error)
    return f"{path_to('value', loc)} {problem}"


def unusable(step: str, note: str, problem: str = "") -> StepUnusable:
    """Return the error for a step that has happened, but whose value is not kept.

    ``note`` is the reason in one word. ``problem`` describes the part of the value that has no JSON form; it is empty
    if an earlier run has run the step.
    """
    said = f"step {step!r} has happened, and what it returned is not kept: {problem or reason_of(note)}"
    if note == NOT_JSON:
        said += (
            ". Let its function return plain data, dataclasses or pydantic models that fit its annotation; under"
            " another name, the step runs again"
        )
    return StepUnusable(said)
