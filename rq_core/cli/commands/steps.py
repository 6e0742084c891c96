"""The command ``rq-core steps``: the steps that a durable job has saved."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from rq_core.cli.options import (
    connect,
    json_option,
    known_queues,
    print_json,
    queue_option,
    server_options,
)
from rq_core.cli.text import print_table
from rq_core.views.steps import HEAD, step_documents, step_row, steps_say

if TYPE_CHECKING:
    from rq_core.protocol.reads.box_reads import SavedSteps


@click.command()
@click.argument("job_id", metavar="ID")
@queue_option
@click.option("--values", is_flag=True, help="Show what each step returned, as JSON.")
@server_options
@json_option
def steps(
    job_id: str, queue: str | None, redis_url: str, prefix: str, *, values: bool, as_json: bool
) -> None:
    """Show the steps of the durable job ID.

    A step "in doubt" was begun but not saved: it may or may not have happened. The steps of a job that has left Redis
    are in its audit log: `rq-core audit history ID --audit URL`.
    """
    with connect(redis_url, prefix) as client:
        where = known_queues(client, queue)
        found = client.run(client.calls.reads.steps(job_id, where))
    if found is None:
        raise click.ClickException(
            f"no live job {job_id} in {', '.join(where) or 'any queue'}: its steps leave Redis with it. If the queue is"
            f" mirrored, `rq-core audit history {job_id} --audit URL` knows them"
        )
    if as_json:
        print_json(step_documents(found, with_values=True))
        return
    now_ms = time.time() * 1000
    rows = [
        [*step_row(number, each, now_ms), *([each.value or ""] if values else [])]
        for number, each in found.entries.items()
    ]
    print_table([*HEAD, *(["value"] if values else [])], rows, empty=_none(job_id, found))


def _none(job_id: str, found: SavedSteps) -> str:
    return (
        f"job {job_id}: {steps_say(found)}" if found.is_lost else f"job {job_id} has saved no step"
    )
