"""The commands ``rq-core server …``, which run, find or stop the embedded server of a data directory, or prepare a
server."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Final

import click

from rq_core.cli.lazy import CommandGroup
from rq_core.cli.options import (
    connect,
    force_option,
    json_option,
    print_json,
    server_options,
)
from rq_core.cli.text import say
from rq_core.model.lib.text import counted
from rq_core.model.lib.url import REDIS_URL_VARIABLE
from rq_core.views.text import span

OTHERS: Final = "--dir names the server of another folder"
"""The hint that follows the message that no embedded server runs."""


def _directory(_ctx: click.Context, _param: click.Parameter, given: Path | None) -> Path:
    """Return the directory in --dir. Without --dir, return the directory of an embedded URL in the environment, or the
    default."""
    from rq_core.embedded import server as embedded

    url = os.environ.get(REDIS_URL_VARIABLE, "")
    if given is None and url.startswith("embedded:"):
        return embedded.directory_of(url)
    return given or embedded.DEFAULT_DIRECTORY


directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    callback=_directory,
    help="The server's data directory: embedded://DIRECTORY is its URL. By default the directory in"
    f" {REDIS_URL_VARIABLE}, if that is an embedded:// URL, else .rq-core.",
)


@click.group(cls=CommandGroup)
def server() -> None:
    """Run, find or stop the Valkey server that comes with rq-core; prepare any server.

    The server that comes with rq-core starts by itself for a URL that begins with embedded://.
    """


def _seconds(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    if not 0 < value < math.inf:
        raise click.BadParameter("must be a positive number of seconds")
    return value


@server.command("run")
@directory_option
@click.option(
    "--idle",
    type=float,
    default=3600.0,
    show_default=True,
    callback=_seconds,
    metavar="SECONDS",
    help="Stop the server after this time without clients.",
)
@click.pass_context
def run_command(ctx: click.Context, directory: Path, idle: float) -> None:
    """Run the server in this terminal until Ctrl-C."""
    from rq_core.embedded import server as embedded

    say(f"embedded://{directory}; Ctrl-C ends it", err=True)
    status = embedded.run_server(directory, idle_s=idle)
    if status:
        raise click.ClickException(f"the server ended with status {status}; see {directory}")
    ctx.exit(0)


@server.command()
@directory_option
@json_option
@click.pass_context
def status(ctx: click.Context, directory: Path, *, as_json: bool) -> None:
    """Show whether the server runs. The exit status is 1 if it does not."""
    from rq_core.embedded import server as embedded

    found = embedded.server_status(directory)
    if as_json:
        print_json(dataclasses.asdict(found))
    elif found.running:
        say(
            f"running for {span((found.uptime_s or 0) * 1000)}: Valkey {found.version},"
            f" process {found.pid}, {counted(found.clients or 0, 'client')},"
            f" {(found.memory_bytes or 0) / 2**20:.1f} MiB, {found.url}"
        )
    else:
        say(f"no server runs for {found.directory}; {OTHERS}")
    ctx.exit(0 if found.running else 1)


@server.command()
@directory_option
def stop(directory: Path) -> None:
    """Stop the server. Its data stays on disk."""
    from rq_core.embedded import server as embedded

    stopped = embedded.stop_server(directory)
    say("stopped" if stopped else f"no server runs for {directory.absolute()}; {OTHERS}")


@server.command("prepare")
@server_options
@force_option()
@json_option
def prepare_command(redis_url: str, prefix: str, *, as_json: bool) -> None:
    """Load this version's functions into a server, for users without the right to load functions.

    Run it after each installation of a new version, before its workers start, as a user that may load functions:
    `rq-core acl preparer` prints such a user. A server whose users may load functions needs no preparation.
    """
    from rq_core.protocol.engine.prepare import prepare as prepared

    with connect(redis_url, prefix) as client:
        found = client.run(prepared(client.calls.delivery.asking))
    if as_json:
        print_json(dataclasses.asdict(found))
        return
    were = counted(len(found.known), "was there", "were there")
    say(f"{counted(len(found.loaded), 'function')} loaded, {were}")
    if found.others:
        say(
            f"{len(found.others)} of other versions: FUNCTION DELETE removes one that no process calls any more:"
            f" {' '.join(found.others)}"
        )
