"""``Depends``: values that a handler receives in addition to the arguments of its job.

    async def session() -> AsyncIterator[Session]:
        async with make_session() as session:
            yield session

    @app.task
    async def report(month: str, db: Annotated[Session, Depends(session)]) -> None: ...

A dependency is no argument of the job: its value is not sent to Redis, and is not in the digest of the arguments. A
producer that passes a value gets an error. This module finds the dependencies of a function and puts them in order.
:mod:`rq_core.app.handlers.handler_setup` enters and leaves them.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeVar, overload

from rq_core.errors import InvalidOption, InvalidTask

T = TypeVar("T")

DependencyScope = Literal["attempt", "process"]
Provider = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Dependency:
    """A provider and its scope, made by ``Depends``."""

    provider: Provider
    scope: DependencyScope

    def __repr__(self) -> str:
        scope = "" if self.scope == "attempt" else f', scope="{self.scope}"'
        return f"Depends({name_of(self.provider)}{scope})"


class _Injected:
    """The type of ``injected``, the default of a parameter that is annotated with ``Depends``.

    With this default, type checkers accept calls without the parameter.
    """

    def __repr__(self) -> str:
        return "injected"


injected: Final[Any] = _Injected()


@overload
def Depends(
    provider: Callable[..., AbstractAsyncContextManager[T]], /, *, scope: DependencyScope = ...
) -> T: ...
@overload
def Depends(
    provider: Callable[..., AbstractContextManager[T]], /, *, scope: DependencyScope = ...
) -> T: ...
@overload
def Depends(provider: Callable[..., AsyncIterator[T]], /, *, scope: DependencyScope = ...) -> T: ...
@overload
def Depends(provider: Callable[..., Iterator[T]], /, *, scope: DependencyScope = ...) -> T: ...
@overload
def Depends(provider: Callable[..., Awaitable[T]], /, *, scope: DependencyScope = ...) -> T: ...
@overload
def Depends(provider: Callable[..., T], /, *, scope: DependencyScope = ...) -> T: ...
def Depends(provider: Provider, /, *, scope: DependencyScope = "attempt") -> Any:  # noqa: N802 - it reads as a declaration
    """Declare that ``provider`` makes the value of a parameter. Write ``Depends(…)`` in ``Annotated[…]``, or as the
    parameter's default.

    ``provider`` is a function, a generator that yields once, a function made by ``contextmanager`` or
    ``asynccontextmanager``, or a class. Functions, generators and context managers may be async. A provider has no
    arguments except its own dependencies. It is called once per attempt of a job, or per call of a step's function,
    even if several parameters need its value. With ``scope="process"``, it is called once per worker process, when a
    job first needs the value. Raises InvalidOption.
    """
    if not callable(provider):
        raise InvalidOption.of("Depends", provider, "must get a function or a class")
    if scope not in typing.get_args(DependencyScope):
        raise InvalidOption.of("scope", scope, 'must be "attempt" or "process"')
    return Dependency(provider, scope)


class Step:
    """A planned call of a provider, the function that makes a dependency's value. ``needs`` are the planned calls that
    make the provider's own arguments, by parameter."""

    __slots__ = ("needs", "owned", "provider", "scope")

    def __init__(
        self, provider: Provider, scope: DependencyScope, needs: Mapping[str, Step]
    ) -> None:
        self.provider = provider
        self.scope = scope
        self.needs = needs
        self.owned = makes_managers(provider)
        """True if the provider is a class of context managers: the worker enters each instance."""

    def __repr__(self) -> str:
        return f"<dependency {name_of(self.provider)}>"


def planned_steps(
    owner: str,
    dependencies: Mapping[str, Dependency],
    *,
    is_async: bool,
    overrides: Mapping[Provider, Provider] | None = None,
) -> dict[str, Step]:
    """Return the planned calls of the providers that make the values of a task's dependencies, by parameter. ``owner``
    is the task's name.

    Raises InvalidTask.
    """
    planner = _Planner(owner, is_async, overrides or {})
    return {name: planner.step(dependency, ()) for name, dependency in dependencies.items()}


