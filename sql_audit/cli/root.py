"""The group ``audit``: what commands there are, each imported when it is used."""

from __future__ import annotations

import importlib
from typing import Final

import click

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "run": ("mirror:run", "Mirror the queues' events into SQL until stopped."),
    "verify": (
        "prove:verify",
        (
            "Prove from SQL that nothing happened that must not: no gap, no double claim, no cap"
            " exceeded, every step legal, nothing changed afterwards."
        ),
    ),
    "head": (
        "prove:head",
        "The head of each queue's chain, to be kept where nobody who writes to the log can write.",
    ),
    "history": ("events:history", "Everything that happened to JOB, oldest first."),
    "why": ("moments:why", "What JOB waited for, each time, and behind whom."),
    "at": (
        "moments:at_command",
        "What was running and waiting at TIME (UTC, or Unix ms), and who held which scope.",
    ),
    "report": (
        "report:report",
        "Per queue and task: jobs, claims, retries, deaths, times and throughput.",
    ),
    "tail": ("events:tail", "The last events of a queue."),
    "restore": (
        "restore:restore",
        (
            "List what a loss left to be done: jobs that SQL knows as live or lost and Redis does not"
            " have, and jobs that SQL saw finish and that will run again."
        ),
    ),
    "prune": ("prune:prune", "Remove jobs that ended long ago, whole."),
    "migrate": ("mirror:migrate", "Create the tables, or bring them to this release's schema."),
    "off": (
        "mirror:off",
        "Give QUEUE's audit trail up: its events are no longer kept for SQL.",
    ),
}
"""Name → where it is defined in this package, and the first sentence of what it says of itself; in the order of use."""


class Audit(click.Group):
    """The commands by name, imported when used."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        name, _, attribute = COMMANDS[cmd_name][0].partition(":")
        module = importlib.import_module(f"sql_audit.cli.{name}")
        found: click.Command = getattr(module, attribute)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the list of commands from what is known without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, says) for name, (_, says) in COMMANDS.items()])


# click lists its commands, and guesses which one was meant, from these stand-ins.
@click.group(
    cls=Audit,
    commands={name: click.Command(name, help=says) for name, (_, says) in COMMANDS.items()},
)
def audit() -> None:
    """The audit log in SQL: mirror it, and ask it."""
