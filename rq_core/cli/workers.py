"""``rq-core workers``."""

from __future__ import annotations

import dataclasses
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
from rq_core.cli.text import one_line, print_table, say, span

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rq_core.protocol.overview import QueueOverview
    from rq_core.protocol.presence import PresentWorker


@click.command()
@queue_option
@server_options
@json_option
@click.pass_context
def workers(
    ctx: click.Context, queue: str | None, redis_url: str, prefix: str, *, as_json: bool
) -> None:
    """Show the workers that work for the queues, busy or idle, and which code each runs.

    Workers with the same code have tasks of the same names and handlers. A worker that was killed is
    shown as silent for an hour. The exit status is 1 if a queue cannot be read.
    """
    with connect(redis_url, prefix) as client:
        queues = known_queues(client, *([queue] if queue is not None else []))
        found, unreadable = client.run(client.calls.reads.looks(queues))
    rows = workers_of(found)
    if as_json:
        print_json([document_of(each) for each in rows])
    else:
        empty = "no worker runs in the other queues" if unreadable else "no worker runs"
        print_workers(rows, empty=empty if found or not unreadable else "")
        if not all(each.workers_exact for each in found):
            say("the queue has more workers than are read at once: not all are listed")
    for name, why in unreadable.items():
        say(f"rq-core: queue {name} cannot be read: {one_line(why)}", err=True)
    ctx.exit(1 if unreadable else 0)


def workers_of(found: Iterable[QueueOverview]) -> list[PresentWorker]:
    """Return the workers of these queues by host and name, each once."""
    rows = {each.worker: each for queue in found for each in queue.workers}
    return sorted(rows.values(), key=lambda each: (each.says.host, each.worker))


def document_of(found: PresentWorker) -> dict[str, Any]:
    """Return a worker as the JSON of the command line has it."""
    return {
        "worker": found.worker,
        **dataclasses.asdict(found.says),
        "silent_ms": found.silent_ms,
        "gone": found.gone,
    }


def print_workers(rows: list[PresentWorker], *, empty: str = "no worker runs") -> None:
    """Print the table, and a sentence if their code or versions differ."""
    now_ms = time.time() * 1000
    print_table(
        ("worker", "host", "pid", "queues", "busy", "places", "code", "version", "since", ""),
        (
            (
                each.worker,
                each.says.host,
                str(each.says.pid),
                ",".join(each.says.queues),
                each.says.busy,
                each.says.places,
                each.says.code,
                each.says.version,
                span(now_ms - each.says.since_ms) if each.says.since_ms else "-",
                f"silent for {span(each.silent_ms)}" if each.gone else "",
            )
            for each in rows
        ),
        empty=empty,
        drop=("version", "since", "pid", "places", "code", "busy", "host"),
    )
    present = [each for each in rows if not each.gone]
    if skew := skew_of(present):
        say(skew)


def skew_of(present: list[PresentWorker]) -> str:
    """Return a sentence about workers of one queue with different code or versions; empty if there are none."""
    codes: dict[str, set[tuple[str, str]]] = {}
    for each in present:
        for queue in each.says.queues:
            codes.setdefault(queue, set()).add((each.says.version, each.says.code))
    mixed = sorted(queue for queue, found in codes.items() if len(found) > 1)
    return (
        f"workers run different code or versions of rq-core in {', '.join(mixed)}" if mixed else ""
    )
