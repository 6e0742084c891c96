"""``rq-core worker``."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import click

from rq_core.cli import OWN_PROCESS
from rq_core.cli.options import force_option, showing_causes, verbose_option
from rq_core.model.keys import check_name
from rq_core.model.lib.url import AUDIT_URL_VARIABLE, REDIS_URL_VARIABLE

_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*(:[^\W\d]\w*)?")


def check_target(target: str) -> str:
    """Return ``target`` if it reads as ``module:app``. Raises click.UsageError."""
    is_file = target.partition(":")[0].endswith(".py") or "/" in target
    if is_file or _TARGET.fullmatch(target) is None:
        hint = "; give the module's name, not the file's" if is_file else ""
        raise click.UsageError(f"{target!r} is not an app: give MODULE:APP, like tasks:app{hint}")
    return target


def _weights(_ctx: click.Context, _param: click.Parameter, texts: Sequence[str]) -> dict[str, int]:
    """Read ``mail=3,reports``: weights by queue. A queue that is named twice counts once."""
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


def _audit_url(_ctx: click.Context, _param: click.Parameter, url: str | None) -> str | None:
    """The audit database: as given, or for ``--audit`` alone that of the environment."""
    if url != "":
        return url
    url = os.environ.get(AUDIT_URL_VARIABLE)
    if not url:
        raise click.BadParameter(f"give a URL, or set {AUDIT_URL_VARIABLE}")
    return url


@click.command()
@click.argument("target", metavar="MODULE:APP")
@click.option(
    "--queues",
    "-q",
    multiple=True,
    callback=_weights,
    metavar="A=3,B",
    help="The queues to work for, by default all that the app declares; may be repeated. They"
    " share the free places by weight: A gets three for each one of"
    " B, if both have jobs; 1 if not given.",
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
    help="Exit when nothing is running or due, and nothing that is ready may run now.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="For development: restart the worker when a .py file below the current directory changes. What runs has the"
    " seconds of --grace to end; --grace 0 gives it back at once.",
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
    help="Replace a process after N jobs, when what runs in it has finished.",
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
    callback=_audit_url,
    metavar="[URL]",
    help="Also mirror the events of all queues of the server, not of --queues alone, into this database, in a process"
    " of its own. All workers of a server name the same database. Without a URL (then it must be"
    f" the last option): into that of {AUDIT_URL_VARIABLE}, so that the list of processes shows no password.",
)
@click.option(
    "--health",
    metavar="[HOST:]PORT",
    help="Answer HTTP requests there: 200 if the workers work, 503 if a worker has not claimed for long. At /metrics:"
    " the workers' counts, for Prometheus.",
)
@click.option(
    "--redis",
    "redis_url",
    metavar="URL",
    help=f"The server, if not the app's own. (The list of processes shows it: {REDIS_URL_VARIABLE} does not.)",
)
@click.option("--prefix", help="What the keys begin with, if not as the app says.")
@click.option(
    "--redact",
    metavar="MODULE:NAME",
    help="A function that takes secrets out of errors before they are kept or logged, if not the app's own.",
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
        redact=given["redact"],
        health=given["health"],
        reload=given["reload"],
        log_format=given["log_format"],
        log_level=given["log_level"],
    )
    with showing_causes(verbose=given["verbose"]):
        status = serve(options, metrics=worker_page, ends=ctx.obj == OWN_PROCESS)
    ctx.exit(status)
