"""The command ``rq-core audit report``."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import click

from rq_core.cli.options import LIST_MAX, Instant, json_option, queue_option
from rq_core.cli.text import print_table, say, terminal
from sql_audit.cli.options import asking, audit_option, not_mirrored
from sql_audit.cli.text import in_ms, print_answer, print_marks

if TYPE_CHECKING:
    from sql_audit.queries.reports import Report


@click.command("report")
@audit_option
@queue_option
@click.option(
    "--slowest",
    type=click.IntRange(0, LIST_MAX),
    default=5,
    show_default=True,
    help="Number of the slowest jobs to list.",
)
@click.option(
    "--since",
    "since_ms",
    type=Instant(),
    metavar="TIME",
    help="Count only claims that ended at or after this time.",
)
@click.option(
    "--until",
    "until_ms",
    type=Instant(),
    metavar="TIME",
    help="Count only claims that ended before this time.",
)
@json_option
def report_command(
    url: str | None,
    queue: str | None,
    slowest: int,
    since_ms: int | None,
    until_ms: int | None,
    as_json: bool,
) -> None:
    """Show jobs, claims, retries, deaths, times and throughput per queue and task.

    With --since or --until, the command counts only claims that ended in this period, and jobs that were cancelled or
    discarded in this period; it reads no other part of the log. TIME is like '2026-11-21 10:00' (UTC if no zone is
    given), 10:00 (the last time that it was ten), '10m ago' (s, m, h, d, w or y), now or Unix ms.
    """
    with asking(url) as engine:
        from sql_audit.queries import reports, window

        if since_ms is None and until_ms is None:
            answer = reports.report(engine, queue, slowest)
        else:
            until = window.END_OF_TIME_MS if until_ms is None else until_ms
            answer = window.report_within(
                engine, queue, slowest, since_ms=since_ms or 0, until_ms=until
            )
        if not answer.watermarks:
            raise not_mirrored(engine, queue)
    if as_json:
        document = dataclasses.asdict(answer)
        del document["watermarks"]
        print_answer(document, answer.watermarks)
        return
    print_report(answer)


_COUNTS: Final = {
    "jobs": "jobs", "succeeded": "succeeded", "claims": "claims", "retries": "retries", "expired": "lease_expired",
    "rolled back": "rolled_back", "dead": "dead", "cancelled": "cancelled", "discarded": "discarded",
}  # fmt: skip
"""The report's columns with counts: from the head of each column to the report's field that the column shows."""
_TIMES: Final = {
    "waited p50": "waited_p50_ms", "waited p95": "waited_p95_ms", "ran p50": "ran_p50_ms", "ran p95": "ran_p95_ms",
}  # fmt: skip
_DROPPED: Final = (
    "discarded", "cancelled", "expired", "rolled back", "jobs/s", "waited p95", "ran p95", "retries", "claims",
    "waited p50", "ran p50",
)  # fmt: skip
"""The columns that are left out on a narrow terminal, the least important first."""


def print_report(answer: Report) -> None:
    console = terminal()
    say("tasks")
    print_table(
        ("queue", "task", *_COUNTS, *_TIMES, "jobs/s"),
        [
            (
                t.queue,
                t.task or "?",
                *(getattr(t, name) for name in _COUNTS.values()),
                *(in_ms(getattr(t, name)) for name in _TIMES.values()),
                "-" if t.throughput is None else f"{t.throughput:.1f}",
            )
            for t in answer.tasks
        ],
        empty="no claim ended",
        whole=tuple(_TIMES),
        drop=_DROPPED,
        right=(*_TIMES, "jobs/s"),
    )
    if answer.slowest:
        say("slowest")
        print_table(
            ("queue", "task", "job", "by", "ran", "waited"),
            [
                (
                    j.queue,
                    j.task or "?",
                    j.job_id,
                    j.worker or "",
                    in_ms(j.ran_ms),
                    in_ms(j.waited_ms),
                )
                for j in answer.slowest
            ],
            empty="",
            whole=("job", "ran", "waited"),
            drop=("by", "waited", "queue"),
            right=("ran", "waited"),
        )
    console.print()
    print_marks(console, answer.watermarks)
