"""The commands of the relay: ``inbox run``, ``status``, ``parked``, ``retry``, ``drop``, ``settle`` and ``verify``."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from rq_core.cli.options import (
    audit_url_option,
    json_option,
    print_json,
    queue_option,
    server_options,
)
from rq_core.cli.places import inbox_alias, inbox_argument, of_inbox
from rq_core.cli.text import print_records, print_table, say
from rq_core.errors import RqCoreError
from rq_core.model.lib.text import counted
from rq_core.model.lib.url import INBOX_URL_VARIABLE, REDIS_URL_VARIABLE
from sql_audit.cli.mirror import stop_on_signals, stop_with_stdin
from sql_audit.cli.options import asking

if TYPE_CHECKING:
    from sql_audit.inbox.admin import QueueState
    from sql_audit.inbox.session import Session

url_argument = click.argument("url", envvar=INBOX_URL_VARIABLE, callback=inbox_argument)
jobs_argument = click.argument("jobs", nargs=-1, metavar="[JOB]…")
all_option = click.option("--all", "all_rows", is_flag=True, help="All parked rows.")


@contextlib.contextmanager
def _session(url: str, *, writes: bool = False) -> Iterator[Session]:
    from sql_audit.inbox.session import Session, require_tables

    with contextlib.closing(Session(url, writes=writes)) as session:
        try:
            require_tables(session)
        except RqCoreError as error:
            raise of_inbox(inbox_alias(click.get_current_context()), error) from error
        yield session


@click.command("run")
@url_argument
@server_options
@click.option("--once", is_flag=True, help="Hand over the present rows, then exit.")
@click.option(
    "--until-stdin-ends",
    is_flag=True,
    hidden=True,
    help="Stop when standard input ends, which also happens when the parent process ends.",
)
def run_command(
    url: str, redis_url: str, prefix: str, *, once: bool, until_stdin_ends: bool
) -> None:
    """Hand over the jobs of the inbox in the database URL until stopped. Several relays may run at once."""
    from rq_core.model.lib import logs
    from sql_audit.inbox.service import run_relay
    from sql_audit.mirror.service import rare_collections

    logs.configure()
    with stop_on_signals() as stop, rare_collections():
        if until_stdin_ends:
            stop_with_stdin(stop)
        run_relay(redis_url, prefix, url, stop=stop, once=once)


def relay_command_line(
    redis_url: str, prefix: str, inbox_url: str, _made: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """Return the command by which a supervisor of workers starts a relay, and its environment variables.

    A relay hands jobs from an inbox (tables in the user's database) over to Redis. See
    rq_core.model.plugins.CompanionCommand.
    """
    program = [sys.executable, "-m", "rq_core.cli", "inbox", "run", "--until-stdin-ends"]
    return [*program, "--prefix", prefix], {
        REDIS_URL_VARIABLE: redis_url,
        INBOX_URL_VARIABLE: inbox_url,
    }


@click.command()
@url_argument
@json_option
def status(url: str, *, as_json: bool) -> None:
    """Show the rows of each queue that are not handed over yet, the parked ones, and the counts.

    The exit status is 1 if the state of a queue cannot be read.
    """
    from sql_audit.inbox.admin import states

    with _session(url) as session:
        found = states(session)
    if as_json:
        print_json([dataclasses.asdict(each) for each in found])
    else:
        _print_states(found)
    damaged = [each.damage for each in found if each.damage is not None]
    for damage in damaged:
        say(f"rq-core: {damage}", err=True)
    if damaged:
        raise click.exceptions.Exit(1)


def _print_states(found: Sequence[QueueState]) -> None:
    print_table(
        ("queue", "rows", "oldest s", "parked", "relayed", "held", "duplicate", "on its way s"),
        [
            (
                *(each.queue, each.rows, _seconds(each.oldest_ms), each.parked, each.relayed),
                *(each.held, each.duplicate, _seconds(each.sent_ms)),
            )
            for each in found
        ],
        empty="the inbox is empty, and no row was ever handed over",
    )


def _seconds(ms: int | None) -> str:
    return "-" if ms is None else f"{ms / 1000:.1f}"


@click.command()
@url_argument
@queue_option
@click.option("-n", "most", type=click.IntRange(1, 100_000), default=20, help="Number of rows.")
@json_option
def parked(url: str, queue: str | None, most: int, *, as_json: bool) -> None:
    """List the parked rows, which could not become jobs, newest first, each with the reason."""
    from sql_audit.inbox.admin import parked_rows

    with _session(url) as session:
        rows = parked_rows(session, queue=queue, most=most)
    if as_json:
        print_json(rows)
        return
    print_records(
        ("job", "queue", "task", "parked at", "why"),
        [(row["job_id"], row["queue"], row["task"], row["parked_at"], row["why"]) for row in rows],
        empty="no row is parked",
    )


@click.command()
@url_argument
@jobs_argument
@queue_option
@all_option
@json_option
def retry(
    url: str, jobs: Sequence[str], queue: str | None, *, all_rows: bool, as_json: bool
) -> None:
    """Put parked rows back into the inbox, where a relay tries them again. Rows are named by the ids of their jobs."""
    from sql_audit.inbox.admin import retry_rows

    _change(retry_rows, "put back", url, jobs, queue, all_rows=all_rows, as_json=as_json)


@click.command("drop")
@url_argument
@jobs_argument
@queue_option
@all_option
@json_option
def drop_command(
    url: str, jobs: Sequence[str], queue: str | None, *, all_rows: bool, as_json: bool
) -> None:
    """Delete parked rows. Rows are named by the ids of their jobs."""
    from sql_audit.inbox.admin import drop_rows

    _change(drop_rows, "deleted", url, jobs, queue, all_rows=all_rows, as_json=as_json)


def _change(
    does: Callable[..., list[str]],
    done: str,
    url: str,
    jobs: Sequence[str],
    queue: str | None,
    *,
    all_rows: bool,
    as_json: bool,
) -> None:
    if bool(jobs) == all_rows:
        raise click.UsageError("name jobs, or give --all, but not both")
    with _session(url, writes=True) as session:
        ids = does(session, jobs, queue=queue)
    if as_json:
        print_json(ids)
    else:
        say(f"{counted(len(ids), 'row')} {done}")
    missing = sorted(set(jobs) - set(ids))
    if missing:
        say(f"not {done}: {', '.join(missing)}", err=True)
        raise click.exceptions.Exit(1)


@click.command()
@url_argument
@click.option("--copy", "is_copy", is_flag=True, help="The database is a copy.")
@click.option("--moved", is_flag=True, help="The database was moved here, or restored.")
@click.option(
    "--same-place",
    is_flag=True,
    help="With --copy: a whole server or disk was copied, so the place is the same.",
)
def settle(url: str, *, is_copy: bool, moved: bool, same_place: bool) -> None:
    """Say whether a database that is in another place than before is a copy, or was moved.

    A copy becomes an inbox of its own, and its rows are parked, since the original hands them over. So --copy is
    refused where the inbox has always been. After a move, no relay may still use the old database.
    """
    if is_copy == moved or (same_place and moved):
        raise click.UsageError("give --copy or --moved; --same-place goes with --copy")
    from sql_audit.inbox import place

    with _session(url, writes=True) as session:
        done = (
            place.fork_inbox(session, same_place=same_place)
            if is_copy
            else place.move_inbox(session)
        )
        says = f", {counted(done.parked, 'row')} parked" if is_copy else ""
        say(f"{session.url}: inbox {done.inbox_id} is at {done.place}{says}")


@click.command()
@url_argument
@audit_url_option("The database with the log.")
@json_option
def verify(url: str, audit_url: str | None, *, as_json: bool) -> None:
    """Compare the count of rows that were handed over with the events of this inbox in the audit log.

    The exit status is 1 if the two numbers differ.
    """
    from sql_audit.inbox.verify import compare_with_log

    with _session(url) as session, asking(audit_url) as log:
        found = compare_with_log(session, log)
    if as_json:
        print_json([dataclasses.asdict(each) for each in found])
    for each in found if not as_json else ():
        says = each.finding or "as many"
        say(f"queue {each.queue}: {each.relayed} rows, {each.events} events: {says}")
        for note in each.notes:
            say(f"queue {each.queue}: {note}")
    if any(each.finding for each in found):
        raise click.exceptions.Exit(1)
