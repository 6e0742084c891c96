"""What a loss left to be done: jobs that SQL knows and Redis does not, and jobs that came back to life.

    for job in survey(client, database, "mail").lost:
        print(job.job_id, job.was)
    done = apply(client, database, "mail", by="ada")

:func:`survey` only looks. :func:`apply` puts the lost ones back, if the log has their arguments
(``audit_payload="full"``), and takes the others out. It works in calls of a few hundred jobs, each of which
happens whole or not at all; one that was killed is run again, and does what is left.

What decides that a job is lost is read in this order: Redis lacks it, then the mirror has everything that
Redis had logged by then, then SQL still takes it for alive or lost. So it cannot have ended unseen, but in a gap of the
log or in an entry that is in quarantine: a job of which nothing was told since is *uncertain*
(:mod:`sql_audit.mirror.possible_gaps`), and is put back only with ``accept_gaps``.
"""

# ruff: noqa: S608 - statements are joined from the machine's own words; values are bound

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, text

from rq_core.connections.client import Client
from rq_core.errors import AuditBacklogFull, RestoredMeanwhile
from rq_core.model.events import OutboxId
from rq_core.model.keys import queue_keys
from rq_core.model.state_line import read_job
from rq_core.model.table.effects import JOB_ENDS
from rq_core.model.table.machine import State
from rq_core.model.unique_names import name_field, read_holder, read_stands
from rq_core.protocol.calls.admin import IDS_CHUNK
from rq_core.protocol.calls.audit import Restoration, take_out
from rq_core.protocol.calls.enqueue import ENQUEUE_CHUNK_BYTES
from rq_core.protocol.reads.steps import read_lines
from sql_audit.errors import MirrorBehind
from sql_audit.mirror.field_types import INTEGER_MAX
from sql_audit.mirror.possible_gaps import Places
from sql_audit.mirror.projection import rebuild
from sql_audit.mirror.projection.fold import Folder
from sql_audit.queries.history import audit_id
from sql_audit.store import orphans
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.statements import CURSOR
from sql_audit.store.gaps import ended_by_baselines
from sql_audit.store.job_rows import Job
from sql_audit.store.schema.tables import GONE, LOST
from sql_audit.upkeep.lost import LostJob, Told, judge, tell
from sql_audit.upkeep.windows import forgotten, in_force, named, names_in_force

CHUNK: Final = 1_000
"""Jobs that Redis, or SQL, is asked about at once."""
POLL_S: Final = 0.05
"""How often it is looked whether the mirror has caught up."""
ROUNDS_MAX: Final = 10
"""How often it begins again because another restore is under way."""
WHY: Final = "audit restore"

LIVE: Final = frozenset(str(state) for state in State)
_LIVE: Final = ", ".join(map(repr, sorted(LIVE)))

_KNOWN: Final = text(
    f"SELECT job_id FROM job WHERE queue = :queue AND state IN ('{LOST}', {_LIVE}) "
    "ORDER BY seq IS NULL, seq, enqueued_at_ms, job_id"
)
_STANDS: Final = text(
    "SELECT job_id, task, state, reason, last_epoch, last_seq FROM job "
    f"WHERE queue = :queue AND job_id IN :ids AND state IN ('{LOST}', '{GONE}', {_LIVE})"
).bindparams(bindparam("ids", expanding=True))
_TAKEN_SINCE: Final = text(
    "SELECT job_id FROM job WHERE queue = :queue AND unique_name = :name AND job_id <> :job "
    f"AND enqueued_at_ms >= :at AND enqueued_at_ms < :until AND state NOT IN ('{LOST}', '{GONE}') "
    "ORDER BY enqueued_at_ms LIMIT 1"
)
"""A job that took the name of a lost one while that would have stood, in the history that went on."""
_FINISHED: Final = text(
    "SELECT DISTINCT job_id FROM job_event_orphaned WHERE queue = :queue "
    f"AND type IN ({', '.join(repr(str(end)) for end in sorted(JOB_ENDS))}) ORDER BY job_id"
)


