"""Converts arguments from Python to JSON and back. Both the producer and the worker check the arguments' types.

A producer binds and validates a call's arguments, and sends them by name, as a JSON object. A worker validates this
JSON and converts it to the annotated types. Datetimes, UUIDs, Decimals, enums, dataclasses, pydantic models, sets and
containers of these keep their types. A value without an annotation, or annotated ``Any``, may have only JSON's types.
An argument that the caller leaves out is not in the JSON, and gets the worker's default. A task's first use imports
pydantic, so that defining a task stays quick. Defining a task with ``keep_result`` imports pydantic at once.
"""

from __future__ import annotations

import inspect
import json
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Final

from rq_core.app.fork_safety import preparing
from rq_core.app.handlers.depends import has_dependency
from rq_core.app.handlers.json_problems import json_problem, words_of
from rq_core.app.hints import change, is_open, is_plain
from rq_core.errors import ArgumentsInvalid, InvalidTask
from rq_core.model.lib.cached_property import cached_property

if typing.TYPE_CHECKING:
    from pydantic import TypeAdapter

_PLAIN_BYTES_MAX: Final = 4096
"""Maximum number of bytes of arguments as JSON that are sent without a check that the JSON can be read back. The check
is left out only if all arguments have plain types. Longer JSON might contain an integer with more digits than Python
reads."""

_REFUSED_KINDS: Final[dict[object, str]] = {
    inspect.Parameter.VAR_POSITIONAL: "takes *{name}: name each argument, or take one list",
    inspect.Parameter.VAR_KEYWORD: "takes **{name}: name each argument, or take one dict",
    inspect.Parameter.POSITIONAL_ONLY: "takes {name} by position only: remove the '/'",
}  # fmt: skip


