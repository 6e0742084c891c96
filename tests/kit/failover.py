"""Simulates a failover on one server: clients see the same as after a real failover."""

import contextlib
from collections.abc import Iterator
from typing import Any

import redis


def fail_over(control: redis.Redis) -> None:
    """Simulate a failover to a replica with all data: the history gets another id, and functions lose the data that
    they remember."""
    server: Any = control
    server.execute_command("DEBUG", "CHANGE-REPL-ID")
    forget_memories(control)


def forget_memories(control: redis.Redis) -> None:
    """Load all functions again, so that they forget all remembered data, as after a restart of the server."""
    with raw_client(control) as plain:
        plain.function_restore(plain.function_dump(), "FLUSH")


@contextlib.contextmanager
def raw_client(control: redis.Redis) -> Iterator[Any]:
    """Yield a client of the same server that does not decode answers to text, since a dump is binary."""
    given = {**control.connection_pool.connection_kwargs, "decode_responses": False}
    kind = control.connection_pool.connection_class
    pool = redis.ConnectionPool(connection_class=kind, **given)
    try:
        yield redis.Redis(connection_pool=pool)
    finally:
        pool.disconnect()
