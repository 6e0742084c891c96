"""Restores lost jobs and schedules to Redis, and removes revived jobs from Redis, for ``audit restore``.

    done = restore_jobs(client, database, "mail", by="ada")

A lost job can be restored if the log has its arguments (``audit_payload="full"``). :mod:`sql_audit.upkeep.survey` finds
the jobs and changes nothing.

The changes are sent in calls of a few hundred jobs. Redis carries out each call completely or not at all. If a restore
was killed, run it again: the next run does the rest. A job that may have ended in a gap of the log is *uncertain*. It
is restored only with ``accept_gaps``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from rq_core.connections.client import Client
from rq_core.errors import AuditBacklogFull, RestoredMeanwhile
from rq_core.model.events import OutboxId
from rq_core.model.keys import queue_keys
from rq_core.protocol.calls.admin import IDS_CHUNK
from rq_core.protocol.calls.audit import Restoration, take_out
from rq_core.protocol.calls.boxes import BATCH_MAX
from rq_core.protocol.calls.enqueue import ENQUEUE_CHUNK_BYTES
from sql_audit.errors import MirrorBehind
from sql_audit.queries.history import audit_id
from sql_audit.store.connection.database import Database
from sql_audit.store.connection.statements import CURSOR
from sql_audit.upkeep.lost import LostJob
from sql_audit.upkeep.lost_boxes import lost_boxes
from sql_audit.upkeep.lost_pauses import LostPause, put_pauses_back
from sql_audit.upkeep.lost_rates import put_rates_back
from sql_audit.upkeep.lost_results import with_results
from sql_audit.upkeep.lost_schedules import LostSchedule, lost_schedules, put_back, stored_entries
from sql_audit.upkeep.survey import Differences, find_differences, lost_jobs, revived_jobs

POLL_S: Final = 0.05
"""Seconds between two checks whether the mirror has caught up, and between two tries of a call."""
ROUNDS_MAX: Final = 10
"""Maximum number of times that a restore compares a queue in SQL and Redis, and repairs the differences. It does so
again if another restore changed the queue in the meantime."""
PAIRS_MAX: Final = BATCH_MAX // 2
"""Maximum number of revived jobs (ended in SQL, live in Redis) in one call. The same call removes a job and makes Redis
remember the job's id. With two calls, a parent that looks between them would find its child gone."""
WHY: Final = "audit restore"
OTHER_BOX: Final = (
    "nothing was put back, since Redis has a box with other numbers of entries or signals: run"
    " `rq-core doctor {queue} --audit URL --repair`"
)
_OF_BOXES: Final = ("entry", "lost")
"""Kinds of the records that put back the steps and signals of durable jobs."""


@dataclass(slots=True)
class Applied:
    """The numbers of changes that :func:`restore_jobs` made, and the jobs that it did not restore or remove."""

    restored: int = 0
    removed: int = 0
    remembered: int = 0
    """Number of ids that Redis remembers again, although their jobs have ended. Redis also has the jobs' results again
    if the log has them."""
    named: int = 0
    """Number of unique names that ended jobs hold again in Redis, until a fixed time."""
    scopes: list[str] = field(default_factory=list)
    """The scopes (such as the jobs of one tenant) of the rates and breakers that have their use, failures or pauses in
    Redis again."""
    pauses: list[LostPause] = field(default_factory=list)
    """Pauses and resumes by operators that Redis had lost, and that are in force again."""
    over: list[LostJob] = field(default_factory=list)
    """Lost jobs that were not restored, since they need not run again."""
    uncertain: list[LostJob] = field(default_factory=list)
    """Jobs that were not restored, since they may have ended in a gap; empty with ``accept_gaps``."""
    unknown: list[LostJob] = field(default_factory=list)
    """Lost jobs that could not be restored."""
    held: list[str] = field(default_factory=list)
    """Ids of lost jobs that were not restored, since another job holds their unique name."""
    alive: dict[str, str] = field(default_factory=dict)
    """By id of a lost job that was not restored, because Redis has the job again: its state. ``remembered`` means that
    another job with the id has ended after the loss."""
    schedules: list[LostSchedule] = field(default_factory=list)
    """Changes of schedules that Redis had lost, and that are in force again."""
    schedules_left: list[LostSchedule] = field(default_factory=list)
    """Changes of schedules that could not be put back, or that may have been changed again in a gap."""
    boxes: int = 0
    """Number of jobs in Redis whose saved steps were put back."""
    steps_lost: list[str] = field(default_factory=list)
    """Ids of jobs whose saved steps are lost, since the log does not have all steps. The next step of such a job
    fails."""
    why_lost: dict[str, str] = field(default_factory=dict)
    """By job id: the reason why saved steps were not put back although the log has them. Either the log was changed, or
    Redis has a box of the job with another number of steps or signals. These jobs are also in ``steps_lost``."""
    signals_lost: list[str] = field(default_factory=list)
    """Ids of jobs that have lost signals, since the log does not have the signals' values. The senders must send these
    signals again."""
    left: dict[str, str] = field(default_factory=dict)
    """By id of a revived job (ended in SQL, live in Redis) that was not removed, since it has changed or a worker has
    claimed it: its state."""

    @property
    def complete(self) -> bool:
        """Return whether no job and no schedule is left for an operator to decide."""
        return not (
            self.unknown or self.left or self.uncertain or self.schedules_left
            or self.steps_lost or self.signals_lost
        )  # fmt: skip


