"""The commands ``inbox migrate`` and ``inbox ddl``: the tables of the inbox."""

from __future__ import annotations

from typing import Final

import click

from rq_core.cli.text import say
from sql_audit.cli.inbox_relay import url_argument

ROLES: Final = ("producer", "relay", "operator", "viewer")


@click.command("migrate")
@url_argument
def migrate_command(url: str) -> None:
    """Create the inbox tables that the database URL does not have yet.

    The role that runs this owns them. `rq-core inbox grants` prints the rights of other roles.
    """
    from sql_audit.inbox import schema
    from sql_audit.inbox.database import inbox_url, shown

    made = schema.migrate(url)
    what = f"created {', '.join(made)}" if made else "has all tables"
    say(f"{shown(inbox_url(url))}: {what}")


@click.command("ddl")
@url_argument
def ddl_command(url: str) -> None:
    """Print the SQL statements that create the inbox tables, for the kind of database that URL names.

    The command connects to no database. Use the statements in a migration of your application.
    """
    from sql_audit.inbox import schema

    for statement in schema.ddl(url):
        for line in f"{statement};".splitlines():
            say(line)
        say("")


@click.command("grants")
@click.argument("role", type=click.Choice(ROLES))
@click.option("--user", metavar="NAME", help="The role's name in PostgreSQL, if not rq-core-ROLE.")
@click.option(
    "--database", required=True, metavar="NAME", help="The name of the database with the inbox."
)
@click.option(
    "--schema",
    default="public",
    show_default=True,
    metavar="NAME",
    help="The schema of its tables.",
)
def grants_command(role: str, user: str | None, database: str, schema: str) -> None:
    """Print the statements that give a role of PostgreSQL the least rights for its part of an inbox.

    A producer is the application: it enqueues and cancels jobs, and finds their rows. A relay hands rows over to Redis.
    An operator retries and drops parked rows, and settles a copy of the database. A viewer only reads. Create the role
    in PostgreSQL first, and run the statements after `inbox migrate`. The command sends nothing to a server.
    """
    from sql_audit.inbox.rights import grants_of

    for each in grants_of(role, user=user or f"rq-core-{role}", database=database, schema=schema):
        say(each)
