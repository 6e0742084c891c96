"""The command ``rq-core acl``."""

from __future__ import annotations

import click

from rq_core.cli.options import prefix_option
from rq_core.model.keys import check_name
from rq_core.protocol.engine import acl_roles


@click.command()
@click.argument("role", type=click.Choice(list(acl_roles.ROLES)))
@click.option(
    "--queue", "-q", "pattern", default="*", show_default=True, metavar="PATTERN",
    help="The queues that the user may use: a name, or a pattern with * and ?.",
)  # fmt: skip
@click.option("--user", metavar="NAME", help="The user's name, if not rq-core-ROLE.")
@prefix_option
def acl(role: str, pattern: str, user: str | None, prefix: str) -> None:
    """Print the Redis command that makes a user with the least rights of a role.

    Put a password in the place of PASSWORD, and pass the command to redis-cli by a pipe or at its prompt. rq-core
    sends nothing to a server.
    """
    name = check_name("user", f"rq-core-{role}" if user is None else user)
    given = acl_roles.rules(role, prefix=prefix, queue=pattern)
    words = ["ACL", "SETUSER", name, "reset", "on", ">PASSWORD", *given]
    click.echo(" ".join(words))
