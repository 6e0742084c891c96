"""The group of all commands: what there is, imported when used, and how errors are told.

An error is one line on standard error, ``rq-core: …``. A traceback means a bug, in rq-core or in
the code that it was told to import.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from rq_core.cli.lazy import Commands, LazyGroup
from rq_core.errors import RqCoreError, UsageError

COMMANDS: Final[Commands] = {
    "worker": ("worker:worker", "Run the jobs of an app's tasks."),
    "enqueue": ("enqueue:enqueue", "Hand over a job."),
    "queues": ("inspect:queues", "Show the queues and how many jobs they have."),
    "job": ("inspect:job", "Show where a job stands, and what it waits for."),
    "dead": ("inspect:dead", "Show the jobs that died last."),
    "cancel": ("change:cancel", "Cancel jobs."),
    "requeue": ("change:requeue", "Give dead jobs another life."),
    "prune": ("change:prune", "Remove dead jobs."),
    "pause": ("change:pause", "Let a queue give out no jobs."),
    "resume": ("change:resume", "Let a paused queue give out jobs again."),
    "set": ("change:change_settings", "Show or change a queue's settings."),
    "cap": ("caps:cap", "Change how many jobs may run, of a queue, a task or a key."),
    "caps": ("caps:caps", "Show what limits a queue's jobs, and who waits for it."),
    "health": ("health:health", "Say whether the workers of this machine work."),
    "doctor": ("doctor:doctor", "Compare queues with their logs; mend what differs."),
    "acl": ("acl:acl", "Print the Redis user that a producer, worker, mirror or operator needs."),
    "server": ("server:server", "Run, find or stop the server that comes with rq-core."),
}

PLUGINS: Final = "rq_core.plugins"
"""The entry points whose objects are click commands of other packages."""

PLUGIN_HELP: Final = {
    "audit": "Mirror the queues' events into SQL, and ask it.",
    "demo": "Hash the files of Python's library, kill a worker, prove each was done once.",
}
"""What --help says of the commands that come with rq-core, so that it need not import them."""

_PASSWORD = re.compile(r"(\w://[^/@\s:]*:)[^/\s]+@")


def _plugins() -> dict[str, Any]:
    """Return the entry points of other packages' commands, by name. Imports none of them."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=PLUGINS)}


def one_line(text: str) -> str:
    """Return the text as one line that can be printed, without the passwords of URLs."""
    line = _PASSWORD.sub(r"\1***@", " ".join(text.split()))
    return line.encode("utf-8", "backslashreplace").decode()


class Root(LazyGroup):
    """The commands of this package and of plugins."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names: this package's in the order of use, then plugins."""
        return [*super().list_commands(ctx), *sorted(_plugins().keys() - COMMANDS.keys())]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command. Raises ClickException for a plugin that cannot be used."""
        own = super().get_command(ctx, cmd_name)
        point = _plugins().get(cmd_name) if own is None else None
        if point is None:
            return own
        try:
            found = point.load()
        except ImportError as error:
            raise click.ClickException(
                f"the command {cmd_name} of {point.value} cannot be imported: {error}"
            ) from error
        if not isinstance(found, click.Command):
            raise click.ClickException(f"{cmd_name} is no command: {found!r}")
        return found

    def says(self, name: str) -> str:
        """What the list of commands says of one; of plugins, so far as it knows them."""
        return super().says(name) if name in COMMANDS else PLUGIN_HELP.get(name, "A plugin.")

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Its return value is no exit status."""
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
        """Do as click's main; errors become one line and an exit status."""
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
            if type(error).__module__.partition(".")[0] not in _OF_DATABASES:
                raise
            return _tell(f"the database refuses: {error}", 1)
        return status if isinstance(status, int) else 0


_OF_DATABASES: Final = frozenset({"sqlalchemy", "sqlite3", "psycopg", "redis"})
"""Packages whose errors are about a server, and no bug of ours."""


def _check_encoding(arguments: Sequence[str]) -> None:
    for place, text in enumerate(arguments, 1):
        try:
            text.encode()
        except UnicodeEncodeError:
            raise click.UsageError(f"argument {place} is not valid UTF-8: {text!a}") from None


def _tell(message: str, status: int) -> int:
    click.echo(f"rq-core: {one_line(message)}", err=True)
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
    package="rq_core.cli",
    commands=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Times are in seconds. The server is redis://localhost:6379/0 unless --redis or"
    " RQ_CORE_REDIS_URL says otherwise; embedded:// is one that comes with rq-core.",
)
@click.version_option(package_name="rq-core", prog_name="rq-core")
def root() -> None:
    """Run jobs from Redis, with their whole history in SQL."""
