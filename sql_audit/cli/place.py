"""The commands ``fork``, ``rebind`` and ``adopt``, for a moved or copied audit database, or a moved Redis."""

from __future__ import annotations

from collections.abc import Sequence

import click

from rq_core.cli.options import connect, server_options
from rq_core.cli.text import say
from sql_audit.cli.options import audit_option, current


@click.command("fork")
@audit_option
def fork_command(url: str | None) -> None:
    """Make a copy of an audit database a log of its own, with another id.

    The original does not change. The events in the copy stay proven. A queue that is mirrored into the original is not
    mirrored into the copy, so mirror another server into it.
    """
    with current(url) as database:
        from sql_audit.store.connection import database_identity

        name = database_identity.fork(database)
        say(f"{database.url}: a log of its own, {name}")


@click.command("rebind")
@audit_option
def rebind_command(url: str | None) -> None:
    """Record that the log is in this database now, after a move or a restore from a backup.

    No mirror may still write to the old database: each of the two would lack events that the other has.
    """
    with current(url) as database:
        from sql_audit.store.connection import database_identity

        here = database_identity.rebind(database)
        say(f"{database.url}: bound to {here}")


@click.command("adopt")
@audit_option
@server_options
@click.option(
    "--queue", "-q", "queues", multiple=True, help="Adopt only this queue; may be repeated."
)
def adopt_command(url: str | None, redis_url: str, prefix: str, queues: Sequence[str]) -> None:
    """Record that the log's queues are in this Redis now: Redis was moved, lost everything and was used again, or its
    prefix was renamed.

    No mirror may still read the old Redis: from then on, the log refuses the old Redis. Queues and jobs that this Redis
    does not have are lost: the next `audit run` records this. The command refuses this Redis, and changes nothing, if
    another audit database mirrors one of this Redis' queues; --queue adopts only the named queues.
    """
    with current(url) as database, connect(redis_url, prefix) as client:
        from sql_audit.mirror import source_registry
        from sql_audit.mirror.redis_access import Outbox
        from sql_audit.store.connection import database_identity

        database_identity.check_identity(database)
        taken = source_registry.adopt(Outbox(client), database, queues or None)
        say(
            f"{database.url}: the source of {', '.join(taken) or 'no queue'} is prefix {prefix} of this Redis"
        )
