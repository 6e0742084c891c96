"""The command ``replay``, which enqueues copies of jobs that died."""

from __future__ import annotations

import json
import time
from typing import Any, Final

import click

from rq_core.cli.filters import PROGRESS_S, filter_of
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
from rq_core.model.lib.text import counted

_NO_TERMS: Final = {"state": None, "older": None}


@click.command()
@queue_option
@click.option("--task", metavar="NAME", help="Jobs of this task.")
@click.option("--error", metavar="TYPE", help="Jobs that died of an error of this type.")
@click.option("--scope", metavar="SCOPE", help="Jobs of this scope, like tenant=acme.")
@click.option(
    "--since", metavar="TIME", help="Jobs that died at this time or later, like 11:00 (UTC)."
)
@click.option("--until", metavar="TIME", help="Jobs that died before this time, like '10m ago'.")
@click.option(
    "--header", multiple=True, metavar="NAME=VALUE", help="Jobs with this header; may be repeated."
)
@click.option(
    "--arg", multiple=True, metavar="NAME=VALUE", help="Jobs with this argument; may be repeated."
)
@click.option(
    "--where", metavar="FILTER", help="Further terms, like 'worker:w-1', as in the search box."
)
@click.option("--json-args", metavar="JSON", help="Arguments that the copies have instead.")
@click.option(
    "--name",
    metavar="NAME",
    help="The name of the replay; by default one that is made of --json-args. A job is copied once for each name.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Enqueue at most N copies.")
@click.option("--dry-run", is_flag=True, help="Enqueue nothing, and count the jobs.")
@click.option(
    "--yes",
    type=click.IntRange(0),
    metavar="N",
    help="Enqueue the copies, if they are N, as --dry-run has counted.",
)
@audit_url_option("The audit database.")
@server_options
@json_option
def replay(
    queue: str | None,
    audit_url: str | None,
    json_args: str | None,
    name: str | None,
    limit: int | None,
    yes: int | None,
    *,
    dry_run: bool,
    as_json: bool,
    redis_url: str,
    prefix: str,
    **asked: Any,
) -> None:
    """Enqueue a copy of each job that died and matches, by the audit log.

    The id of a copy is the id of the job and the name of the replay, so no job is copied twice, however often the
    command runs. Its arguments come from Redis, or from a log that keeps them. It has the options that the workers
    registered for its task.
    """
    from rq_core.app.app import App

    context = click.get_current_context()
    if dry_run == (yes is not None):
        raise click.UsageError(
            "give either --dry-run, or --yes with the number that it counted", context
        )
    which = filter_of(queue, {**_NO_TERMS, **asked})
    args = _args_of(json_args)
    with connect(redis_url, prefix) as client:
        known_queues(client, which.queue)
    said_at = time.monotonic()

    def progress(matched: int, copied: int) -> None:
        nonlocal said_at
        if time.monotonic() - said_at >= PROGRESS_S:
            said_at = time.monotonic()
            say(f"rq-core: {matched:,} match, {copied:,} copied", err=True)

    with App(redis_url, audit_url, prefix=prefix) as app:
        made = app.replay(which, args=args, name=name, limit=limit, dry_run=True)
        if yes is not None:
            there = made.copied + made.outcomes.get("copied before", 0)
            if yes not in (made.copied, there):
                raise click.ClickException(
                    f"{counted(made.copied, 'job')} would be copied, not {yes:,}: look again with --dry-run"
                )
            made = app.replay(which, args=args, name=name, limit=limit, progress=progress)
    if as_json:
        print_json(
            {"name": made.name, "filter": str(which), "dry_run": dry_run, "matched": made.matched}
            | {"copied": made.copied, "outcomes": made.outcomes}
        )
        return
    others = [f"{n:,} {word}" for word, n in sorted(made.outcomes.items()) if word != "copied"]
    done = "to copy" if dry_run else "copied"
    left = f"; left out: {', '.join(others)}" if others else ""
    say(f"{counted(made.copied, 'job')} {done}, as ID.r{made.name}{left}")


def _args_of(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.UsageError("--json-args must be a JSON object")
    return found
