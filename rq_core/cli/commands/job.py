"""The commands ``rq-core job`` and ``rq-core watch``.

``job`` shows a job's state and the limits for which it waits. ``watch`` shows a job's progress, the chunks of its
stream, and how it ended.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from rq_core.cli.options import (
    audit_url_option,
    connect,
    json_option,
    known_queues,
    pauses_in_log,
    print_json,
    queue_option,
    server_options,
)
from rq_core.cli.text import print_table, say
from rq_core.masking import masked
from rq_core.model.lib.text import counted, printable
from rq_core.model.limits.pauses import pause_of
from rq_core.model.outcome import Failed, Replaced, Succeeded
from rq_core.protocol.reads.result_reads import Absent
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
    from rq_core.model.outcome import Outcome
    from rq_core.model.showing.shown import Chunk, Progress
    from rq_core.protocol.reads.box_reads import SavedSteps
    from rq_core.protocol.reads.scope_reads import Standing


@click.command()
@click.argument("job_id", metavar="ID")
@queue_option
@audit_url_option("The audit database: adds who or what paused the scope for which the job waits.")
@server_options
@json_option
def job(
    job_id: str,
    queue: str | None,
    audit_url: str | None,
    redis_url: str,
    prefix: str,
    *,
    as_json: bool,
) -> None:
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
            if standing.scope and standing.use.standing != "open":
                pauses = pauses_in_log(audit_url, found.queue, [standing.scope])
                pause = pause_of(standing.use, pauses.get(standing.scope))
                standing = standing._replace(pause=pause)
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
"""Seconds between two reads of a watched job."""
WORKERS_S = 10.0
"""Seconds between two checks whether workers serve the queues of a watched job that waits, and of its children."""


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
    """Show the progress of the job ID and the chunks of its stream, until the job has ended; then how it ended.

    Each chunk is one line of standard output; all else goes to standard error. If the job waits, and no worker serves
    its queue or the queue of one of its children, the command says so. With --json, each line of standard output is one
    document, with a progress, a chunk or the end. A chunk's field "missed" counts the chunks directly before it
    that Redis no longer had.

    The exit status is 1 if the job is dead, was cancelled, has expired or was replaced. It is 0 if the job succeeded,
    or if Redis does not keep how it ended.
    """
    with connect(redis_url, prefix) as client:
        where = known_queues(client, queue)
        found = client.run(client.calls.reads.job(job_id, where))
        known = [] if found is not None else [q for q in where if _is_known(client, q, job_id)]
        where = [found.queue] if found is not None else known
        if not where:
            raise click.ClickException(
                f"no live job {job_id}, and no stream or outcome of it: it was never enqueued, or Redis has forgotten"
                " how it ended"
            )
        _watch(client, where[0], job_id, after, as_json=as_json)


def _is_known(client: Client, queue: str, job_id: str) -> bool:
    """Return whether Redis has the stream of an ended job, or its outcome."""
    look = client.run(client.calls.reads.stream(queue, job_id, StreamPlace(0, 0, None)))
    return bool(look.last) or _outcome(client, queue, job_id) is not None


def _outcome(client: Client, queue: str, job_id: str) -> Outcome[Any] | None:
    """Return how a job has ended; None if it has not ended, or if Redis no longer has its outcome."""
    found = client.run(client.calls.endings.look(queue, [job_id])).get(job_id)
    return found.known if isinstance(found, Absent) else found


def _watch(client: Client, queue: str, job_id: str, after: int, *, as_json: bool) -> None:
    after = min(after, PLACE_MAX)
    reads, place, last = client.calls.reads, StreamPlace(after, after, None), None
    unserved: set[str] = set()
    asks_at = 0.0
    while True:
        shown = client.run(reads.shown(queue, job_id))
        if shown.progress is not None and shown.progress != last:
            last = shown.progress
            _print_progress(last, as_json=as_json)
        look = client.run(reads.stream(queue, job_id, place))
        for chunk in look.chunks:
            _print_chunk(chunk, as_json=as_json)
        if look.is_over and shown.has_ended:
            break
        if shown.state in ("ready", "parked") and time.monotonic() >= asks_at:
            asks_at = time.monotonic() + WORKERS_S
            found = _unserved(client, queue, job_id, is_parked=shown.state == "parked")
            for each in sorted(found - unserved):
                say(f"(no worker serves the queue {each})", err=True)
            unserved = found
        place = look.place
        if place.upto >= look.last:
            time.sleep(LOOK_S)
    outcome = _outcome(client, queue, job_id)
    _print_end(job_id, outcome, as_json=as_json)
    if outcome is not None and not isinstance(outcome, Succeeded):
        raise click.exceptions.Exit(1)


def _unserved(client: Client, queue: str, job_id: str, *, is_parked: bool) -> set[str]:
    """Return the queues without a worker, among the queues of a waiting job and of its children that have not ended."""
    queues = {queue}
    if is_parked:
        children = client.run(client.calls.families.children(job_id, [queue])) or ()
        by_queue: dict[str, list[str]] = {}
        for child in children:
            if not child.is_over:
                by_queue.setdefault(child.queue, []).append(child.id)
        for each, ids in by_queue.items():
            if len(client.run(client.calls.endings.look(each, ids))) < len(ids):
                queues.add(each)
    return {each for each in queues if not client.run(client.calls.reads.known_tasks(each)).workers}


def _print_end(job_id: str, outcome: Outcome[Any] | None, *, as_json: bool) -> None:
    word = "unknown" if outcome is None else type(outcome).__name__.lower()
    why = ""
    if isinstance(outcome, Failed):
        word, why = (
            "dead",
            f"{outcome.reason}: {outcome.error}" if outcome.error else outcome.reason,
        )
    elif isinstance(outcome, Replaced):
        why = f"by job {outcome.by}"
    if as_json:
        print_json({"end": {"outcome": word, **({"why": why} if why else {})}})
    elif outcome is None:
        say(
            f"ended; Redis does not keep how. `rq-core audit history {job_id} --audit URL` may know it",
            err=True,
        )
    else:
        say(printable(f"{word}: {why}" if why else word), err=True)


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
