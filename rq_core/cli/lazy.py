"""Groups of click commands whose modules are imported only when a command is used, so that ``--help`` is quick."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any

import click

Commands = Mapping[str, tuple[str, str]]
"""Name of a command → the place of its definition (module:attribute), and the first sentence of its help."""


class CommandGroup(click.Group):
    """A group of commands without options of its own. If an option comes before the command, the error says where it
    belongs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the words before the command's name. Raises UsageError for an option of the command among them."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if place := self._takes(ctx, words, error.option_name):
                says = f"{error.option_name} belongs after the command: `{place} {error.option_name} …`"
                raise click.UsageError(says, ctx) from None
            raise

    def _takes(self, ctx: click.Context, words: Sequence[str], option: str) -> str:
        """Return the words up to the command's name if the command has this option; otherwise an empty text."""
        command: click.Command | None = self
        path = [ctx.command_path]
        for word in words:
            if not isinstance(command, click.Group):
                break
            if (found := command.get_command(ctx, word)) is not None:
                command = found
                path.append(word)
        if isinstance(command, click.Group):
            return ""
        assert command is not None
        has = any(option in each.opts for each in command.params)
        return " ".join(path) if has else ""


class LazyGroup(CommandGroup):
    """A group whose commands are in modules of ``package``. A module is imported at first use."""

    def __init__(self, *, package: str, commands: Commands, **attributes: Any) -> None:
        # For a misspelt command, click suggests names of these stand-ins.
        stand_ins = {name: click.Command(name, help=says) for name, (_, says) in commands.items()}
        super().__init__(commands=stand_ins, **attributes)
        self._package = package
        self._places = commands

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of the commands in the order of the table."""
        return [*self._places]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import and return a command; None for an unknown name."""
        if cmd_name not in self._places:
            return None
        name, _, attribute = self._places[cmd_name][0].partition(":")
        found: click.Command = getattr(
            importlib.import_module(f"{self._package}.{name}"), attribute
        )
        return found

    def says(self, ctx: click.Context, name: str) -> str:  # noqa: ARG002 - a subclass imports with it
        """Return the sentence about a command that the list of commands shows."""
        return self._places[name][1]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.says(ctx, name)) for name in self.list_commands(ctx)])
