"""The command ``rq-core queue delete``."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from rq_core.cli.lazy import CommandGroup
from rq_core.cli.options import (
    actor,
    audited_options,
    connect,
    json_option,
    known_queues,
    print_json,
    server_options,
    wait_option,
)
from rq_core.cli.text import say
from rq_core.errors import QueueInUse
from rq_core.model.lib.text import counted

if TYPE_CHECKING:
    from rq_core.connections.client import Client

LOOK_EVERY_S: Final = 0.1
"""Seconds between two attempts to delete a queue while the mirror must still copy its events."""
TELL_AFTER_S: Final = 0.5
"""Seconds after which the command says that it waits for the mirror. A running mirror is usually faster."""


@click.group(cls=CommandGroup)
def queue() -> None:
    """Delete a queue."""


@queue.command()
@click.argument("name", metavar="QUEUE")
@click.option(
    "--force",
    is_flag=True,
    help="First cancel waiting jobs and remove dead jobs (needs --reason); delete the queue even if workers work"
    " for it.",
)
@wait_option(60.0, "How long to wait until the mirror has copied the event.")
@audited_options
@server_options
@json_option
def delete(name: str, *, force: bool, wait_s: float, as_json: bool, **given: Any) -> None:
    """Delete QUEUE from Redis: its keys, its settings, its caps, and its name in the list of queues.

    The queue must have no jobs, and no worker may work for it; a running job prevents the deletion even with --force.
    The log keeps the queue's history, with the operator and the reason of the deletion. A job that is enqueued
    afterwards creates a new queue of that name.
    """
    if force and not given["reason"]:
        must = "--force needs --reason: the log says why the jobs were removed"
        raise click.UsageError(must, click.get_current_context())
    by, why = actor(given["by"]), given["reason"]
    with connect(given["redis_url"], given["prefix"]) as client:
        known_queues(client, name)
        removed = 0
        if force:
            claims = client.run(client.calls.deletion.claims(name))
            if claims:
                raise QueueInUse(queue=name, jobs=f"at least {claims}", claims=claims)
            removed = client.run(client.calls.deletion.empty(name, by=by, why=why))
        else:
            _refuse_while_worked_for(client, name)
        _delete(client, name, by=by, why=why, wait_s=wait_s)
    if as_json:
        print_json({"queue": name, "outcome": "deleted", "jobs_removed": removed})
    else:
        say(f"{name} deleted" + (f", with {counted(removed, 'job')}" if removed else ""))


def _refuse_while_worked_for(client: Client, name: str) -> None:
    found, _ = client.run(client.calls.reads.looks([name]))
    workers = [each.worker for queue in found for each in queue.present]
    if workers:
        raise click.ClickException(
            f"{counted(len(workers), 'worker works', 'workers work')} for {name} and would make it again: stop"
            f" {'it' if len(workers) == 1 else 'them'} first"
            f" (`rq-core workers -q {name}` shows them), or give --force"
        )


def _delete(client: Client, name: str, *, by: str, why: str, wait_s: float) -> None:
    from rq_core.protocol.calls.admin import WAITS

    begun, is_told = time.monotonic(), False
    while client.run(client.calls.deletion.delete(name, by=by, why=why)) == WAITS:
        waited = time.monotonic() - begun
        if waited >= wait_s:
            raise click.ClickException(
                f"{name} is not deleted: the mirror has not copied its last event within {wait_s:g} s. Start `rq-core"
                f" audit run`, or switch its log off with `rq-core audit off {name}`; then run this again"
            )
        if waited >= TELL_AFTER_S and not is_told:
            say(f"rq-core: waits up to {wait_s:g} s for the mirror", err=True)
            is_told = True
        time.sleep(LOOK_EVERY_S)
