"""The group ``audit`` and the list of its commands; each command is imported when it is used."""

from __future__ import annotations

from typing import Any, Final

import click

from rq_core.cli.lazy import Commands, LazyGroup

COMMANDS: Final[Commands] = {
    "run": ("mirror:run_command", "Copy the queues' events into SQL until stopped."),
    "verify": ("prove:verify_command",
        ("Prove the log from SQL: no gap, no double claim, no cap exceeded, only legal steps, no event changed "
        "afterwards.")),
    "head": ("prove:head",
        "Print the head of each queue's chain: keep it where no role that writes to the log can change it."),
    "history": ("events:history_command", "Show all events of JOB, oldest first."),
    "why": ("moments:why_command",
        "Show each wait of JOB, its cause, and the jobs in front."),
    "at": ("moments:at_command",
        "Show the jobs that were running, waiting and scheduled at TIME, and the holders of each scope."),
    "report": ("report:report_command",
        "Show jobs, claims, retries, deaths, times and throughput per queue and task."),
    "tail": ("events:tail_command", "Show the last events of a queue, or of all."),
    "restore": ("restore:restore",
        ("List the jobs that a loss of data in Redis affects: jobs that are live or lost in SQL and missing in Redis, "
        "and jobs that have ended in SQL and will run again.")),
    "prune": ("prune:prune_command", "Remove jobs that ended long ago, with all their events."),
    "migrate": ("mirror:migrate", "Create the tables, or upgrade them to this release's schema."),
    "grants": ("grants:grants",
        "Print the statements that give a role of PostgreSQL the least rights for its part of the audit log."),
    "fork": ("place:fork_command",
        "Make a copy of an audit database a log of its own, with another id."),
    "rebind": ("place:rebind_command",
        "Record that the log is in this database now, after a move or a restore from a backup."),
    "adopt": ("place:adopt_command",
        ("Record that the log's queues are in this Redis now: Redis was moved, lost everything and was used again, "
        "or its prefix was renamed.")),
    "off": ("mirror:off", "Switch QUEUE's audit log off: its later events are not kept for SQL."),
    "on": ("mirror:on", "Switch QUEUE's audit log on. Creates the tables in a new database."),
}  # fmt: skip


_DRIVERS: Final = frozenset({"sqlalchemy", "sqlite3", "psycopg"})
"""Packages whose exceptions are errors of the database, not bugs of rq-core."""


class AuditGroup(LazyGroup):
    """A group whose commands report the errors of the database in one line."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises AuditRefused for an exception of a database driver."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in _DRIVERS:
                raise
            from sql_audit.errors import AuditRefused
            from sql_audit.store.connection.driver_errors import describe_error

            raise AuditRefused(why=describe_error(error)) from error


@click.group(cls=AuditGroup, package="sql_audit.cli", commands=COMMANDS)
def audit() -> None:
    """Mirror the queues' events into SQL, and query them."""
