"""The command ``rq-core audit grants``."""

from __future__ import annotations

from typing import Final

import click

from rq_core.cli.text import say

ROLES: Final = ("owner", "mirror", "reader", "verifier")


@click.command()
@click.argument("role", type=click.Choice(ROLES))
@click.option("--user", metavar="NAME", help="The role's name in PostgreSQL, if not rq-core-ROLE.")
@click.option(
    "--database", required=True, metavar="NAME", help="The name of the database of the audit log."
)
@click.option(
    "--schema",
    default="public",
    show_default=True,
    metavar="NAME",
    help="The schema of its tables.",
)
def grants(role: str, user: str | None, database: str, schema: str) -> None:
    """Print the statements that give a role of PostgreSQL the least rights for its part of the audit log.

    An owner creates the tables and the partitions of coming months, and prunes. A mirror writes rows. A reader reads. A
    verifier reads, and records the results of `audit verify`. Create the role in PostgreSQL first. Run the owner's
    statements before `audit migrate`, the statements of other roles after it. The command sends nothing to a server.
    """
    from sql_audit.store.grants import statements

    for each in statements(role, user=user or f"rq-core-{role}", database=database, schema=schema):
        say(each)
