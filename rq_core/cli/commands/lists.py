"""The commands ``queues``, ``workers``, ``jobs``, ``dead``, ``unique`` and ``caps``. Each prints a list.

:data:`rq_core.views.lists.LISTS` describes the lists.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Any, Final

import click

from rq_core.cli.options import (
    LIST_MAX,
    actor,
    audit_url_option,
    audited_options,
    connect,
    json_option,
    known_queues,
    limit_option,
    pauses_in_log,
    print_json,
    queue_option,
    server_options,
    tell_denied,
)
from rq_core.cli.text import print_records, print_table, say
from rq_core.model.table.machine import State
from rq_core.views.lists import LISTS
from rq_core.views.scopes import not_open, with_pauses

if TYPE_CHECKING:
    from rq_core.connections.client import Client
    from rq_core.views.table import Found, ListView

JOBS_MAX: Final = 10_000
"""Maximum number of jobs that `rq-core jobs` lists."""
NAMES_MAX: Final = 100_000
"""Maximum number of names that `rq-core unique` lists."""
FREE: Final = "free"
"""The word that frees a unique name, in `rq-core unique QUEUE free NAME`."""


def show(view: ListView[Any], found: Found[Any], *, as_json: bool) -> None:
    """Print the rows of a list. On standard error, say why rows could not be read.

    Raises Exit with status 1 if some rows could not be read.
    """
    if as_json:
        print_json([view.document(row) for row in found.rows])
    else:
        now_ms = time.time() * 1000
        rows = [view.cells(row, now_ms) for row in found.rows]
        if view.prose:
            print_records([*view.columns], rows, empty=found.empty, whole=view.whole)
        else:
            print_table([*view.columns], rows, empty=found.empty, whole=view.whole, drop=view.drop)
        for note in found.notes:
            say(note)
    for why in dict.fromkeys(found.unread):
        say(f"rq-core: {why}", err=True)
    tell_denied(found.denied)
    if found.unread:
        raise click.exceptions.Exit(1)


@click.command()
@server_options
@json_option
def queues(redis_url: str, prefix: str, *, as_json: bool) -> None:
    """Show the queues, their numbers of jobs, and how long the oldest ready job that a worker could take has waited.

    Ready jobs include jobs that wait for a cap. The sign >= means that an older job may exist.
    """
    view = LISTS["queues"]
    with connect(redis_url, prefix) as client:
        found = client.run(view.query(client.calls))
    show(view, found, as_json=as_json)


@click.command()
@queue_option
@server_options
@json_option
def workers(queue: str | None, redis_url: str, prefix: str, *, as_json: bool) -> None:
    """Show the workers of the queues, busy or idle, and which code each runs.

    Workers with the same code have tasks of the same names and handlers. For an hour, a killed worker stays in the list
    and is called silent. The exit status is 1 if a queue cannot be read.
    """
    view = LISTS["workers"]
    with connect(redis_url, prefix) as client:
        queues = known_queues(client, queue)
        found = client.run(view.query(client.calls, queues))
    show(view, found, as_json=as_json)


listed_queue_argument = click.argument("queue", required=False)


def _queue_of(client: Client, given: str | None) -> str:
    """Return the queue that the operator gave, or the server's only queue.

    Raises UnknownQueue. Raises ClickException if the server has no queue, UsageError if it has several.
    """
    known = known_queues(client, given)
    if len(known) == 1:
        return known[0]
    if not known:
        raise click.ClickException("this server has no queue")
    context = click.get_current_context()
    raise click.UsageError(f"give a queue: this server has {', '.join(known)}", context)


def _show_of_queue(name: str, given: dict[str, Any], *asked: Any) -> None:
    """Print the list with the name ``name`` for one queue. ``asked``: further arguments of the list's query."""
    view = LISTS[name]
    with connect(given["redis_url"], given["prefix"]) as client:
        queue = _queue_of(client, given["queue"])
        found = client.run(view.query(client.calls, queue, *asked, given["limit"]))
    show(view, found, as_json=given["as_json"])


