"""The parts that several commands share: options, the client, and the check of queue names."""

from __future__ import annotations

import contextlib
import getpass
import json
import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from rq_core.cli.places import inbox_argument
from rq_core.cli.text import say
from rq_core.errors import RqCoreError, TargetBroken, UnknownQueue
from rq_core.model.keys import DEFAULT_PREFIX, check_name
from rq_core.model.lib.url import (
    AUDIT_URL_VARIABLE,
    DEFAULT_URL,
    INBOX_URL_VARIABLE,
    REDIS_URL_VARIABLE,
)

if TYPE_CHECKING:
    from rq_core.connections.client import Client

F = TypeVar("F", bound=Callable[..., Any])

UNSENT_S: Final = 0.5
"""Seconds for which a command waits for a server that cannot be reached. It is short, because an operator waits."""
UNKNOWN_S: Final = 30.0
"""Seconds for which a command waits for the answer to a call that was sent."""
LIST_MAX: Final = 1_000_000_000
"""Maximum number of entries that a command lists. Redis or a database would refuse a much larger number."""


def server_options(function: F) -> F:
    """Add the options ``--redis`` and ``--prefix``. The command receives them as ``redis_url`` and ``prefix``."""
    for option in (prefix_option, redis_option):
        function = option(function)
    return function


redis_option = click.option(
    "--redis",
    "redis_url",
    metavar="URL",
    envvar=REDIS_URL_VARIABLE,
    show_envvar=True,
    default=DEFAULT_URL,
    show_default=True,
    help="The URL of the server; embedded:// for the server that comes with rq-core, or"
    " redis+sentinel://HOST:PORT,…/SERVICE.",
)
prefix_option = click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="The prefix of all keys in Redis."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
verbose_option = click.option(
    "--verbose",
    is_flag=True,
    help="Also print the traceback if the app's module cannot be imported.",
)