class Arguments:
    """The arguments of one task's function: their names, types and defaults.

    The constructor raises InvalidTask for a signature whose arguments cannot be sent by name. Annotations are resolved
    at their first use, since they may name classes that are defined later. So every method may raise InvalidTask if an
    annotation cannot be resolved, or if JSON cannot express values of its type. A method raises ArgumentsInvalid for
    invalid values.
    """

    def __init__(
        self, task: str, function: Callable[..., Any], injected: Collection[str] = ()
    ) -> None:
        """``injected`` has the names of the parameters that dependencies fill; these are no arguments of the job."""
        self.task = task
        self._function = function
        self._injected = injected
        try:
            self._signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise InvalidTask(task=task, why=f"it has no signature ({error})") from None
        for parameter in self._signature.parameters.values():
            why = _REFUSED_KINDS.get(parameter.kind)
            if why is not None:
                raise InvalidTask(task=task, why=f"it {why.format(name=parameter.name)}")
        if injected:
            self._signature = _without(task, self._signature, injected)
        self._positional = tuple(
            name
            for name, parameter in self._signature.parameters.items()
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        )
        self._adapters: dict[str, TypeAdapter[dict[str, Any]]] = {}
        self.names = tuple(self._signature.parameters)
        """The names of the task's arguments, without the parameters whose values are dependencies."""
        self.defaults = {
            name: parameter.default
            for name, parameter in self._signature.parameters.items()
            if parameter.default is not inspect.Parameter.empty
        }
        """The default values, by the argument's name."""

    def check(self) -> None:
        """Resolve the annotations now. Raises InvalidTask.

        A worker calls this method at its start. A bad annotation then stops the worker before its first claim.
        """
        self._adapter  # noqa: B018 - it is made on first access

    def dump(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Validate a call's arguments, and return them as a JSON object without the defaults of left-out arguments."""
        return self.dump_valid(self._validate(self.by_name(args, kwargs) if args else kwargs))

    def validate(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call's arguments by name, in the annotated types, without the defaults of left-out arguments."""
        return self._validate(self.by_name(args, kwargs) if args else kwargs)

    def validate_named(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the arguments ``values``, given by name, to the annotated types. Return them by name."""
        return self._validate(_check_names(self.task, values))

    def part(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Validate the arguments ``values``, given by name, which may be only some of a call's arguments. Return them
        by name, in JSON's types."""
        if odd := values.keys() - set(self.names):
            raise invalid(self.task, dict.fromkeys(sorted(odd), WORDS["extra_forbidden"]))
        found: dict[str, Any] = {}
        for name, value in values.items():
            adapter = self._adapter_of(name)
            try:
                valid = adapter.validate_python({name: value})
                found |= adapter.dump_python(valid, mode="json", warnings="error")
                _strict_json(found)
            except (ValueError, TypeError, RecursionError) as error:
                if isinstance(error, ValueError) and hasattr(error, "errors"):  # pydantic's
                    raise self._refused(error) from None
                raise invalid(self.task, self._unserialisable({name: value}, error)) from None
        return found

    def canonical(self, values: Mapping[str, Any], names: Collection[str] | None) -> dict[str, Any]:
        """Return validated arguments in JSON's types, so that equal arguments give equal results.

        ``names`` selects the arguments; None selects all. Left-out arguments get their defaults, and sets become sorted
        lists. Raises ArgumentsInvalid for a value that has no JSON form.
        """
        whole = {**self.defaults, **values}
        try:
            return {
                name: plain_value(
                    self._adapter_of(name).dump_python({name: whole[name]})[name]
                    if name in values
                    else whole[name]
                )
                for name in (self.names if names is None else names)
                if name in whole
            }
        except (ValueError, TypeError, RecursionError) as error:
            raise invalid(self.task, self._unserialisable(values, error)) from None

    def canonical_json(self, values: Mapping[str, Any]) -> str:
        """Return validated arguments as JSON text. Equal arguments give equal texts. Raises ArgumentsInvalid."""
        return json.dumps(self.canonical(values, None), sort_keys=True, separators=(",", ":"))

    def _adapter_of(self, name: str) -> TypeAdapter[dict[str, Any]]:
        adapter = self._adapters.get(name)
        if adapter is None:
            adapter = self._adapters[name] = self._make_adapter({name: self._hints[name]})
        return adapter

    def load(self, args_json: str) -> dict[str, Any]:
        """Read arguments from a JSON object. Return them by name, in the annotated types, ready for the function."""
        try:
            arguments: dict[str, Any] = self._read_json(args_json)
        except ValueError as error:
            raise self._refused(error) from None
        return arguments

    def by_name(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Assign a call's arguments to their names, without validating them. Return the arguments by name."""
        if len(args) > len(self._positional):
            most = len(self._positional)
            problem = f"at most {most} may be given by position, not {len(args)}"
            raise invalid(self.task, {"arguments": problem})
        values = dict(zip(self._positional, args, strict=False))
        if not kwargs:
            return values
        if twice := values.keys() & kwargs.keys():
            raise invalid(self.task, dict.fromkeys(sorted(twice), "given twice"))
        return {**values, **kwargs}

    def _validate(self, values: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return self._check(values)
        except ValueError as error:
            raise self._refused(error) from None

    def _refused(self, error: ValueError) -> ArgumentsInvalid:
        problems = _problems_of(error)
        for name in problems.keys() & set(self._injected):
            problems[name] = "is filled by its Depends, and cannot be given"
        return invalid(self.task, problems)

    def dump_valid(self, valid: dict[str, Any]) -> str:
        """Return validated arguments as a JSON object. Raises ArgumentsInvalid if JSON cannot express a value."""
        try:
            if self._plain_json is not None:
                dumped = self._plain_json(valid)
                if len(dumped) <= _PLAIN_BYTES_MAX:
                    return dumped.decode()
            else:
                dumped = _strict_json(
                    self._adapter.dump_python(valid, mode="json", warnings="error")
                )
        except (ValueError, TypeError, RecursionError) as error:
            raise invalid(self.task, self._unserialisable(valid, error)) from None
        try:
            loaded = self._adapter.validate_json(dumped)
        except ValueError as error:
            problems = {
                name: f"cannot be read back from its own JSON ({problem})"
                for name, problem in _problems_of(error).items()
            }
            raise invalid(self.task, problems) from None
        changed = [change(valid[name], loaded[name], name) for name in self._open & valid.keys()]
        if any(changed):
            raise invalid(self.task, dict(sorted(filter(None, changed))))
        return dumped.decode()

    @cached_property
    def _open(self) -> frozenset[str]:
        """Names of the arguments whose annotations allow a value of any type, such as ``Any``."""
        return frozenset(name for name, hint in self._hints.items() if is_open(hint))

    def _unserialisable(self, valid: Mapping[str, Any], error: Exception) -> dict[str, str]:
        """Return the first problem in each argument that has no JSON form. The key is the problem's place, such as
        ``rows.3.when``.

        If each argument has a JSON form when it is converted alone, the only key is ``arguments``.
        """
        problems: dict[str, str] = {}
        for name, value in valid.items():
            try:
                adapter = self._make_adapter({name: self._hints[name]})
                _strict_json(adapter.dump_python({name: value}, mode="json", warnings="error"))
            except (ValueError, TypeError, RecursionError) as problem:
                problems.update([_no_json(name, value, problem)])
        return problems or {"arguments": words_of(error)}

    @cached_property
    def _hints(self) -> dict[str, Any]:
        """The type of each parameter, by name. Without an annotation, the type is ``Any``. Raises InvalidTask."""
        function = inspect.unwrap(self._function)
        try:
            written = getattr(function, "__annotations__", {})
            of_parameters = {
                name: written[name] for name in self._signature.parameters if name in written
            }
            # What the function returns stays on the worker, so it need not resolve.
            found = typing.get_type_hints(
                SimpleNamespace(__annotations__=of_parameters),
                globalns=getattr(function, "__globals__", {}),
                include_extras=True,
            )
        except (NameError, AttributeError, SyntaxError, TypeError) as error:
            raise InvalidTask(
                task=self.task,
                why=f"an annotation cannot be resolved ({error}): what annotations name must be"
                " imported or defined at the top level of the task's module, not under"
                " `if TYPE_CHECKING`",
            ) from None
        for name, hint in found.items():
            if has_dependency(hint):
                raise InvalidTask(
                    task=self.task,
                    why=f"the Depends of its parameter {name} was not seen when the task was defined: define what"
                    " the annotation names above the task, and let Annotated be the outermost",
                )
        return {name: found.get(name, Any) for name in self._signature.parameters}

    @cached_property
    def _adapter(self) -> TypeAdapter[dict[str, Any]]:
        with preparing():
            from pydantic import PydanticUndefinedAnnotation, PydanticUserError
            from pydantic_core import to_json

        try:
            with preparing():
                adapter = self._make_adapter(self._hints)
                # Objects that pydantic makes at its first use have locks, too; a child would find them locked.
                to_json([adapter.serializer.to_json({}, warnings=False).decode(), 1])
                return adapter
        except (PydanticUserError, PydanticUndefinedAnnotation, TypeError, NameError) as error:
            why = _first_line(error)
        for name, hint in self._hints.items():
            try:
                self._make_adapter({name: hint})
            except (PydanticUserError, PydanticUndefinedAnnotation, TypeError, NameError):
                why = (
                    f"its argument {name} is a {_type_name(hint)}, which does not travel as JSON:"
                    " use plain types, dataclasses or pydantic models"
                )
                break
        raise InvalidTask(task=self.task, why=why)

    @cached_property
    def _check(self) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """The function that validates Python values. It belongs to the validator inside pydantic's TypeAdapter, since
        the TypeAdapter's own method takes twice as long."""
        check: Callable[[Mapping[str, Any]], dict[str, Any]] = (
            self._adapter.validator.validate_python
        )
        return check

    @cached_property
    def _plain_json(self) -> Callable[[dict[str, Any]], bytes] | None:
        """The function that converts arguments to JSON. None if an argument's type allows a value that changes when it
        is read back from its JSON.

        Pydantic's warnings of wrong types are off, which saves time: validated values have the right types.
        """
        if not all(map(is_plain, self._hints.values())):
            return None
        return partial(self._adapter.serializer.to_json, warnings=False)

    @cached_property
    def _read_json(self) -> Callable[[str], dict[str, Any]]:
        """The function that validates JSON text. It belongs to the validator inside pydantic's TypeAdapter."""
        read: Callable[[str], dict[str, Any]] = self._adapter.validator.validate_json
        return read

    def _make_adapter(self, hints: Mapping[str, Any]) -> TypeAdapter[dict[str, Any]]:
        from pydantic import ConfigDict, TypeAdapter
        from typing_extensions import TypedDict

        parameters = self._signature.parameters
        fields = {
            name: typing.Required[hint]
            if parameters[name].default is inspect.Parameter.empty
            else typing.NotRequired[hint]
            for name, hint in hints.items()
        }
        make: Any = TypedDict  # Its static form wants literals.
        shape = typing.cast("Any", typing.NewType)("Arguments", make("Arguments", fields))
        # An adapter takes no configuration for a TypedDict, and the TypedDict's own does not reach
        # values under Any, whose NaN would silently become null. A NewType takes one for all.
        config = ConfigDict(
            extra="forbid",
            allow_inf_nan=False,
            ser_json_inf_nan="constants",
            ser_json_bytes="base64",
            val_json_bytes="base64",
        )
        return TypeAdapter(shape, config=config)


def _without(
    task: str, signature: inspect.Signature, injected: Collection[str]
) -> inspect.Signature:
    """Return the signature without the parameters in ``injected``, which dependencies fill. Raises InvalidTask if an
    argument of the job follows one of these parameters."""
    kept: list[inspect.Parameter] = []
    passed = ""
    for name, parameter in signature.parameters.items():
        if name in injected:
            passed = name
            continue
        if passed and parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise InvalidTask(
                task=task,
                why=f"its argument {name} comes after {passed}, which a Depends fills: put dependencies last",
            )
        kept.append(parameter)
    return signature.replace(parameters=kept)


def dump_untyped(task: str, values: Mapping[str, Any]) -> str:
    """Return arguments as a JSON object, for a task whose code is not in this process. Raises ArgumentsInvalid.

    Values of types that JSON lacks, such as datetimes, are written in pydantic's form. The worker converts them back.
    """
    _check_names(task, values)
    from pydantic_core import to_jsonable_python

    def dumped(value: Mapping[str, Any]) -> str:
        return _strict_json(to_jsonable_python(value, bytes_mode="base64")).decode()

    try:
        return dumped(values)
    except (ValueError, TypeError, RecursionError) as error:
        problems: dict[str, str] = {}
        for name, value in values.items():
            try:
                dumped({name: value})
            except (ValueError, TypeError, RecursionError) as problem:
                problems.update([_no_json(name, value, problem)])
        raise invalid(task, problems or {"arguments": words_of(error)}) from None


def plain_value(value: Any) -> Any:
    """Convert a value to JSON's types: sets become sorted lists, and keys of dicts become text."""
    from pydantic_core import to_jsonable_python

    if isinstance(value, dict):
        return {str(to_jsonable_python(key)): plain_value(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(plain_value, value), key=lambda each: json.dumps(each, sort_keys=True))
    if isinstance(value, list | tuple):
        return [plain_value(each) for each in value]
    return to_jsonable_python(value, bytes_mode="base64")


def _check_names(task: str, values: Any) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        raise invalid(task, {"arguments": f"must be a mapping by name, not a {kind}"})
    if odd := [name for name in values if not isinstance(name, str)]:
        raise invalid(task, {repr(name): "an argument's name must be a string" for name in odd})
    return values


def _strict_json(value: Any) -> bytes:
    """Return UTF-8 JSON. Raises ValueError for NaN, infinities and lone surrogates, which are not JSON."""
    return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()


def invalid(task: str, fields: Mapping[str, str]) -> ArgumentsInvalid:
    """Return the error for invalid arguments of a task. ``fields`` maps an argument, or a place in an argument such as
    ``rows.3``, to the problem."""
    problems = "; ".join(f"{name}: {problem}" for name, problem in fields.items())
    return ArgumentsInvalid(task=task, problems=problems, fields=dict(fields))


WORDS: Final = {"missing": "is required", "extra_forbidden": "the task has no such argument"}
"""The words for two problems, by pydantic's name of the problem."""


def _problems_of(error: ValueError) -> dict[str, str]:
    """Return the problems in a validation error. Each key is a place in the arguments, such as ``to`` or
    ``rows.3.when``."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return {"arguments": words_of(error)}
    problems: dict[str, str] = {}
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        where = ".".join(map(_printable, detail["loc"])) or "arguments"
        words = WORDS.get(detail["type"], detail["msg"])
        # A union has one problem per member, all at places of their own or at the same one.
        problems[where] = f"{problems[where]}, or {words}" if where in problems else words
    return problems


def _no_json(name: str, value: Any, error: Exception) -> tuple[str, str]:
    """Find the first part of an argument that has no JSON form. Return the part's place, such as ``rows.3.when``, and
    the problem in words."""
    loc, problem = json_problem(value) or ((), words_of(error))
    return ".".join(map(_printable, (name, *loc))), problem


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0].removeprefix("Error serializing to JSON: ")


def _printable(part: object) -> str:
    return str(part).encode(errors="backslashreplace").decode()


def _type_name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
