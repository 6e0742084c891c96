"""The commands ``verify``, which checks the log, and ``head``, which prints the newest hash of each queue's chain."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from rq_core.cli.options import (
    Instant,
    json_option,
    prefix_option,
    print_json,
    queue_option,
    queues_option,
)
from rq_core.cli.text import say
from rq_core.errors import RqCoreError
from rq_core.model.lib.text import counted
from rq_core.model.lib.url import REDIS_URL_VARIABLE
from sql_audit.cli.options import audit_option, current, not_mirrored
from sql_audit.cli.text import progress
from sql_audit.times import readable

if TYPE_CHECKING:
    from sql_audit.proof.result import LogVerdict, VerifyResult
    from sql_audit.store.connection.database import Database


class _Sha256(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """The click type of a chain's newest hash (its head): 64 hex digits.

    Other text is a usage error, so that a mistyped hash is not reported as a rewritten log.
    """

    name = "sha256"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip().lower()
        if len(text) != 64 or not set(text) <= set("0123456789abcdef"):
            self.fail(f"{value!r} is not a head: write the 64 hex digits of audit head", param, ctx)
        return text


@click.command("verify")
@audit_option
@queues_option
@click.option(
    "--since",
    "since_ms",
    type=Instant(),
    default=0,
    metavar="TIME",
    help="Judge only events at or after this time.",
)
@click.option(
    "--head",
    "heads",
    type=_Sha256(),
    multiple=True,
    metavar="SHA256",
    help="A head that was kept elsewhere (see audit head): the log's chain must still contain it.",
)
@click.option(
    "--redis",
    "redis_url",
    envvar=REDIS_URL_VARIABLE,
    show_envvar=True,
    metavar="URL",
    help="Compare with this server, too.",
)
@prefix_option
@json_option
def verify_command(
    url: str | None,
    queues: Sequence[str],
    since_ms: int,
    heads: Sequence[str],
    redis_url: str | None,
    prefix: str,
    as_json: bool,
) -> None:
    """Prove the log from SQL: no gap, no double claim, no cap exceeded, only legal steps, no event
    changed afterwards.

    The command also compares the tables that people read with the events: every row of job and
    job_attempt, the counts by the minute, the cursor, epochs, losses and quarantine. The exit status is
    0 if all of this holds, 1 if it is violated, 2 if the log cannot tell.

    Only a head kept elsewhere (audit head) shows that the last events were cut off together with
    their batches and the cursor, or that the whole log was forged. Two lines of cron on another
    machine:

    \b
    */10 * * * *  rq-core audit head --queue mail >> /var/backups/heads
    0 4 * * *     rq-core audit verify --queue mail $(awk '{print "--head", $NF}' /var/backups/heads)

    A head from before a prune does not prove the rest of the log: the exit status is 2. Check the heads, prune, and
    keep the new head.
    """  # noqa: D301 - click reads the character \b
    with _cannot_tell_on_error(), current(url) as database:
        from sql_audit.mirror.service import rare_collections
        from sql_audit.proof.verify import verify

        with rare_collections(), progress(shown=not as_json) as on_progress:
            result = verify(
                database, *queues, since_ms=since_ms, heads=heads, on_progress=on_progress
            )
        verdicts = {name: found.verdict for name, found in result.queues.items()}
        for queue in queues:
            if queue not in result.queues and not result.problems:
                raise not_mirrored(database.readers, queue)
        if not (result.queues or result.problems or as_json):
            raise not_mirrored(database.readers, None)
        if redis_url is not None:
            _compare(result, database, redis_url, prefix, every=not queues)
        if since_ms == 0:
            _record(database, result, verdicts)
    if as_json:
        print_json(_document(result))
    else:
        if redis_url is None:
            say("Redis was not compared: --redis URL compares it", err=True)
        _print_result(result)
    raise SystemExit(result.verdict.status)


class _CannotTell(click.ClickException):
    exit_code = 2


@contextlib.contextmanager
def _cannot_tell_on_error() -> Iterator[None]:
    """Turn every error of the block into exit status 2, "cannot tell". Status 1 would claim a violation."""
    from sqlalchemy.exc import SQLAlchemyError

    from sql_audit.errors import AuditRefused
    from sql_audit.store.connection.driver_errors import describe_error

    try:
        yield
    except (RqCoreError, SQLAlchemyError) as error:
        told = error if isinstance(error, RqCoreError) else AuditRefused(why=describe_error(error))
        raise _CannotTell(str(told)) from error


def _record(database: Database, result: VerifyResult, verdicts: dict[str, LogVerdict]) -> None:
    """Store the verdicts in SQL, where metrics read them. If SQL refuses, print a warning; the verdicts remain
    valid.
    """
    from sqlalchemy.exc import SQLAlchemyError

    from sql_audit.proof.record import record_proofs
    from sql_audit.store.connection.driver_errors import describe_error

    try:
        record_proofs(database, result, verdicts)
    except (SQLAlchemyError, RqCoreError) as error:
        say(f"the verdict is not recorded: {describe_error(error)}", err=True)


def _compare(
    result: VerifyResult, database: Database, redis_url: str, prefix: str, *, every: bool
) -> None:
    """Compare Redis with SQL, and add the differences to ``result``.

    With ``every``, also add the queues that only Redis has.
    """
    import redis

    from rq_core.connections.client import Client
    from rq_core.model.events import OutboxId
    from sql_audit.mirror.redis_access import Outbox
    from sql_audit.mirror.source_registry import check_source, elsewhere
    from sql_audit.proof.compare.drift import compare, unmirrored
    from sql_audit.proof.findings import Note

    def cannot(name: str, says: str) -> None:
        found = result.queues[name]
        at = OutboxId(found.epoch or 0, found.number or 0)
        found.notes.append(Note(at, found.at_ms or 0, says))

    with Client(redis_url, prefix=prefix, name="audit") as client:
        away = elsewhere(database, prefix)
        here = [name for name in result.queues if name not in away]
        try:
            check_source(Outbox(client), database, only=here or None)
            if every:
                result.queues |= unmirrored(client, database)
        except (RqCoreError, redis.RedisError, OSError) as error:
            for name in here or result.queues:
                cannot(name, f"Redis cannot be compared: {error}")
            return
        for name in result.queues.keys() & away.keys():
            says = f"queue {name} is mirrored from prefix {away[name]}: not compared"
            if here:
                say(says, err=True)
            else:
                cannot(name, says)
        for name in here:
            try:
                violations, notes = compare(client, database, name)
            except (RqCoreError, redis.RedisError, OSError) as error:
                cannot(name, f"Redis cannot be compared: {error}")
                continue
            for violation in violations:
                result.queues[name].add(violation)
            result.queues[name].notes += notes


def _document(result: VerifyResult) -> dict[str, Any]:
    return {
        "verdict": str(result.verdict),
        "events": result.events,
        "queues": {
            name: {
                "verdict": str(q.verdict), "events": q.events, "entries": q.entries,
                "batches": q.batches, "epoch": q.epoch, "number": q.number, "at_ms": q.at_ms,
                "head": q.head, "live": q.live, "orphans": q.orphans, "restated": q.restated,
                "counts": q.counts,
                "set_back": [
                    {"number": str(back.at), "at_ms": back.at_ms, "by_ms": back.by_ms}
                    for back in q.set_back
                ],
                "losses": [
                    {
                        "number": str(loss.at), "at_ms": loss.at_ms, "orphaned": loss.orphaned,
                        "jobs": loss.jobs, "says": loss.says,
                        "interval": {
                            "epoch": loss.after.epoch, "from": loss.after.seq + 1, "to": None,
                        },
                    }
                    for loss in q.losses
                ],
                "pruned": None if q.pruned is None else q.pruned._asdict(),
                "unknown": [
                    {"number": str(note.at), "at_ms": note.at_ms, "says": note.says, "lost": note.lost}
                    for note in q.notes
                ],
            }
            for name, q in result.queues.items()
        },
        "violations": [violation._asdict() for violation in result.violations]
        + [{"invariant": "I7", "says": says} for says in result.problems],
    }  # fmt: skip


def _shared_notes(result: VerifyResult) -> dict[str, list[str]]:
    """Return each reason for which two or more queues cannot be judged, with the names of the queues."""
    found: dict[str, list[str]] = {}
    for each in result.queues.values():
        for says in {note.says for note in each.notes if note.lost is None}:
            found.setdefault(says, []).append(each.queue)
    return {says: queues for says, queues in found.items() if len(queues) > 1}


def _print_result(result: VerifyResult) -> None:
    shared = _shared_notes(result)
    for found in result.queues.values():
        say(found.says)
        say(
            f"  {found.verdict}: {counted(found.events, 'event')} in "
            f"{counted(found.entries, 'entry', 'entries')} and "
            f"{counted(found.batches, 'batch', 'batches')}, {counted(found.live, 'job')} in Redis"
        )
        if found.orphans:
            orphans = counted(found.orphans, "event is orphaned", "events are orphaned")
            say(f"  {orphans}: Redis forgot {'it' if found.orphans == 1 else 'them'}")
        for back in found.set_back:
            says = f"Redis' clock went back by {back.by_ms} ms"
            say(f"  clock: {back.at} {readable(back.at_ms)}: {says}")
        for loss in found.losses:
            known = "lost" if loss.orphaned or loss.jobs else "may be lost"
            say(f"  {known}: {loss.at} {readable(loss.at_ms)}: {loss.says}")
        if found.restated:
            restated = counted(found.restated, "job was restated", "jobs were restated")
            say(f"  {restated} by a repair")
        for note in (each for each in found.notes if each.says not in shared):
            word = "cannot tell" if note.lost is None else "lost"
            say(f"  {word}: {note.at} {readable(note.at_ms)}: {note.says}")
        for v in found.violations:
            words = [f"{v.epoch}-{v.seq}", readable(v.at_ms), v.event]
            words += [f"job {v.job_id}"] if v.job_id else []
            words += [f"claim {v.claim}"] if v.claim is not None else []
            words += [f"by {v.by}"] if v.by else []
            say(f"  {v.invariant} violated: {' '.join(words)}: {v.says}")
        for invariant, count in sorted(found.counts.items()):
            listed = sum(v.invariant == invariant for v in found.violations)
            if count > listed:
                say(f"  {invariant}: {count - listed} more")
    for says, queues in shared.items():
        say(f"cannot tell of {', '.join(queues)}: {says}")
    for says in result.problems:
        say(f"violated: {says}")
    say(str(result.verdict))


@click.command()
@audit_option
@queue_option
@json_option
def head(url: str | None, queue: str | None, as_json: bool) -> None:
    """Print the head of each queue's chain: keep it where no role that writes to the log can change it."""
    with current(url) as database:
        from sql_audit.proof.verify import heads

        found = heads(database, queue)
        if not found:
            raise not_mirrored(database.readers, queue)
    if as_json:
        print_json([each._asdict() for each in found])
        return
    for each in found:
        number = "-" if each.epoch is None else f"{each.epoch}-{each.number}"
        say(f"{each.queue}  {number}  {each.sha256}")
