"""The command ``rq-core audit prune``."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import click

from rq_core.cli.options import actor, by_option, json_option, print_json, queue_option
from rq_core.cli.text import say
from rq_core.model.lib.moments import span_ms_of
from rq_core.model.lib.text import counted
from sql_audit.cli.options import audit_option, current, known_watermarks
from sql_audit.cli.text import progress
from sql_audit.times import readable


class _Span(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """The click type of a time span such as 90d, converted to ms. A year has 365 days."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        try:
            return span_ms_of(text)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class _Keep(_Span):
    """The click type of an outcome and the time for which its jobs are kept, such as dead=1y."""

    name = "keep"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from sql_audit.upkeep.plan import OUTCOMES

        outcome, _, span = str(value).partition("=")
        if outcome not in OUTCOMES:
            known = ", ".join(OUTCOMES)
            self.fail(f"{outcome!r} is not an outcome: write OUTCOME=SPAN with one of {known}")
        return outcome, super().convert(span, param, ctx)


@click.command("prune")
@audit_option
@queue_option
@click.option(
    "--older-than", "older_than_ms", type=_Span(), required=True, metavar="SPAN",
    help="Remove jobs that ended longer ago than this: 90d (s, m, h, d, w or y).",
)  # fmt: skip
@click.option(
    "--keep", type=_Keep(), multiple=True, metavar="OUTCOME=SPAN",
    help="Another time span for one outcome, longer or shorter: dead=1y. May be repeated.",
)  # fmt: skip
@click.option(
    "--accept-gaps", is_flag=True,
    help="Prune even if verify finds no violation, but cannot judge the whole log (exit status 2).",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@by_option
@json_option
def prune_command(
    url: str | None,
    queue: str | None,
    older_than_ms: int,
    keep: Sequence[tuple[str, int]],
    by: str | None,
    *,
    accept_gaps: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove jobs that ended long ago, with all their events. The command first verifies the log, and removes nothing
    if it finds a violation. It records the removal, so that verify can still prove the rest. Store the printed head
    elsewhere (see audit head): earlier heads do not prove the rest of the log.
    """
    with current(url) as database:
        from sql_audit.mirror.service import rare_collections
        from sql_audit.upkeep.plan import Rules, count, plan
        from sql_audit.upkeep.prune import prune_logs

        if queue is not None:
            known_watermarks(database.readers, queue)
        who, now_ms = actor(by), int(time.time() * 1000)
        rules = Rules(older_than_ms, dict(keep))
        cuts = plan(database, rules, now_ms=now_ms, queue=queue)
        document: list[dict[str, Any]]
        if dry_run:
            with database.readers.connect() as connection:
                document = [
                    {
                        "queue": cut.queue,
                        "cut": str(cut.at),
                        "cut_at_ms": cut.at_ms,
                        "jobs": count(connection, cut),
                    }
                    for cut in cuts
                ]
        else:
            with rare_collections(), progress(shown=not as_json) as on_proof:
                done = prune_logs(
                    database,
                    cuts,
                    by=who,
                    now_ms=now_ms,
                    accept_unknown=accept_gaps,
                    on_proof=on_proof,
                )
            document = [dataclasses.asdict(each) for each in done]
    if as_json:
        print_json({"queues": document, "dry_run": dry_run})
        return
    if not document:
        say("nothing is old enough")
    for each in document:
        where = f"up to {each['cut']} ({readable(each['cut_at_ms'])})"
        if dry_run:
            say(f"{each['queue']}: {counted(each['jobs'], 'job')} would be removed, {where}")
        else:
            jobs = counted(each["jobs"], "job and its", "jobs and their")
            left, kept = (
                counted(each["events"], "event"),
                counted(each["kept_events"], "event is", "events are"),
            )
            say(f"{each['queue']}: {jobs} {left} were removed, {where}; {kept} kept there")
            say(f"  the head is now {each['head']}")
