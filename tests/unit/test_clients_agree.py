"""Client and AsyncClient are the same, one with `await`: what one can do, the other can."""

import inspect
import typing
from collections.abc import Callable
from typing import Any

import pytest

from rq_core.connections.async_client import AsyncClient
from rq_core.connections.client import Client
from rq_core.protocol.operations import Operations

ONLY_SYNC = {
    "read_outbox_back": "the mirror's",
    "attach": "the mirror is synchronous, as SQLAlchemy is",
    "detach": "the mirror's",
    "read_outbox": "the mirror's",
    "trim": "the mirror's",
    "wait_outbox": "the mirror's",
    "place": "the heartbeats', which have a thread of their own",
    "repair": "the doctor's",
    "snapshot": "the doctor's",
}
ONLY_ASYNC = {
    "wait_wake": "the worker's, which is asynchronous",
    "return_token": "the worker's",
}


def methods(kind: type[Any]) -> dict[str, Callable[..., Any]]:
    return {
        name: member
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_the_clients_have_the_same_methods_but_for_documented_ones() -> None:
    sync, asynchronous = set(methods(Client)), set(methods(AsyncClient))

    assert sync - asynchronous == set(ONLY_SYNC) & sync
    assert asynchronous - sync == set(ONLY_ASYNC)


@pytest.mark.parametrize("name", sorted(methods(Client).keys() & methods(AsyncClient).keys()))
def test_methods_have_the_same_signature(name: str) -> None:
    sync, asynchronous = methods(Client)[name], methods(AsyncClient)[name]

    assert inspect.signature(sync) == inspect.signature(asynchronous)
    assert inspect.iscoroutinefunction(asynchronous)
    assert not inspect.iscoroutinefunction(sync)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_methods_promise_what_the_plan_of_their_name_does(kind: type[Any]) -> None:
    """A method must not drop an argument of its plan, nor change what it returns."""
    compared = 0
    for name, method in methods(kind).items():
        plan = getattr(Operations, name, None)
        if plan is None or name == "job":  # job's queues may be left out: then it asks for all
            continue
        here, there = inspect.signature(method), inspect.signature(plan)
        # A method may have a default where the plan has none.
        assert [(p.name, p.kind) for p in here.parameters.values()] == [
            (p.name, p.kind) for p in there.parameters.values()
        ]
        returned = typing.get_type_hints(plan)["return"]
        # As text, since each module has a type variable of its own.
        assert repr(typing.get_args(returned)[-1]) == repr(typing.get_type_hints(method)["return"])
        compared += 1

    assert compared > 8
