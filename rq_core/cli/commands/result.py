"""The command ``rq-core result``: the outcome of a job, and its result."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click

from rq_core.cli.options import (
    audit_url_option,
    connect,
    json_option,
    known_queues,
    print_json,
    queue_option,
    server_options,
)
from rq_core.cli.text import say
from rq_core.model import plugins
from rq_core.model.outcome import reason_of


@click.command()
@click.argument("job_id", metavar="ID")
@queue_option
@click.option(
    "--wait",
    "seconds",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="SECONDS",
    help="Wait this long for the job's end. By default the command does not wait.",
)
@audit_url_option("The audit database, which has the outcomes of jobs that have left Redis.")
@server_options
@json_option
def result(
    job_id: str,
    queue: str | None,
    seconds: float,
    audit_url: str | None,
    redis_url: str,
    prefix: str,
    *,
    as_json: bool,
) -> None:
    """Show the outcome of the job ID, and its result if that is kept.

    Standard output has the result as JSON and nothing else. The outcome of a job without a result is written to
    standard error. The exit status is 0 if the job succeeded, else 1.
    """
    from rq_core.app.app import App
    from rq_core.model.outcome import Gone, Succeeded

    with connect(redis_url, prefix) as client:
        where = known_queues(client, queue)
        found = queue or _queue_of(client, job_id, where)
    found = found or _queue_in_log(job_id, audit_url)
    if found is None:
        advice = (
            ", nor does the log have it"
            if audit_url
            else ". If it has ended, name its log: --audit"
        )
        raise click.ClickException(f"no queue has a job {job_id}, or keeps its result{advice}")
    with App(redis_url, audit_url, prefix=prefix) as app:
        outcome = app.handle_by_id(found, job_id).wait(seconds)
    word = type(outcome).__name__.lower()
    facts: dict[str, Any] = {k: v for k, v in asdict(outcome).items() if v not in ("", None)}
    if as_json:
        facts.pop("kept", None)
        facts |= {"value": outcome.value} if _has_value(outcome) else {}
        print_json({"outcome": word, "queue": found, **facts})
    elif _has_value(outcome):
        say(json.dumps(outcome.value, ensure_ascii=False))
    elif isinstance(outcome, Succeeded):
        say(
            f"succeeded; its result is not available ({reason_of(outcome.missing or '')})", err=True
        )
    else:
        error = getattr(outcome, "error", None)
        why = [getattr(outcome, "reason", ""), str(error or ""), getattr(outcome, "by", "")]
        because = (
            "neither Redis nor a log knows how it ended"
            if isinstance(outcome, Gone)
            else ", ".join(filter(None, why))
        )
        say(f"{word}: {because}" if because else word, err=True)
    if not isinstance(outcome, Succeeded):
        raise click.exceptions.Exit(1)


def _queue_of(client: Any, job_id: str, queues: list[str]) -> str | None:
    """Return the first of ``queues`` that has the job or its outcome; None if no queue does."""
    from rq_core.protocol.reads.result_reads import Absent

    for queue in queues:
        found = client.run(client.calls.endings.look(queue, [job_id])).get(job_id)
        if not isinstance(found, Absent) or found.known is not None:
            return queue
    return None


def _queue_in_log(job_id: str, audit_url: str | None) -> str | None:
    """Return the queue of the job's latest event in the audit log; None without a log or an event."""
    if audit_url is None:
        return None
    events = plugins.history_reader()(audit_url, job_id, None)
    return str(max(events, key=lambda event: event.at_ms).queue) if events else None


def _has_value(outcome: Any) -> bool:
    return getattr(outcome, "missing", "no value") is None
