"""``rq-core server``: the embedded server of a data directory."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Final

import click

from rq_core.cli.options import json_option, print_json
from rq_core.cli.text import span

DIRECTORY: Final = ".rq-core"

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    default=DIRECTORY,
    show_default=True,
    help="Its data directory: embedded://DIRECTORY is its URL.",
)


@click.group()
def server() -> None:
    """Run, find or stop the Valkey server that comes with rq-core.

    It starts by itself when a URL is embedded://.
    """


def _seconds(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    if not 0 < value < math.inf:
        raise click.BadParameter("must be a positive number of seconds")
    return value


@server.command()
@directory_option
@click.option(
    "--idle",
    type=float,
    default=3600.0,
    show_default=True,
    callback=_seconds,
    metavar="SECONDS",
    help="End after so long without clients.",
)
@click.pass_context
def run(ctx: click.Context, directory: Path, idle: float) -> None:
    """Run the server here until Ctrl-C."""
    from rq_core.embedded import server as embedded

    click.echo(f"embedded://{directory}; Ctrl-C ends it", err=True)
    status = embedded.run(directory, idle_s=idle)
    if status:
        raise click.ClickException(f"the server ended with status {status}; see {directory}")
    ctx.exit(0)


@server.command()
@directory_option
@json_option
@click.pass_context
def status(ctx: click.Context, directory: Path, *, as_json: bool) -> None:
    """Say whether the server runs. The exit status is 1 if it does not."""
    from rq_core.embedded import server as embedded

    found = embedded.status(directory)
    if as_json:
        print_json(dataclasses.asdict(found))
    elif found.running:
        click.echo(
            f"running for {span((found.uptime_s or 0) * 1000)}: Valkey {found.version},"
            f" process {found.pid}, {found.clients} clients,"
            f" {(found.memory_bytes or 0) / 2**20:.1f} MiB, {found.url}"
        )
    else:
        click.echo(f"no server runs for {found.directory}")
    ctx.exit(0 if found.running else 1)


@server.command()
@directory_option
def stop(directory: Path) -> None:
    """Stop the server; its data is safe on disk."""
    from rq_core.embedded import server as embedded

    click.echo("stopped" if embedded.stop(directory) else f"no server runs for {directory}")
