"""Commands that only look: ``queues``, ``job``, ``dead``."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any

import click

from rq_core.cli.caps import waiting_document, waiting_rows
from rq_core.cli.options import (
    LIST_MAX,
    connect,
    json_option,
    known_queues,
    limit_option,
    print_json,
    queue_option,
    server_options,
    tell_damaged,
    tell_denied,
)
from rq_core.cli.text import ago, oldest, one_line, print_records, print_table, say, shortened, span
from rq_core.masking import masked
from rq_core.model.counted import counted
from rq_core.model.job import place_in
from rq_core.model.machine import (
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_MAX_LOSSES,
    DEFAULT_PRIORITY,
    LEFT_OPEN,
    State,
)
from rq_core.model.outcome import reason_of
from rq_core.model.state_line import write_line
from rq_core.model.text import number_in, printable

if TYPE_CHECKING:
    from rq_core.model.job import JobError
    from rq_core.model.remembered import Result
    from rq_core.model.state_line import JobState
    from rq_core.protocol.overview import QueueOverview
    from rq_core.protocol.presence import KnownTasks


@click.command()
@server_options
@json_option
@click.pass_context
def queues(ctx: click.Context, redis_url: str, prefix: str, *, as_json: bool) -> None:
    """Show the queues, how many jobs they have, and how long the oldest ready job that a worker could take has waited.

    The jobs that are ready include those that wait for a cap. With >= there may be an older job.
    """
    with connect(redis_url, prefix) as client:
        found = client.run(client.calls.reads.overview())
    if as_json:
        print_json([queue_document(each) for each in found.queues])
    else:
        print_table(
            ("queue", "ready", "scheduled", "running", "dead", "audit", "backlog", "oldest", ""),
            (
                (
                    each.queue,
                    each.ready_jobs,
                    each.scheduled,
                    each.running,
                    each.dead,
                    "on" if each.audit else "off",
                    each.backlog,
                    oldest(each.oldest_ready_ms, exact=each.oldest_ready_exact),
                    _notes(each),
                )
                for each in found.queues
            ),
            empty="" if found.unreadable else "no queues yet: the first job of a queue makes it",
            drop=("audit", "scheduled", "dead", "backlog", "oldest"),
        )
    for queue, why in found.unreadable.items():
        say(f"rq-core: queue {queue} cannot be read: {one_line(why)}", err=True)
    if found.strays:
        say(f"rq-core: {found.strays}", err=True)
    tell_denied(found.denied)
    ctx.exit(1 if found.unreadable or found.strays else 0)


def queue_document(found: QueueOverview) -> dict[str, Any]:
    """Return a queue as the JSON of the command line has it. Lengths of time are in ms."""
    scopes = [{**dataclasses.asdict(each), "limit": str(each.limit)} for each in found.scopes]
    return {**dataclasses.asdict(found), "scopes": scopes}


def _notes(found: QueueOverview) -> str:
    from rq_core.metrics.causes import mirror_behind

    paused = ["paused"] if found.paused else []
    lanes = [f"{found.waiting:,} in lanes"] if found.waiting else []
    ready = [f"{n:,} {p}" for p, n in found.ready.items() if n and p != DEFAULT_PRIORITY]
    full = [f"full: {each.scope}" for each in found.full_scopes]
    known = [f"{counted(found.remembered, 'id')} remembered"] if found.remembered else []
    if found.kept_bytes and known:
        known = [f"{known[0]} or with a result ({found.kept_bytes:,} bytes of results)"]
    if found.remembered_ratio >= 1:
        known = [f"{known[0]}: no more fit, and new jobs of that kind are refused"]
    evicted = [f"{counted(found.evicted, 'result')} evicted"] if found.evicted else []
    behind = [says] if (says := mirror_behind(found)) else []
    return "; ".join([*paused, *lanes, *ready, *full, *known, *evicted, *behind])


@click.command()
@click.argument("job_id", metavar="ID")
@queue_option
@server_options
@json_option
def job(job_id: str, queue: str | None, redis_url: str, prefix: str, *, as_json: bool) -> None:
    """Show where the job ID stands, and if it is dead, why it died.

    If it waits for a cap: for which, which jobs hold it now, and how many are ahead of it. A finished job
    has left Redis; `rq-core audit history ID` knows it still, and its tracebacks. While its id is
    remembered or its result kept, this says how it ended, and what its handler returned.
    """
    with connect(redis_url, prefix) as client:
        where = known_queues(client, *([queue] if queue is not None else []))
        found = client.run(client.calls.reads.job(job_id, where))
        standing = None if found is None else client.run(client.calls.reads.standing(found))
        known = None if found is None else client.run(client.calls.reads.known_tasks(found.queue))
        ended = client.run(client.calls.reads.ended(job_id, where)) if found is None else None
    if ended is not None:
        _print_ended(*ended, as_json=as_json)
        return
    if found is None or standing is None or known is None:
        if not where:
            raise click.ClickException(f"no live job {job_id}: this server has no queue")
        raise click.ClickException(
            f"no live job {job_id} in {', '.join(where)}. A finished job has left Redis; if the queue is"
            f" mirrored, `rq-core audit history {job_id}` knows it"
        )
    if as_json:
        task_known = {"task_known": known.knows(found.fields.get("task"))}
        print_json(document_of(found) | task_known | waiting_document(standing))
        return
    now_ms = time.time() * 1000
    unknown = unknown_task(found, known)
    waits = [("waits for", f"a worker: {unknown}")] if unknown else []
    rows = [*_rows(found, now_ms), *waits, *waiting_rows(standing, now_ms)]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        say(f"{name:<{width}}  {printable(value)}")
    if found.error is not None and found.error.traceback:
        say("traceback")
        for each in found.error.traceback.splitlines():
            say(f"  {printable(masked(each))}")


def _print_ended(queue: str, result: Result, value: str | None, *, as_json: bool) -> None:
    """Say what Redis remembers of a job that has ended, and the value that it returned."""
    if as_json:
        kept = {} if value is None else {"value": _value(value)}
        print_json({"queue": queue, **result._asdict(), **kept})
        return
    now_ms = time.time() * 1000
    since = "" if result.at_ms is None else f", since {ago(result.at_ms, now_ms)}"
    stands = [] if result.same_as is None else [("stands for", f"job {result.same_as}")]
    state = [("state", f"{result.outcome}{since}")] if not stands else []
    rows = [("job", result.id), ("queue", queue), *state, *stands]
    if value is not None:
        rows.append(("result", value))
    elif result.missing is not None:
        rows.append(("result", f"not there: {reason_of(result.missing)}"))
    if value is not None and result.until_ms is not None:
        rows.append(("kept until", ago(result.until_ms, now_ms)))
    if result.once_ms is not None:
        rows.append(("forgotten", ago(result.once_ms, now_ms)))
    width = max(len(name) for name, _ in rows)
    for name, said in rows:
        say(f"{name:<{width}}  {printable(said)}")


def _value(kept: str) -> Any:
    try:
        return json.loads(kept)
    except ValueError:
        return None


def unknown_task(job: JobState, known: KnownTasks) -> str:
    """Return a sentence if no worker that lives has told of the task of a job that waits; else empty."""
    waits = job.state in (State.READY, State.SCHEDULED)
    has = known.knows(job.fields.get("task"))
    return "no live worker has told of this task" if waits and has is False else ""


def _number(job: JobState, name: str, default: int = 0) -> int:
    found = number_in(job.fields.get(name))
    return default if found is None else found


def _limit(job: JobState, name: str, default: int) -> int | None:
    """Return how many attempts or losses a job has; None if the task of its worker decides."""
    limit = _number(job, name, default)
    return None if limit == LEFT_OPEN else limit


def _of(count: int, limit: int | None) -> str:
    return f"{count} of {'as many as its task has' if limit is None else limit}"


def document_of(job: JobState) -> dict[str, Any]:
    """Return a job as the JSON of the command line has it. Times are Unix ms."""
    document: dict[str, Any] = {
        "id": job.id,
        "queue": job.queue,
        "state": str(job.state),
        "task": job.fields.get("task"),
        "priority": job.fields.get("priority", str(DEFAULT_PRIORITY)),
        "claims": _number(job, "claim"),
        "failures": _number(job, "failed"),
        "max_attempts": _limit(job, "attempts", DEFAULT_MAX_ATTEMPTS),
        "losses": _number(job, "lost"),
        "max_losses": _limit(job, "losses", DEFAULT_MAX_LOSSES),
        "since_ms": _number(job, "since") or None,
        "due_ms": _number(job, "due") or None,
        "expires_ms": _number(job, "expires") or None,
        "worker": job.fields.get("by"),
        "fence": job.fields.get("fence"),
        "reason": job.fields.get("reason"),
        "error": None if job.error is None else job.error._asdict(),
        "line": write_line(job.state, job.fields),
    }
    if job.spec is not None:
        document["args"] = _part(job.spec, "args")
        document["headers"] = _part(job.spec, "headers") or {}
    return document


def _part(spec: str, name: str) -> Any:
    try:
        return json.loads(spec)[name]
    except (ValueError, KeyError, TypeError):
        return None


def _rows(job: JobState, now_ms: float) -> list[tuple[str, str]]:
    facts = document_of(job)
    rows = [("job", job.id), ("queue", job.queue)]
    since = f", since {ago(facts['since_ms'], now_ms)}" if facts["since_ms"] else ""
    rows.append(("state", f"{job.state}{since}"))
    if facts["due_ms"] and job.state is State.SCHEDULED:
        rows.append(("due", ago(facts["due_ms"], now_ms)))
    if facts["expires_ms"] and job.state in (State.SCHEDULED, State.READY):
        rows.append(("expires", ago(facts["expires_ms"], now_ms)))
    rows.append(("task", facts["task"] or "?"))
    if facts["priority"] != DEFAULT_PRIORITY:
        rows.append(("priority", facts["priority"]))
    if facts["claims"]:
        rows.append(("claims", str(facts["claims"])))
    if facts["worker"]:
        rows.append(("worker", facts["worker"]))
    if facts["failures"]:
        rows.append(("failures", _of(facts["failures"], facts["max_attempts"])))
    if facts["losses"]:
        rows.append(("losses", _of(facts["losses"], facts["max_losses"])))
    if facts["reason"]:
        rows.append(("reason", facts["reason"]))
    if job.error is not None:
        rows.append(("error", one_line(str(job.error))))
    if job.spec is None:
        rows.append(("arguments", "none: run `rq-core doctor`"))
    else:
        rows.append(("arguments", json.dumps(facts["args"], ensure_ascii=False)))
    if facts.get("headers"):
        rows.append(("headers", json.dumps(facts["headers"], ensure_ascii=False)))
    return rows


def _with_place(error: JobError) -> str:
    """Return what a job died of, and where."""
    place = place_in(error.traceback)
    return shortened(str(error)) + (f" ({printable(place)})" if place else "")


@click.command()
@click.argument("queue")
@limit_option("jobs", LIST_MAX)
@server_options
@json_option
def dead(queue: str, limit: int, redis_url: str, prefix: str, *, as_json: bool) -> None:
    """Show the jobs of QUEUE that died last, and why, newest first.

    The reason is why rq-core gave the job up, the error what its handler raised last, and in which file and line.
    """
    with connect(redis_url, prefix) as client:
        known_queues(client, queue)
        found = client.run(client.calls.reads.dead(queue, limit))
    if as_json:
        print_json([document_of(each) for each in found.jobs])
        tell_damaged(found.damaged)
        return
    now_ms = time.time() * 1000
    print_records(
        ("job", "task", "died", "reason", "failures", "losses", "error"),
        [
            (
                each.id,
                each.fields.get("task", "?"),
                f"{span(now_ms - _number(each, 'since'))} ago",
                each.fields.get("reason", "?"),
                _number(each, "failed"),
                _number(each, "lost"),
                "" if each.error is None else _with_place(each.error),
            )
            for each in found.jobs
        ],
        empty=f"no dead jobs in {queue}",
        whole=("job",),
    )
    if found.total > len(found.jobs) + len(found.damaged):
        say(f"{len(found.jobs):,} of {found.total:,}; --limit shows more")
    tell_damaged(found.damaged)