@click.command()
@listed_queue_argument
@click.option(
    "--state",
    "states",
    type=click.Choice([str(state) for state in State]),
    multiple=True,
    help="List only jobs in this state; may be given several times. By default all states but dead.",
)
@click.option("--task", metavar="NAME", help="List only jobs of this task.")
@limit_option("jobs", JOBS_MAX)
@server_options
@json_option
def jobs(states: tuple[str, ...], task: str | None, **given: Any) -> None:
    """List the jobs of QUEUE that run, wait, or are scheduled, and mark jobs whose task no live worker has.

    Running jobs come first, then ready jobs, then scheduled jobs. A job whose state changes while the list is
    read may be missing. Without QUEUE, the server must have only one queue.
    """
    _show_of_queue("jobs", given, [State(state) for state in states], task)


@click.command()
@listed_queue_argument
@limit_option("jobs", LIST_MAX)
@server_options
@json_option
def dead(**given: Any) -> None:
    """Show the jobs of QUEUE that died last, and why, newest first.

    The reason says why rq-core gave the job up. The error is the last exception of the job's handler, with file and
    line. Without QUEUE, the server must have only one queue.
    """
    _show_of_queue("dead", given)


@click.command()
@listed_queue_argument
@limit_option("scopes")
@audit_url_option("The audit database: adds who or what paused a scope, and after which failures.")
@server_options
@json_option
def caps(**given: Any) -> None:
    """Show the limits of QUEUE's jobs: how many jobs hold each scope, and how many wait for it.

    Scopes with a limit of their own come first, then the keys that jobs hold or wait for, then the
    weights of a fair queue. Without QUEUE, the server must have only one queue.
    """
    view = LISTS["caps"]
    with connect(given["redis_url"], given["prefix"]) as client:
        queue = _queue_of(client, given["queue"])
        found = client.run(view.query(client.calls, queue, given["limit"]))
    pauses = pauses_in_log(given["audit_url"], queue, not_open(found.rows))
    found = dataclasses.replace(found, rows=with_pauses(found.rows, pauses))
    show(view, found, as_json=given["as_json"])


@click.command()
@listed_queue_argument
@click.argument("words", metavar="[NAME | free NAME]", nargs=-1)
@audited_options
@limit_option("names", NAMES_MAX)
@server_options
@json_option
def unique(words: tuple[str, ...], **given: Any) -> None:
    """List the unique names that jobs hold in QUEUE, or NAME alone, each with the job that took it.

    A unique job holds its name until it succeeds, dies, is cancelled or expires; a debounced job until its first claim;
    a throttled job until the time in the list. `rq-core cancel ID` ends a job and frees its name, unless the name is
    held until a time. `rq-core unique QUEUE free NAME` frees only the name: the job continues without the name, so
    another job may take the name and run beside the first.
    """
    frees = words[:1] == (FREE,)
    if len(words) != 2 if frees else len(words) > 1:
        raise click.UsageError("give a name, or: free NAME", click.get_current_context())
    if not frees and (given["reason"] or given["by"]):
        raise click.UsageError("--reason and --by go with free", click.get_current_context())
    if frees:
        with connect(given["redis_url"], given["prefix"]) as client:
            known_queues(client, given["queue"])
            _free(client, words[1], given)
    else:
        _show_of_queue("unique", given, words[0] if words else None)


def _free(client: Client, name: str, given: dict[str, Any]) -> None:
    queue, by, why = given["queue"], actor(given["by"]), given["reason"]
    holder = client.run(client.calls.names.free(queue, [name], by=by, why=why))[name]
    if given["as_json"]:
        print_json({"name": name, "id": holder})
    elif holder is not None:
        say(f"{name} is free; job {holder} lives on without it")
    if holder is None:
        raise click.ClickException(f"no job of {queue} holds the name {name}")