def restore_jobs(
    client: Client,
    database: Database,
    queue: str,
    *,
    by: str,
    accept_gaps: bool = False,
    wait_s: float = 30.0,
    on_progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> Applied:
    """Restore the lost jobs of a queue. Remove the queue's revived jobs, since these jobs have ended according to the
    log. Return the changes.

    Ids, names, steps, schedules, and the use and pauses of scopes that Redis forgot are put back, too. A job that may
    have ended in a gap of the log may run a second time, so it is restored only with ``accept_gaps``. A revived job
    with a claim in force may be half done, so it is left to its worker. ``wait_s`` is the number of seconds that the
    mirror may need to catch up. ``on_progress`` is called with two counts: the jobs, ids and names that were handled so
    far, and all jobs, ids and names to handle.

    Raise MirrorBehind if the mirror does not catch up. Raise RestoredMeanwhile if another restore keeps changing the
    queue. Raise the errors of Redis and SQL.
    """
    with database.readers.connect() as connection:
        cursor = connection.execute(CURSOR, {"queue": queue}).one_or_none()
    if cursor is not None and cursor.epoch is not None:
        client.calls.delivery.set_floor(queue, cursor.epoch)
    # The handshake may begin an epoch, which shows the mirror what is lost. The mirror itself must create a missing
    # queue: a queue created here would have no stamp, and the mirror could not tell this Redis from another.
    if client.run(client.calls.reads.is_there(queue)):
        client.run(client.calls.delivery.handshake(queue))
    done = Applied()
    for turn in range(ROUNDS_MAX):
        wait_level(client, database, queue, wait_s)
        if turn == 0:
            # Rates come before jobs, because workers may claim each restored job at once.
            done.scopes = put_rates_back(client, database, queue, by=by)
            done.pauses = put_pauses_back(client, database, queue, by=by)
        gap = find_differences(client, database, queue)
        entries = stored_entries(client, queue)
        wait_level(client, database, queue, wait_s)
        done.over, done.uncertain, done.unknown, done.held = [], [], [], []
        done.alive, done.left, done.why_lost = {}, {}, {}
        done.steps_lost, done.signals_lost = [], []
        try:
            _carry_out(
                client, database, queue, gap, done, by, wait_s, on_progress, accept_gaps=accept_gaps
            )
        except RestoredMeanwhile:
            if turn == ROUNDS_MAX - 1:
                raise
        else:
            break
    lost = lost_schedules(database, queue, entries)
    made = dict(put_back(client, queue, lost, by=by, why=WHY, accept_gaps=accept_gaps))
    done.schedules = [each for each, outcome in made.items() if outcome == "changed"]
    done.schedules_left = [each for each in lost.found if made.get(each) != "changed"]
    return done


def wait_level(client: Client, database: Database, queue: str, wait_s: float) -> None:
    """Wait until the mirror has caught up: SQL must have the entry that was the last in Redis' outbox when the wait
    began.

    Raise MirrorBehind after ``wait_s`` seconds.
    """
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
    gap: Differences,
    done: Applied,
    by: str,
    wait_s: float,
    on_progress: Callable[[int, int], None],
    *,
    accept_gaps: bool,
) -> None:
    of = len(gap.missing) + len(gap.revived) + len(gap.windows) + len(gap.names)
    count, last = 0, gap.last

    def send(records: list[Restoration]) -> bool:
        """Send the records to Redis. Return whether Redis accepted all records of steps and signals."""
        nonlocal last
        are_kept = True
        records = with_results(client, database, queue, records)
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
            done.restored += answer.by_record.count("restored")
            done.removed += answer.by_record.count("removed")
            for record, outcome in zip(chunk, answer.by_record, strict=True):
                if record.kind in _OF_BOXES:
                    are_kept = are_kept and outcome == "kept"
                elif record.kind in ("remember", "name"):
                    done.remembered += outcome == "remembered"
                    done.named += outcome == "named"
                elif outcome == "held":
                    done.held.append(record.id)
                elif outcome not in ("restored", "removed", "gone"):
                    others = done.left if record.kind == "remove" else done.alive
                    others[record.id] = outcome
        return are_kept

    # Ids and names of ended jobs come first, so that no repeated call, and no restored job, begins under them.
    for windows in (gap.windows, gap.names):
        for begin in range(0, len(windows), IDS_CHUNK):
            send(chunk := windows[begin : begin + IDS_CHUNK])
            on_progress(count := count + len(chunk), of)
    # Then revived jobs are removed: a lost job may have taken the name of one of them.
    for begin in range(0, len(gap.revived), PAIRS_MAX):
        lines = dict(list(gap.revived.items())[begin : begin + PAIRS_MAX])
        pairs = []
        for each, record in revived_jobs(database, queue, lines):
            pairs.append(take_out(each.job_id, lines[each.job_id], each.finished))
            pairs += [] if record is None else [record]
        send(pairs)
        on_progress(count := count + len(lines), of)
    _boxes_again(database, queue, gap.boxes, done, send)
    for begin in range(0, len(gap.missing), IDS_CHUNK):
        ids = gap.missing[begin : begin + IDS_CHUNK]
        for records in _jobs_again(database, queue, ids, done, accept_gaps=accept_gaps):
            send(records)
        on_progress(count := count + len(ids), of)