@dataclass(frozen=True, slots=True)
class RevivedJob:
    """A job that SQL saw finish, and that Redis, which forgot it, has alive: it will run again."""

    job_id: str
    finished: str
    """The event that ended it."""
    number: str
    """The outbox id of that event's entry."""
    state: str
    """Where it stands in Redis now."""


@dataclass(slots=True)
class Survey:
    """What :func:`survey` found."""

    lost: list[LostJob] = field(default_factory=list)
    revived: list[RevivedJob] = field(default_factory=list)
    forgotten: int = 0
    """Ids that are to be remembered after their jobs' ends, and that Redis has forgotten."""
    names: int = 0
    """Names that stand to an instant though their jobs have ended, and that Redis has forgotten."""


@dataclass(slots=True)
class Applied:
    """What :func:`apply` did."""

    restored: int = 0
    removed: int = 0
    remembered: int = 0
    """Ids of jobs that have ended, and that Redis remembers again."""
    named: int = 0
    """Names of jobs that have ended, and that stand again to their instants."""
    over: list[LostJob] = field(default_factory=list)
    """Lost jobs that need no other run. Nothing was done about them."""
    uncertain: list[LostJob] = field(default_factory=list)
    """Jobs that may have ended in a gap. Without ``accept_gaps`` nothing was done about them."""
    unknown: list[LostJob] = field(default_factory=list)
    """Lost jobs that could not be put back."""
    held: list[str] = field(default_factory=list)
    """Lost jobs that were not put back: another job holds their name. Nothing was done about them."""
    alive: dict[str, str] = field(default_factory=dict)
    """Lost jobs that Redis has again by now, by id: their state, or ``remembered`` if another job of that id has ended
    since. They were left alone."""
    left: dict[str, str] = field(default_factory=dict)
    """Revived jobs that were not taken out, since a worker has them or they have moved on, by id: their state."""

    @property
    def complete(self) -> bool:
        """Whether nothing is left to be done by people."""
        return not self.unknown and not self.left and not self.uncertain


class _Gap(NamedTuple):
    """Where Redis and SQL differ."""

    missing: list[str]
    """Ids that SQL takes for live or lost, and Redis does not have."""
    revived: dict[str, str]
    """State lines of jobs that have ended by what Redis forgot."""
    windows: list[Restoration]
    """What makes Redis remember the ids that it has forgotten."""
    names: list[Restoration]
    """What lets the names stand again that it has forgotten."""
    last: str
    """The last restore."""


def survey(client: Client, database: Database, queue: str) -> Survey:
    """Compare what SQL knows of a queue's jobs with what Redis has now.

    A job that was enqueued or ended since the last mirrored entry may be missing, or be one too many:
    ask when the mirror is level. Raises what Redis and SQL raise when they do not answer.
    """
    gap = _gap(client, database, queue)
    found = Survey()
    for lost, _ in _lost(database, queue, gap.missing):
        found.lost.append(lost)
    for revived, _ in _revived(database, queue, gap.revived):
        found.revived.append(revived)
    found.forgotten, found.names = len(gap.windows), len(gap.names)
    return found


