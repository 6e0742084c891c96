"""``rq-core audit …``: run the mirror, and ask the log. Plugged into ``rq-core`` as
``rq_core.plugins``.

What is slow to import (SQLAlchemy, rich) is imported by the command that needs it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

import click

from rq_core.cli.options import force_option
from rq_core.cli.root import one_line
from rq_core.errors import RqCoreError
from rq_core.keys import DEFAULT_PREFIX

if TYPE_CHECKING:
    from rich.console import Console
    from sqlalchemy import Engine

    from sql_audit.database import Database
    from sql_audit.queries import LoggedEvent, Report, Watermark
    from sql_audit.restore import Applied, LostJob
    from sql_audit.verify import Result, Verdict

FOLLOW_S: Final = 0.5
"""Seconds between two looks of ``audit tail --follow``."""

F = TypeVar("F", bound=Callable[..., Any])

audit_option = click.option(
    "--audit",
    "url",
    envvar="RQ_CORE_AUDIT_URL",
    show_envvar=True,
    metavar="URL",
    help="The audit database: a path, sqlite:///path or postgresql://user@host/database.",
)
redis_option = click.option(
    "--redis",
    "redis_url",
    envvar="RQ_CORE_REDIS_URL",
    default="redis://localhost:6379/0",
    show_envvar=True,
    show_default=True,
    metavar="URL",
    help="The Redis or Valkey server; embedded:// for the one that comes with rq-core.",
)
prefix_option = click.option(
    "--prefix", default=DEFAULT_PREFIX, show_default=True, help="What the queue's keys begin with."
)
queue_option = click.option("--queue", "-q", default=None, help="Only this queue.")
json_option = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document, for programs."
)


@contextlib.contextmanager
def _one_line(status: int = 1) -> Iterator[None]:
    """Errors become one line on standard error and a non-zero exit."""
    try:
        yield
    except RqCoreError as error:
        _fail(str(error), status)
    except BrokenPipeError:
        # Whoever read our output has gone; there is nobody left to tell.
        sys.stderr.close()
        raise SystemExit(1) from None
    except Exception as error:
        from sqlalchemy.exc import SQLAlchemyError

        if not isinstance(error, SQLAlchemyError):
            raise
        from sql_audit.database import describe

        _fail(f"the audit database refuses: {describe(error)}", status)


def _fail(message: str, status: int = 1) -> NoReturn:
    click.echo(f"rq-core: {one_line(message)}", err=True)
    raise SystemExit(status)


def _required(url: str | None, status: int = 1) -> str:
    if not url:
        _fail("no audit database: pass --audit URL or set RQ_CORE_AUDIT_URL", status)
    return url


@contextlib.contextmanager
def _current(url: str | None, status: int = 1) -> Iterator[Database]:
    """A database whose schema is current."""
    address = _required(url, status)
    with _one_line(status):
        from sql_audit import migrate
        from sql_audit.database import Database

        database = Database(address)
        try:
            migrate.check_current(database)
            yield database
        finally:
            database.close()


@contextlib.contextmanager
def _asking(url: str | None) -> Iterator[Engine]:
    """A reading engine of a database whose schema is current."""
    with _current(url) as database:
        yield database.readers


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set; their handlers come back afterwards."""
    stop = threading.Event()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_with_stdin(stop: threading.Event) -> None:
    def wait() -> None:
        # Not through sys.stdin, whose lock this thread would hold while Python shuts down.
        while os.read(0, 4096):
            pass
        stop.set()

    threading.Thread(target=wait, name="rq-core-stdin", daemon=True).start()


@click.group()
def audit() -> None:
    """The audit log in SQL: mirror it, and ask it."""


