"""Calls a function as soon as this process has a global tracer provider of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary

from opentelemetry import trace

Owner = TypeVar("Owner")

_SETTER: Final = "_set_tracer_provider"
"""The function of OpenTelemetry through which each global provider is set. It is not public: OpenTelemetry has nothing
public that notifies a program of a new provider."""
_waiting: Final[WeakKeyDictionary[Any, Callable[[Any], None]]] = WeakKeyDictionary()


def when_provided(owner: Owner, begin: Callable[[Owner], None]) -> None:
    """Call ``begin(owner)`` once, as soon as this process has a global provider: now, or in the call that sets one. An
    owner to which the program has no reference any more is forgotten.

    If OpenTelemetry sets providers in an unknown way, ``begin`` is called now."""
    setter = getattr(trace, _SETTER, None)
    if setter is None:
        begin(owner)
        return
    if not isinstance(setter, _Telling):
        setattr(trace, _SETTER, _Telling(setter))
    _waiting[owner] = begin
    _tell()


def _tell() -> None:
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    while _waiting:
        owner, begin = _waiting.popitem()
        begin(owner)


class _Telling:
    """Replaces OpenTelemetry's setter: sets the global provider, and calls the functions that wait for a provider."""

    def __init__(self, setter: Callable[..., None]) -> None:
        self._setter = setter

    def __call__(self, *args: Any, **options: Any) -> None:
        self._setter(*args, **options)
        _tell()