def apply(
    client: Client,
    database: Database,
    queue: str,
    *,
    by: str,
    accept_gaps: bool = False,
    wait_s: float = 30.0,
    on_progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Applied:
    """Put the lost jobs of a queue back, and take those out that had ended.

    A job that may have ended in a gap of the log is put back only with ``accept_gaps``: it may run a second time.
    A revived job with a claim in force is left to its worker: it may be half-way. ``wait_s`` is how many seconds
    the mirror may take to catch up. ``on_progress`` is told how many jobs were dealt with, and of how many.
    Raises MirrorBehind, RestoredMeanwhile if others go on restoring, and what Redis and SQL raise.
    """
    with database.readers.connect() as connection:
        cursor = connection.execute(CURSOR, {"queue": queue}).one_or_none()
    if cursor is not None and cursor.epoch is not None:
        client.calls.delivery.set_floor(queue, cursor.epoch)
    # It may begin an epoch, and the mirror learns what is lost. A queue that is not there the mirror makes itself: by
    # one without a stamp it could not tell this Redis from another.
    if client.run(client.calls.reads.is_there(queue)):
        client.run(client.calls.delivery.handshake(queue))
    done = Applied()
    for turn in range(ROUNDS_MAX):
        wait_level(client, database, queue, wait_s)
        gap = _gap(client, database, queue)
        wait_level(client, database, queue, wait_s)
        done.over, done.uncertain, done.unknown, done.held = [], [], [], []
        done.alive, done.left = {}, {}
        try:
            _carry_out(
                client, database, queue, gap, done, by, wait_s, on_progress, accept_gaps=accept_gaps
            )
        except RestoredMeanwhile:
            if turn == ROUNDS_MAX - 1:
                raise
        else:
            break
    return done


def wait_level(client: Client, database: Database, queue: str, wait_s: float) -> None:
    """Wait until SQL has all that Redis has logged of a queue by now. Raises MirrorBehind after ``wait_s`` seconds."""
    keys = queue_keys(queue, client.prefix)
    ours = audit_id(database)
    give_up = time.monotonic() + wait_s
    upto: OutboxId | None = None
    while True:
        asked: list[list[Any]] = [
            ["HMGET", keys("meta"), "audit", "audit_id"],
            ["XREVRANGE", keys("outbox"), "+", "-", "COUNT", 1],
        ]
        (mode, attached), entries = client.run(client.calls.delivery.ask(asked, queue))
        if upto is None and entries:
            upto = OutboxId.parse(entries[0][0])
        with database.readers.connect() as connection:
            cursor = connection.execute(CURSOR, {"queue": queue}).one_or_none()
        at = None if cursor is None or cursor.epoch is None else OutboxId(cursor.epoch, cursor.seq)
        if (mode, attached) == ("on", ours) and upto and at and at >= upto:
            return
        if time.monotonic() > give_up:
            redis = "nothing" if upto is None else f"entries up to {upto}"
            raise MirrorBehind(queue=queue, redis=redis, sql="nothing" if at is None else at)
        time.sleep(POLL_S)


def _carry_out(
    client: Client,
    database: Database,
    queue: str,
    gap: _Gap,
    done: Applied,
    by: str,
    wait_s: float,
    on_progress: Callable[[int, int], None],
    *,
    accept_gaps: bool,
) -> None:
    of = len(gap.missing) + len(gap.revived) + len(gap.windows) + len(gap.names)
    count, last = 0, gap.last

    def send(records: list[Restoration]) -> None:
        nonlocal last
        for chunk in _chunks(records):
            give_up = time.monotonic() + wait_s
            while True:
                try:
                    answer = client.run(
                        client.calls.audit.restore(queue, chunk, after=last, by=by, why=WHY)
                    )
                except AuditBacklogFull:
                    if time.monotonic() > give_up:
                        raise
                    time.sleep(POLL_S)
                else:
                    break
            last = answer.last
            outcomes = list(answer.outcomes.values())
            done.restored += outcomes.count("restored")
            done.removed += outcomes.count("removed")
            if chunk[0].kind in ("remember", "name"):
                done.remembered += outcomes.count("remembered")
                done.named += outcomes.count("named")
                continue
            for record in chunk:
                outcome = answer.outcomes[record.id]
                if outcome == "held":
                    done.held.append(record.id)
                elif outcome not in ("restored", "removed", "gone"):
                    others = done.left if record.kind == "remove" else done.alive
                    others[record.id] = outcome

    # What is over comes first: no producer's repetition, and no job that comes back, is to run beside it.
    for windows in (gap.windows, gap.names):
        for begin in range(0, len(windows), IDS_CHUNK):
            send(chunk := windows[begin : begin + IDS_CHUNK])
            on_progress(count := count + len(chunk), of)
    # Then revived jobs leave: a job that was lost may have had the name of one of them.
    for begin in range(0, len(gap.revived), IDS_CHUNK):
        lines = dict(list(gap.revived.items())[begin : begin + IDS_CHUNK])
        revived = list(_revived(database, queue, lines))
        send([take_out(each.job_id, lines[each.job_id], each.finished) for each, _ in revived])
        send([record for _, record in revived if record is not None])
        on_progress(count := count + len(lines), of)
    for begin in range(0, len(gap.missing), IDS_CHUNK):
        ids = gap.missing[begin : begin + IDS_CHUNK]
        by_kind: dict[str, list[Restoration]] = {"remember": [], "name": [], "restore": []}
        for lost, found in _lost(database, queue, ids):
            if lost.uncertain and not lost.over and not accept_gaps:
                done.uncertain.append(lost)
                continue
            for record in found:
                by_kind.get(record.kind, by_kind["restore"]).append(record)
            if lost.over or not found:
                (done.over if lost.over else done.unknown).append(lost)
        for records in by_kind.values():
            send(records)
        on_progress(count := count + len(ids), of)


def _chunks(records: Iterable[Restoration]) -> Iterator[list[Restoration]]:
    """Records, in chunks that one call takes."""
    chunk: list[Restoration] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += len(record.spec)
        if size >= ENQUEUE_CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


# Who is missing, and who is there and should not be.


def _gap(client: Client, database: Database, queue: str) -> _Gap:
    of_queue = {"queue": queue}
    with database.readers.connect() as connection:
        known = [
            *connection.execute(_KNOWN, of_queue).scalars(),
            *ended_by_baselines(connection, queue),
        ]
        finished = connection.execute(_FINISHED, of_queue).scalars().all()
    calls = client.calls
    meta = queue_keys(queue, calls.delivery.prefix)("meta")
    (last,) = client.run(calls.delivery.ask([["HGET", meta, "restored"]], queue))
    now_ms = _now_ms(client)
    windows = _windows(client, database, queue, now_ms)
    names = _names(client, database, queue, now_ms)
    missing = [job_id for job_id, line in _lines(client, queue, known) if line is None]
    revived = {job_id: line for job_id, line in _lines(client, queue, finished) if line is not None}
    return _Gap(missing, revived, windows, names, last or "-")


def _now_ms(client: Client) -> int:
    """Redis' clock."""
    ((seconds, micros),) = client.run(client.calls.delivery.ask([["TIME"]]))
    return int(seconds) * 1000 + int(micros) // 1000


def _windows(client: Client, database: Database, queue: str, now_ms: int) -> list[Restoration]:
    """What makes Redis remember ids of jobs that have ended, of those that it neither remembers nor has alive."""
    calls = client.calls
    keys = queue_keys(queue, calls.delivery.prefix)
    with database.readers.connect() as connection:
        told = list(in_force(connection, queue, now_ms))
    found: list[Restoration] = []
    for begin in range(0, len(told), CHUNK):
        chunk = told[begin : begin + CHUNK]
        asked: list[list[Any]] = [["HMGET", keys("results"), *(record.id for record in chunk)]]
        (known,) = client.run(calls.delivery.ask(asked, queue))
        found += [record for record, line in zip(chunk, known, strict=True) if line is None]
    alive = dict(_lines(client, queue, [record.id for record in found]))
    return [record for record in found if alive[record.id] is None]


def _names(client: Client, database: Database, queue: str, now_ms: int) -> list[Restoration]:
    """What lets names stand again whose jobs have ended, of those that no job has in Redis."""
    keys = queue_keys(queue, client.calls.delivery.prefix)
    with database.readers.connect() as connection:
        told = list(names_in_force(connection, queue, now_ms).items())
    found: list[Restoration] = []
    for begin in range(0, len(told), CHUNK):
        chunk = told[begin : begin + CHUNK]
        asked: list[list[Any]] = [
            ["HMGET", keys("slots"), *(name_field(name) for name, _ in chunk)]
        ]
        (held,) = client.run(client.calls.delivery.ask(asked, queue))
        for (_, record), value in zip(chunk, held, strict=True):
            until_ms = None if value is None else read_holder(value).until_ms
            if value is None or (until_ms is not None and until_ms <= now_ms):
                found.append(record)
    return found


def _lines(client: Client, queue: str, ids: Sequence[str]) -> Iterator[tuple[str, str | None]]:
    """Jobs and their state lines in Redis, None for those that it does not have."""
    calls = client.calls
    keys = queue_keys(queue, calls.delivery.prefix)
    for begin in range(0, len(ids), CHUNK):
        chunk = ids[begin : begin + CHUNK]
        lines = client.run(read_lines(calls.delivery, keys, chunk))
        yield from zip(chunk, lines, strict=True)


def _lost(
    database: Database, queue: str, ids: Sequence[str]
) -> Iterator[tuple[LostJob, list[Restoration]]]:
    """The jobs that SQL still takes for live or lost, in order, and what puts each back, or keeps what its end left
    behind, if anything does."""
    with database.readers.connect() as connection:
        orphaned = orphans.ranges(connection, queue)
        for begin in range(0, len(ids), CHUNK):
            yield from _lost_chunk(connection, queue, ids[begin : begin + CHUNK], orphaned)


def _lost_chunk(
    connection: Connection, queue: str, ids: Sequence[str], orphaned: Sequence[orphans.Range]
) -> Iterator[tuple[LostJob, list[Restoration]]]:
    of_jobs = {"queue": queue, "ids": list(ids)}
    stands = {row.job_id: row for row in connection.execute(_STANDS, of_jobs)}
    rows = rebuild.events_of(connection, queue, list(stands))
    told = tell(rows, orphaned)
    places = Places(connection, queue)
    folds = Folder(queue, ()), Folder(queue, ())
    for row in rows:
        intake = rebuild.intake_of(row)
        if intake is not None:
            folds[1].add(intake)
            if not orphans.in_any(intake.id, orphaned):
                folds[0].add(intake)
    for job_id in ids:
        if job_id not in stands:
            continue
        row = stands[job_id]
        uncertain = places.of(job_id, OutboxId(row.last_epoch, row.last_seq))
        if row.state == GONE and uncertain is None:
            continue  # A baseline has ended it since it was missed.
        job = folds[0].touched.get(job_id) or folds[1].touched[job_id]
        was = row.state if row.state in LIVE else row.reason
        lost, record = judge(job, told[job_id], was, uncertain, missing=row.state in LIVE)
        if record is not None and (later := _taken_since(connection, queue, job)) is not None:
            lost, record = replace(lost, over=f"job {later} has taken its name since"), None
        window = named(job_id, job.unique_name, job.name_stands, 0) if lost.over else None
        yield lost, [each for each in (record, window) if each is not None]


def _taken_since(connection: Connection, queue: str, job: Job) -> str | None:
    """The job that has taken the name of a lost one since; None if there is none, or the lost one held it no more."""
    if job.unique_name is None:
        return None
    stands = read_stands(job.name_stands)
    if stands.how == "claim" and job.claims:
        return None
    of_name = {
        "queue": queue,
        "name": job.unique_name,
        "job": job.job_id,
        "at": job.enqueued_at_ms,
        "until": stands.at_ms if stands.how == "until" else INTEGER_MAX,
    }
    found: str | None = connection.execute(_TAKEN_SINCE, of_name).scalar()
    return found


def _revived(
    database: Database, queue: str, lines: dict[str, str]
) -> Iterator[tuple[RevivedJob, Restoration | None]]:
    """Those of some jobs that had ended, and have had no other life since; and what makes Redis remember the id of
    each, once it is taken out, if anything has to."""
    ids = list(lines)
    with database.readers.connect() as connection:
        orphaned = orphans.ranges(connection, queue)
        for begin in range(0, len(ids), CHUNK):
            chunk = ids[begin : begin + CHUNK]
            told = tell(rebuild.events_of(connection, queue, chunk), orphaned)
            for job_id in chunk:
                end = told[job_id].end if job_id in told else None
                if end is not None:
                    yield _revived_job(lines[job_id], told[job_id], job_id, *end)


def _revived_job(
    line: str, told: Told, job_id: str, event: str, at: OutboxId
) -> tuple[RevivedJob, Restoration | None]:
    fields = read_job(job_id, line).fields
    once, fence = fields.get("once"), told.fence
    record = forgotten(
        job_id, event, told.end_ms, None if once is None else int(once), fields.get("call"),
        claimed=fence is not None, fence=fence,
    )  # fmt: skip
    return RevivedJob(job_id, event, str(at), line.partition(" ")[0]), record
