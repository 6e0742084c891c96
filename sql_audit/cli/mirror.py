"""The commands of the mirror: ``run``, ``off``, ``on`` and ``migrate``."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial

import click

from rq_core.cli.options import (
    connect,
    force_option,
    json_option,
    known_queues,
    print_json,
    server_options,
)
from rq_core.cli.text import say
from rq_core.model.lib.readiness import AWAY, READY, READY_VARIABLE
from rq_core.model.lib.text import counted
from rq_core.model.lib.url import AUDIT_URL_VARIABLE, REDIS_URL_VARIABLE
from sql_audit.cli.options import audit_option, required


@click.command("run")
@audit_option
@server_options
@click.option(
    "--queue", "-q", "queues", multiple=True, help="Mirror only this queue; may be repeated."
)
@click.option("--once", is_flag=True, help="Mirror the present events, then exit.")
@click.option(
    "--until-stdin-ends",
    is_flag=True,
    hidden=True,
    help="Stop when standard input ends, which also happens when the parent process ends.",
)
@click.option(
    "--made",
    multiple=True,
    hidden=True,
    help="A queue that was created just now, to which this mirror attaches.",
)
@force_option()
@json_option
def run_command(
    url: str | None,
    redis_url: str,
    prefix: str,
    queues: Sequence[str],
    once: bool,
    until_stdin_ends: bool,
    made: Sequence[str],
    as_json: bool,
) -> None:
    """Copy the queues' events into SQL until stopped. Creates the tables in a new database."""
    address = required(url)
    from rq_core.model.keys import check_name
    from rq_core.model.lib import logs
    from sql_audit.errors import AuditUnavailable
    from sql_audit.mirror.redis_access import open_source
    from sql_audit.mirror.service import rare_collections, run_mirror

    for queue in queues:
        check_name("queue", queue)
    if not as_json:
        logs.configure()
        # Alembic logs the database's kind at every start.
        logging.getLogger("alembic").setLevel(logging.WARNING)
    with (
        contextlib.closing(open_source(redis_url, prefix)) as source,
        stop_on_signals() as stop,
        rare_collections(),
    ):
        if until_stdin_ends:
            stop_with_stdin(stop)
        else:
            _check_server(redis_url, prefix)
        try:
            done = run_mirror(
                source,
                address,
                stop=stop,
                queues=queues or None,
                once=once,
                made=made,
                on_ready=partial(_tell_parent, READY),
            )
        except AuditUnavailable:
            _tell_parent(AWAY)
            raise
    if as_json:
        print_json(dataclasses.asdict(done))
    else:
        say(
            f"mirrored {counted(done.events, 'event')} in {counted(done.entries, 'entry', 'entries')}"
        )


