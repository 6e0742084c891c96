"""The commands ``rq-core job`` and ``rq-core watch``.

``job`` shows a job's state and the caps for which the job waits. ``watch`` shows a job's progress and its stream.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from rq_core.cli.options import (
    connect,
    json_option,
    known_queues,
    print_json,
    queue_option,
    server_options,
)
from rq_core.cli.text import print_table, say
from rq_core.masking import masked
from rq_core.model.lib.text import counted, printable
from rq_core.protocol.reads.shown_reads import PLACE_MAX, StreamPlace
from rq_core.views.job import Rows, ended_document, ended_rows, job_rows
from rq_core.views.jobs import ListedJob, listed_document, number
from rq_core.views.scopes import standing_document
from rq_core.views.shown import bar, chunk_document, progress_document, progress_says
from rq_core.views.steps import (
    HEAD,
    SHOWN_MAX,
    parked_for,
    signal_documents,
    signals_say,
    step_documents,
    step_row,
    steps_say,
)

if TYPE_CHECKING:
    from rq_core.connections.client import Client
    from rq_core.model.showing.shown import Chunk, Progress
    from rq_core.protocol.reads.box_reads import SavedSteps
    from rq_core.protocol.reads.scope_reads import Standing


@click.command()
@click.argument("job_id", metavar="ID")
@queue_option
@server_options
@json_option
def job(job_id: str, queue: str | None, redis_url: str, prefix: str, *, as_json: bool) -> None:
    """Show the state of the job ID; of a dead job, why it died; of a job that a worker gave back, why, and what to do.

    For a durable job, it shows the last steps; those in doubt were begun and not saved, and may have happened. For a
    job that waits for a cap, it shows the cap, the jobs that hold it now, and how many jobs are ahead. A finished
    job has left Redis; `rq-core audit history ID --audit URL` shows it, with its tracebacks. While its id is
    remembered or its result kept, this command shows its outcome and its result.
    """
    with connect(redis_url, prefix) as client:
        where = known_queues(client, queue)
        reads = client.calls.reads
        found = client.run(reads.job(job_id, where))
        if found is not None:
            standing = client.run(reads.standing(found))
            known = client.run(reads.known_tasks(found.queue))
            back = client.run(reads.given_back(found.queue, [found]))
            row = ListedJob(found, known, back.get(found.id))
            shown = client.run(reads.shown(found.queue, found.id)).progress
            life = found.fields.get("life")
            steps = None
            if life is not None:
                steps = client.run(reads.saved_steps(found.queue, life, SHOWN_MAX))
            _show(row, standing, steps, shown, as_json=as_json)
            return
        ended = client.run(reads.ended(job_id, where))
    if ended is not None:
        if as_json:
            print_json(ended_document(*ended))
        else:
            _print(ended_rows(*ended, time.time() * 1000))
    elif not where:
        raise click.ClickException(f"no live job {job_id}: this server has no queue")
    else:
        raise click.ClickException(
            f"no live job {job_id} in {', '.join(where)}. A finished job has left Redis; if the queue is"
            f" mirrored, `rq-core audit history {job_id} --audit URL` knows it"
        )


def _show(
    row: ListedJob,
    standing: Standing,
    steps: SavedSteps | None,
    shown: Progress | None,
    *,
    as_json: bool,
) -> None:
    if as_json:
        saved: dict[str, Any] = {}
        if shown is not None:
            saved["progress"] = progress_document(shown)
        if steps is not None:
            saved["steps"] = step_documents(steps, with_values=False)
            saved["signals"] = signal_documents(steps)
        print_json(listed_document(row) | standing_document(standing) | saved)
        return
    now_ms = time.time() * 1000
    rows = job_rows(row, standing, now_ms)
    if shown is not None:
        rows.insert(3, ("progress", progress_says(shown, number(row.job, "claim"), now_ms)))
    if steps is not None:
        waits, signals = row.job.fields.get("waits"), signals_say(steps, now_ms)
        rows += [("parked for", parked_for(waits, steps))] if waits else []
        rows += [("signals", f"that no wait has taken: {signals}")] if signals else []
        rows.append(("steps", steps_say(steps)))
    _print(rows)
    if steps is not None and steps.entries:
        print_table(
            HEAD, [step_row(number, e, now_ms) for number, e in steps.entries.items()], empty=""
        )
    if row.job.error is not None and row.job.error.traceback:
        say("traceback")
        for each in row.job.error.traceback.splitlines():
            say(f"  {printable(masked(each))}")


def _print(rows: Rows) -> None:
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"{name:<{width}}  {printable(value)}")


LOOK_S = 0.5
"""Seconds between two looks at a job that is watched."""


@click.command("watch")
@click.argument("job_id", metavar="ID")
@queue_option
@click.option(
    "--after", type=click.IntRange(0), default=0, help="Leave out the chunks up to this number."
)
@server_options
@json_option
def watch_command(
    job_id: str, queue: str | None, after: int, redis_url: str, prefix: str, *, as_json: bool
) -> None:
    """Show the progress of the job ID and the chunks of its stream, until the job has ended.

    Each chunk is one line of standard output; the progress goes to standard error. With --json, each line of standard
    output is one document, with a progress or a chunk. A chunk's field "missed" counts the chunks directly before it
    that Redis no longer had.
    """
    with connect(redis_url, prefix) as client:
        where = known_queues(client, queue)
        found = client.run(client.calls.reads.job(job_id, where))
        if found is not None:
            where = [found.queue]
        else:
            start = StreamPlace(0, 0, None)
            looks = [
                (each, client.run(client.calls.reads.stream(each, job_id, start))) for each in where
            ]
            where = [each for each, look in looks if look.last]
        if not where:
            raise click.ClickException(
                f"no live job {job_id}, and no stream of it: it was never enqueued, or it has ended without chunks or"
                " more than an hour ago"
            )
        _watch(client, where[0], job_id, after, as_json=as_json)


def _watch(client: Client, queue: str, job_id: str, after: int, *, as_json: bool) -> None:
    after = min(after, PLACE_MAX)
    reads, place, last = client.calls.reads, StreamPlace(after, after, None), None
    while True:
        said = client.run(reads.shown(queue, job_id)).progress
        if said is not None and said != last:
            last = said
            _print_progress(said, as_json=as_json)
        look = client.run(reads.stream(queue, job_id, place))
        for chunk in look.chunks:
            _print_chunk(chunk, as_json=as_json)
        if look.is_over:
            return
        place = look.place
        if place.upto >= look.last:
            time.sleep(LOOK_S)


def _print_progress(said: Progress, *, as_json: bool) -> None:
    if as_json:
        print_json({"progress": progress_document(said)})
    else:
        say(printable(bar(said)), err=True)


def _print_chunk(chunk: Chunk, *, as_json: bool) -> None:
    if as_json:
        print_json({"chunk": chunk_document(chunk)})
        return
    if chunk.missed:
        say(f"({counted(chunk.missed, 'chunk')} before {chunk.number} not kept)", err=True)
    if chunk.begins_claim and chunk.claim > 1:
        say(f"(claim {chunk.claim} begins)", err=True)
    say(printable(chunk.text))
