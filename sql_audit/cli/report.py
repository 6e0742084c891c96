"""``rq-core audit report``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import click

from rq_core.cli.options import LIST_MAX, json_option, queue_option
from rq_core.cli.text import FIELD_MAX, fit, terminal
from sql_audit.cli.options import Moment, asking, audit_option, not_mirrored
from sql_audit.cli.text import in_ms, print_answer, print_marks

if TYPE_CHECKING:
    from rich.text import Text

    from sql_audit.queries.history import Report


@click.command()
@audit_option
@queue_option
@click.option(
    "--slowest",
    type=click.IntRange(0, LIST_MAX),
    default=5,
    show_default=True,
    help="How many of the slowest jobs to name.",
)
@click.option(
    "--since", "since_ms", type=Moment(), metavar="TIME", help="Only what ended from then on."
)
@click.option("--until", "until_ms", type=Moment(), metavar="TIME", help="Only what ended before.")
@json_option
def report(
    url: str | None,
    queue: str | None,
    slowest: int,
    since_ms: int | None,
    until_ms: int | None,
    as_json: bool,
) -> None:
    """Per queue and task: jobs, claims, retries, deaths, times and throughput.

    With --since or --until: of the claims that ended then, and of the jobs that were cancelled or discarded then. That
    reads no more than these, however long the log is.
    """
    with asking(url) as engine:
        from sql_audit.queries import history, window

        if since_ms is None and until_ms is None:
            answer = history.report(engine, queue, slowest)
        else:
            until = window.END_OF_TIME_MS if until_ms is None else until_ms
            answer = window.report(engine, queue, slowest, since_ms=since_ms or 0, until_ms=until)
        if not answer.watermarks:
            raise not_mirrored(engine, queue)
    if as_json:
        document = dataclasses.asdict(answer)
        del document["watermarks"]
        print_answer(document, answer.watermarks)
        return
    print_report(answer)


def _cells(*words: str) -> list[Text]:
    """Cells of a table, as text: what a job says is never read as markup."""
    from rich.text import Text

    return [Text(fit(word, FIELD_MAX)) for word in words]


def print_report(answer: Report) -> None:
    from rich.table import Table

    console = terminal()
    table = Table(title="tasks", title_justify="left", box=None, pad_edge=False)
    for name in ("queue", "task"):
        table.add_column(name, no_wrap=True)
    for name in (
        "jobs", "succeeded", "claims", "retries", "expired", "rolled back", "dead", "cancelled",
        "discarded", "waited p50", "p95", "ran p50", "p95", "jobs/s",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for t in answer.tasks:
        counts = (
            t.jobs, t.succeeded, t.claims, t.retries, t.lease_expired, t.rolled_back, t.dead,
            t.cancelled, t.discarded,
        )  # fmt: skip
        times = (t.waited_p50_ms, t.waited_p95_ms, t.ran_p50_ms, t.ran_p95_ms)
        rate = "-" if t.throughput is None else f"{t.throughput:.1f}"
        table.add_row(*_cells(t.queue, t.task or "?"), *map(str, counts), *map(in_ms, times), rate)
    console.print(table)
    if answer.slowest:
        slow = Table(title="\nslowest", title_justify="left", box=None, pad_edge=False)
        for name in ("queue", "task", "job", "by", "ran", "waited"):
            slow.add_column(name, no_wrap=True)
        for job in answer.slowest:
            words = (job.queue, job.task or "?", job.job_id, job.worker or "")
            slow.add_row(*_cells(*words), in_ms(job.ran_ms), in_ms(job.waited_ms))
        console.print(slow)
    console.print()
    print_marks(console, answer.watermarks)
