"""Converts results of handlers to JSON and back, by the annotation of the task's function.

A worker converts the result to JSON, in the process of the handler. A producer that waits converts the JSON to the
annotated type.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from rq_core.app.fork_safety import preparing
from rq_core.app.handlers.json_problems import json_problem, misfit, path_to
from rq_core.errors import InvalidTask
from rq_core.model.lib.cached_property import cached_property
from rq_core.model.outcome import NOT_JSON, TOO_LARGE
from rq_core.model.result_encoding import DIGEST, NO_VALUE, VALUE_MAX, pack_result

if TYPE_CHECKING:
    from pydantic import TypeAdapter


class Returned:
    """The result type of one task's function. Its first use imports pydantic."""

    def __init__(self, task: str, function: Callable[..., Any]) -> None:
        self._task = task
        self._function = function

    def check(self, *, is_defined: bool = True) -> None:
        """Resolve the annotation now. Raises InvalidTask if that fails, or if JSON cannot express values of the type.

        If ``is_defined`` is false, an annotation with an undefined name is accepted, since later code may define the
        name.
        """
        if not is_defined:
            try:
                self._hint  # noqa: B018 - it is looked up on access
            except NameError:
                return
        self._adapter  # noqa: B018 - it is made on first access

    def dump(self, value: Any, kept: str = DIGEST) -> str:
        """Convert a result to its digest and JSON, as one text (:func:`rq_core.model.result_encoding.pack_result`).

        If the result cannot be kept, return ``!`` and the reason: too_large or not_json. ``kept`` is the part that the
        log keeps: the digest, or the full result.
        """
        if isinstance(value, Iterator):
            # Reading it to its end would be work of any length on the worker's event loop, after the handler's end.
            return f"{NO_VALUE}{NOT_JSON}"
        try:
            found: bytes = self._adapter.dump_json(value, warnings="error")
            if b"NaN" in found or b"Infinity" in found:
                # pydantic writes these numbers, and JSON does not have them.
                json.loads(found, parse_constant=_refuse)
        except Exception:  # noqa: BLE001 - also an error of a model's own code: the job has done its work
            return f"{NO_VALUE}{NOT_JSON}"
        return (
            pack_result(found.decode(), kept)
            if len(found) <= VALUE_MAX
            else f"{NO_VALUE}{TOO_LARGE}"
        )

    def problem_of(self, value: Any, packed: str) -> str:
        """Describe the part of a result that has no JSON form. ``packed`` is the text that ``dump`` returned for the
        result.

        Return an empty text if the result was kept, or was not kept for another reason than not_json.
        """
        if packed != f"{NO_VALUE}{NOT_JSON}":
            return ""
        if isinstance(value, Iterator):
            return f"value is a {type(value).__name__}, which has no JSON form"
        found = json_problem(value)
        if found is None:
            try:
                self._adapter.validate_python(value, strict=True)
            except Exception as error:  # noqa: BLE001 - also an error of a model's own code
                found = misfit(error, value)
            else:
                found = (), f"is a {type(value).__name__}, and its parts do not fit the annotation"
        return f"{path_to('value', found[0])} {found[1]}"

    def load(self, value_json: str) -> Any:
        """Convert JSON to the annotated type. Raises ValueError if the JSON does not fit the type.

        Raises InvalidTask if JSON cannot express values of the type.
        """
        return self._adapter.validate_json(value_json)

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        with preparing():
            from pydantic import (
                ConfigDict,
                PydanticUndefinedAnnotation,
                PydanticUserError,
                TypeAdapter,
            )
        config = ConfigDict(
            allow_inf_nan=False,
            ser_json_inf_nan="constants",
            ser_json_bytes="base64",
            val_json_bytes="base64",
        )
        try:
            hint = self._hint
            with preparing():
                # A NewType takes the configuration for annotations that cannot have one of their own.
                return TypeAdapter(
                    typing.cast("Any", typing.NewType)("Returned", hint), config=config
                )
        except (PydanticUserError, PydanticUndefinedAnnotation, TypeError, NameError) as error:
            line = str(error).partition("\n")[0]
            raise InvalidTask(
                task=self._task,
                why=f"what it returns cannot be kept as JSON ({line}): annotate plain types, dataclasses or pydantic"
                " models, or leave out keep_result",
            ) from None

    @property
    def _hint(self) -> Any:
        function = inspect.unwrap(self._function)
        written = getattr(function, "__annotations__", {})
        if "return" not in written:
            return Any
        found = typing.get_type_hints(
            SimpleNamespace(__annotations__={"return": written["return"]}),
            globalns=getattr(function, "__globals__", {}),
            include_extras=True,
        )
        return found["return"]


def _refuse(constant: str) -> None:
    raise ValueError(constant)
