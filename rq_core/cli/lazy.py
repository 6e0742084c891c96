"""A group of commands that are imported when they are used, and not to be listed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import click

Commands = Mapping[str, tuple[str, str]]
"""Name → where it is defined (module:attribute), and the first sentence of what it says of itself; in the order of
use."""


class LazyGroup(click.Group):
    """Commands of ``package``, by name."""

    def __init__(self, *, package: str, commands: Commands, **attributes: Any) -> None:
        # click guesses which command was meant from these stand-ins.
        stand_ins = {name: click.Command(name, help=says) for name, (_, says) in commands.items()}
        super().__init__(commands=stand_ins, **attributes)
        self._package = package
        self._places = commands

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names, in the order of use."""
        return [*self._places]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import a command."""
        if cmd_name not in self._places:
            return None
        name, _, attribute = self._places[cmd_name][0].partition(":")
        found: click.Command = getattr(
            importlib.import_module(f"{self._package}.{name}"), attribute
        )
        return found

    def says(self, ctx: click.Context, name: str) -> str:  # noqa: ARG002 - a subclass imports with it
        """Return what the list of commands says of one."""
        return self._places[name][1]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from what is known without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.says(ctx, name)) for name in self.list_commands(ctx)])
