"""``rq-core unique``: which jobs hold the names of a queue's unique jobs, and freeing such a name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import click

from rq_core.cli.inspect import document_of
from rq_core.cli.options import (
    actor,
    audited_options,
    connect,
    json_option,
    known_queues,
    limit_option,
    print_json,
    server_options,
    tell_damaged,
)
from rq_core.cli.text import print_table, say, span, utc
from rq_core.model.text import number_in

if TYPE_CHECKING:
    from rq_core.connections.client import Client
    from rq_core.protocol.unique import Held

FREE: Final = "free"
SHOWN_MAX: Final = 100_000


@click.command()
@click.argument("queue")
@click.argument("words", metavar="[NAME | free NAME]", nargs=-1)
@audited_options
@limit_option("names", SHOWN_MAX)
@server_options
@json_option
def unique(queue: str, words: tuple[str, ...], **given: Any) -> None:
    """List the names that stand in QUEUE, or NAME alone, and the jobs that took them.

    A unique job holds its name until it succeeds, dies, is cancelled or expires; a debounced one until its first claim;
    a throttled one until the instant that is shown. `rq-core cancel ID` ends a job and frees its name, unless that
    stands until an instant. `rq-core unique QUEUE free NAME` frees the name alone: the job lives on without it, so
    another job may take it and run beside the first.
    """
    frees = words[:1] == (FREE,)
    if len(words) != 2 if frees else len(words) > 1:
        raise click.UsageError("give a name, or: free NAME", click.get_current_context())
    if not frees and (given["reason"] or given["by"]):
        raise click.UsageError("--reason and --by go with free", click.get_current_context())
    with connect(given["redis_url"], given["prefix"]) as client:
        known_queues(client, queue)
        if frees:
            _free(client, queue, words[1], given)
            return
        limit = given["limit"]
        found = client.run(client.calls.names.held(queue, *words, limit=limit + 1))
    _show(queue, words, found[:limit], as_json=given["as_json"])
    if len(found) > limit and not given["as_json"]:
        say(f"{limit:,} of them; --limit shows more")


def _free(client: Client, queue: str, name: str, given: dict[str, Any]) -> None:
    by, why = actor(given["by"]), given["reason"]
    holder = client.run(client.calls.names.free(queue, [name], by=by, why=why))[name]
    if given["as_json"]:
        print_json({"name": name, "id": holder})
    elif holder is not None:
        say(f"{name} is free; job {holder} lives on without it")
    if holder is None:
        raise click.ClickException(f"no job of {queue} holds the name {name}")


def _show(queue: str, words: tuple[str, ...], found: list[Held], *, as_json: bool) -> None:
    if as_json:
        print_json(
            [
                {"name": each.name, "id": each.job_id, "until_ms": each.until_ms}
                | {"job": None if each.job is None else document_of(each.job)}
                for each in found
            ]
        )
        tell_damaged(each.damaged for each in found)
        return
    now_ms = time.time() * 1000
    print_table(
        ("name", "job", "state", "for", "until"),
        (
            (
                each.name,
                each.job_id,
                _state(each),
                _since(each, now_ms),
                "" if each.until_ms is None else utc(each.until_ms),
            )
            for each in found
        ),
        empty=f"no job of {queue} holds {f'the name {words[0]}' if words else 'a name'}",
        whole=("name", "job"),
    )
    tell_damaged(each.damaged for each in found)


def _state(held: Held) -> str:
    if held.job is not None:
        return str(held.job.state)
    return "?" if held.damaged else "gone"


def _since(held: Held, now_ms: float) -> str:
    if held.job is None:
        return ""
    since_ms = number_in(held.job.fields.get("since"))
    return "?" if since_ms is None else span(now_ms - since_ms)
