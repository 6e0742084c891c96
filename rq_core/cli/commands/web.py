"""The commands ``rq-core web …``, for the web page and the tokens of its viewers, and ``rq-core mcp``.

``rq-core mcp`` gives the views of the page to programs.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from rq_core.cli.lazy import CommandGroup
from rq_core.cli.options import audit_url_option, inbox_url_option, server_options
from rq_core.cli.places import app_at
from rq_core.cli.text import say
from rq_core.installing import pip_install
from rq_core.web import tokens as token_file
from rq_core.web.tokens import ROLES, TOKENS_VARIABLE, VIEWER

ADDRESS: Final = "127.0.0.1:8900"

tokens_option = click.option(
    "--tokens",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar=TOKENS_VARIABLE,
    show_envvar=True,
    metavar="FILE",
    help="The file of tokens.",
)


class WebGroup(CommandGroup):
    """A group of click commands with a default command, which runs if the command line names none."""

    default: Final = "serve"

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse a command line. If it names no command, add the default command first."""
        if not args or args[0] not in (*self.commands, *ctx.help_option_names):
            args = [self.default, *args]
        return super().parse_args(ctx, args)


@click.group(cls=WebGroup)
def web() -> None:
    """Show the queues on a web page, and change them there. `rq-core web` is `rq-core web serve`."""


@web.command("serve")
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option(
    "--listen",
    default=ADDRESS,
    show_default=True,
    metavar="[HOST:]PORT",
    help="Where to listen. Without tokens it must be an address of this machine alone.",
)
@tokens_option
@click.option(
    "--allow-host",
    "allow_hosts",
    multiple=True,
    metavar="NAME",
    help="A name by which browsers reach the page, beside localhost; may be repeated. Other names are refused.",
)
@click.option(
    "--root-path",
    default="",
    metavar="PATH",
    help="What a proxy takes off the beginning of each address, like /queues.",
)
@click.option(
    "--behind-https",
    is_flag=True,
    help="Browsers reach the page by HTTPS, through a proxy: its cookie is then sent by HTTPS only.",
)
@audit_url_option("The audit database: for all that is past.")
@inbox_url_option("The database with the inbox: for what is wrong there.")
@server_options
def serve_command(
    target: str | None,
    listen: str,
    tokens: Path | None,
    allow_hosts: tuple[str, ...],
    root_path: str,
    audit_url: str | None,
    inbox_url: str | None,
    redis_url: str,
    prefix: str,
    *,
    behind_https: bool,
) -> None:
    """Serve the page until SIGTERM or Ctrl-C, with the URLs and tasks of MODULE:APP if that is given.

    Current problems come first, then the queues. Each page is also JSON: /index.json, /queues/mail.json.
    """
    with _extra("web", "serves the page", *_OF_WEB):
        from rq_core.web.serve import WebOptions, serve_page
    app = None
    if target is not None:
        app = app_at(target)
        redis_url, prefix = app.redis_url, app.prefix
        audit_url = audit_url or app.audit_url
        inbox_url = inbox_url or app.inbox_url
    options = WebOptions(
        listen,
        redis_url,
        prefix,
        audit_url,
        tokens,
        allow_hosts,
        root_path,
        behind_https,
        inbox_url,
        app,
    )
    serve_page(options, say)


@web.command()
@click.argument("name", metavar="NAME")
@tokens_option
@click.option(
    "--see-arguments",
    is_flag=True,
    help="Also show what jobs carry: arguments, results, headers, and the messages of errors.",
)
@click.option(
    "--role",
    type=click.Choice(ROLES),
    default=VIEWER,
    show_default=True,
    help="What NAME may do: viewers look, operators also change jobs and pause queues, admins also change limits.",
)
@click.option("--remove", is_flag=True, help="Take the token away, at once.")
def token(name: str, tokens: Path | None, *, see_arguments: bool, role: str, remove: bool) -> None:
    """Make a token for NAME, print it, and write its SHA-256 into the file of tokens.

    A token that NAME had before is no longer valid. A running page notices the change at once.
    """
    if tokens is None:
        raise click.UsageError(f"give --tokens FILE or set {TOKENS_VARIABLE}")
    if not remove:
        click.echo(token_file.add_token(tokens, name, see_arguments=see_arguments, role=role))
    elif not token_file.remove_token(tokens, name):
        raise click.ClickException(f"{tokens} has no token of {name}")


@click.command()
@click.argument("target", metavar="[MODULE:APP]", required=False)
@click.option(
    "--see-arguments",
    is_flag=True,
    help="Also show what jobs carry: arguments, results, headers, and the messages of errors.",
)
@audit_url_option("The audit database: for all that is past.")
@inbox_url_option("The database with the inbox: for what is wrong there.")
@server_options
def mcp(
    target: str | None,
    audit_url: str | None,
    inbox_url: str | None,
    redis_url: str,
    prefix: str,
    *,
    see_arguments: bool,
) -> None:
    """Give the views of the web page to a program, as tools that only read.

    The program starts this command, and speaks the Model Context Protocol over standard input and output. With
    MODULE:APP, the command uses the URLs of this app. No tool changes anything, whatever rights the user of Redis has.
    """
    with _extra("mcp", "speaks the Model Context Protocol", *_OF_MCP):
        from rq_core.web.mcp_server import serve_tools
    from rq_core.web.sources import Sources

    if target is not None:
        with _output_diverted():
            app = app_at(target)
        redis_url, prefix = app.redis_url, app.prefix
        audit_url = audit_url or app.audit_url
        inbox_url = inbox_url or app.inbox_url
    sources = Sources(redis_url, prefix=prefix, audit_url=audit_url, inbox_url=inbox_url)
    with contextlib.closing(sources):
        serve_tools(sources, see_arguments=see_arguments)


@contextlib.contextmanager
def _output_diverted() -> Iterator[None]:
    """Redirect the block's standard output to standard error, because the client program reads answers on standard
    output."""
    sys.stdout.flush()
    own = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(own, 1)
        os.close(own)


_OF_WEB: Final = ("jinja2", "starlette", "uvicorn")
_OF_MCP: Final = ("anyio", "mcp")


@contextlib.contextmanager
def _extra(extra: str, does: str, *packages: str) -> Iterator[None]:
    """If the block cannot import one of ``packages``, raise a ClickException that names the extra to install. ``does``:
    what the extra does, such as "serves the page"."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in packages:
            raise
        raise click.ClickException(f"install the extra that {does}: {pip_install(extra)}") from None
