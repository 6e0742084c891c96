"""``rq-core unique``: which jobs hold the names of a queue's unique jobs."""

from __future__ import annotations

import time

import click

from rq_core.cli.inspect import document_of
from rq_core.cli.options import connect, json_option, known_queues, print_json, server_options
from rq_core.cli.text import print_table, span


@click.command()
@click.argument("queue")
@click.argument("name", required=False)
@server_options
@json_option
def unique(queue: str, name: str | None, redis_url: str, prefix: str, *, as_json: bool) -> None:
    """List the names that unique jobs of QUEUE hold, or say who holds NAME.

    A job holds its name until it succeeds, dies, is cancelled or expires. `rq-core cancel ID` frees it.
    """
    with connect(redis_url, prefix) as client:
        known_queues(client, queue)
        found = client.run(client.calls.names.held(queue, name))
    if as_json:
        print_json(
            [
                {"name": each.name, "id": each.job_id}
                | {"job": None if each.job is None else document_of(each.job)}
                for each in found
            ]
        )
        return
    now_ms = time.time() * 1000
    print_table(
        ("name", "job", "state", "for"),
        (
            (
                each.name,
                each.job_id,
                "gone" if each.job is None else str(each.job.state),
                "" if each.job is None else span(now_ms - int(each.job.fields["since"])),
            )
            for each in found
        ),
        empty=f"no job of {queue} holds {'a name' if name is None else f'the name {name}'}",
        whole=("name", "job"),
    )
