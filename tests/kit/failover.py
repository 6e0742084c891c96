"""Simulates a failover with one server. Clients see what they would see after a real failover."""

import contextlib
from collections.abc import Iterator
from typing import Any

import redis


def fail_over(control: redis.Redis) -> None:
    """Simulate a failover without a loss of data: change the replication id, and let functions forget what they
    remember."""
    server: Any = control
    server.execute_command("DEBUG", "CHANGE-REPL-ID")
    forget_memories(control)


def forget_memories(control: redis.Redis) -> None:
    """Load all functions again. So they forget all that they remember, as after a restart."""
    with raw_client(control) as plain:
        plain.function_restore(plain.function_dump(), "FLUSH")


@contextlib.contextmanager
def raw_client(control: redis.Redis) -> Iterator[Any]:
    """Yield a client of the same server that returns bytes instead of text."""
    given = {**control.connection_pool.connection_kwargs, "decode_responses": False}
    kind = control.connection_pool.connection_class
    pool = redis.ConnectionPool(connection_class=kind, **given)
    try:
        yield redis.Redis(connection_pool=pool)
    finally:
        pool.disconnect()