class Instant(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """The click type of an option with a time. :func:`rq_core.model.lib.moments.moment_of` converts the text to Unix
    ms."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from datetime import UTC, datetime

        from rq_core.model.lib.moments import moment_of, span_ms_of

        with contextlib.suppress(ValueError):
            span_ms_of(str(value))
            # A span alone could also mean a time in the future, for the next instants of a schedule for example.
            self.fail(f"{value!r} is not a time: write '{value} ago'", param, ctx)
        try:
            return moment_of(str(value), datetime.now(UTC))
        except (ValueError, OverflowError):
            self.fail(
                f"{value!r} is not a time: write 2026-11-21 10:00, 10:00, '10m ago' or Unix ms",
                param,
                ctx,
            )


def limit_option(what: str, most: int | None = None) -> Callable[[F], F]:
    """Return the option ``--limit``: the maximum number of entries to list, by default 100.

    ``what``: the noun for the entries. ``most``: the highest allowed number; None: any.
    """
    return click.option(
        "--limit",
        type=click.IntRange(1, most),
        default=100,
        show_default=True,
        metavar="N",
        help=f"Most {what} to list.",
    )


def audit_url_option(says: str) -> Callable[[F], F]:
    """Return the option ``--audit``: the URL of the audit database. ``says``: its help text.

    The command receives None if neither the option nor the environment variable is set.
    """
    return click.option(
        "--audit", "audit_url", metavar="URL", envvar=AUDIT_URL_VARIABLE, show_envvar=True, help=says,
    )  # fmt: skip


def pauses_in_log(audit_url: str | None, queue: str, scopes: Sequence[str]) -> dict[str, Any]:
    """Return scope → the audit log's record of its last pause, for each of these scopes.

    The answer is empty without scopes, without an audit database, or if the database cannot be read. In the last case,
    standard error says why.
    """
    from rq_core.model import plugins

    if audit_url is None or not scopes:
        return {}
    try:
        with contextlib.closing(plugins.questions_opener()(audit_url)) as log:
            return log.pauses(queue, scopes)
    except RqCoreError as error:
        say(f"rq-core: the audit log cannot be read: {error}", err=True)
        return {}


def inbox_url_option(says: str) -> Callable[[F], F]:
    """Return the option ``--inbox``: the URL of the database with the inbox. ``says``: its help text.

    The command receives None if neither the option nor the environment variable is set.
    """
    return click.option(
        "--inbox", "inbox_url", metavar="URL", envvar=INBOX_URL_VARIABLE, show_envvar=True, help=says,
        callback=inbox_argument,
    )  # fmt: skip


def wait_option(seconds: float, says: str) -> Callable[[F], F]:
    """Return the option ``--wait``: maximum seconds to wait for the mirror. ``seconds``: its default. ``says``: its
    help text."""
    return click.option(
        "--wait", "wait_s", type=click.FloatRange(min=0), default=seconds, show_default=True, metavar="SECONDS",
        help=says,
    )  # fmt: skip


def _force(_ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if value:
        from rq_core.protocol.engine import server_check

        server_check.force()


def force_option(also: str = "") -> Callable[[F], F]:
    """Return the option ``--force``, with which a command accepts a server that it would otherwise refuse.

    ``also``: text to append to the option's help.
    """
    return click.option(
        "--force",
        is_flag=True,
        expose_value=False,
        callback=_force,
        help=f"Use the server although it may lose jobs, or is a replica{also}.",
    )


def once(ctx: click.Context, param: click.Parameter, given: Sequence[str]) -> str | None:
    """Return the value of --queue, or None without it. Raises BadParameter if the option is repeated, which click would
    accept."""
    if len(given) > 1:
        raise click.BadParameter("give one queue, or none for all", ctx, param)
    return given[0] if given else None


queue_option = click.option(
    "--queue",
    "-q",
    multiple=True,
    callback=once,
    metavar="QUEUE",
    help="Read only this queue, not all.",
)
queues_option = click.option(
    "--queue",
    "-q",
    "queues",
    multiple=True,
    metavar="QUEUE",
    help="Read only this queue, not all; may be repeated.",
)


@contextlib.contextmanager
def showing_causes(*, verbose: bool) -> Iterator[None]:
    """If the block fails to import an app's module and ``verbose`` is true, also print the traceback of the import."""
    try:
        yield
    except TargetBroken as error:
        if verbose and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        raise


by_option = click.option(
    "--by",
    metavar="NAME",
    help="Who makes the change, for the log, in 1 to 128 of the characters A-Z a-z 0-9 _ . : -; by default your user"
    " name.",
)


def audited_options(function: F) -> F:
    """Add the options ``--by`` and ``--reason``. Their values are stored in the event of the change."""
    for option in (
        click.option("--reason", default="", help="Why the change is made, for the log."),
        by_option,
    ):
        function = option(function)
    return function


def actor(by: str | None) -> str:
    """Return the operator's name for the log: ``by``, or the name of the operating system's user. Raises
    InvalidName."""
    if by is not None:
        return check_name("actor", by)
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = ""
    return re.sub(r"[^A-Za-z0-9_.:-]", "_", user)[:128] or "unknown"


def connect(redis_url: str, prefix: str) -> Client:
    """Return a client with the command line's short timeouts, UNSENT_S and UNKNOWN_S."""
    from rq_core.connections.client import Client
    from rq_core.model.ids import boot_id
    from rq_core.protocol.engine.plan import Patience

    return Client(
        redis_url,
        prefix=prefix,
        name=boot_id("cli"),
        patience=Patience(unsent=UNSENT_S, unknown=UNKNOWN_S),
    )


def known_queues(
    client: Client, *given: str | None, warned: bool = False, any_layout: bool = False
) -> list[str]:
    """Return the queues in ``given``, ignoring None. Without such queues, return all queues that the user may read.

    Standard error names what is left out: queues that the user may not read, queues of another layout (version of the
    key format), and words in the list of queues that are not names. ``warned``: True if the caller has already printed
    these words. ``any_layout``: True if the caller checks the layout itself.

    Raises UnknownQueue or InvalidName. Raises LayoutMismatch if a given queue has another layout, or if no queue has
    this one.
    """
    queues = [queue for queue in given if queue is not None]
    for queue in queues:
        check_name("queue", queue)
    listed = client.run(client.calls.reads.listed())
    known = listed.queues
    if listed.strays and not warned:
        say(f"rq-core: {listed.complaint}", err=True)
    for queue in queues:
        # The list is outside of the queue's slot, so a new queue may be missing there.
        if queue not in known and not client.run(client.calls.reads.is_there(queue)):
            raise UnknownQueue(queue=queue, known=", ".join(known) or "none")
    found = list(dict.fromkeys(queues))
    if not queues:
        found = client.run(client.calls.reads.readable(known))
        tell_denied([queue for queue in known if queue not in found])
    others = {} if any_layout else client.run(client.calls.reads.other_layouts(found))
    usable = [queue for queue in found if queue not in others]
    for error in others.values():
        if queues or not usable:
            raise error
        say(f"rq-core: left out: {error}", err=True)
    return usable


def tell_denied(queues: Sequence[str]) -> None:
    """Print on standard error the queues that are left out because the user may not read them."""
    if queues:
        say(
            f"rq-core: left out, since this user may not read them: {', '.join(queues)}",
            err=True,
        )


def print_json(document: Any) -> None:
    """Print one JSON document on one line."""
    click.echo(json.dumps(document, separators=(",", ":"), default=str))
