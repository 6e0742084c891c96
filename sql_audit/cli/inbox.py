"""The group ``inbox`` and the list of its commands; each command is imported when it is used."""

from __future__ import annotations

from typing import Final

import click

from rq_core.cli.lazy import Commands
from sql_audit.cli.root import AuditGroup

COMMANDS: Final[Commands] = {
    "migrate": ("inbox_tables:migrate_command",
        "Create the tables of the inbox that the database URL does not have yet."),
    "ddl": ("inbox_tables:ddl_command",
        "Print the statements that create the tables of the inbox, for a database of the kind of URL."),
    "grants": ("inbox_tables:grants_command",
        "Print the statements that give a role of PostgreSQL the least rights for its part of an inbox."),
    "run": ("inbox_relay:run_command",
        "Hand over the jobs of the inbox in the database URL until stopped."),
    "status": ("inbox_relay:status",
        "Show the rows of each queue that are not handed over yet, the parked ones, and the counts."),
    "parked": ("inbox_relay:parked",
        "List rows that became no job, the last ones first, each with the reason."),
    "retry": ("inbox_relay:retry",
        "Put parked rows back into the inbox, by the ids of their jobs: the next turn tries them again."),
    "drop": ("inbox_relay:drop_command", "Delete parked rows, by the ids of their jobs."),
    "settle": ("inbox_relay:settle",
        "Say whether a database that is in another place than before is a copy, or was moved."),
    "verify": ("inbox_relay:verify",
        "Compare the rows that were handed over with the log's events by this inbox."),
}  # fmt: skip


@click.group(cls=AuditGroup, package="sql_audit.cli", commands=COMMANDS)
def inbox() -> None:
    """Hand over jobs that programs inserted into their own SQL database, inside their transactions."""
