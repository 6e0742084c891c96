"""The command ``rq-core worker``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import click

from rq_core.cli import OWN_PROCESS
from rq_core.cli.options import force_option, showing_causes, verbose_option
from rq_core.cli.places import check_inbox, check_target, explaining_django
from rq_core.model.keys import check_name
from rq_core.model.lib.url import AUDIT_URL_VARIABLE, INBOX_URL_VARIABLE, REDIS_URL_VARIABLE


def _weights(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> dict[str, int]:
    """Parse texts like ``mail=3,reports`` to queue → weight. The weight is 1 by default.

    If a queue is named twice, its last weight counts. Raises BadParameter.
    """
    weights: dict[str, int] = {}
    for part in ",".join(texts).split(",") if texts else ():
        name, equals, weight = part.strip().partition("=")
        check_name("queue", name)
        if equals and not (weight.isascii() and weight.isdigit()):
            raise click.BadParameter(
                f"{part.strip()!r} must read QUEUE or QUEUE=WEIGHT, like mail=3"
            )
        weights[name] = int(weight) if equals else weights.get(name, 1)
    return weights


def _url_or(variable: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return a callback for a click option that names a URL.

    The callback returns the URL, or None if the option is missing. If the option is given without a URL, it returns the
    URL in the environment variable ``variable``, and raises BadParameter if the variable is empty.
    """

    def url_of(_ctx: click.Context, _param: click.Parameter, url: str | None) -> str | None:
        if url != "":
            return url
        url = os.environ.get(variable)
        if not url:
            raise click.BadParameter(f"give a URL, or set {variable}")
        return url

    return url_of


@click.command()
@click.argument("target", metavar="[MODULE:APP]", default="")
@click.option(
    "--django",
    metavar="SETTINGS",
    help="Set Django up with this module of settings, before MODULE:APP is imported. Without MODULE:APP, run the tasks"
    " of the project's own App (see rq_core.contrib.django). --inbox may name an alias of DATABASES.",
)
@click.option(
    "--queues",
    "-q",
    multiple=True,
    callback=_weights,
    metavar="A=3,B",
    help="The queues to work for, by default all that the app declares; may be repeated. The queues"
    " share the free places by weight: A gets three places for each place of"
    " B, if both have jobs. The default weight is 1.",
)
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 5_000),
    default=10,
    show_default=True,
    metavar="N",
    help="Most jobs at once, in each process.",
)
@click.option(
    "--processes",
    "-p",
    type=click.IntRange(1, 256),
    default=1,
    show_default=True,
    metavar="N",
    help="Worker processes.",
)
@click.option(
    "--burst",
    is_flag=True,
    help="Exit when no job is running or due, and no ready job may run now.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="For development: restart the worker when a .py file below the current directory changes. Running jobs have"
    " the seconds of --grace to end; with --grace 0 the worker gives them back at once.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="Seconds that running jobs may take to end after SIGTERM or Ctrl-C; then the worker gives them back.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Timeout of one attempt, for tasks that have none of their own.",
)
@click.option(
    "--max-jobs",
    type=click.IntRange(min=1),
    metavar="N",
    help="Replace a process after N jobs, when its running jobs have ended.",
)
@click.option(
    "--max-memory",
    type=click.IntRange(min=1),
    metavar="MB",
    help="Replace a process that uses more memory than this, in MiB.",
)
@click.option(
    "--audit",
    "audit_url",
    is_flag=False,
    flag_value="",
    callback=_url_or(AUDIT_URL_VARIABLE),
    metavar="[URL]",
    help="Also mirror the events of all queues of the server, not of --queues alone, into this database, in a process"
    " of its own. All workers of a server must name the same database. Without a URL (--audit is then the last"
    f" option), the URL is that of {AUDIT_URL_VARIABLE}, so that the list of processes shows no password.",
)
@click.option(
    "--inbox",
    "inbox_url",
    is_flag=False,
    flag_value="",
    callback=_url_or(INBOX_URL_VARIABLE),
    metavar="[URL]",
    help="Also hand over the jobs of the inbox in this database, in a process of its own (see `rq-core inbox --help`)."
    f" Without a URL (--inbox is then the last option), the URL is that of {INBOX_URL_VARIABLE}.",
)
@click.option(
    "--health",
    metavar="[HOST:]PORT",
    help="Answer HTTP requests at this address: 200 if the workers work, 503 if a worker has not claimed for 30 s. At"
    " /metrics: the workers' counts, for Prometheus.",
)
@click.option(
    "--redis",
    "redis_url",
    metavar="URL",
    help=f"The server, if not the app's own. (The list of processes shows this URL, but not {REDIS_URL_VARIABLE}.)",
)
@click.option("--prefix", help="The prefix of all keys in Redis, if not the app's own.")
@click.option(
    "--redact",
    metavar="MODULE:NAME",
    help="A function that removes secrets from errors before they are stored or logged, if not the app's own.",
)
@click.option(
    "--log-format", type=click.Choice(("text", "json")), default="text", help="Form of a log line."
)
@click.option(
    "--log-level",
    type=click.Choice(("debug", "info", "warning", "error"), case_sensitive=False),
    default="info",
    help="Write log lines of this level and above.",
)
@force_option("; start although the app declares none of --queues")
@verbose_option
@click.pass_context
def worker(ctx: click.Context, /, target: str, **given: Any) -> None:
    """Run the jobs of the tasks of MODULE:APP (APP is app if left out) until SIGTERM or Ctrl-C.

    The module is imported with the current directory first on the path.
    """
    inbox_url = given["inbox_url"]
    if given["django"] is not None:
        from rq_core.contrib.django.setting_up import APP, note_relay, set_up, url_of_inbox

        target = target or APP
        note_relay(inbox_url)
        if inbox_url is not None:
            with showing_causes(verbose=given["verbose"]):
                set_up(given["django"])
                inbox_url = url_of_inbox(inbox_url)
    elif not target:
        raise click.UsageError("Missing argument 'MODULE:APP'")
    elif inbox_url is not None:
        check_inbox(inbox_url, "for an alias of Django's DATABASES add `--django SETTINGS`")
    check_target(target)
    from rq_core.metrics.page import worker_page
    from rq_core.process.serve import serve
    from rq_core.process.worker_process import ServeOptions
    from rq_core.worker import WorkerOptions

    options = ServeOptions(
        target=target,
        worker=WorkerOptions(
            queues=tuple(given["queues"]),
            weights={name: n for name, n in given["queues"].items() if n != 1},
            concurrency=given["concurrency"],
            burst=given["burst"],
            grace=given["grace"],
            timeout=given["timeout"],
            max_jobs=given["max_jobs"],
            max_memory=given["max_memory"] and given["max_memory"] * 1024 * 1024,
        ),
        processes=given["processes"],
        redis_url=given["redis_url"],
        prefix=given["prefix"],
        audit_url=given["audit_url"],
        inbox_url=inbox_url,
        redact=given["redact"],
        health=given["health"],
        reload=given["reload"],
        django=given["django"],
        log_format=given["log_format"],
        log_level=given["log_level"],
    )
    explaining: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if given["django"] is None:
        explaining = explaining_django(target, has_option=True)
    with explaining, showing_causes(verbose=given["verbose"]):
        status = serve(options, metrics=worker_page, ends=ctx.obj == OWN_PROCESS)
    ctx.exit(status)
