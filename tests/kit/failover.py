"""A failover as clients see it, without a second server."""

import contextlib
from collections.abc import Iterator
from typing import Any

import redis


def fail_over(control: redis.Redis) -> None:
    """To a replica that has everything: the history has another name, and its functions remember nothing."""
    server: Any = control
    server.execute_command("DEBUG", "CHANGE-REPL-ID")
    forget_memories(control)


def forget_memories(control: redis.Redis) -> None:
    """Load all functions again, as a restart or a full resynchronization does."""
    with raw_client(control) as plain:
        plain.function_restore(plain.function_dump(), "FLUSH")


@contextlib.contextmanager
def raw_client(control: redis.Redis) -> Iterator[Any]:
    """A client of the same server whose answers are not decoded: a dump is no text."""
    given = {**control.connection_pool.connection_kwargs, "decode_responses": False}
    kind = control.connection_pool.connection_class
    pool = redis.ConnectionPool(connection_class=kind, **given)
    try:
        yield redis.Redis(connection_pool=pool)
    finally:
        pool.disconnect()
