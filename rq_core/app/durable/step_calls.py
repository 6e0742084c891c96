"""Calls the functions of steps, with the values of their own dependencies.

    async def charge_card(order_id: int, db: Annotated[Session, Depends(session)] = injected) -> Charge: ...

    charge = await durable().step("charge", charge_card, order_id)

A step's dependencies are entered before the step's function is called, and left before the step is saved. So when the
step is saved, the rows that the function wrote through ``db`` are already committed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from rq_core.app.handlers.depends import Step
from rq_core.app.handlers.handler_setup import (
    ProcessValues,
    Surroundings,
    call_surrounded,
    now,
)
from rq_core.errors import InvalidStep, InvalidTask


class StepCalls:
    """Calls the functions of a handler's steps."""

    def __init__(
        self, surroundings: Surroundings, resources: ProcessValues, *, is_async: bool
    ) -> None:
        """``is_async`` is true if the handler is an ``async def`` function."""
        self._surroundings = surroundings
        self._resources = resources
        self._is_async = is_async

    def needs(self, step: str, function: Callable[..., Any]) -> Mapping[str, Step]:
        """Return the dependencies of a step's function, by parameter. Raises InvalidStep if the function cannot have
        them."""
        awaits = self._is_async and inspect.iscoroutinefunction(function)
        try:
            return self._surroundings.needs_of(step, function, is_async=awaits)
        except InvalidTask as error:
            raise InvalidStep(step=step, why=str(error.why)) from None

    async def call(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        needs: Mapping[str, Step],
    ) -> Any:
        """Call a step's function. In an async handler, a plain function and its dependencies run in a thread."""
        if self._is_async and inspect.iscoroutinefunction(function):
            return await self._called(function, args, kwargs, needs, awaits=True)
        if not self._is_async:
            return await self._called(function, args, kwargs, needs, awaits=False)
        found = await asyncio.to_thread(self._call_now, function, args, kwargs, needs)
        return await found if asyncio.iscoroutine(found) else found

    def _call_now(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        needs: Mapping[str, Step],
    ) -> Any:
        return now(self._called(function, args, kwargs, needs, awaits=False))

    async def _called(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        needs: Mapping[str, Step],
        *,
        awaits: bool,
    ) -> Any:
        if not needs:
            found = function(*args, **kwargs)
            return await found if awaits else found
        given = inspect.signature(function).bind_partial(*args, **kwargs).arguments
        needs = {name: need for name, need in needs.items() if name not in given}
        return await call_surrounded(
            function, args, kwargs, is_async=awaits, steps=needs, resources=self._resources
        )