class _Planner:
    """Plans the calls of one task's providers, and of the providers that make these providers' own arguments."""

    def __init__(self, owner: str, is_async: bool, overrides: Mapping[Provider, Provider]) -> None:
        self._owner = owner
        self._is_async = is_async
        self._overrides = overrides
        self._steps: dict[Dependency, Step] = {}

    def step(self, dependency: Dependency, path: tuple[Dependency, ...]) -> Step:
        try:
            known = self._steps.get(dependency)
        except TypeError:
            why = f"its dependency {name_of(dependency.provider)} is not hashable"
            raise InvalidTask(task=self._owner, why=why) from None
        if known is not None:
            return known
        path = (*path, dependency)
        self._check(path)
        provider = self._overrides.get(dependency.provider, dependency.provider)
        if not self._is_async and is_async(provider):
            raise InvalidTask(
                task=self._owner,
                why=f"it is a `def` function, and its dependency {name_of(provider)} is async: write the task"
                " as `async def`, or the dependency without async",
            )
        inner = dependencies_of(self._owner, provider, of=name_of(provider))
        needs = {name: self.step(each, path) for name, each in inner.items()}
        made = self._steps[dependency] = Step(provider, dependency.scope, needs)
        return made

    def _check(self, path: tuple[Dependency, ...]) -> None:
        *before, last = path
        if any(each.provider == last.provider for each in before):
            cycle = " → ".join(name_of(each.provider) for each in path)
            raise InvalidTask(task=self._owner, why=f"its dependencies form a cycle: {cycle}")
        if before and before[-1].scope == "process" and last.scope != "process":
            raise InvalidTask(
                task=self._owner,
                why=f"its dependency {name_of(before[-1].provider)} lives as long as the process, and needs"
                f' {name_of(last.provider)}, which lives for one attempt: give that one scope="process", too',
            )


def dependencies_of(
    owner: str, function: Provider, *, of: str | None = None
) -> dict[str, Dependency]:
    """Return the dependencies of a function, by the name of the parameter. Raises InvalidTask.

    ``owner`` is the task's name. If ``function`` is a provider, ``of`` is the provider's name, and each parameter
    without a Depends must have a default.
    """
    return _dependencies_of(owner, function, of, set())


@functools.lru_cache(maxsize=1024)
def has_no_dependencies(function: Provider) -> bool:
    """Return whether a function certainly has no dependencies. If an annotation uses a name that is not defined yet,
    return False.

    Raises InvalidTask, and TypeError for a function without a hash.
    """
    unknown: set[str] = set()
    return not _dependencies_of(name_of(function), function, None, unknown) and not unknown


def _dependencies_of(
    owner: str, function: Provider, of: str | None, unknown: set[str]
) -> dict[str, Dependency]:
    """Return the dependencies of a function, by the name of the parameter, as ``dependencies_of`` does. Add the
    undefined names in annotations to ``unknown``."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}  # Some builtins have none; a task without one is refused elsewhere.
    found: dict[str, Dependency] = {}
    for parameter in parameters:
        dependency = _dependency_of(owner, parameter, function, unknown)
        if dependency is not None:
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                why = f"its dependency {parameter.name} is by position only: remove the '/'"
                raise InvalidTask(task=owner, why=why)
            found[parameter.name] = dependency
        elif of is not None and _is_required(parameter):
            raise InvalidTask(
                task=owner,
                why=f"its dependency {of} has a parameter {parameter.name} that nothing fills: give it a Depends"
                " or a default",
            )
    return found


def _is_required(parameter: inspect.Parameter) -> bool:
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is inspect.Parameter.empty and parameter.kind not in variable


def _dependency_of(
    owner: str, parameter: inspect.Parameter, function: Provider, unknown: set[str]
) -> Dependency | None:
    annotated = _in_annotation(owner, parameter, function, unknown)
    if isinstance(parameter.default, Dependency):
        if annotated is not None:
            why = f"its parameter {parameter.name} has two Depends: keep one"
            raise InvalidTask(task=owner, why=why)
        return parameter.default
    if annotated is None and parameter.default is injected:
        why = f"its parameter {parameter.name} is injected, and its annotation has no Depends"
        raise InvalidTask(task=owner, why=why)
    return annotated


def _in_annotation(
    owner: str, parameter: inspect.Parameter, function: Provider, undefined: set[str]
) -> Dependency | None:
    annotation, unknown = parameter.annotation, set[str]()
    if isinstance(annotation, str):
        annotation = _evaluate(annotation, function, unknown)
        undefined.update(unknown)
    if type(annotation).__name__ == "TypeAliasType":
        annotation = annotation.__value__
    if typing.get_origin(annotation) is not Annotated:
        return None
    found = [each for each in typing.get_args(annotation)[1:] if isinstance(each, Dependency)]
    if len(found) > 1:
        why = f"its parameter {parameter.name} has two Depends: keep one"
        raise InvalidTask(task=owner, why=why)
    if found and found[0].provider is _Unknown:
        raise InvalidTask(
            task=owner,
            why=f"the Depends of its parameter {parameter.name} cannot be resolved"
            f" ({', '.join(sorted(unknown))}): what it names must be defined above the task, at the top"
            " level of the module",
        )
    return found[0] if found else None


def has_dependency(hint: Any) -> bool:
    """Return whether an annotated type has a Depends in it, at any depth."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is Annotated and any(isinstance(each, Dependency) for each in inner):
        return True
    return any(map(has_dependency, inner))


