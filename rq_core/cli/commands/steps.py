"""The command ``rq-core steps``: the steps that a durable job has saved."""

from __future__ import annotations

import time
from typing import Any

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
from rq_core.model.durable.boxes import OVER, StepEntry
from rq_core.views.text import ago, utc


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

    A step "in doubt" was begun but not saved: it may or may not have happened. A wait or a sleep has until when it
    lasts; it is "over" if no signal came until then. The steps of a job that has left Redis
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
        print_json([_document(number, each) for number, each in enumerate(found, 1)])
        return
    head = ["no", "step", "state", "when", "claim", "digest", *(["value"] if values else [])]
    now_ms = time.time() * 1000
    rows = [_row(number, each, now_ms)[: len(head)] for number, each in enumerate(found, 1)]
    print_table(head, rows, empty=f"job {job_id} has saved no step")


def _row(number: int, entry: StepEntry, now_ms: float) -> list[object]:
    state = _state(entry)
    at = ago(entry.at_ms, now_ms)
    return [number, entry.name, state, at, entry.fence, entry.note or "", entry.value or ""]


def _state(entry: StepEntry) -> str:
    if entry.is_saved:
        return "over" if entry.note == OVER else "saved"
    if entry.kind == "step":
        return "in doubt"
    until = "" if entry.until_ms is None else f" until {utc(entry.until_ms)}"
    return f"{'waits' if entry.kind == 'wait' else 'sleeps'}{until}"


def _document(number: int, entry: StepEntry) -> dict[str, Any]:
    return {"entry": number, **entry._asdict()}