def command_line(
    redis_url: str, prefix: str, audit_url: str, made: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """Return the command by which a supervisor of workers starts the mirror, and its environment variables.

    See rq_core.model.plugins.CompanionCommand."""
    program = [sys.executable, "-m", "rq_core.cli", "audit", "run", "--until-stdin-ends"]
    new = [word for queue in made for word in ("--made", queue)]
    return [*program, "--prefix", prefix, *new], {
        REDIS_URL_VARIABLE: redis_url,
        AUDIT_URL_VARIABLE: audit_url,
    }


@contextlib.contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """Yield a threading.Event that SIGTERM and SIGINT set. After the block, restore the previous signal handlers."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell_parent(word: bytes) -> None:
    """Write ``word`` to the pipe of the supervisor that started this mirror: the mirror is ready, or its database does
    not answer.

    Without a supervisor, do nothing.
    """
    if place := os.environ.pop(READY_VARIABLE, ""):
        with contextlib.suppress(BrokenPipeError):
            os.write(int(place), word)
        os.close(int(place))


def stop_with_stdin(stop: threading.Event) -> None:
    """Start a thread that sets ``stop`` when standard input is closed."""

    def wait() -> None:
        # Not through sys.stdin, whose lock this thread would hold while Python shuts down.
        while os.read(0, 4096):
            pass
        stop.set()

    threading.Thread(target=wait, name="rq-core-stdin", daemon=True).start()


def _check_server(redis_url: str, prefix: str) -> None:
    """Print warnings if settings of the Redis server endanger jobs. If the server does not answer, print nothing."""
    from rq_core.connections.client import Client
    from rq_core.errors import ServerUnavailable
    from rq_core.protocol.engine import server_check
    from rq_core.protocol.engine.plan import Patience

    with (
        Client(redis_url, prefix=prefix, name="audit", patience=Patience(unsent=0)) as client,
        contextlib.suppress(ServerUnavailable),
    ):
        server_check.warn(client.run(server_check.remarks_on(client.calls.delivery.asking)))


@click.command()
@audit_option
@server_options
@click.option(
    "--force",
    is_flag=True,
    help="Switch it off even if another database mirrors the queue. Use this only if that database is lost: events that"
    " were not mirrored may then be in no log.",
)
@click.argument("queue")
def off(url: str | None, redis_url: str, prefix: str, queue: str, *, force: bool) -> None:
    """Switch QUEUE's audit log off: its later events are not kept for SQL.

    First the command mirrors all earlier events; the log ends with the event of the switch. --force skips this.
    """
    address = None if force else required(url)
    with connect(redis_url, prefix) as client:
        known_queues(client, queue)
        if address is None:
            holder = client.run(client.calls.delivery.handshake(queue)).audit_id or "none"
            client.run(client.calls.audit.detach(queue, holder))
        else:
            from sql_audit.mirror import source_registry
            from sql_audit.mirror.redis_access import Outbox
            from sql_audit.store.connection import database_identity
            from sql_audit.store.connection.database import Database
            from sql_audit.upkeep.switch_off import switch_off

            with contextlib.closing(Database(address)) as database:
                database_identity.check_identity(database)
                source_registry.check_source(Outbox(client), database, only=[queue])
                switch_off(client, database, queue)
    say(f"queue {queue}: audit off")


@click.command()
@audit_option
@server_options
@click.argument("queue")
def on(url: str | None, redis_url: str, prefix: str, queue: str) -> None:
    """Switch QUEUE's audit log on. Creates the tables in a new database.

    A starting mirror does the same. A running mirror continues with the queue when the queue's log is on again.
    """
    address = required(url)
    with connect(redis_url, prefix) as client:
        known_queues(client, queue)
        from sql_audit.mirror import source_registry
        from sql_audit.mirror.redis_access import Outbox
        from sql_audit.mirror.turn import Mirror
        from sql_audit.store import migrate as schema
        from sql_audit.store.connection import database_identity
        from sql_audit.store.connection.database import Database
        from sql_audit.upkeep.switch_off import rehearse

        with contextlib.closing(Database(address)) as database:
            schema.ensure_schema(database)
            database_identity.check_identity(database)
            source_registry.check_source(Outbox(client), database, only=[queue], takes=True)
            mirror = Mirror(Outbox(client), database, queue)
            rehearse(mirror)
            mirror.attach(wait=True)
    say(f"queue {queue}: audit on")


@click.command()
@audit_option
@json_option
def migrate(url: str | None, as_json: bool) -> None:
    """Create the tables, or upgrade them to this release's schema.

    On PostgreSQL, the command also creates the partitions of this month and the next two, as a mirror does if its role
    owns the tables. The command moves events from the default partition; the log cannot be read meanwhile.
    """
    address = required(url)
    from sql_audit.store.connection.database import Database
    from sql_audit.store.migrate import upgrade_schema
    from sql_audit.store.partitions import create_ahead

    with contextlib.closing(Database(address)) as database:
        version = upgrade_schema(database)
        ahead = create_ahead(database, int(time.time() * 1000), moved_max=None)
    left = {month.table: why for month, why in ahead.left.items()}
    if as_json:
        made = [month.table for month in ahead.made]
        print_json({"url": database.url, "schema": version, "months": made, "left": left})
    else:
        say(f"{database.url}: schema {version}")
        for name, why in left.items():
            say(f"{name}: no partition: {why}", err=True)