class _AnyUse(type):
    """Lets an annotation use ``_Unknown`` in any way: index it, join it with ``|``, or read its attributes.

    A dependency's type need not be known. An argument's unknown type is reported later, when the types are resolved.
    """

    def __getattr__(cls, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls

    def __getitem__(cls, _item: object) -> type:
        return cls

    def __or__(cls, _other: object) -> Any:
        return cls

    def __ror__(cls, _other: object) -> Any:
        return cls


class _Unknown(metaclass=_AnyUse):
    """Replaces a name in an annotation that is not defined yet, or is imported only under TYPE_CHECKING."""


class _Names(dict[str, Any]):
    """A mapping of the names that an annotation may use. For an undefined name, it returns _Unknown, and adds the name
    to ``unknown``."""

    def __init__(self, known: Mapping[str, Any], unknown: set[str]) -> None:
        super().__init__()
        self._known = known
        self._unknown = unknown

    def __missing__(self, name: str) -> Any:
        if name in self._known:
            return self._known[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        self._unknown.add(name)
        return _Unknown


def _evaluate(text: str, function: Provider, unknown: set[str]) -> Any:
    """Evaluate an annotation that is written as text. Return None if the evaluation fails. Add undefined names to
    ``unknown``."""
    names = _Names(getattr(_function_of(function), "__globals__", {}), unknown)
    try:
        return eval(text, {}, names)  # noqa: S307 - the program's own annotation
    except Exception:  # noqa: BLE001 - an annotation may be anything; it is looked at again as an argument's type
        return None


def _function_of(provider: Any) -> Any:
    """Return the function that runs in a call of the provider: ``__init__`` of a class, ``__call__`` of an object."""
    provider = _called(provider)
    if isinstance(provider, type):
        return getattr(provider, "__init__")  # noqa: B009 - a type checker would warn of subclasses
    if not inspect.isroutine(provider):
        provider = type(provider).__call__
    return inspect.unwrap(provider)


def _called(provider: Any) -> Any:
    """Return the function inside a functools.partial object. Return other providers unchanged."""
    while isinstance(provider, functools.partial):
        provider = provider.func
    return provider


def name_of(provider: Any) -> str:
    """Return a provider's name for messages."""
    provider = _called(provider)
    return str(getattr(provider, "__qualname__", None) or repr(provider))


def makes_managers(provider: Any) -> bool:
    """Return whether a provider is a class whose instances are context managers.

    Each call of such a class makes a new instance, which no other code uses.
    """
    kind = _called(provider)
    return isinstance(kind, type) and (hasattr(kind, "__enter__") or hasattr(kind, "__aenter__"))


def is_async(provider: Any) -> bool:
    """Return whether a provider needs an event loop. Its type decides; the provider is not called."""
    called = _called(provider)
    if isinstance(called, type):
        return hasattr(called, "__aenter__") and not hasattr(called, "__enter__")
    if not inspect.isroutine(called):
        called = type(called).__call__
    return inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(inspect.unwrap(called))
