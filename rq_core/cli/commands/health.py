"""The command ``rq-core health``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rq_core.cli.options import json_option, print_json, queue_option
from rq_core.cli.text import print_table

if TYPE_CHECKING:
    from rq_core.process.health import WorkerHealth


@click.command()
@click.option(
    "--max-age",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Most seconds since a worker's last claim.  [default: 30]",
)
@queue_option
@json_option
@click.pass_context
def health(ctx: click.Context, max_age: float | None, queue: str | None, *, as_json: bool) -> None:
    """Check whether your workers on this machine work: show how long ago Redis last answered a claim of each worker.

    The list has workers of all servers and queues; --queue chooses the workers of one queue. The exit status is 0 if a
    worker runs, each worker has claimed within --max-age seconds, and no worker is stopped (SIGSTOP); else 1.
    """
    from rq_core.process.health import AGE_S_MAX, local_workers, verdict

    found = [each for each in local_workers() if queue is None or queue in each.queues]
    healthy, report = verdict(found, AGE_S_MAX if max_age is None else max_age)
    if as_json:
        print_json(report)
    else:
        print_table(
            ("worker", "pid", "queues", "server", "last claim", ""),
            (
                (
                    w.worker,
                    str(w.pid),
                    ",".join(w.queues),
                    w.server,
                    f"{w.age_s:g} s ago",
                    _trouble(w),
                )
                for w in found
            ),
            empty="no worker runs here" if queue is None else f"no worker of {queue} runs here",
            drop=("pid", "worker"),
        )
    ctx.exit(0 if healthy else 1)


def _trouble(worker: WorkerHealth) -> str:
    return f"stopped: kill -CONT {worker.pid}" if worker.stopped else ""
