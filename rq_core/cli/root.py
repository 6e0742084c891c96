"""The group of all ``rq-core`` commands. It prints each error as one line on standard error: ``rq-core: …``.

A traceback therefore means a bug, in rq-core or in the code that it imports.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from rq_core.cli.lazy import Commands, LazyGroup
from rq_core.cli.text import say
from rq_core.errors import RqCoreError, UsageError
from rq_core.model import plugins
from rq_core.model.lib.url import DEFAULT_URL, REDIS_URL_VARIABLE
from rq_core.views.text import one_line

COMMANDS: Final[Commands] = {
    "worker": ("worker:worker", "Run the jobs of an app's tasks."),
    "enqueue": ("enqueue:enqueue", "Enqueue a job."),
    "queues": ("lists:queues", "Show the queues and how many jobs they have."),
    "job": ("job:job", "Show a job's state, and the caps for which it waits."),
    "watch": ("job:watch_command", "Show a job's progress and its stream, until it has ended."),
    "steps": ("steps:steps", "Show what a durable job has saved."),
    "children": ("steps:children", "Show the children of a durable job, and how each has ended."),
    "signal": ("steps:signal", "Send a signal to a durable job, which waits for it."),
    "fork": ("steps:fork_job", "Enqueue a copy of a durable job that runs from a step on."),
    "result": ("result:result", "Show the outcome of a job, and its result."),
    "jobs": (
        "lists:jobs",
        "List a queue's jobs, and mark jobs whose task no live worker has.",
    ),
    "unique": ("lists:unique", "Show which jobs hold the names of unique jobs."),
    "dead": ("lists:dead", "Show the jobs that died last, and why."),
    "cancel": ("change:cancel", "Cancel jobs."),
    "edit": ("change:edit", "Change the priority, the due time or the deadline of jobs that wait."),
    "requeue": ("change:requeue", "Make dead jobs ready again."),
    "replay": ("enqueue:replay", "Enqueue copies of jobs that died."),
    "prune": ("change:prune_command", "Remove dead jobs."),
    "pause": ("change:pause_command", "Stop claims of jobs in a queue."),
    "resume": ("change:resume", "Allow claims of jobs in a paused queue again."),
    "pause-scope": ("change:pause_scope", "Let no job of a rate or a breaker begin for a while."),
    "resume-scope": ("change:resume_scope", "End the pause of a scope."),
    "set": ("change:change_settings", "Show or change a queue's settings."),
    "queue": ("queue:queue", "Delete a queue."),
    "cap": ("change:cap", "Change how many jobs of a queue, a task or a key may run."),
    "caps": ("lists:caps", "Show the limits of a queue's jobs, and how many jobs wait for each."),
    "schedules": ("schedules:schedules", "Show the schedules, and when each is due next."),
    "schedule": ("schedules:schedule", "Show the next instants of a schedule, or change it."),
    "workers": ("lists:workers", "Show the workers, and which code each runs."),
    "top": (
        "top:top",
        "Show the state of the queues and what is wrong with them, continuously.",
    ),
    "web": ("web:web", "Serve a web page of the queues."),
    "mcp": ("web:mcp", "Give the views of the web page to a program, as tools that only read."),
    "metrics": ("metrics:metrics", "Serve the state of the queues to Prometheus."),
    "health": ("health:health", "Check whether the workers of this machine work."),
    "doctor": ("doctor:doctor", "Compare queues with their logs; repair differences."),
    "acl": ("acl:acl", "Print the command that makes a Redis user with the rights of a role."),
    "server": (
        "server:server",
        "Run, find or stop the server that comes with rq-core; prepare any server.",
    ),
}


SENTENCE_MAX: Final = 200
"""Maximum number of characters of the sentence about a plugin in the list of commands."""


class Root(LazyGroup):
    """The group of this package's commands and of the commands of plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of this package's commands, in the order of the table, and then those of plugins."""
        return [*super().list_commands(ctx), *sorted(plugins.commands().keys() - COMMANDS.keys())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None for an unknown name. Raises ClickException for a plugin that cannot be
        used."""
        own = super().get_command(ctx, cmd_name)
        point = plugins.commands().get(cmd_name) if own is None else None
        if point is None:
            return own
        try:
            found = point.load()
        except ImportError as error:
            raise click.ClickException(
                f"the command {cmd_name} of {point.value} cannot be imported: {error}"
            ) from error
        if not isinstance(found, click.Command):
            raise click.ClickException(f"{cmd_name} is not a command: {found!r}")
        return found

    def says(self, ctx: click.Context, name: str) -> str:
        """Return the sentence about a command that the list of commands shows. For a plugin, this is the first sentence
        of its help."""
        if name in COMMANDS:
            return super().says(ctx, name)
        try:
            command = self.get_command(ctx, name)
        except click.ClickException:
            return "A plugin that cannot be used."
        return command.get_short_help_str(SENTENCE_MAX) if command is not None else ""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command, and drop its return value, so that it does not become the exit status."""
        try:
            super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(130) from None

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line, print an error as one line, and exit with the command's status."""
        extra |= {"prog_name": prog_name, "complete_var": complete_var}
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **extra)
        sys.exit(self._status(args, extra))

    def _status(self, args: Sequence[str] | None, extra: dict[str, Any]) -> int:
        try:
            _check_encoding(sys.argv[1:] if args is None else args)
            status = super().main(args, standalone_mode=False, **extra)
        except (click.Abort, KeyboardInterrupt):
            return 130
        except click.ClickException as error:
            return _tell_usage(error)
        except RqCoreError as error:
            return _tell(str(error), 2 if isinstance(error, UsageError) else 1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            return _tell(f"{where}{error.strerror or error}", 1)
        except Exception as error:
            # A plugin must convert its database's errors to RqCoreError.
            if type(error).__module__.partition(".")[0] != "redis":
                raise
            return _tell(f"Redis refuses: {error}", 1)
        return status if isinstance(status, int) else 0


def _check_encoding(arguments: Sequence[str]) -> None:
    for place, text in enumerate(arguments, 1):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"argument {place} is not valid UTF-8: {text!a}") from None


def _tell(message: str, status: int) -> int:
    say(f"rq-core: {one_line(message)}", err=True)
    return status


def _tell_usage(error: click.ClickException) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        click.echo(error.format_message(), err=True)
        return error.exit_code
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if isinstance(error, click.UsageError) and context is not None:
        sentence = message.rstrip(".")
        end = "" if sentence.endswith("?") else "."
        message = f"{sentence}{end} Try `{context.command_path} --help`."
    return _tell(message, error.exit_code)


@click.group(
    cls=Root,
    package="rq_core.cli.commands",
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"Times are in seconds. The server is {DEFAULT_URL} unless --redis or"
    f" {REDIS_URL_VARIABLE} names another; embedded:// is the server that comes with rq-core.",
)
@click.version_option(package_name="rq-core", prog_name="rq-core")
def root() -> None:
    """Run jobs from Redis, with their whole history in SQL."""