def _boxes_again(
    database: Database,
    queue: str,
    lives: dict[str, str],
    done: Applied,
    send: Callable[[list[Restoration]], bool],
) -> None:
    """Put back the lost steps and signals of durable jobs that Redis has. ``lives`` are the ids of the jobs' boxes, in
    which Redis keeps them, by job id.
    """
    for job_id, box in lost_boxes(database, queue, lives):
        if box.records is None or not send(box.records):
            done.steps_lost.append(job_id)
            why = OTHER_BOX.format(queue=queue) if box.records else box.why_lost
            if why is not None:
                done.why_lost[job_id] = why
            continue
        done.boxes += 1
        if box.signals_lost:
            done.signals_lost.append(job_id)


def _jobs_again(
    database: Database, queue: str, ids: list[str], done: Applied, *, accept_gaps: bool
) -> Iterable[list[Restoration]]:
    """Return the records that restore lost jobs: one list for each kind of record. The lists are in the order in which
    they must be sent.
    """
    kinds = ("remember", "name", "entry", "restore")
    by_kind: dict[str, list[Restoration]] = {kind: [] for kind in kinds}
    for lost, found in lost_jobs(database, queue, ids):
        if lost.uncertain and not lost.over and not accept_gaps:
            done.uncertain.append(lost)
            continue
        for record in found:
            kind = "entry" if record.kind in _OF_BOXES else record.kind
            by_kind.get(kind, by_kind["restore"]).append(record)
        if lost.steps_lost and found:
            done.steps_lost.append(lost.job_id)
            if lost.why_lost is not None:
                done.why_lost[lost.job_id] = lost.why_lost
        if lost.signals_lost and found:
            done.signals_lost.append(lost.job_id)
        if lost.over or not found:
            (done.over if lost.over else done.unknown).append(lost)
    return by_kind.values()


def _chunks(records: Iterable[Restoration]) -> Iterator[list[Restoration]]:
    """Yield the records in chunks that each fit into one call.

    A chunk ends after BATCH_MAX records, or after the record with which its texts reach ENQUEUE_CHUNK_BYTES. So a call
    has both records of a revived job if there are at most PAIRS_MAX of these jobs: the first of the two records has no
    text.
    """
    chunk: list[Restoration] = []
    size = 0
    for record in records:
        chunk.append(record)
        size += len(record.spec)
        if size >= ENQUEUE_CHUNK_BYTES or len(chunk) == BATCH_MAX:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