@audit.command()
@audit_option
@redis_option
@prefix_option
@click.option("--queue", "-q", "queues", multiple=True, help="Only this queue; may be repeated.")
@click.option("--once", is_flag=True, help="Mirror what is there, then exit.")
@click.option(
    "--until-stdin-ends",
    is_flag=True,
    hidden=True,
    help="Stop when standard input ends, as it does when whoever started this is gone.",
)
@force_option
@json_option
def run(
    url: str | None,
    redis_url: str,
    prefix: str,
    queues: Sequence[str],
    once: bool,
    until_stdin_ends: bool,
    as_json: bool,
) -> None:
    """Mirror the queues' events into SQL until stopped. Creates the tables in a new database."""
    address = _required(url)
    with _one_line():
        from rq_core import logs
        from sql_audit.run import rare_collections
        from sql_audit.run import run as mirror
        from sql_audit.source import open_source

        if not as_json:
            logs.configure()
            # It says on every start which database it saw.
            logging.getLogger("alembic").setLevel(logging.WARNING)
        with (
            contextlib.closing(open_source(redis_url, prefix)) as source,
            _stop_on_signals() as stop,
            rare_collections(),
        ):
            if until_stdin_ends:
                _stop_with_stdin(stop)
            else:
                _check_server(redis_url, prefix)
            done = mirror(source, address, stop=stop, queues=queues or None, once=once)
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(done)))
    else:
        click.echo(f"mirrored {done.events} events in {done.entries} entries")


def _check_server(redis_url: str, prefix: str) -> None:
    """Say what is to be said of a server that is there; one that is away is waited for."""
    from rq_core import suitability
    from rq_core.client import Client
    from rq_core.errors import ServerUnavailable
    from rq_core.plans import Patience

    with (
        Client(redis_url, prefix=prefix, name="audit", patience=Patience(unsent=0)) as client,
        contextlib.suppress(ServerUnavailable),
    ):
        suitability.warn(client.run(suitability.check(client.operations)))


@audit.command()
@audit_option
@redis_option
@prefix_option
@click.option("--force", is_flag=True, help="Whichever database has it, for one that is lost.")
@click.argument("queue")
def off(url: str | None, redis_url: str, prefix: str, queue: str, *, force: bool) -> None:
    """Give QUEUE's audit trail up: its events are no longer kept for SQL."""
    address = None if force else _required(url)
    with _one_line():
        from rq_core.client import Client
        from rq_core.errors import UnknownQueue
        from sql_audit.database import Database
        from sql_audit.queries import audit_id

        with Client(redis_url, prefix=prefix, name="audit") as client:
            known = client.queues()
            if queue not in known:
                raise UnknownQueue(queue=queue, known=", ".join(known) or "none")
            if address is None:
                holder = client.handshake(queue).audit_id or "none"
            else:
                database = Database(address)
                try:
                    holder = audit_id(database)
                finally:
                    database.close()
            client.detach(queue, holder)
    click.echo(f"queue {queue}: audit off")


@audit.command()
@audit_option
@json_option
def migrate(url: str | None, as_json: bool) -> None:
    """Create the tables, or bring them to this release's schema."""
    address = _required(url)
    with _one_line():
        from sql_audit.database import Database
        from sql_audit.migrate import upgrade

        database = Database(address)
        try:
            version = upgrade(database)
            shown = database.url
        finally:
            database.close()
    click.echo(
        json.dumps({"url": shown, "schema": version}) if as_json else f"{shown}: schema {version}"
    )


@audit.command()
@click.argument("job")
@audit_option
@queue_option
@json_option
def history(job: str, url: str | None, queue: str | None, as_json: bool) -> None:
    """Everything that happened to JOB, oldest first."""
    with _asking(url) as engine:
        from sql_audit import queries

        events = queries.history(engine, job, queue)
        queues = {event.queue for event in events}
        marks = [mark for mark in queries.watermarks(engine, queue) if mark.queue in queues]
        cuts = queries.cut_short(engine, events)
    if as_json:
        pruned = [dataclasses.asdict(cut) for cut in cuts]
        _print_json({"events": [_event_json(e) for e in events], "pruned": pruned}, marks)
        return
    console = _console()
    console.print(_event_table(events, f"job {job}"))
    for cut in cuts:
        console.print(f"not all may be told: {cut.says}", markup=False)
    _print_marks(console, marks)


