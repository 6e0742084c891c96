"""The group ``audit``: what commands there are, each imported when it is used."""

from __future__ import annotations

from typing import Any, Final

import click

from rq_core.cli.lazy import Commands, LazyGroup

COMMANDS: Final[Commands] = {
    "run": ("mirror:run_command", "Mirror the queues' events into SQL until stopped."),
    "verify": ("prove:verify_command",
        ("Prove from SQL that nothing happened that must not: no gap, no double claim, no cap exceeded, every step "
        "legal, nothing changed afterwards.")),
    "head": ("prove:head",
        "Print the head of each queue's chain: keep it where no role that writes to the log can change it."),
    "history": ("events:history_command", "Everything that happened to JOB, oldest first."),
    "why": ("moments:why_command",
        ("Show what JOB waited for, each time, and which jobs were in front; also when it was scheduled or lost "
        "a worker.")),
    "at": ("moments:at_command",
        "Show what was running, waiting and scheduled at TIME, and which jobs held which scope."),
    "report": ("report:report_command", "Per queue and task: jobs, claims, retries, deaths, times and throughput."),
    "tail": ("events:tail_command", "The last events of a queue."),
    "restore": ("restore:restore",
        ("List what a loss left to be done: jobs that SQL knows as live or lost and Redis does not have, and jobs "
        "that SQL saw finish and that will run again.")),
    "prune": ("prune:prune_command", "Remove jobs that ended long ago, with all their events."),
    "migrate": ("mirror:migrate", "Create the tables, or bring them to this release's schema."),
    "grants": ("grants:grants",
        "Print the statements that give a role of PostgreSQL the least rights for its part of the audit log."),
    "fork": ("place:fork_command",
        "Make a copy of an audit database a log of its own, which Redis knows by another name."),
    "rebind": ("place:rebind_command",
        "Say that the log is in this database now, after a move or a restore from a backup."),
    "adopt": ("place:adopt_command",
        ("Say that this Redis is where the log's queues are now: it was moved, lost everything and was used again, "
        "or its prefix was renamed.")),
    "off": ("mirror:off", "Switch QUEUE's audit log off: its events are no longer kept for SQL."),
    "on": ("mirror:on", "Switch QUEUE's audit log on, in a database that has its tables or gets them."),
}  # fmt: skip


_DRIVERS: Final = frozenset({"sqlalchemy", "sqlite3", "psycopg"})
"""Packages whose errors are about the database, and no bug of ours."""


class AuditGroup(LazyGroup):
    """Commands whose database may refuse what they ask."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises AuditRefused for what a driver raises."""
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
    """Mirror the queues' events into SQL, and ask it."""
