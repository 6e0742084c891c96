"""A failover as clients see it, without a second server."""

from typing import Any

import redis


def fail_over(control: redis.Redis) -> None:
    """To a replica that has everything: the history has another name, and its functions remember nothing."""
    server: Any = control
    server.execute_command("DEBUG", "CHANGE-REPL-ID")
    forget_memories(control)


def forget_memories(control: redis.Redis) -> None:
    """Load all functions again, as a restart or a full resynchronization does."""
    # Not decoded: a dump is no text.
    given = {**control.connection_pool.connection_kwargs, "decode_responses": False}
    pool = redis.ConnectionPool(**given)
    plain: Any = redis.Redis(connection_pool=pool)
    plain.function_restore(plain.function_dump(), "FLUSH")
    pool.disconnect()