@audit.command()
@audit_option
@queue_option
@click.option(
    "--slowest",
    type=click.IntRange(0),
    default=5,
    show_default=True,
    help="How many of the slowest jobs to name.",
)
@json_option
def report(url: str | None, queue: str | None, slowest: int, as_json: bool) -> None:
    """Per queue and task: jobs, claims, retries, deaths, times and throughput."""
    with _asking(url) as engine:
        from sql_audit import queries

        answer = queries.report(engine, queue, slowest)
        if not answer.watermarks:
            _unknown_queue(engine, queue)
    if as_json:
        document = dataclasses.asdict(answer)
        del document["watermarks"]
        _print_json(document, answer.watermarks)
        return
    print_report(answer)


class _Moment(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A time as people write it, as Unix ms: ``2026-11-21 10:00`` (UTC, if no zone is given)."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from datetime import UTC, datetime

        text = str(value)
        if text.isascii() and text.isdigit():
            return int(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"{text!r} is no time: write 2026-11-21 10:00, or Unix ms", param, ctx)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return int(moment.timestamp() * 1000)


class _Sha256(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A head as ``audit head`` prints it. What is none must not look like a log that was rewritten."""

    name = "sha256"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip().lower()
        if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
            self.fail(f"{value!r} is no head: write the 64 hex digits of audit head", param, ctx)
        return text


@audit.command()
@audit_option
@queue_option
@click.option(
    "--since", type=_Moment(), default=0, metavar="TIME", help="Judge only events from then on."
)
@click.option(
    "--head",
    "heads",
    type=_Sha256(),
    multiple=True,
    metavar="SHA256",
    help="A head that was kept elsewhere (see audit head): the log must still lead there.",
)
@click.option(
    "--redis",
    "redis_url",
    envvar="RQ_CORE_REDIS_URL",
    show_envvar=True,
    metavar="URL",
    help="Compare with this server, too.",
)
@prefix_option
@json_option
def verify(
    url: str | None,
    queue: str | None,
    since: int,
    heads: Sequence[str],
    redis_url: str | None,
    prefix: str,
    as_json: bool,
) -> None:
    """Prove from SQL that nothing happened that must not: no gap, no double claim, no cap exceeded,
    every step legal, nothing changed afterwards. Exits with 0 if that holds, 1 if it is violated,
    2 if the log cannot tell.
    """
    with _current(url, status=2) as database:
        from sql_audit.verify import verify as check

        with _progress(shown=not as_json) as on_progress:
            result = check(database, queue, since_ms=since, heads=heads, on_progress=on_progress)
        verdicts = {name: found.verdict for name, found in result.queues.items()}
        if not result.queues and not (as_json and queue is None):
            _unknown_queue(database.readers, queue, status=2)
        if redis_url is not None:
            _compare(result, database, redis_url, prefix)
        if since == 0:
            _record(database, result, verdicts)
    if as_json:
        click.echo(json.dumps(result.document()))
    else:
        print_result(result)
    raise SystemExit(result.verdict.status)


def _record(database: Database, result: Result, verdicts: dict[str, Verdict]) -> None:
    """Keep what was proven, for prune. Whoever may only read may verify all the same."""
    from sqlalchemy.exc import SQLAlchemyError

    from sql_audit.database import describe
    from sql_audit.prune import record_proofs

    try:
        record_proofs(database, result, verdicts)
    except (SQLAlchemyError, RqCoreError) as error:
        click.echo(f"what was proven is not recorded: {describe(error)}", err=True)


def _compare(result: Result, database: Database, redis_url: str, prefix: str) -> None:
    """Add what Redis and SQL disagree about."""
    import redis

    from rq_core.client import Client
    from rq_core.history import OutboxId
    from sql_audit.drift import compare
    from sql_audit.replay import Note

    with Client(redis_url, prefix=prefix, name="audit") as client:
        for name, found in result.queues.items():
            try:
                violations, notes = compare(client, database, name)
            except (RqCoreError, redis.RedisError, OSError) as error:
                says = f"Redis cannot be compared: {error}"
                at = OutboxId(found.epoch or 0, found.number or 0)
                found.notes.append(Note(at, found.at_ms or 0, says))
                continue
            for violation in violations:
                found.add(violation)
            found.notes += notes


@contextlib.contextmanager
def _progress(*, shown: bool) -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each queue, on a terminal only."""
    if not shown or not sys.stderr.isatty():
        yield lambda _queue, _done, _of: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        bars: dict[str, Any] = {}

        def show(queue: str, done: int, of: int) -> None:
            if queue not in bars:
                bars[queue] = progress.add_task(queue, total=of)
            progress.update(bars[queue], completed=done)

        yield show


def print_result(result: Result) -> None:
    from sql_audit.queries import readable

    for found in result.queues.values():
        click.echo(found.says)
        click.echo(
            f"  {found.verdict}: {found.events} events in {found.entries} entries and "
            f"{found.batches} batches, {found.live} jobs alive"
        )
        if found.orphans:
            click.echo(f"  {found.orphans} events are orphaned: Redis forgot them")
        for loss in found.losses:
            click.echo(f"  lost: {loss.at} {readable(loss.at_ms)}: {loss.says}")
        if found.restated:
            click.echo(f"  {found.restated} jobs were restated by a repair")
        for note in found.notes:
            click.echo(f"  cannot tell: {note.at} {readable(note.at_ms)}: {note.says}")
        for v in found.violations:
            words = [f"{v.epoch}-{v.seq}", readable(v.at_ms), v.event]
            words += [f"job {v.job_id}"] if v.job_id else []
            words += [f"claim {v.claim}"] if v.claim is not None else []
            words += [f"by {v.by}"] if v.by else []
            click.echo(f"  {v.invariant} violated: {' '.join(words)}: {v.says}")
        for invariant, count in sorted(found.counts.items()):
            listed = sum(v.invariant == invariant for v in found.violations)
            if count > listed:
                click.echo(f"  {invariant}: {count - listed} more")
    for says in result.problems:
        click.echo(f"violated: {says}")
    click.echo(str(result.verdict))


_UNITS_MS: Final = {
    "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000, "y": 31_536_000_000,
}  # fmt: skip


class _Span(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """A time span as people write it, as ms: 90d. A year has 365 days."""

    name = "span"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        number, unit = text[:-1], text[-1:]
        if unit not in _UNITS_MS or not (number.isascii() and number.isdigit()) or len(number) > 6:
            self.fail(f"{text!r} is no time span: write 90d (s, m, h, d, w or y)", param, ctx)
        return int(number) * _UNITS_MS[unit]


class _Keep(_Span):
    """An outcome and a time span: dead=1y."""

    name = "keep"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from sql_audit.prune import OUTCOMES

        outcome, _, span = str(value).partition("=")
        if outcome not in OUTCOMES:
            known = ", ".join(OUTCOMES)
            self.fail(f"{outcome!r} is no outcome: write OUTCOME=SPAN with one of {known}")
        return outcome, super().convert(span, param, ctx)


@audit.command()
@audit_option
@queue_option
@click.option(
    "--older-than", type=_Span(), required=True, metavar="SPAN",
    help="Jobs that ended longer ago leave: 90d (s, m, h, d, w or y).",
)  # fmt: skip
@click.option(
    "--keep", type=_Keep(), multiple=True, metavar="OUTCOME=SPAN",
    help="Another time for one outcome, longer or shorter: dead=1y. May be repeated.",
)  # fmt: skip
@click.option(
    "--accept-gaps", is_flag=True,
    help="Also where verify found nothing wrong, but could not tell all (exit status 2).",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Only say what would leave.")
@click.option("--by", metavar="NAME", help="Who, for the record; by default, your user name.")
@json_option
def prune(
    url: str | None,
    queue: str | None,
    older_than: int,
    keep: Sequence[tuple[str, int]],
    by: str | None,
    *,
    accept_gaps: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove jobs that ended long ago, whole. Only what audit verify has proven is removed, the
    removal is recorded, and verify goes on proving the rest.
    """
    with _current(url) as database:
        from rq_core.cli.options import actor
        from sql_audit import queries
        from sql_audit.prune import Rules, count, plan
        from sql_audit.prune import prune as remove

        if queue is not None and not queries.watermarks(database.readers, queue):
            _unknown_queue(database.readers, queue)
        who, now_ms = actor(by), int(time.time() * 1000)
        rules = Rules(older_than, dict(keep), accept_unknown=accept_gaps)
        cuts = plan(database, rules, now_ms=now_ms, queue=queue)
        document: list[dict[str, Any]]
        if dry_run:
            document = [
                {
                    "queue": c.queue,
                    "cut": str(c.at),
                    "cut_at_ms": c.at_ms,
                    "jobs": count(database, c),
                }
                for c in cuts
            ]
        else:
            document = [
                dataclasses.asdict(each) for each in remove(database, cuts, by=who, now_ms=now_ms)
            ]
    if as_json:
        click.echo(json.dumps({"queues": document, "dry_run": dry_run}))
        return
    if not document:
        click.echo("nothing is old enough")
    for each in document:
        where = f"up to {each['cut']} ({queries.readable(each['cut_at_ms'])})"
        if dry_run:
            click.echo(f"{each['queue']}: {each['jobs']} jobs would leave, {where}")
        else:
            click.echo(
                f"{each['queue']}: {each['jobs']} jobs and their {each['events']} events have left, "
                f"{where}; {each['kept_events']} events are kept there"
            )


@audit.command()
@audit_option
@queue_option
@json_option
def head(url: str | None, queue: str | None, as_json: bool) -> None:
    """The head of each queue's chain, to be kept where nobody who writes to the log can write."""
    with _current(url) as database:
        from sql_audit.verify import heads

        found = heads(database, queue)
        if not found:
            _unknown_queue(database.readers, queue)
    if as_json:
        click.echo(json.dumps([each._asdict() for each in found]))
        return
    for each in found:
        number = "-" if each.epoch is None else f"{each.epoch}-{each.number}"
        click.echo(f"{each.queue}  {number}  {each.sha256}")


@audit.command()
@audit_option
@redis_option
@prefix_option
@queue_option
@click.option("--apply", "wanted", is_flag=True, help="Put back and take out; else it only lists.")
@click.option(
    "--wait",
    type=click.FloatRange(0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the mirror may take to catch up, with --apply.",
)
@click.option("--by", metavar="NAME", help="Who, for the log; by default, your user name.")
@json_option
def restore(
    url: str | None,
    redis_url: str,
    prefix: str,
    queue: str | None,
    by: str | None,
    *,
    wanted: bool,
    wait: float,
    as_json: bool,
) -> None:
    """List what a loss left to be done: jobs that SQL knows as live or lost and Redis does not have,
    and jobs that SQL saw finish and that will run again.

    With --apply the first are enqueued again under their own ids, and the second removed unless they
    run. That takes a running mirror, and the arguments in the log: App(audit_payload="full"). If it
    was stopped half-way, run it again. Exits with 0 if nothing is left to be done, 2 if some jobs
    could not be put back or taken out, 1 if it could not do its work.
    """
    with _current(url) as database:
        from rq_core.cli.options import actor
        from rq_core.client import Client
        from sql_audit import queries
        from sql_audit.restore import apply, survey

        marks = queries.watermarks(database.readers, queue)
        if not marks:
            _unknown_queue(database.readers, queue)
        who = actor(by)
        with Client(redis_url, prefix=prefix, name="audit") as client:
            if not wanted:
                found = {mark.queue: survey(client, database, mark.queue) for mark in marks}
            else:
                with _progress(shown=not as_json) as on_progress:
                    done = {
                        mark.queue: apply(
                            client,
                            database,
                            mark.queue,
                            by=who,
                            wait_s=wait,
                            on_progress=functools.partial(on_progress, mark.queue),
                        )
                        for mark in marks
                    }
                _print_applied(done, as_json=as_json)
                raise SystemExit(0 if all(each.complete for each in done.values()) else 2)
    if as_json:
        queues = {name: dataclasses.asdict(each) for name, each in found.items()}
        _print_json({"queues": queues}, marks)
        return
    for name, each in found.items():
        click.echo(f"{name}: {len(each.lost)} jobs lost, {len(each.revived)} revived")
        for job in each.lost:
            click.echo(f"  lost: {_lost_job(job)}")
        for job_ in each.revived:
            click.echo(
                f"  revived: {job_.job_id}  {job_.state}, {job_.finished} at {job_.number}: "
                "it will run again"
            )
    _print_marks(_console(), marks)


def _lost_job(job: LostJob) -> str:
    """A lost job in a line: what it was, and why it stays lost, if it does."""
    words = f"{job.job_id}  {job.task or '?'}  was {job.was}"
    if job.over is not None:
        return f"{words}; needs no other run: {job.over}"
    went_on = ", a worker went on with it" if job.ran_on else ""
    if job.unknown is not None:
        return f"{words}{went_on}; cannot be put back: {job.unknown}"
    return f"{words}{went_on}"


def _print_applied(done: dict[str, Applied], *, as_json: bool) -> None:
    if as_json:
        queues = {
            name: dataclasses.asdict(each) | {"complete": each.complete}
            for name, each in done.items()
        }
        click.echo(json.dumps({"queues": queues}))
        return
    for name, each in done.items():
        click.echo(f"{name}: {each.restored} jobs restored, {each.removed} removed")
        for job in (*each.over, *each.unknown):
            click.echo(f"  lost: {_lost_job(job)}")
        for job_id, state in each.alive.items():
            click.echo(f"  not lost: {job_id}  is {state} in Redis")
        for job_id, state in each.left.items():
            click.echo(f"  left alone: {job_id}  is {state} in Redis: cancel it if it must not run")
    if any(each.unknown for each in done.values()):
        click.echo(
            "without their arguments only who enqueued these jobs can do so again, under the same ids;\n"
            'App(audit_payload="full") keeps the arguments of jobs to come in the log',
            err=True,
        )


@audit.command()
@click.argument("job")
@audit_option
@queue_option
@json_option
def why(job: str, url: str | None, queue: str | None, as_json: bool) -> None:
    """What JOB waited for, each time, and behind whom."""
    with _asking(url) as engine:
        from sql_audit import moments, queries

        answers = moments.why(engine, job, queue)
        queues = {answer.queue for answer in answers}
        marks = [mark for mark in queries.watermarks(engine, queue) if mark.queue in queues]
    if as_json:
        _print_json({"jobs": [dataclasses.asdict(answer) for answer in answers]}, marks)
        return
    readable = queries.readable
    for answer in answers:
        lane = f", lane {answer.lane}" if answer.lane else ""
        click.echo(f"job {job} in {answer.queue}: {answer.state}{lane}")
        if answer.state == "scheduled" and answer.due_ms is not None:
            click.echo(f"  is due at {readable(answer.due_ms)}")
        for wait in answer.waits:
            ended = "it still waits"
            if wait.claim is not None:
                ended = f"until claim {wait.claim} by {wait.worker}"
            elif wait.ended is not None:
                forgotten = wait.ended != "cancelled"
                ended = "until Redis forgot it" if forgotten else "until it was cancelled"
            held_back = f"held back by {wait.held_back_by}; " if wait.held_back_by else ""
            click.echo(
                f"  waited {_ms(wait.waited_ms)} from {readable(wait.since_ms)}, {ended}; {held_back}"
                f"{wait.others_claimed} claims of others began meanwhile"
            )
            for each in wait.in_front:
                named = f", the last {', '.join(each.named)}" if each.named else ""
                word = "spent" if " per " in each.limit else "full"
                click.echo(
                    f"    {each.scope} ≤ {each.limit}: {word} for {_ms(each.full_ms)}, "
                    f"{each.holders} claims of others{named}"
                )
        if answer.pruned is not None:
            click.echo(f"  not all may be told: {answer.pruned.says}")
    _print_marks(_console(), marks)


@audit.command(name="at")
@click.argument("moment", type=_Moment(), metavar="TIME")
@audit_option
@click.option("--queue", "-q", required=True, help="Of this queue.")
@json_option
def at_command(moment: int, url: str | None, queue: str, as_json: bool) -> None:
    """What was running and waiting at TIME (UTC, or Unix ms), and who held which scope."""
    with _asking(url) as engine:
        from sql_audit import moments, queries

        marks = queries.watermarks(engine, queue)
        if not marks:
            _unknown_queue(engine, queue)
        answer = moments.at(engine, queue, moment)
    if as_json:
        document = dataclasses.asdict(answer)
        document["scopes"] = {
            scope: {"cap": cap, "holders": holders}
            for scope, (cap, holders) in answer.scopes.items()
        }
        _print_json(document, marks)
        return
    readable = queries.readable
    click.echo(f"{queue} at {readable(moment)}: {len(answer.running)} running")
    for claim in answer.running:
        under = queries.under(claim.scopes)
        click.echo(
            f"  {claim.job_id}  {claim.task or '?'}  claim {claim.claim} by {claim.worker} since "
            f"{readable(claim.claimed_at_ms)}{f', under {under}' if under else ''}"
        )
    click.echo(f"{len(answer.waiting)} waiting")
    for job in answer.waiting[:20]:
        lane = f", lane {job.lane}" if job.lane else ""
        click.echo(f"  {job.job_id}  {job.task or '?'}  since {readable(job.ready_at_ms)}{lane}")
    if len(answer.waiting) > 20:
        click.echo(f"  and {len(answer.waiting) - 20} more")
    for scope, (cap, holders) in sorted(answer.scopes.items()):
        click.echo(f"{scope}: {len(holders)} of {'any' if cap is None else cap}")
    if answer.pruned is not None:
        click.echo(f"not all may be told: {answer.pruned.says}")
    for caveat in answer.caveats:
        click.echo(caveat)
    _print_marks(_console(), marks)


@audit.command()
@audit_option
@queue_option
@click.option(
    "--lines",
    "-n",
    type=click.IntRange(0),
    default=20,
    show_default=True,
    help="How many events to begin with.",
)
@click.option(
    "--follow", "-f", is_flag=True, help="Go on as events are mirrored, until interrupted."
)
@json_option
def tail(
    url: str | None,
    queue: str | None,
    lines: int,
    follow: bool,
    as_json: bool,
) -> None:
    """The last events of a queue. With --json, one JSON document per line."""
    with _asking(url) as engine:
        from sql_audit import queries

        marks = queries.watermarks(engine, queue)
        if not marks:
            _unknown_queue(engine, queue)
        events = [e for mark in marks for e in queries.tail(engine, mark.queue, max(lines, 1))]
        events.sort(key=lambda e: (e.at_ms, e.queue, e.place))
        _print_events(events[-lines:] if lines else [], as_json=as_json)
        if not follow:
            if not as_json:
                _print_marks(_console(), marks)
            return
        with contextlib.suppress(KeyboardInterrupt):
            # In the order of each queue's log, where times may go back.
            last = {
                mark.queue: max(
                    (e.place for e in events if e.queue == mark.queue), default=queries.BEFORE_ALL
                )
                for mark in marks
            }
            for fresh in queries.follow(engine, queue, last):
                _print_events(fresh, as_json=as_json)
                if not fresh:
                    time.sleep(FOLLOW_S)


def _unknown_queue(engine: Engine, queue: str | None, status: int = 1) -> NoReturn:
    from sql_audit import queries

    if queue is None:
        _fail("nothing is mirrored yet: start `rq-core audit run`", status)
    known = ", ".join(mark.queue for mark in queries.watermarks(engine)) or "none"
    _fail(f"the audit database knows no queue {queue!r}: known are {known}", status)


# Printing.


def _console() -> Console:
    from rich.console import Console

    # A pipe has no width: what a program reads is never folded.
    return Console(width=None if sys.stdout.isatty() else 200, highlight=False)


def _event_json(event: LoggedEvent) -> dict[str, Any]:
    return dataclasses.asdict(event)


def _print_json(document: dict[str, Any], marks: Sequence[Watermark]) -> None:
    document["watermarks"] = [dataclasses.asdict(mark) for mark in marks]
    click.echo(json.dumps(document))


def _print_marks(console: Console, marks: Sequence[Watermark]) -> None:
    for mark in marks:
        console.print(str(mark), style="dim", markup=False)


def _print_events(events: Sequence[LoggedEvent], *, as_json: bool) -> None:
    from sql_audit.queries import readable

    for event in events:
        if as_json:
            click.echo(json.dumps(_event_json(event)))
            continue
        words = [readable(event.at_ms), event.queue, event.number, event.type, event.job_id or "-"]
        words += [f"{name}={_short(value)}" for name, value in _facts(event).items()]
        click.echo("  ".join(words))


def _facts(event: LoggedEvent) -> dict[str, Any]:
    facts = {"by": event.worker, "task": event.task, "claim": event.claim}
    return {name: value for name, value in facts.items() if value is not None} | _detail(event)


def _detail(event: LoggedEvent) -> dict[str, Any]:
    """What else an event carries; the scopes of a claim as people read them."""
    from sql_audit.queries import under

    detail = dict(event.detail)
    scopes = detail.pop("scopes", None)
    try:
        return {"under": under(scopes), **detail} if scopes else detail
    except (TypeError, ValueError):
        return event.detail


def _short(value: Any) -> str:
    if isinstance(value, dict) and "type" in value:
        value = f"{value['type']}: {value.get('message', '')}"
    line = " ".join(str(value).split())
    return line if len(line) <= 100 else line[:99] + "…"


def _event_table(events: Sequence[LoggedEvent], title: str) -> Any:
    from rich.table import Table
    from rich.text import Text

    from sql_audit.queries import readable

    table = Table(title=Text(title), title_justify="left", box=None, pad_edge=False)
    for name in ("at", "queue", "number", "event", "claim", "by", "task", "detail"):
        table.add_column(name, no_wrap=name != "detail", overflow="fold")
    for event in events:
        detail = ", ".join(
            f"under {value}" if name == "under" else f"{name}={_short(value)}"
            for name, value in _detail(event).items()
        )
        claim = "" if event.claim is None else str(event.claim)
        words = (
            readable(event.at_ms), event.queue, event.number,
            f"{event.type} (orphaned)" if event.orphaned else event.type, claim,
            event.worker or "", event.task or "", detail,
        )  # fmt: skip
        # Text: what a job says is never read as markup.
        table.add_row(*(Text(word) for word in words))
    return table


def _ms(value: int | None) -> str:
    if value is None:
        return "-"
    return f"{value} ms" if value < 10_000 else f"{value / 1000:.1f} s"


def print_report(answer: Report) -> None:
    from rich.table import Table
    from rich.text import Text

    console = _console()
    table = Table(title="tasks", title_justify="left", box=None, pad_edge=False)
    for name in ("queue", "task"):
        table.add_column(name, no_wrap=True)
    for name in (
        "jobs", "succeeded", "claims", "retries", "expired", "dead", "cancelled", "discarded",
        "waited p50", "p95", "ran p50", "p95", "jobs/s",
    ):  # fmt: skip
        table.add_column(name, justify="right", no_wrap=True)
    for t in answer.tasks:
        counts = (
            t.jobs, t.succeeded, t.claims, t.retries, t.lease_expired, t.dead, t.cancelled,
            t.discarded,
        )  # fmt: skip
        times = (t.waited_p50_ms, t.waited_p95_ms, t.ran_p50_ms, t.ran_p95_ms)
        rate = "-" if t.throughput is None else f"{t.throughput:.1f}"
        table.add_row(Text(t.queue), Text(t.task or "?"), *map(str, counts), *map(_ms, times), rate)
    console.print(table)
    if answer.slowest:
        slow = Table(title="\nslowest", title_justify="left", box=None, pad_edge=False)
        for name in ("queue", "task", "job", "by", "ran", "waited"):
            slow.add_column(name, no_wrap=True)
        for job in answer.slowest:
            words = (job.queue, job.task or "?", job.job_id, job.worker or "")
            slow.add_row(*map(Text, words), _ms(job.ran_ms), _ms(job.waited_ms))
        console.print(slow)
    console.print()
    _print_marks(console, answer.watermarks)
