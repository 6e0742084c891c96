"""The commands ``inbox migrate`` and ``inbox ddl``: the tables of the inbox."""

from __future__ import annotations

import click

from rq_core.cli.text import say
from sql_audit.cli.inbox_relay import url_argument


@click.command("migrate")
@url_argument
def migrate_command(url: str) -> None:
    """Create the inbox tables that the database URL does not have yet.

    The role that runs this owns them. Programs that enqueue need INSERT on rqc_inbox, and SELECT, UPDATE and DELETE if
    they cancel; a relay needs all rights on all four tables.
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
